"""A decision that takes long is taken outside the store's lock; what is recorded is the same."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from drimed.trial import ask, transaction
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import BUSY

PATIENCE = 60.0


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[threading.Event, threading.Event]]:
    """Decisions for `site 0` wait for the second event, and say by the first that they do."""
    waiting, go = threading.Event(), threading.Event()
    plain = ask.decide

    def slow(state: Any, questions: Any, *seed: Any) -> Any:
        if state.profiles[questions[0].profile].user == "site 0" and not go.is_set():
            waiting.set()
            assert go.wait(PATIENCE)
        return plain(state, questions, *seed)

    monkeypatch.setattr(ask, "decide", slow)
    yield waiting, go
    go.set()


def done_meanwhile(slow: Trial, held: tuple[threading.Event, threading.Event], beside: Callable[[], object]) -> bool:
    """Ask slowly, and do something beside that: whether it ended before the decision did."""
    waiting, go = held
    asking, other = threading.Thread(target=lambda: slow.ask("site 0")), threading.Thread(target=beside)
    asking.start()
    assert waiting.wait(PATIENCE)
    other.start()
    other.join(10)
    in_time = not other.is_alive()
    go.set()
    for thread in (asking, other):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return in_time


def test_a_slow_decision_holds_up_no_other_trial(address: str, held: tuple[threading.Event, threading.Event]) -> None:
    store = open_store(address)
    slow, other = Trial.create(BUSY, store), Trial.create(BUSY | {"name": "other"}, store)
    assert done_meanwhile(slow, held, lambda: other.ask("site 1"))
    assert (slow.status().decisions, other.status().decisions) == (1, 1)
    store.close()


def test_what_is_told_meanwhile_is_known_to_the_decision(
    address: str, held: tuple[threading.Event, threading.Event]
) -> None:
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    first = trial.ask("site 1")
    trial.slow = True
    told = Trial.open(trial.name, store)
    assert done_meanwhile(trial, held, lambda: told.tell(first.id, {"yield": 5.0}))
    events = list(trial.log())
    assert [e.kind for e in events][-2:] == ["outcome", "decision"]
    assert events[-1].body["state"] == events[-2].seq  # taken again, after the outcome
    proof = verify(store, trial.name)
    assert (proof.ok, proof.exact) == (True, 2)
    store.close()


def test_after_some_attempts_a_decision_is_taken_under_the_lock(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(address)
    trial = Trial.create(BUSY, store)
    other = Trial.open(trial.name, store)
    plain, calls = ask.decide, list[int]()

    def overtaken(state: Any, questions: Any, *seed: Any) -> Any:
        calls.append(state.seq)
        if len(calls) <= transaction.ATTEMPTS:
            other.add_user(f"new {len(calls)}", {})
        return plain(state, questions, *seed)

    monkeypatch.setattr(ask, "decide", overtaken)
    given = trial.ask("site 0", key="k")
    assert len(calls) == transaction.ATTEMPTS + 1
    assert given.id == 1
    assert trial.status().decisions == 1
    assert trial.ask("site 0", key="k").id == 1  # the key is in the log, once
    assert verify(store, trial.name).ok
    store.close()


def test_the_newest_decision_says_whether_the_next_is_taken_under_the_lock_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, reading, read = open_store(address), Trial.reading, list[Trial]()
    trial = Trial.create(BUSY, store)

    def counted(session: Trial) -> Any:  # a decision without the lock begins with it
        read.append(session)
        return reading(session)

    monkeypatch.setattr(Trial, "reading", counted)
    for quick, without in ((PATIENCE, True), (PATIENCE, False), (0.0, False), (PATIENCE, True), (PATIENCE, False)):
        monkeypatch.setattr(transaction, "QUICK", quick)
        read.clear()
        trial.ask("site 0")
        assert bool(read) == without  # the first one, and the one after a slow one
    store.close()


def test_a_snapshot_that_is_due_does_not_make_a_slow_decision_be_taken_again(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "SNAPSHOT_EVERY", 3)
    store, taken = open_store(address), list[int]()
    trial, plain = Trial.create(BUSY, store), ask.decide

    def counted(state: Any, questions: Any, *seed: Any) -> Any:
        taken.append(state.seq)
        return plain(state, questions, *seed)

    monkeypatch.setattr(ask, "decide", counted)
    for i in range(6):
        trial.slow = True
        trial.tell(trial.ask(f"site {i % 4}").id, {"yield": 5.0})
    assert len(taken) == 6
    assert any(event.kind == "snapshot" for event in trial.log())
    assert verify(store, trial.name).ok
    store.close()
