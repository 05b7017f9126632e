"""Writes that wait at the same time are recorded together, and each has its own answer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drimed.errors import DrimedError, HaltedError, InputError, StoreError
from drimed.records import AskRequest, Decision, Report
from drimed.trial import ask as asking
from drimed.trial import tell as telling
from drimed.trial import transaction
from drimed.trial.store import Ledger, Store, open_store
from drimed.trial.transaction import Transaction, Write
from drimed.trial.trial import Trial
from tests.trial.playing import verified
from tests.trial.trials import BUSY, outcome


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(str(tmp_path / "s.db"))
    yield opened
    opened.close()


def warm(store: Store, **changes: object) -> Trial:
    """A trial whose decisions are known to be quick."""
    trial = Trial.create(BUSY | changes, store)
    for _ in range(3):
        trial.ask("site 0")
    trial.slow = False
    return trial


def ask(user: str, actor: str | None = None) -> Write[list[Decision]]:
    return Write(lambda tx: asking.ask(tx, AskRequest(users=[user])), actor)


@pytest.fixture
def flushes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many events were written each time."""
    sizes, flush = list[int](), Ledger.flush

    def counted(ledger: Ledger) -> None:
        sizes.append(len(ledger.new))
        flush(ledger)

    monkeypatch.setattr(Ledger, "flush", counted)
    return sizes


def test_a_group_is_one_flush_and_reproduced_exactly(store: Store, flushes: list[int]) -> None:
    trial = warm(store)
    flushes.clear()
    answers = trial.commit_all([ask(f"site {i % 4}", f"clerk {i}") for i in range(10)])
    assert flushes == [10]
    ids = [a[0].id for a in answers if isinstance(a, list)]
    assert ids == list(range(4, 14))
    with store.reading(trial.name) as ledger:
        assert [e.actor for e in ledger.events(kinds=["decision"])][3:] == [f"clerk {i}" for i in range(10)]
    verified(trial)


def test_deciding_for_hundreds_at_once_does_not_end_groups(
    store: Store, flushes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transaction, "QUICK", 0.01)  # for each of them
    trial = warm(store, users={f"site {i}": {} for i in range(400)})
    trial.ask_many()
    flushes.clear()
    trial.commit_all([question(f"site {i}") for i in range(10)])
    assert flushes == [10]


def test_a_refused_write_leaves_nothing_and_the_others_stay(store: Store) -> None:
    trial = warm(store)

    def late_refusal(tx: Transaction) -> list[Decision]:
        asking.ask(tx, AskRequest(users=["site 1"]))
        telling.tell(tx, [Report(1, {"yield": "heavy"})])
        return []

    first, refused, last = trial.commit_all([ask("site 1"), Write(late_refusal), ask("site 2")])
    assert isinstance(refused, InputError)
    assert isinstance(first, list)
    assert isinstance(last, list)
    assert (first[0].id, last[0].id, trial.status().decisions) == (4, 5, 5)
    verified(trial)


def test_an_outcome_is_learned_before_the_next_decision_of_its_group(store: Store) -> None:
    together, apart = warm(store), warm(store, name="apart")

    def tell(tx: Transaction) -> list[Decision]:
        given = asking.ask(tx, AskRequest(users=["site 3"]))[0]
        telling.tell(tx, [Report(given.id, outcome(given.id, given.arm))])
        return [given]

    writes = [Write(tell), ask("site 3"), Write(tell), ask("site 0")]
    answers = together.commit_all(writes), [apart.commit(write) for write in writes]
    grouped, single = ([(d.arm, d.probabilities) for a in some if isinstance(a, list) for d in a] for some in answers)
    assert grouped == single
    assert len(grouped) == 4


def test_what_led_to_a_halt_is_recorded_and_its_caller_is_told(store: Store) -> None:
    trial = warm(store, stopping={"decisions": 5})
    *given, halted, refused = trial.commit_all([ask("site 1") for _ in range(4)])
    assert all(isinstance(a, list) for a in given)
    assert isinstance(halted, HaltedError)
    assert isinstance(refused, DrimedError)
    assert trial.status().status == "stopped"
    assert trial.status().decisions == 5
    verified(trial)


