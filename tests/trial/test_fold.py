"""The fold: what is known is a function of the log, whoever reads it and wherever it starts."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest

from drimed.errors import StoreError
from drimed.trial import snapshots
from drimed.trial import state as folding
from drimed.trial.events import Draft, Resumed, chain
from drimed.trial.state import OutgrownError, advance, catch_up, fold, grouped, start_of, with_decisions
from drimed.trial.store import Ledger, MemoryStore
from drimed.trial.trial import Trial
from tests.trial.playing import KNOWN, new, play
from tests.trial.states import contents
from tests.trial.trials import SMALL

PAPER = {"model": {"kind": "paper"}}
KINDS: dict[str, dict[str, Any]] = {
    "field": {},
    "people": {"model": {"kind": "people", "discount": 0.9}},
    "field with accounts": {"policy": {"name": "dri_med", "guard": "budget"}},
    "learned": PAPER,
    "known": {"noise": KNOWN},
    "learned reward": PAPER | {"policy": {"name": "dri_med_reward"}},
    "remembering rule": PAPER | {"policy": {"name": "w_solid"}},
    "budget": PAPER | {"policy": {"name": "dri_med", "guard": "budget"}},
    "discounted": PAPER | {"policy": {"name": "d_lin_ucb"}},
    "published": {"policy": {"name": "published_dri_med"}, "noise": KNOWN},
}
EACH = pytest.mark.parametrize("kind", KINDS)


def groups(ledger: Ledger) -> list[Any]:
    """All events but the first, in groups, each with its decision."""
    return list(grouped(with_decisions(start_of(ledger), ledger, ledger.events(after=1))))


@cache
def eventful(kind: str) -> Trial:
    """A bit of everything: 16 users join, so that arrays must grow, and two arms."""
    trial = new(**KINDS[kind])
    play(trial, 3)
    for i in range(16):
        trial.add_user(f"late {i}", {})
    trial.add_arm("fourth")
    play(trial, 2, seed=1)
    trial.tell(5, {"yield": 5e11, "cost": 1.0}, confirm=True)
    trial.amend(5, {"yield": 5.0}, reason="typo")
    trial.mark_missing(10, reason="hail")
    trial.tell(15, {"yield": 5.0})
    trial.mark_missing(15, reason="the scale broke")
    trial.change_preference("north", {"yield": 3.0}, reason="prices")
    trial.retire_arm("third", reason="sold out")
    trial.add_arm("fifth")
    play(trial, 2, seed=2)
    trial.pause(reason="frost")
    return trial


@EACH
def test_folding_step_by_step_at_once_or_from_a_snapshot_is_the_same(kind: str) -> None:
    trial = eventful(kind)
    lived = contents(trial.state())
    with trial.store.reading("t") as ledger:
        start = start_of(ledger)
        assert contents(catch_up(start, ledger)) == lived
        ends = [group[-1][0].seq for group in groups(ledger)]  # of transactions
        for stop in ends[5 :: len(ends) // (6 if start.spec.kind == "paper" else 2)]:
            half = catch_up(start_of(ledger), ledger, stop)
            assert half.seq == stop
            kept = snapshots.restore(start.created, snapshots.take(half))
            assert kept is not None
            assert contents(kept) == contents(half)
            assert contents(catch_up(kept, ledger)) == contents(catch_up(half, ledger)) == lived


@EACH
def test_the_fold_is_pure(kind: str) -> None:
    """Folded twice from one state, a group of events gives equal states, and the first one is as it was."""
    trial = eventful(kind)
    outgrown = 0
    with trial.store.reading("t") as ledger:
        state = start_of(ledger)
        for group in groups(ledger):
            before = contents(state)
            try:
                once, twice = fold(state, group), fold(state, group)
                assert once is not state
                assert contents(once) == contents(twice)
            except OutgrownError:
                outgrown += 1
                with pytest.raises(OutgrownError):
                    fold(state, group)
            following = advance(state, group, ledger)
            assert contents(state) == before
            assert contents(advance(state, group, ledger)) == contents(following)
            state = following
    assert outgrown >= 2  # two arms joined


def test_reading_in_small_portions_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = eventful("field with accounts")
    lived = contents(trial.state())
    monkeypatch.setattr(folding, "CHUNK", 3)
    with trial.store.reading("t") as ledger:
        assert contents(catch_up(start_of(ledger), ledger)) == lived


def test_decisions_of_one_question_stay_together_in_portions_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = new(decisions="any number")
    trial.ask_many()
    trial.ask("north")
    trial.ask_many()
    sizes = []
    for chunk in (1, 2, 5, 100):
        monkeypatch.setattr(folding, "CHUNK", chunk)
        with trial.store.reading("t") as ledger:
            sizes.append([len(group) for group in groups(ledger)])
    assert sizes == [[1, 3, 1, 3]] * 4


def test_an_arm_that_joins_leaves_what_is_known_of_the_others_alone() -> None:
    """The coefficients have one more place; those that there were keep their estimates."""
    trial = new(noise=KNOWN)
    play(trial, 6)
    before = trial.state()
    theta = before.policy.theta(before.learned)
    trial.add_arm("fourth")
    after = trial.state()
    grown = after.policy.theta(after.learned)
    assert (theta.shape, grown.shape) == ((8,), (10,))
    np.testing.assert_allclose(grown[:8], theta, rtol=1e-9, atol=1e-12)
    assert not grown[8:].any()


def test_a_log_that_does_not_begin_with_a_creation_is_refused() -> None:
    store = MemoryStore()
    with store.create("t") as ledger:
        ledger.append(chain([Draft(Resumed("x"))], seq=0, hash="", time="", actor=""))
    with pytest.raises(StoreError, match="does not begin with its creation"):
        Trial.open("t", store)


def test_an_arm_that_joins_leaves_a_snapshot_so_that_nobody_folds_the_whole_past_again() -> None:
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.ask_many()
    trial.add_arm("late")
    assert trial.state().snapshot[0] == trial.state().seq - 1  # and the hash of it is the last event
    assert Trial.open("small", store).state().problem.arms == ["old", "new", "late"]
