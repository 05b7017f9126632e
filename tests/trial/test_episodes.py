"""Episodes and the contexts that come with them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from drimed.errors import ConflictError, DrimedError, InputError, UnknownNameError
from drimed.records import Report
from drimed.trial.trial import Trial
from tests.trial.playing import KNOWN, new, nothing_written, play, rainy, refused, verified
from tests.trial.states import contents


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


# Contexts


def test_contexts_come_with_the_episode_or_with_the_question() -> None:
    trial = rainy()
    trial.open_episode({"north": {"rain": 400}, "south": {"rain": 450.0}})
    assert trial.ask("north").context == {"rain": 400.0}
    assert trial.ask("south", context={"rain": 999}).context == {"rain": 999.0}
    refused(trial, lambda: trial.ask("west"), InputError, "'west' has no context in season 1; expected rain: give")
    refused(trial, trial.ask_many, InputError, "'west' has no context")
    assert trial.ask_many(["west"], contexts={"west": {"rain": 1}})[0].context == {"rain": 1.0}
    trial.open_episode()
    refused(trial, lambda: trial.ask("north"), InputError, "'north' has no context in season 2")
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
        ({"rain": True}, "must be a finite number, got True"),
        ({"rain": 1e200}, r"must be a number of at most 1e\+30, got 1e\+200"),
        ({}, "context 'rain' is missing"),
        ({"rain": 1.0, "wind": 1.0}, "unknown context field 'wind'"),
        (400.0, "a context must be a table of rain"),
    ],
)
def test_a_context_that_cannot_be_used_is_refused_wherever_it_comes(context: Any, match: str) -> None:
    trial = rainy()
    refused(trial, lambda: trial.open_episode({"north": context}), InputError, match)
    refused(trial, lambda: trial.ask("north", context=context), InputError, match)
    refused(trial, lambda: trial.ask_many(["north"], contexts={"north": context}), InputError, match)


def test_an_empty_context_is_no_context_where_none_is_declared() -> None:
    trial = new()
    trial.open_episode({"north": {}})
    assert trial.ask("north").context is None


def test_the_published_algorithms_need_everybodys_context_when_an_episode_opens() -> None:
    trial = rainy(policy={"name": "published_dri_med"}, noise=KNOWN)
    refused(trial, lambda: trial.ask("north", context={"rain": 3}), InputError, "needs every user's context")
    refused(trial, lambda: trial.open_episode({"north": {"rain": 3}}), InputError, "'south' has none")
    trial.open_episode({u: {"rain": 3} for u in ("north", "south", "west")})
    trial.ask_many()
    verified(trial)


# An episode that is opened by the question

NEXT = 2


def test_a_question_for_the_next_episode_opens_it_with_its_contexts_in_one_transaction() -> None:
    trial = rainy()
    contexts = {u: {"rain": 400.0 + i} for i, u in enumerate(("north", "south", "west"))}
    given = trial.ask_many(contexts=contexts, episode=1)
    assert [(g.episode, g.context) for g in given] == [(1, c) for c in contexts.values()]
    assert [e.kind for e in trial.log()] == ["created", "episode", "decision", "decision", "decision"]
    assert len({e.time for e in list(trial.log())[1:]}) == 1
    assert {g.state_version for g in given} == {2}  # all know the episode
    assert trial.ask("north", context={"rain": 1.0}, episode=2).episode == 2
    assert trial.state().episode.contexts == {"north": [1.0]}
    assert trial.ask("south", context={"rain": 2.0}, episode=2).episode == 2  # it is open: nothing to open
    assert [e.kind for e in trial.log(after=5)] == ["episode", "decision", "decision"]
    verified(trial)


def test_it_decides_what_opening_and_asking_decide() -> None:
    one, two = new(), new()
    for trial in (one, two):
        play(trial, 3)
    two.open_episode()
    assert [(g.arm, g.probabilities, g.episode) for g in one.ask_many(episode=4)] == [
        (g.arm, g.probabilities, g.episode) for g in two.ask_many(episode=4)
    ]
    assert contents(one.state())["learned"] == contents(two.state())["learned"]


@pytest.mark.parametrize(
    ("ask", "error", "match"),
    [
        (lambda t, n: t.ask("nroth", episode=n), UnknownNameError, "unknown user 'nroth'"),
        (lambda t, n: t.ask_many(contexts={"nroth": {"rain": 1}}, episode=n), UnknownNameError, "unknown user 'nroth'"),
        (lambda t, n: t.ask("north", episode=n), InputError, f"'north' has no context in season {NEXT}"),
        (lambda t, n: t.ask_many(contexts={"north": {"rain": 1}}, episode=n), InputError, "'south' has no context"),
        (lambda t, n: t.ask("north", context={"rain": "wet"}, episode=n), InputError, "must be a finite number"),
        (lambda t, n: t.ask("north", context={"wind": 1}, episode=n), InputError, "context"),
        (lambda t, n: t.ask_many(["north", "north"], episode=n), InputError, "asked for twice"),
        (lambda t, n: t.ask_many([], episode=n), InputError, "no users to decide for"),
        (lambda t, n: t.ask("north", context={"rain": 1}, unavailable=["old"], episode=n), ConflictError, "control"),
        (lambda t, n: t.ask("south", context={"rain": 1}, key="taken", episode=n), ConflictError, "for other users"),
    ],
)
def test_a_question_that_fails_opens_no_episode(
    ask: Callable[[Trial, int], object], error: type[DrimedError], match: str
) -> None:
    trial = rainy()
    trial.ask("north", context={"rain": 1}, key="taken", episode=1)
    refused(trial, lambda: ask(trial, NEXT), error, match)
    assert trial.state().episode.number == 1
    assert trial.ask("north", context={"rain": 1}, episode=NEXT).episode == NEXT
    verified(trial)


@pytest.mark.parametrize("wrong", ["1", 1.0, True])
def test_an_episode_that_is_no_number_is_refused(wrong: Any) -> None:
    refused(trial := new(), lambda: trial.ask("north", episode=wrong), InputError, f"its number, got {wrong!r}")


@pytest.mark.parametrize("opened", [0, 2])
def test_a_dry_run_of_the_next_episode_shows_all_that_is_then_decided_but_the_arm(opened: int) -> None:
    trial = rainy()
    contexts = {u: {"rain": 300.0} for u in ("north", "south", "west")}
    for n in range(1, opened + 1):
        trial.tell_many(
            [Report(g.id, {"yield": 5.0, "cost": 9.0}) for g in trial.ask_many(contexts=contexts, episode=n)]
        )
    with nothing_written(trial):
        shown = trial.ask_many(contexts=contexts, episode=opened + 1, dry_run=True)
        one = trial.ask("west", context={"rain": 300.0}, episode=opened + 1, dry_run=True)
    assert trial.state().episode.number == opened
    decided = trial.ask_many(contexts=contexts, episode=opened + 1)
    assert [replace(g, time="") for g in shown] == [replace(g, time="", arm="", propensity=None) for g in decided]
    assert (one.episode, one.user, one.effects) == (opened + 1, "west", shown[2].effects)