def test_when_the_store_fails_each_write_gets_its_own_answer(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    trial, flush, sizes = warm(store), Ledger.flush, list[int]()

    def fails(ledger: Ledger) -> None:
        sizes.append(len(ledger.new))
        if len(ledger.new) > 1 or len(sizes) == 3:
            raise StoreError("the disk is full")
        flush(ledger)

    monkeypatch.setattr(Ledger, "flush", fails)
    answers = trial.commit_all([ask(f"site {i}") for i in range(3)])
    assert sizes == [3, 1, 1, 1]
    assert [isinstance(a, DrimedError) for a in answers] == [False, True, False]
    assert trial.status().decisions == 5
    verified(trial)


def question(user: str, actor: str | None = None, **more: object) -> Write[list[Decision]]:
    request = AskRequest(users=[user], **more)  # type: ignore[arg-type]
    return Write(lambda tx: asking.ask(tx, request), actor, question=(request, lambda decisions: decisions))


def test_questions_about_different_users_are_decided_from_one_state_and_proved(store: Store) -> None:
    trial = warm(store)
    actors = [f"clerk {i}" for i in range(6)]
    answers = trial.commit_all([question(f"site {i % 4}", actors[i], key=f"k{i}") for i in range(6)])
    decisions = [a[0] for a in answers if isinstance(a, list)]
    assert [d.user for d in decisions] == [f"site {i % 4}" for i in range(6)]
    assert [d.actor for d in decisions] == actors
    states = [d.state_version for d in decisions]
    assert len(set(states)) == 2  # a user that is asked for twice needs a second state
    assert states == [states[0]] * 4 + [states[4]] * 2
    again = [trial.ask(d.user, key=f"k{i}") for i, d in enumerate(decisions)]
    assert [(d.id, d.arm, d.repeated) for d in again] == [(d.id, d.arm, True) for d in decisions]
    verified(trial)


def test_outcomes_of_a_group_are_learned_before_its_questions(store: Store) -> None:
    trial = warm(store)

    def tell(tx: Transaction) -> list[Decision]:
        telling.tell(tx, [Report(1, outcome(1, "old"))])
        return []

    answers = trial.commit_all([question("site 1"), Write(tell), question("site 2")])
    with store.reading(trial.name) as ledger:
        told = next(ledger.events(kinds=["outcome"])).seq
    assert [a[0].state_version for a in answers if isinstance(a, list) and a] == [told, told]
    verified(trial)


def test_a_question_that_is_refused_spoils_no_other(store: Store) -> None:
    trial = warm(store)
    asks = [question("site 1"), question("nobody"), question("site 2", unavailable=["new"]), question("site 3")]
    first, refused, without, last = trial.commit_all(asks)
    assert isinstance(refused, InputError)
    assert all(isinstance(a, list) and len(a) == 1 for a in (first, without, last))
    assert trial.status().decisions == 6
    verified(trial)


def test_a_rule_that_ends_the_trial_is_met_as_if_each_question_came_alone(store: Store) -> None:
    trial = warm(store, stopping={"decisions": 5})
    answers = trial.commit_all([question(f"site {i}") for i in range(4)])
    assert [isinstance(a, list) for a in answers] == [True, True, False, False]
    assert isinstance(answers[2], HaltedError)
    assert (trial.status().status, trial.status().decisions) == ("stopped", 5)
    verified(trial)


def test_new_users_join_with_the_questions_that_name_them(store: Store) -> None:
    trial = warm(store, enrolment="open")
    new, twice, odd = trial.commit_all([question("new one"), question("new one"), question(" ")])
    assert isinstance(odd, DrimedError)
    assert [a[0].user for a in (new, twice) if isinstance(a, list)] == ["new one"] * 2
    assert len(trial.state().users) == 5
    verified(trial)
