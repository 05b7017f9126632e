"""Asking: what is decided, what is refused, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConflictError, DrimedError, InputError, UnknownNameError
from drimed.records import MISSING
from drimed.trial import ask
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.playing import dataset, new, nothing_written, play, refused, verified
from tests.trial.trials import BUSY, outcome


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


# Requests with an idempotency key are answered once, however often they come


def test_a_repeated_request_is_answered_and_not_repeated() -> None:
    trial = new(decisions="any number")
    first = trial.ask("north", key="mail 17")
    trial.ask("north")
    with nothing_written(trial):
        again = trial.ask("north", key="mail 17")
    assert (again.id, again.repeated) == (first.id, True)
    many = trial.ask_many(["south", "west"], key="mail 18")
    with nothing_written(trial):
        assert [g.id for g in trial.ask_many(["west", "south"], key="mail 18")] == [many[1].id, many[0].id]
        assert [g.id for g in trial.ask_many(key="mail 18")] == [many[0].id, many[1].id]
    refused(trial, lambda: trial.ask("south", key="mail 17"), ConflictError, "was made before, for other users")
    refused(trial, lambda: trial.ask_many(["north", "south"], key="mail 17"), ConflictError, "for other users")


def test_a_repeated_request_for_everybody_holds_those_who_had_been_asked_before() -> None:
    trial = new()
    trial.ask("south")
    whole = trial.ask_many(key="k")
    with nothing_written(trial):
        again = trial.ask_many(key="k")
        assert [g.id for g in trial.ask_many(["north", "south", "west"], key="k")] == [g.id for g in whole]
    assert [g.id for g in again] == [g.id for g in whole]


def test_a_request_is_answered_as_it_was_also_in_a_later_episode() -> None:
    """Those who had a decision before the request got it again; they do so when the request is repeated."""
    trial = new()
    trial.open_episode()
    trial.ask("north")
    first = trial.ask_many(key="all")
    trial.add_user("lake", {})
    trial.ask("lake")
    assert [g.user for g in trial.ask_many(key="all")] == ["north", "south", "west"], "somebody joined"
    trial.open_episode()
    trial.pause(reason="frost")
    with nothing_written(trial):
        assert [g.id for g in trial.ask_many(key="all")] == [g.id for g in first]
        assert [g.id for g in trial.ask_many(["north", "south", "west"], key="all")] == [g.id for g in first]
    refused(trial, lambda: trial.ask_many(["south", "lake"], key="all"), ConflictError, "for other users")


@pytest.mark.parametrize(("decisions", "again"), [("any number", {"key": "k"}), ("one per episode", {})])
def test_a_decision_is_not_returned_for_another_context(decisions: str, again: Any) -> None:
    trial = new(context={"rain": {"typical": 500.0, "spread": 100.0}}, decisions=decisions)
    first = trial.ask("north", context={"rain": 999}, **again)
    with nothing_written(trial):
        assert trial.ask("north", context={"rain": 999.0}, **again).id == first.id
        assert trial.ask("north", **again).id == first.id
    another = {user: {"rain": 300.0} for user in ("north", "south")}
    words = "with rain 999, and 300 came now; a context cannot be changed after"
    refused(trial, lambda: trial.ask("north", context=another["north"], **again), ConflictError, words)
    if not again:
        refused(trial, lambda: trial.ask_many(["south", "north"], contexts=another), ConflictError, words)


# A visit whose caller could not wait gets the control without a draw


LATE = "no answer within 50 ms"


def played(**changes: object) -> Trial:
    trial = Trial.create(BUSY | changes, MemoryStore())
    for i in range(6):
        given = trial.ask(f"site {i % 4}")
        trial.tell(given.id, outcome(given.id, given.arm))
    return trial


def test_the_control_is_recorded_as_not_drawn_and_its_outcome_is_learned() -> None:
    trial = played()
    before = trial.state()
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert (given.arm, given.drawn, given.propensity, given.reason) == ("old", False, None, LATE)
    assert trial.state().learned is before.learned  # no account of draws has it
    trial.tell(given.id, outcome(given.id, "old"))
    assert trial.state().learned is not before.learned
    assert trial.decision(given.id).outcome is not None
    assert np.flatnonzero(np.isnan(dataset(trial).propensity)).tolist() == [given.id - 1]
    verified(trial)


def test_a_request_that_comes_late_gets_the_decision_that_stands() -> None:
    trial = played()
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    late = trial.ask("site 1", key="k")
    again = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert [(d.id, d.repeated) for d in (late, again)] == [(given.id, True)] * 2
    verified(trial)


def test_an_answer_that_came_too_late_is_marked_as_missing() -> None:
    trial = played()
    drawn = trial.ask("site 1", key="k")
    given = trial.give_control("site 1", "old", reason=LATE, key="k")
    assert given.id == drawn.id + 1
    assert trial.decision(drawn.id).state == MISSING
    verified(trial)


def test_only_the_control_is_given_without_a_draw() -> None:
    trial = played()
    with pytest.raises(InputError, match="'new' is not the control"):
        trial.give_control("site 1", "new", reason=LATE)
    with pytest.raises(InputError, match="reason"):
        trial.give_control("site 1", "old", reason=" ")
    seasons = played(decisions="one per episode", users={f"site {i}": {} for i in range(9)})
    with pytest.raises(ConflictError, match="tell what was given with the outcome of decision 2"):
        seasons.give_control("site 1", "old", reason=LATE)
    with pytest.raises(DrimedError):
        seasons.give_control("nobody", "old", reason=LATE)
    assert seasons.give_control("site 8", "old", reason=LATE).id == 5
    verified(seasons)


# A question for many people is answered some people at a time


ONE_METRIC: dict[str, Any] = {"metrics": {"yield": {}}, "preference": {"yield": 1.0}, "tolerance": {"absolute": 1.0}}


def crowded(seasons: int = 4) -> Trial:
    trial = new(model={"kind": "people"}, users={f"u{i}": {} for i in range(7)}, **ONE_METRIC)
    rng = np.random.default_rng(0)
    for _ in range(seasons):
        for d in trial.ask_many():
            trial.tell(d.id, {"yield": {"old": 1.0, "new": 3.0, "third": 0.0}[d.arm] + float(rng.standard_normal())})
        trial.open_episode()
    return trial


@pytest.mark.parametrize("users", [2, 3])
def test_decisions_do_not_depend_on_how_many_are_taken_at_once(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [(d.arm, d.probabilities) for d in crowded().decisions()]
    monkeypatch.setattr(ask, "NUMBERS_AT_ONCE", users * 9)
    trial = crowded()
    parts = [(d.arm, d.probabilities) for d in trial.decisions()]
    assert [arm for arm, _ in parts] == [arm for arm, _ in whole]
    for (_, here), (_, there) in zip(parts, whole, strict=True):
        assert here == pytest.approx(there, abs=1e-9)
    verified(trial)
