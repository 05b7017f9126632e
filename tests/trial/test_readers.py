"""Readers and writers at once: a reader sees one moment, waits for nobody, and notices a log that was set back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import pytest
import sqlalchemy as sa

from drimed.records import AskRequest, Report
from drimed.trial import ask, queries, tell, transaction
from drimed.trial.state import catch_up, start_of
from drimed.trial.store import MemoryStore, Store, open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.states import contents
from tests.trial.trials import BUSY, SMALL, outcome

WAIT = 20.0  # seconds: somebody who waits for a writer would wait longer


def elsewhere(task: Callable[[], Any]) -> Any:
    """What a task in another thread returns."""
    results: Queue[Any] = Queue()

    def run() -> None:
        try:
            results.put((task(), None))
        except BaseException as error:
            results.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    found, error = results.get(timeout=WAIT)
    if error is not None:
        raise error
    return found


# Readers and writers


def test_a_reader_sees_one_moment_while_others_write(store: Store) -> None:
    trial = Trial.create(SMALL, store)
    given = trial.ask_many()
    with trial.reading() as (ledger, state):
        before = contents(state)

        def write() -> None:
            trial.tell(given[0].id, {"yield": 5.0})
            trial.open_episode()
            trial.ask_many()

        elsewhere(write)
        assert [(d.id, d.state) for d in queries.decisions(ledger, state)] == [(1, "pending"), (2, "pending")]
        assert (ledger.seq, contents(state)) == (state.seq, before)
    assert [d.state for d in trial.decisions()] == ["complete", "pending", "pending", "pending"]


@pytest.mark.parametrize("shared", [True, False], ids=["one object", "two objects"])
def test_a_reader_never_waits_for_a_writer(store: Store, shared: bool) -> None:
    trial = Trial.create(SMALL, store)
    trial.ask_many()
    reader = trial if shared else Trial.open("small", store)
    before = contents(trial.state())
    with trial.writing() as tx:
        tell.tell(tx, [Report(1, {"yield": 5.0})])
        ask.open_episode(tx)
        ask.ask(tx, AskRequest())
        assert elsewhere(lambda: contents(reader.state())) == before
        assert elsewhere(reader.status).decisions == 2
        assert elsewhere(lambda: reader.decision(1)).state == "pending"
        assert [d.state for d in elsewhere(lambda: list(reader.decisions()))] == ["pending", "pending"]
        assert elsewhere(lambda: [d.repeated for d in reader.ask_many(dry_run=True)]) == [True, True]
        assert elsewhere(lambda: verify(store, "small")).ok
        assert elsewhere(lambda: Trial.open("small", store)).status().decisions == 2
    status = reader.status()
    assert (status.decisions, status.complete, status.pending) == (4, 1, 3)


def test_what_a_failed_transaction_did_was_never_there(store: Store) -> None:
    trial = Trial.create(SMALL, store)
    trial.ask_many()
    held = trial.state()

    def fail() -> None:
        with trial.writing() as tx:
            tell.tell(tx, [Report(1, {"yield": 5.0})])
            assert tx.state.counts.complete == 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert trial.state() is held
    assert trial.tell(1, {"yield": 6.0}).result == "recorded"
    assert verify(store, "small").ok


def test_two_threads_that_write_through_one_object_lose_nothing(store: Store) -> None:
    trial = Trial.create(BUSY, store)
    threads, each = 2, 15
    errors: list[BaseException] = []
    given: list[int] = []

    def work(user: str) -> None:
        try:
            for _ in range(each):
                one = trial.ask(user)
                given.append(one.id)
                trial.tell(one.id, outcome(one.id, one.arm))
                trial.status()
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=work, args=(f"site {i}",)) for i in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join(60)
    assert errors == []
    assert sorted(given) == list(range(1, threads * each + 1))
    status = trial.status()
    assert (status.decisions, status.complete) == (threads * each, threads * each)
    proof = verify(store, "busy")
    assert (proof.faults, proof.exact) == ([], threads * each)
    with store.reading("busy") as ledger:
        assert contents(catch_up(start_of(ledger), ledger)) == contents(trial.state())


# A store that was set back


def set_back(store: Store, name: str, seq: int) -> None:
    """As a backup that ended with event `seq` brings a store back; what was told later had no outcome before."""
    with store._engine.begin() as connection:
        trial = "(SELECT id FROM drimed_trials WHERE name = :name)"

        def run(statement: str) -> None:
            connection.execute(sa.text(statement), {"seq": seq, "name": name})

        told = f"SELECT decision FROM drimed_events WHERE seq > :seq AND trial = {trial} AND decision IS NOT NULL"
        run(f"DELETE FROM drimed_decisions WHERE seq > :seq AND trial = {trial}")
        run(f"UPDATE drimed_decisions SET state = 'pending' WHERE trial = {trial} AND decision IN ({told})")
        run(f"DELETE FROM drimed_events WHERE seq > :seq AND trial = {trial}")
        run(f"DELETE FROM drimed_snapshots WHERE seq > :seq AND trial = {trial}")
        run(
            f"UPDATE drimed_trials SET seq = :seq, hash = (SELECT hash FROM drimed_events WHERE trial = {trial} "
            "AND seq = :seq) WHERE name = :name"
        )


@pytest.mark.parametrize("more", [0, 1, 7], ids=lambda n: f"{n} events later")
@pytest.mark.parametrize("write", [False, True], ids=["reading", "writing"])
def test_a_store_that_was_set_back_is_noticed_and_read_again(address: str, more: int, write: bool) -> None:
    """However far it has gone on since: the next event must follow the last one that is known."""
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    for i in range(4):
        trial.ask(f"site {i}")
    before = trial.state()
    assert before.seq == 6
    trial.tell(4, outcome(4, "new"))
    trial.ask("site 3")
    assert trial.state().seq == 8
    set_back(store, "busy", before.seq)
    other = Trial.open("busy", store)
    for i in range(more):
        other.tell(i % 4 + 1, {"yield": 6.5}) if i < 4 else other.ask("site 0")
    if write:
        trial.pause(reason="frost")
    state = trial.state()
    assert trial.state() is state  # it was read again once
    with store.reading("busy") as ledger:
        assert ledger.seq == before.seq + more + write
        assert contents(state) == contents(catch_up(start_of(ledger), ledger))
    assert state.counts.decisions == 4 + max(0, more - 4)
    proof = verify(store, "busy")
    assert (proof.faults, proof.exact) == ([], proof.decisions)
    store.close()


def test_a_log_that_goes_on_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.ask("north")
    trial.state()
    other = Trial.open("small", store)
    other.tell(1, {"yield": 5.0})
    other.ask("south")

    def read_again(*_: object) -> None:
        raise AssertionError("the whole log was read again")

    monkeypatch.setattr(transaction, "start_of", read_again)
    assert trial.status().decisions == 2
    trial.tell(2, {"yield": 5.0})
    assert contents(trial.state()) == contents(other.state())
