"""Changes to a running trial: users, arms, preferences, controls, and whether it decides at all."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from drimed.errors import ConflictError, DrimedError, InputError, SpecError, UnknownNameError
from drimed.records import Report
from drimed.trial.spec import Arm, User
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.playing import KNOWN, new, nothing_written, play, refused, verified
from tests.trial.trials import SMALL


def test_users_and_arms_may_join_while_the_trial_runs() -> None:
    trial = new()
    play(trial, 5)
    trial.add_user("east", {"preference": {"yield": 2.0}, "group": "sand"})
    trial.add_user("centre", User())
    trial.add_arm("fourth")
    trial.add_arm("fifth", Arm(about="the fourth, with more water"))
    trial.open_episode()
    given = trial.ask_many()
    assert [g.user for g in given] == ["north", "south", "west", "east", "centre"]
    assert set(given[0].probabilities) == {"old", "new", "third", "fourth", "fifth"}
    play(trial, 5, seed=1)
    assert {"fourth", "fifth"} & {r.arm for r in trial.decisions()}
    verified(trial)


def test_arms_with_attributes_or_maps_may_join_too() -> None:
    arms = {a: {"attributes": {"dose": float(i)}} for i, a in enumerate(("old", "new", "third"))}
    trial = new(arms=arms, noise=KNOWN)
    play(trial, 3)
    trial.add_arm("fourth", {"attributes": {"dose": 10.0}}, noise={"sd": {"yield": 2.0, "cost": 2.0}})
    play(trial, 3, seed=1)
    refused(trial, lambda: trial.add_arm("fifth"), SpecError, "'old' has attributes, this one own effects")
    refused(trial, lambda: trial.add_arm("fifth", {"attributes": {"water": 1.0}}), SpecError, "dose, got water")
    verified(trial)
    mapped = new(arms={a: {"map": [[1.0, float(i)], [0.0, 1.0]]} for i, a in enumerate(("old", "new"))}, noise=KNOWN)
    play(mapped, 3)
    mapped.add_arm("third", {"map": [[1.0, 5.0], [1.0, 1.0]]})
    play(mapped, 3, seed=1)
    refused(mapped, lambda: mapped.add_arm("x", {"map": [[1.0], [1.0]]}), SpecError, "must have 2 columns as 'old'")
    verified(mapped)


@pytest.mark.parametrize(
    ("do", "error", "match"),
    [
        (lambda t: t.add_user("north", {}), ConflictError, "there is a user 'north' already"),
        (lambda t: t.add_user("a/b", {}), SpecError, "must be a name"),
        (lambda t: t.add_user("east", {"prefrence": {}}), SpecError, "users.east.prefrence: unknown field 'prefrence'"),
        (lambda t: t.add_user("east", {"control": "odl"}), SpecError, "users.east.control: unknown arm 'odl'"),
        (lambda t: t.add_user("east", {"arms": ["new"]}), SpecError, "the control must be among the arms of the user"),
        (lambda t: t.add_user("east", 3), SpecError, "users.east: must be a table of fields, got 3"),
        (lambda t: t.add_arm("new"), ConflictError, "a changed arm needs a new name"),
        (lambda t: t.add_arm("fourth", {"abuot": ""}), SpecError, "arms.fourth.abuot: unknown field 'abuot'"),
        (lambda t: t.add_arm("fourth", {"attributes": {"dose": 1.0}}), SpecError, "this one attributes"),
        (lambda t: t.add_arm("fourth", noise={"sd": {"yield": 1.0, "cost": 1.0}}), SpecError, "noise.arms: belongs to"),
        (lambda t: t.change_preference("nroth", {}, reason="r"), UnknownNameError, "unknown user 'nroth'"),
        (lambda t: t.change_preference("north", {"yield": 0.0}, reason="r"), SpecError, "other than zero"),
        (lambda t: t.change_preference("north", {"yield": float("nan")}, reason="r"), SpecError, "finite number"),
        (lambda t: t.change_preference("north", 3, reason="r"), SpecError, "must be a table of names and values"),
        (lambda t: t.change_control("nobody", "new", reason="r"), UnknownNameError, "unknown user 'nobody'"),
        (lambda t: t.change_control("north", "newer", reason="r"), SpecError, "unknown arm 'newer'"),
        (lambda t: t.change_control("north", {"old": 0.5, "new": 0.6}, reason="r"), SpecError, "must sum to 1"),
    ],
)
def test_a_change_that_makes_no_sense_is_refused(
    do: Callable[[Trial], object], error: type[DrimedError], match: str
) -> None:
    trial = new()
    play(trial, 2)
    refused(trial, lambda: do(trial), error, match)


def test_a_changed_preference_changes_what_is_wanted_and_not_what_was_measured() -> None:
    trial = new(noise=KNOWN)
    play(trial, 12)
    rewards = [r.reward for r in trial.decisions()]
    theta = trial.state().policy.theta(trial.state().settled)
    trial.change_preference("north", {"cost": -1.0}, reason="prices rose")
    assert [r.reward for r in trial.decisions()] == rewards
    assert np.array_equal(trial.state().policy.theta(trial.state().settled), theta)
    trial.open_episode()
    before, after = trial.ask_many(["south", "north"])
    assert before.effects is not None
    assert after.effects is not None
    assert before.effects["new"].estimate != after.effects["new"].estimate
    told = trial.tell(after.id, {"cost": 4.0})
    assert told.result == "recorded"
    assert next(r.reward for r in trial.decisions() if r.id == after.id) == pytest.approx(-4.0)
    verified(trial)


def test_a_user_may_get_another_control_and_the_old_decisions_keep_theirs() -> None:
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    for _ in range(3):
        trial.open_episode()
        trial.tell_many([Report(g.id, {"yield": 5.0}) for g in trial.ask_many()])
    trial.change_control("north", "new", reason="practice has changed")
    trial.open_episode()
    north, south = trial.ask_many(["north", "south"])
    assert north.effects is not None
    assert south.effects is not None
    assert north.effects["new"].estimate == 0 == south.effects["old"].estimate
    found = verify(store, "small")
    assert found.ok
    assert found.exact == found.decisions


# Retired arms


def test_a_control_can_be_neither_retired_nor_given_to_somebody_once_it_is() -> None:
    trial = new(users={"north": {"control": "new"}, "south": {}})
    refused(trial, lambda: trial.retire_arm("new", reason="r"), ConflictError, "'new' is the control of user 'north'")
    refused(trial, lambda: trial.retire_arm("odl", reason="r"), UnknownNameError, "unknown arm 'odl'")
    trial.retire_arm("third", reason="r")
    with nothing_written(trial):
        trial.retire_arm("third", reason="again")
    refused(trial, lambda: trial.add_user("east", {"control": "third"}), ConflictError, "retired and cannot be")
    empty = new(users={})
    empty.retire_arm("old", reason="r")
    refused(empty, lambda: empty.add_user("east", {}), ConflictError, "'old' is retired")
    assert trial.status().retired == ["third"]


# Pausing and stopping


@pytest.mark.parametrize("reason", ["", "   "])
def test_a_reason_is_needed_where_the_log_will_be_asked_for_it(reason: str) -> None:
    trial = new()
    given = trial.ask("north")
    trial.tell(given.id, {"yield": 5.0})
    for do in (
        lambda: trial.pause(reason=reason),
        lambda: trial.stop(reason=reason),
        lambda: trial.retire_arm("new", reason=reason),
        lambda: trial.change_preference("north", {"yield": 2.0}, reason=reason),
        lambda: trial.change_control("north", "new", reason=reason),
        lambda: trial.amend(given.id, {"yield": 6.0}, reason=reason),
        lambda: trial.mark_missing(given.id, reason=reason),
    ):
        refused(trial, do, InputError, "a reason is needed")
