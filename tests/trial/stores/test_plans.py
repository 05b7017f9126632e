"""What a decision costs must not grow with the trial: no statement walks through all of its events."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from queue import Queue
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.errors import StoreError
from drimed.trial import store as stores
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from tests.trial.trials import BUSY, outcome


def test_no_statement_of_the_daily_work_walks_through_the_whole_trial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "MOST_NAMES", 3)  # of four decisions the last is fetched alone
    store = open_store(str(tmp_path / "trials.db"))
    seen: set[str] = set()

    @sa.event.listens_for(store._engine, "checkout")
    def _(connection: Any, _record: Any, _proxy: Any) -> None:
        connection.set_trace_callback(seen.add)

    trial = Trial.create(BUSY, store)
    for i in range(3):
        given = trial.ask_many(key=f"k{i}")
        trial.ask_many(key=f"k{i}")
        trial.ask("site 0", key=f"one {i}")
        trial.tell(given[0].id, outcome(given[0].id, given[0].arm))
        trial.decisions([g.id for g in given])
        trial.amend(given[0].id, {"yield": 4.0}, reason="r")
        trial.mark_missing(given[1].id, reason="r")
        trial.open_episode()
    store.close()

    reads = [s for s in seen if "FROM drimed_events" in s]
    assert any("request = 'k1'" in s for s in reads)
    assert any("decision IN" in s for s in reads)
    with closing(sqlite3.connect(tmp_path / "trials.db")) as plain:
        for statement in reads:
            steps = [row[3] for row in plain.execute(f"EXPLAIN QUERY PLAN {statement}")]
            assert steps
            for step in steps:
                assert not step.startswith("SCAN"), (statement, step)
                assert not step.endswith("(trial=?)"), (statement, step)


def test_as_many_threads_as_said_may_use_a_store_at_a_time(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "trials.db"), connections=30)
    Trial.create(BUSY, store)
    with ExitStack() as held:
        ledgers = [held.enter_context(store.reading("busy")) for _ in range(30)]
        assert {ledger.seq for ledger in ledgers} == {1}
    store.close()


def test_whoever_waits_for_a_turn_gives_up_when_told_to(tmp_path: Path) -> None:
    store, other = (open_store(str(tmp_path / "trials.db")) for _ in range(2))
    trial = Trial.create(BUSY, store)
    failures: Queue[Exception] = Queue()

    def ask() -> None:
        try:
            trial.ask("site 0")
        except StoreError as error:
            failures.put(error)

    with other.writing("busy"):
        waiting = threading.Thread(target=ask)
        waiting.start()
        store.stop_waiting()
        assert "locked" in str(failures.get(timeout=30))
        waiting.join()
    assert Trial.open("busy", other).status().decisions == 0
    store.close()
    other.close()


class Clock:
    """A clock that stands still but for the jumps that it is told to make, one at each sleep."""

    def __init__(self, *jumps: float, then: Callable[[], None]) -> None:
        self.now, self.jumps, self.then = 0.0, list(jumps), then

    def monotonic(self) -> float:
        return self.now

    def sleep(self, _seconds: float) -> None:
        if not self.jumps:
            self.then()
            return
        self.now += self.jumps.pop(0)


def test_whoever_was_stopped_while_waiting_did_not_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes stopped together, one of them with the store: the other must find its turn when both go on."""
    store, other = (open_store(str(tmp_path / "trials.db")) for _ in range(2))
    trial = Trial.create(BUSY, store)
    with ExitStack() as held:
        held.enter_context(other.writing("busy"))
        monkeypatch.setattr(stores, "time", Clock(10 * stores.PATIENCE, 0.001, then=held.close))
        assert trial.ask("site 0").id == 1
    store.close()
    other.close()


def test_waiting_ends_when_one_has_looked_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, other = (open_store(str(tmp_path / "trials.db")) for _ in range(2))
    trial = Trial.create(BUSY, store)
    with other.writing("busy"):
        looks = [stores.LONGEST_LOOK / 2] * int(2 * stores.PATIENCE / stores.LONGEST_LOOK + 2)
        monkeypatch.setattr(stores, "time", Clock(*looks, then=lambda: pytest.fail("it goes on for ever")))
        with pytest.raises(StoreError, match="locked"):
            trial.ask("site 0")
    store.close()
    other.close()
