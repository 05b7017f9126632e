"""Asking: what is decided, what is refused, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from drimed.errors import DrimedError, InputError, UnknownNameError
from drimed.trial.trial import Trial
from tests.trial.playing import new, play, refused, verified


def test_a_decision_carries_all_that_is_known_of_it() -> None:
    trial = new()
    given = trial.ask("south", actor="Ann")
    assert (given.id, given.episode, given.user, given.actor, given.repeated) == (1, 1, "south", "Ann", False)
    assert set(given.probabilities) == {"old", "new", "third"}
    assert sum(given.probabilities.values()) == pytest.approx(1.0)
    assert given.propensity == given.probabilities[given.arm] > 0
    assert given.reason
    assert given.effects is not None
    assert given.effects["old"].estimate == given.effects["old"].low == given.effects["old"].high == 0.0
    for effect in given.effects.values():
        assert effect.low <= effect.estimate <= effect.high
    assert given.state_version == 2  # it was created, and the first episode opened
    assert given.time.endswith("+00:00")


@pytest.mark.parametrize(
    ("ask", "error", "match"),
    [
        (lambda t: t.ask("nroth"), UnknownNameError, "unknown user 'nroth'; did you mean 'north'"),
        (lambda t: t.ask("north", context={"rain": 3.0}), UnknownNameError, "unknown context field 'rain'"),
        (lambda t: t.ask("north", unavailable=["nwe"]), UnknownNameError, "unknown arm 'nwe'; did you mean 'new'"),
        (lambda t: t.ask("north", unavailable="new"), InputError, "must be a list of arms, got the text 'new'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_even_as_the_first(
    ask: Callable[[Trial], object], error: type[DrimedError], match: str
) -> None:
    trial = new()
    refused(trial, lambda: ask(trial), error, match)
    trial.ask_many()
    trial.open_episode()
    refused(trial, lambda: ask(trial), error, match)


def test_what_is_decided_depends_on_the_seed_and_what_was_told_alone() -> None:
    one, two, other = new(), new(), new(seed=4)
    played = [[(g.arm, g.probabilities) for g in play(t, 6)] for t in (one, two, other)]
    assert played[0] == played[1] != played[2]


def test_a_trial_without_a_seed_draws_one_and_keeps_it() -> None:
    trials = [new(seed=None) for _ in range(2)]
    assert len({t.state().seed for t in trials}) == 2
    for trial in trials:
        play(trial, 2)
        verified(trial)


def test_an_arm_is_not_given_where_the_user_the_episode_the_question_or_the_trial_excludes_it() -> None:
    users = {"north": {"arms": ["old", "new"]}, "south": {}, "west": {}}
    trial = new(users=users, decisions="any number", policy={"name": "uniform"})
    trial.open_episode(unavailable={"": ["third"], "south": ["new"]})

    def possible(user: str, **arguments: Any) -> set[str]:
        given = trial.ask(user, **arguments)
        assert given.arm in given.probabilities
        return {a for a, p in given.probabilities.items() if p > 0}

    assert possible("north") == {"old", "new"}
    assert possible("south") == {"old"}
    assert possible("west") == {"old", "new"}
    assert possible("west", unavailable=["new"]) == {"old"}
    trial.open_episode()
    assert possible("north") == {"old", "new"}
    assert possible("south") == {"old", "new", "third"}
    trial.retire_arm("third", reason="sold out")
    assert possible("south") == {"old", "new"}
    given = trial.ask("south")
    assert given.unavailable == ["third"]
    verified(trial)
