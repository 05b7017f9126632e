"""Episodes and the contexts that come with them."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import ConflictError, DrimedError, InputError, UnknownNameError
from tests.trial.playing import KNOWN, new, nothing_written, rainy, refused, verified


def test_episodes_are_numbered_and_opening_one_twice_by_its_number_is_safe() -> None:
    trial = new()
    assert trial.open_episode(number=1) == 1
    with nothing_written(trial):
        assert trial.open_episode(number=1) == 1
    refused(trial, lambda: trial.open_episode(number=3), ConflictError, "episode 3 cannot be opened: the next one is 2")
    refused(trial, lambda: trial.open_episode(number=0), ConflictError, "the next one is 2")
    assert [trial.open_episode(), trial.open_episode(number=3)] == [2, 3]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"contexts": {"nroth": {}}}, UnknownNameError, "unknown user 'nroth'"),
        ({"unavailable": {"nroth": ["new"]}}, UnknownNameError, "unknown user 'nroth'"),
        ({"unavailable": {"north": ["nwe"]}}, UnknownNameError, "unknown arm 'nwe'"),
        ({"unavailable": {"north": "new"}}, InputError, "must be a list of arms"),
        ({"unavailable": {"": ["old"]}}, ConflictError, "'old' is the control"),
        ({"unavailable": {"north": ["old"]}}, ConflictError, "'old' is the control of user 'north'"),
    ],
)
def test_an_episode_that_makes_no_sense_is_refused(
    arguments: dict[str, Any], error: type[DrimedError], match: str
) -> None:
    trial = new()
    refused(trial, lambda: trial.open_episode(**arguments), error, match)


def test_arms_of_an_episode_are_checked_even_before_there_are_users() -> None:
    trial = new(users={})
    refused(trial, lambda: trial.open_episode(unavailable={"": ["nwe"]}), UnknownNameError, "unknown arm 'nwe'")


# Contexts


def test_contexts_come_with_the_episode_or_with_the_question() -> None:
    trial = rainy()
    trial.open_episode({"north": {"rain": 400}, "south": {"rain": 450.0}})
    assert trial.ask("north").context == {"rain": 400.0}
    assert trial.ask("south", context={"rain": 999}).context == {"rain": 999.0}
    refused(
        trial, lambda: trial.ask("west"), InputError, "'west' has no context in episode 1; expected rain: give it here"
    )
    refused(trial, trial.ask, InputError, "'west' has no context")
    assert trial.ask(["west"], contexts={"west": {"rain": 1}})[0].context == {"rain": 1.0}
    trial.open_episode()
    refused(trial, lambda: trial.ask("north"), InputError, "'north' has no context in episode 2")
    verified(trial)


def test_the_context_of_one_question_does_not_stick() -> None:
    trial = rainy(decisions="any number")
    trial.open_episode({"north": {"rain": 400}})
    trial.ask("north", context={"rain": 999})
    assert trial.ask("north").context == {"rain": 400.0}


@pytest.mark.parametrize(
    ("context", "match"),
    [
        ({"rain": float("nan")}, "context 'rain' must be a finite number, got nan"),
        ({"rain": float("inf")}, "must be a finite number, got inf"),
        ({"rain": True}, "must be a finite number, got True"),
        ({"rain": "400"}, "must be a finite number, got '400'"),
        ({"rain": None}, "must be a finite number, got None"),
        ({}, "context 'rain' is missing"),
        ({"rain": 1.0, "wind": 1.0}, "unknown context field 'wind'"),
        (400.0, "a context must be a table of rain"),
    ],
)
def test_a_context_that_cannot_be_used_is_refused_wherever_it_comes(context: Any, match: str) -> None:
    trial = rainy()
    refused(trial, lambda: trial.open_episode({"north": context}), InputError, match)
    refused(trial, lambda: trial.ask("north", context=context), InputError, match)
    refused(trial, lambda: trial.ask(["north"], contexts={"north": context}), InputError, match)


def test_an_empty_context_is_no_context_where_none_is_declared() -> None:
    trial = new()
    trial.open_episode({"north": {}})
    assert trial.ask("north").context is None


def test_the_published_algorithms_need_everybodys_context_when_an_episode_opens() -> None:
    trial = rainy(policy={"name": "published_dri_med"}, noise=KNOWN)
    refused(trial, lambda: trial.ask("north", context={"rain": 3}), InputError, "needs every user's context")
    refused(trial, lambda: trial.open_episode({"north": {"rain": 3}}), InputError, "'south' has none")
    trial.open_episode({u: {"rain": 3} for u in ("north", "south", "west")})
    trial.ask()
    verified(trial)
