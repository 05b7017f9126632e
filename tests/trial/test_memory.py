"""The fold: what is known is a function of the log, whoever reads it and wherever it starts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import StoreError
from drimed.policies.state import to_arrays
from drimed.trial import memory as memories
from drimed.trial import snapshots
from drimed.trial.events import Draft, chain
from drimed.trial.memory import Memory, groups
from drimed.trial.outcomes import Report
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.test_trial import KNOWN, new, play
from tests.trial.trials import SMALL

KINDS: dict[str, dict[str, Any]] = {
    "learned": {},
    "known": {"noise": KNOWN},
    "learned reward": {"policy": {"name": "dri_med_reward"}},
    "budget": {"policy": {"name": "dri_med", "guard": "budget"}},
    "discounted": {"policy": {"name": "d_lin_ucb"}},
    "remembering rule": {"policy": {"name": "w_solid"}},
    "published": {"policy": {"name": "published_dri_med"}, "noise": KNOWN},
}
EACH = pytest.mark.parametrize("changes", KINDS.values(), ids=KINDS)


def eventful(**changes: Any) -> Trial:
    """A bit of everything: 20 users join, so that arrays must grow, and two arms."""
    trial = new(**changes)
    play(trial, 3)
    for i in range(16):
        trial.add_user(f"late {i}", {})
    trial.add_arm("fourth")
    play(trial, 2, seed=1)
    trial.tell(5, {"yield": 5e11, "cost": 1.0})
    trial.amend(5, {"yield": 5.0}, reason="typo")
    trial.mark_missing(10, reason="hail")
    trial.change_preference("north", {"yield": 3.0}, reason="prices")
    trial.retire_arm("third", reason="sold out")
    trial.add_arm("fifth")
    play(trial, 2, seed=2)
    trial.pause(reason="frost")
    return trial


def everything(memory: Memory) -> dict[str, Any]:
    known = {name: array.tobytes() for name, array in to_arrays(memory.state).items()}
    return known | {
        "spec": memory.spec,
        "users": memory.users,
        "definitions": memory.definitions,
        "episode": memory.episode,
        "counts": memory.counts,
        "pulls": memory.pulls,
        "retired": memory.retired,
        "status": memory.status,
        "at": (memory.seq, memory.hash),
        "room": memory.room,
    }


@EACH
def test_folding_step_by_step_at_once_or_from_a_snapshot_is_the_same(changes: dict[str, Any]) -> None:
    trial = eventful(**changes)
    lived = everything(trial.memory())
    with trial.store.reading("t") as ledger:
        start = Memory.at_start(ledger)
        assert everything(start.caught_up(ledger)) == lived
        ends = [group[-1][0].seq for group in groups(ledger, after=1, until=None)]  # of transactions
        for stop in ends[5 :: len(ends) // 6]:
            half = Memory.at_start(ledger).caught_up(ledger, stop)
            assert half.seq == stop
            kept = snapshots.restore(start.created, snapshots.take(half))
            assert everything(kept) == everything(half)
            assert everything(kept.caught_up(ledger)) == lived


@EACH
def test_reading_in_small_portions_changes_nothing(changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    trial = eventful(**changes)
    lived = everything(trial.memory())
    monkeypatch.setattr(memories, "CHUNK", 3)
    with trial.store.reading("t") as ledger:
        assert everything(Memory.at_start(ledger).caught_up(ledger)) == lived


def test_decisions_of_one_question_stay_together_in_portions_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    trial = new(decisions="any number")
    trial.ask()
    trial.ask("north")
    trial.ask()
    sizes = []
    for chunk in (1, 2, 5, 100):
        monkeypatch.setattr(memories, "CHUNK", chunk)
        with trial.store.reading("t") as ledger:
            sizes.append([len(group) for group in groups(ledger, after=1, until=None)])
    assert sizes == [[1, 3, 1, 3]] * 4


def test_an_arm_that_joins_leaves_what_is_known_of_the_others_alone() -> None:
    """The coefficients have one more place; those that there were keep their estimates."""
    trial = new(noise=KNOWN)
    play(trial, 6)
    before = trial.memory()
    theta = before.policy.theta(before.state)
    trial.add_arm("fourth")
    after = trial.memory()
    grown = after.policy.theta(after.state)
    assert (theta.shape, grown.shape) == ((8,), (10,))
    np.testing.assert_allclose(grown[:8], theta, rtol=1e-9, atol=1e-12)
    assert not grown[8:].any()


def test_users_that_join_leave_what_is_known_alone() -> None:
    trial = new(policy={"name": "dri_med_reward"})
    play(trial, 6)
    before = trial.memory().policy.theta(trial.memory().settled())
    for i in range(40):
        trial.add_user(f"late {i}", {})
    after = trial.memory().policy.theta(trial.memory().settled())
    assert trial.memory().room.users == 64
    np.testing.assert_allclose(after, before, rtol=1e-6)


def test_a_settled_state_is_computed_once_and_not_kept_unless_something_is_decided() -> None:
    trial = new()
    play(trial, 4)
    trial.open_episode()
    memory = trial.memory()
    state = memory.state
    assert memory.settled() is memory.settled()
    assert memory.state is state
    trial.ask("north", dry_run=True)
    assert trial.memory().state is state


def test_a_log_that_does_not_begin_with_a_creation_is_refused() -> None:
    store = MemoryStore()
    with store.create("t") as ledger:
        ledger.append(chain([Draft("episode", {})], seq=0, hash="", time="", actor=""))
    with pytest.raises(StoreError, match="does not begin with its creation"):
        Trial.open("t", store)


def test_a_decision_is_learned_from_with_the_profile_that_it_was_made_for() -> None:
    """Preferences that change between decision and outcome change neither its reward nor its features."""
    early, late = new(policy={"name": "oful"}), new(policy={"name": "oful"})
    for trial in (early, late):
        trial.ask()
    early.tell_many([Report(i, {"yield": 5.0 + i, "cost": 9.0}) for i in (1, 2, 3)])
    for trial in (early, late):
        trial.change_preference("north", {"yield": 7.0}, reason="prices")
    late.tell_many([Report(i, {"yield": 5.0 + i, "cost": 9.0}) for i in (1, 2, 3)])
    one, other = (t.memory().policy.theta(t.memory().state) for t in (early, late))
    assert np.array_equal(one, other)


def test_stories_are_told_as_a_memory_knows_them() -> None:
    """Whoever reads a trial while others write to it sees one state of it."""
    trial = Trial.create(SMALL, MemoryStore())
    given = trial.ask()
    memory = trial.memory().as_it_stands()
    trial.tell(given[0].id, {"yield": 5.0})
    trial.open_episode()
    trial.ask()
    assert [(s.decision, s.outcome) for s in trial.stories(memory)] == [(1, None), (2, None)]
    assert [s.outcome is not None for s in trial.stories(trial.memory())] == [True, False, False, False]


def test_a_process_that_knows_more_than_the_log_forgets_it() -> None:
    """After a backup was put back the log may end earlier, or go on differently."""
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.ask("north")
    known = trial._recorder._memory
    assert known is not None
    known.seq, known.hash = known.seq + 5, "another log"
    assert trial.status().decisions == 1
    known = trial._recorder._memory
    assert known is not None
    known.hash = "another log"
    trial.ask("south")
    assert verify(store, "small").ok


def test_an_arm_that_joins_leaves_a_snapshot_so_that_nobody_folds_the_whole_past_again() -> None:
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    trial.ask()
    trial.add_arm("late")
    with store.reading("small") as ledger:
        assert ledger.snapshot_seq() == ledger.seq
    assert Trial.open("small", store).memory().problem.arms == ["old", "new", "late"]
