"""Asking, and running a trial: what is decided, what is refused, and that a refusal leaves no trace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, ConflictError, DrimedError, InputError, SpecError, UnknownNameError
from drimed.guards.constraint import Guardrail
from drimed.policies.policy import Policy
from drimed.policies.registry import REGISTRY
from drimed.trial.outcomes import Report
from drimed.trial.records import Given
from drimed.trial.spec import Arm, TrialSpec, User
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import SMALL

KNOWN = {"kind": "known", "sd": {"yield": 0.5, "cost": 1.0}}


def spec_of(**changes: Any) -> dict[str, Any]:
    return {
        "name": "t",
        "seed": 3,
        "metrics": {"yield": {"range": [0, 10]}, "cost": {"range": [0, 20], "better": "lower"}},
        "arms": {"old": {}, "new": {}, "third": {}},
        "control": "old",
        "preference": {"yield": 1.0, "cost": -0.1},
        "users": {"north": {}, "south": {}, "west": {}},
        "tolerance": {"absolute": 3.0},
    } | changes


def new(**changes: Any) -> Trial:
    return Trial.create(spec_of(**changes), MemoryStore())


def play(trial: Trial, rounds: int, *, seed: int = 0) -> list[Given]:
    """Episodes in which everybody is asked and all but every fifth outcome comes."""
    rng = np.random.default_rng(seed)
    given = []
    for _ in range(rounds):
        trial.open_episode()
        for one in trial.ask():
            given.append(one)
            y, c = 5 + (one.arm == "new") + rng.normal(0, 0.5), 10 + rng.normal(0, 1)
            if one.id % 5:
                trial.tell(one.id, {"yield": float(y), "cost": float(c)})
    return given


@contextmanager
def nothing_written(trial: Trial) -> Iterator[None]:
    before, status = list(trial.log()), trial.status()
    yield
    assert list(trial.log()) == before
    assert trial.status() == status
    assert Trial.open(trial.name, trial.store).status() == status


def refused(trial: Trial, do: Callable[[], object], error: type[DrimedError], match: str) -> None:
    with nothing_written(trial), pytest.raises(error, match=match):
        do()


def verified(trial: Trial) -> None:
    verdict = verify(trial.store, trial.name)
    assert verdict.faults == []
    assert verdict.exact == verdict.decisions == trial.status().decisions


# Asking


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


def test_everybody_some_or_one_are_asked_in_one_transaction_from_one_state() -> None:
    trial = new()
    first = trial.ask(["west", "north"])
    assert [g.user for g in first] == ["west", "north"]
    assert [g.id for g in first] == [1, 2]
    assert len({g.state_version for g in first}) == 1
    rest = trial.ask()
    assert [(g.user, g.id, g.repeated) for g in rest] == [("north", 2, True), ("south", 3, False), ("west", 1, True)]


def test_together_or_apart_without_news_the_same_is_decided() -> None:
    together, apart = new(), new()
    for trial in (together, apart):
        play(trial, 4)
        trial.open_episode()
    at_once = together.ask()
    for i, user in enumerate(("north", "south", "west")):
        one = apart.ask(user)
        assert one.arm == at_once[i].arm
        # The noise is settled again before each question, and stands still to 1e-8.
        assert one.probabilities == pytest.approx(at_once[i].probabilities, abs=1e-6)


def test_asking_again_in_an_episode_gives_the_same_decision() -> None:
    trial = new()
    first = trial.ask("north")
    trial.tell(first.id, {"yield": 5.0, "cost": 1.0})
    with nothing_written(trial):
        again = trial.ask("north")
    assert again.repeated
    assert again == replace(first, repeated=True)
    trial.open_episode()
    assert trial.ask("north").id == 2


def test_any_number_of_decisions_may_be_asked_for_if_the_file_says_so() -> None:
    trial = new(decisions="any number")
    assert [trial.ask("north").id for _ in range(3)] == [1, 2, 3]
    assert [g.id for g in trial.ask()] == [4, 5, 6]
    verified(trial)


def test_a_repeated_request_is_answered_and_not_repeated() -> None:
    trial = new(decisions="any number")
    first = trial.ask("north", key="mail 17")
    trial.ask("north")
    with nothing_written(trial):
        again = trial.ask("north", key="mail 17")
    assert (again.id, again.repeated) == (first.id, True)
    many = trial.ask(["south", "west"], key="mail 18")
    with nothing_written(trial):
        assert [g.id for g in trial.ask(["west", "south"], key="mail 18")] == [many[1].id, many[0].id]
        assert [g.id for g in trial.ask(key="mail 18")] == [many[0].id, many[1].id]
    refused(trial, lambda: trial.ask("south", key="mail 17"), ConflictError, "was made before, for other users")
    refused(trial, lambda: trial.ask(["north", "south"], key="mail 17"), ConflictError, "for other users")


def test_a_repeated_request_for_everybody_holds_those_who_had_been_asked_before() -> None:
    trial = new()
    trial.ask("south")
    whole = trial.ask(key="k")
    with nothing_written(trial):
        again = trial.ask(key="k")
        assert [g.id for g in trial.ask(["north", "south", "west"], key="k")] == [g.id for g in whole]
    assert [g.id for g in again] == [g.id for g in whole]


def test_a_repeated_request_is_answered_while_the_trial_is_paused_and_in_later_episodes() -> None:
    trial = new()
    first = trial.ask("north", key="k")
    trial.open_episode()
    trial.pause(reason="frost")
    assert trial.ask("north", key="k").id == first.id


@pytest.mark.parametrize(
    ("ask", "error", "match"),
    [
        (lambda t: t.ask("nroth"), UnknownNameError, "unknown user 'nroth'; did you mean 'north'"),
        (lambda t: t.ask(["north", "nroth"]), UnknownNameError, "unknown user 'nroth'"),
        (lambda t: t.ask(["north", "north"]), InputError, "'north' is asked for twice"),
        (lambda t: t.ask([]), InputError, "nobody to decide for"),
        (lambda t: t.ask("north", context={"rain": 3.0}), UnknownNameError, "unknown context field 'rain'"),
        (lambda t: t.ask("north", contexts={"north": {}}), InputError, "give `context` when asking for one user"),
        (lambda t: t.ask(["north"], context={}), InputError, "`contexts` when asking for several"),
        (lambda t: t.ask(contexts={"nroth": {}}), UnknownNameError, "unknown user 'nroth'"),
        (lambda t: t.ask("north", unavailable=["nwe"]), UnknownNameError, "unknown arm 'nwe'; did you mean 'new'"),
        (lambda t: t.ask("north", unavailable="new"), InputError, "must be a list of arms, got the text 'new'"),
        (lambda t: t.ask("north", unavailable=["old"]), ConflictError, "arm 'old' is the control of user 'north'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused_even_as_the_first(
    ask: Callable[[Trial], object], error: type[DrimedError], match: str
) -> None:
    trial = new()
    refused(trial, lambda: ask(trial), error, match)
    trial.ask()
    trial.open_episode()
    refused(trial, lambda: ask(trial), error, match)


def test_the_first_question_opens_the_first_episode_in_the_same_transaction() -> None:
    trial = new()
    trial.ask("north")
    assert [e.kind for e in trial.log()] == ["created", "episode", "decision"]
    assert trial.open_episode() == 2


@pytest.mark.parametrize("decisions", ["one per episode", "any number"])
@pytest.mark.parametrize("rounds", [0, 3])
def test_a_dry_run_writes_nothing_and_shows_what_is_then_decided(decisions: str, rounds: int) -> None:
    trial = new(decisions=decisions)
    play(trial, rounds)
    if rounds:
        trial.open_episode()
    with nothing_written(trial):
        shown = trial.ask(dry_run=True)
        one = trial.ask("south", dry_run=True)
    decided = trial.ask()

    def timeless(g: Given) -> Given:
        return replace(g, time="")

    assert [timeless(g) for g in shown] == [timeless(g) for g in decided]
    assert (one.user, one.effects) == (shown[1].user, shown[1].effects)


def test_what_is_decided_depends_on_the_seed_and_what_was_told_alone() -> None:
    one, two, other = new(), new(), new(seed=4)
    played = [[(g.arm, g.probabilities) for g in play(t, 6)] for t in (one, two, other)]
    assert played[0] == played[1] != played[2]


def test_a_trial_without_a_seed_draws_one_and_keeps_it() -> None:
    trials = [new(seed=None) for _ in range(2)]
    assert len({t.memory().seed for t in trials}) == 2
    for trial in trials:
        play(trial, 2)
        verified(trial)


# Contexts


def rainy(**changes: Any) -> Trial:
    return new(context={"rain": {"typical": 500, "spread": 100}}, **changes)


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


# Episodes


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


# Availability


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


def test_a_control_can_be_neither_retired_nor_given_to_somebody_once_it_is() -> None:
    trial = new(users={"north": {"control": "new"}, "south": {}})
    refused(trial, lambda: trial.retire_arm("new", reason="r"), ConflictError, "'new' is the control of user 'north'")
    refused(trial, lambda: trial.retire_arm("odl", reason="r"), UnknownNameError, "unknown arm 'odl'")
    trial.retire_arm("third", reason="r")
    with nothing_written(trial):
        trial.retire_arm("third", reason="again")
    refused(
        trial,
        lambda: trial.add_user("east", {"control": "third"}),
        ConflictError,
        "'third' is retired and cannot be a control",
    )
    empty = new(users={})
    empty.retire_arm("old", reason="r")
    refused(empty, lambda: empty.add_user("east", {}), ConflictError, "'old' is retired")
    assert trial.status().retired == ["third"]


# Pausing and stopping


def test_a_paused_trial_decides_nothing_takes_outcomes_and_goes_on() -> None:
    trial = new()
    given = trial.ask("north")
    trial.pause(reason="frost")
    refused(trial, lambda: trial.ask("south"), ConflictError, "'t' is paused and decides nothing; resume it first")
    refused(trial, trial.open_episode, ConflictError, "is paused; no episode can be opened")
    refused(trial, lambda: trial.pause(reason="again"), ConflictError, "is paused; it cannot be paused")
    assert trial.tell(given.id, {"yield": 5.0, "cost": 1.0}).state == "recorded"
    trial.resume()
    refused(trial, trial.resume, ConflictError, "is running; it cannot be resumed")
    assert trial.ask("south").id == 2
    verified(trial)


def test_a_stopped_trial_stays_stopped_and_takes_outcomes() -> None:
    trial = new()
    given = trial.ask("north")
    trial.stop(reason="enough")
    for do in (trial.resume, lambda: trial.pause(reason="r"), lambda: trial.stop(reason="r"), trial.open_episode):
        refused(trial, do, ConflictError, "is stopped")
    refused(trial, lambda: trial.ask("south"), ConflictError, "is stopped and decides nothing$")
    assert trial.tell(given.id, {"yield": 5.0, "cost": 1.0}).state == "recorded"
    assert trial.amend(given.id, {"yield": 5.5}, reason="typo").state == "amended"
    verified(trial)


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
        lambda: trial.amend(given.id, {"yield": 6.0}, reason=reason),
        lambda: trial.mark_missing(given.id, reason=reason),
    ):
        refused(trial, do, InputError, "a reason is needed")


# Joining and changing


def test_users_and_arms_may_join_while_the_trial_runs() -> None:
    trial = new()
    play(trial, 5)
    trial.add_user("east", {"preference": {"yield": 2.0}, "group": "sand"})
    trial.add_user("centre", User())
    trial.add_arm("fourth")
    trial.add_arm("fifth", Arm(about="the fourth, with more water"))
    trial.open_episode()
    given = trial.ask()
    assert [g.user for g in given] == ["north", "south", "west", "east", "centre"]
    assert set(given[0].probabilities) == {"old", "new", "third", "fourth", "fifth"}
    play(trial, 5, seed=1)
    assert {"fourth", "fifth"} & {r.given.arm for r in trial.rows()}
    verified(trial)


@pytest.mark.parametrize(
    "policy", [{"name": "dri_med", "guard": "budget"}, {"name": "dri_med_reward"}, {"name": "w_solid"}]
)
def test_more_users_may_join_than_there_was_room_for(policy: dict[str, Any]) -> None:
    trial = new(policy=policy, decisions="any number")
    play(trial, 3)
    for i in range(20):
        trial.add_user(f"late {i}", {})
        if i % 4 == 0:
            given = trial.ask(f"late {i}")
            trial.tell(given.id, {"yield": 5.0, "cost": 9.0})
    trial.add_arm("fourth")
    for i in range(12):
        trial.change_preference("north", {"yield": 1.0 + i}, reason="prices")
        trial.ask("north")
    play(trial, 2, seed=2)
    assert trial.status().users == 23
    assert [r.given for r in Trial.open("t", trial.store).rows()] == [r.given for r in trial.rows()]
    verified(trial)


def test_arms_with_attributes_or_maps_may_join_too() -> None:
    arms = {a: {"attributes": {"dose": float(i)}} for i, a in enumerate(("old", "new", "third"))}
    trial = new(arms=arms, noise=KNOWN)
    play(trial, 3)
    trial.add_arm("fourth", {"attributes": {"dose": 10.0}}, noise={"sd": {"yield": 2.0, "cost": 2.0}})
    play(trial, 3, seed=1)
    refused(trial, lambda: trial.add_arm("fifth"), SpecError, "'old' has attributes, this one own effects")
    refused(
        trial, lambda: trial.add_arm("fifth", {"attributes": {"water": 1.0}}), SpecError, "expected dose, got water"
    )
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
        (lambda t: t.add_user("", {}), SpecError, "must be a name"),
        (lambda t: t.add_user("east", {"prefrence": {}}), SpecError, "users.east.prefrence: unknown field 'prefrence'"),
        (lambda t: t.add_user("east", {"preference": {"yeild": 1.0}}), SpecError, "unknown metric 'yeild'"),
        (lambda t: t.add_user("east", {"preference": {"yield": "1"}}), SpecError, "must be a number, got '1'"),
        (lambda t: t.add_user("east", {"control": "odl"}), SpecError, "users.east.control: unknown arm 'odl'"),
        (lambda t: t.add_user("east", {"arms": ["new"]}), SpecError, "must hold the user's control; 'old'"),
        (lambda t: t.add_user("east", 3), SpecError, "users.east: must be a table of fields, got 3"),
        (lambda t: t.add_arm("new"), ConflictError, "a changed arm is a new arm with a new name"),
        (lambda t: t.add_arm("a;b"), SpecError, "must be a name"),
        (lambda t: t.add_arm("fourth", {"abuot": ""}), SpecError, "arms.fourth.abuot: unknown field 'abuot'"),
        (lambda t: t.add_arm("fourth", {"attributes": {"dose": 1.0}}), SpecError, "this one attributes"),
        (
            lambda t: t.add_arm("fourth", noise={"sd": {"yield": 1.0, "cost": 1.0}}),
            SpecError,
            "noise.arms: belongs to noise that is known",
        ),
        (lambda t: t.change_preference("nroth", {}, reason="r"), UnknownNameError, "unknown user 'nroth'"),
        (lambda t: t.change_preference("north", {"x": 1.0}, reason="r"), SpecError, "unknown metric 'x'"),
        (lambda t: t.change_preference("north", {"yield": 0.0}, reason="r"), SpecError, "other than zero"),
        (lambda t: t.change_preference("north", {"yield": float("nan")}, reason="r"), SpecError, "finite number"),
        (lambda t: t.change_preference("north", 3, reason="r"), SpecError, "must be a table of names and values"),
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
    rewards = [r.reward for r in trial.rows()]
    theta = trial.memory().policy.theta(trial.memory().settled())
    trial.change_preference("north", {"cost": -1.0}, reason="prices rose")
    assert [r.reward for r in trial.rows()] == rewards
    assert np.array_equal(trial.memory().policy.theta(trial.memory().settled()), theta)
    trial.open_episode()
    before, after = trial.ask(["south", "north"])
    assert before.effects is not None
    assert after.effects is not None
    assert before.effects["new"].estimate != after.effects["new"].estimate
    told = trial.tell(after.id, {"cost": 4.0})
    assert told.state == "recorded"
    assert next(r.reward for r in trial.rows() if r.given.id == after.id) == pytest.approx(-4.0)
    verified(trial)


def test_outcomes_of_decisions_before_a_change_are_valued_as_they_were_then() -> None:
    trial = new(policy={"name": "w_oful"}, noise=KNOWN)
    early = trial.ask("north")
    trial.change_preference("north", {"cost": -1.0}, reason="prices rose")
    trial.tell(early.id, {"yield": 5.0, "cost": 10.0})
    assert next(trial.rows()).reward == pytest.approx(5.0 - 1.0)
    verified(trial)


# Differences to a control plot


def paired(**changes: Any) -> Trial:
    return new(feedback="difference", **changes)


def test_the_difference_to_the_control_plot_is_what_is_learned_from() -> None:
    """A site's level, whatever it is, changes nothing."""
    flat, hilly = paired(noise=KNOWN), paired(noise=KNOWN)
    rng = np.random.default_rng(0)
    decided = []
    for trial, level in ((flat, 0.0), (hilly, 3.0)):
        rng = np.random.default_rng(0)
        arms = []
        for _ in range(10):
            trial.open_episode()
            for g in trial.ask():
                arms.append(g.arm)
                effect = {"old": 0.0, "new": 1.0, "third": -1.0}[g.arm]
                plot, other = rng.normal(0, 0.25, 2).round(3)
                site = level * (g.id % 4)
                trial.tell(
                    g.id,
                    {"yield": 1.0 + site + effect + plot, "cost": 5.0},
                    control={"yield": 1.0 + site + other, "cost": 5.0},
                )
        decided.append(arms)
        verified(trial)
    assert decided[0] == decided[1]
    final = flat.ask("north")
    assert final.effects is not None
    assert final.effects["new"].estimate == pytest.approx(1.0, abs=0.4)
    assert final.effects["old"] == type(final.effects["old"])(0.0, 0.0, 0.0)


def test_a_difference_needs_both_plots() -> None:
    trial = paired()
    given = trial.ask("north")
    refused(trial, lambda: trial.tell(given.id, {"yield": 5.0}), InputError, "needs the control plot's values too")
    told = trial.tell(given.id, {"yield": 5.0, "cost": 1.0}, control={"yield": 4.0})
    assert told.waits_for == ["cost"]
    assert trial.tell(given.id, {}, control={"cost": 3.0}).waits_for == []
    (row,) = trial.rows()
    assert row.reward == pytest.approx(1.0 - 0.1 * -2.0)
    assert row.control == {"yield": 4.0, "cost": 3.0}
    refused(trial, lambda: trial.tell(given.id, {}, control={"cost": 4.0}), ConflictError, "already has cost = 3.0")
    trial.amend(given.id, {}, control={"cost": 4.0}, reason="typo")
    assert next(trial.rows()).reward == pytest.approx(1.0 + 0.3)
    verified(trial)


def test_a_control_plot_is_refused_where_outcomes_are_absolute() -> None:
    trial = new()
    given = trial.ask("north")
    refused(
        trial,
        lambda: trial.tell(given.id, {"yield": 5.0}, control={"yield": 4.0}),
        InputError,
        "takes no values of a control plot",
    )


def test_with_learned_differences_everybody_has_one_control() -> None:
    trial = paired()
    refused(trial, lambda: trial.add_user("east", {"control": "new"}), SpecError, "all users must have one control")
    trial.add_user("east", {"control": "old"})
    other = paired(noise=KNOWN)
    other.add_user("east", {"control": "new"})
    play_paired(other)
    verified(other)


def play_paired(trial: Trial) -> None:
    for _ in range(4):
        trial.open_episode()
        trial.tell_many(
            [Report(g.id, {"yield": 5.0, "cost": 1.0}, {"yield": 4.0 + g.id % 3, "cost": 1.0}) for g in trial.ask()]
        )


# Guardrails and policies


def test_guardrails_of_the_file_bind() -> None:
    """An arm that raises the reward by 2 and the cost by 7, where the cost may rise by 2 and a twentieth of 5."""
    outcomes = {"old": (5.0, 5.0), "new": (7.0, 12.0), "third": (5.2, 5.0)}
    shares = {}
    for rails in ([], [{"metric": "cost", "absolute": 2.0}]):
        trial = new(preference={"yield": 1.0}, noise=KNOWN, guardrails=rails)
        guard: Any = trial.memory().policy.guard  # type: ignore[attr-defined]  # a Policy
        assert guard.guardrails == tuple(
            Guardrail(metric=1, relative=0.05, absolute=2.0 / 20, better="lower") for _ in rails
        )
        for _ in range(20):
            trial.open_episode()
            trial.tell_many(
                [Report(g.id, dict(zip(("yield", "cost"), outcomes[g.arm], strict=True))) for g in trial.ask()]
            )
        trial.open_episode()
        shares[len(rails)] = trial.ask("north").probabilities["new"]
        verified(trial)
    assert shares[0] > 0.9
    assert 0.1 < shares[1] <= 2.25 / 7


@pytest.mark.parametrize("name", REGISTRY)
def test_any_policy_runs_a_trial_that_verifies_exactly(name: str) -> None:
    trial = new(noise=KNOWN, policy={"name": name})
    play(trial, 3)
    trial.add_user("east", {})
    trial.add_arm("fourth")
    trial.amend(1, {"yield": 4.0}, reason="typo")
    trial.mark_missing(5, reason="hail")
    play(trial, 2, seed=1)
    trial.change_preference("north", {"yield": 2.0}, reason="r")
    trial.retire_arm("third", reason="r")
    late = play(trial, 2, seed=2)
    assert "third" not in {g.arm for g in late}
    sampled = getattr(getattr(trial.memory().policy, "rule", None), "randomisation", "") == "sampled"
    assert all((g.propensity is None) == sampled for g in late)
    assert all((g.effects is None) == (not isinstance(trial.memory().policy, Policy)) for g in late)
    verified(trial)


@pytest.mark.parametrize("name", [n for n, e in REGISTRY.items() if "published" not in n and "d_lin_ucb" not in n])
def test_any_policy_that_can_learn_the_noise_runs_a_trial_that_verifies_exactly(name: str) -> None:
    trial = new(policy={"name": name})
    play(trial, 4)
    trial.amend(1, {"yield": 4.0}, reason="typo")
    play(trial, 2, seed=1)
    verified(trial)


def test_the_published_algorithms_need_everybodys_context_when_an_episode_opens() -> None:
    trial = rainy(policy={"name": "published_dri_med"}, noise=KNOWN)
    refused(trial, lambda: trial.ask("north", context={"rain": 3}), InputError, "needs every user's context")
    refused(trial, lambda: trial.open_episode({"north": {"rain": 3}}), InputError, "'south' has none")
    trial.open_episode({u: {"rain": 3} for u in ("north", "south", "west")})
    trial.ask()
    verified(trial)


# Creating and looking


def test_a_trial_is_created_once_and_opened_by_its_name() -> None:
    store = MemoryStore()
    trial = Trial.create(TrialSpec.read(spec_of()), store, actor="Ann")
    with pytest.raises(ConflictError, match="there is a trial 't' already"):
        Trial.create(spec_of(), store)
    with pytest.raises(UnknownNameError, match="unknown trial 'tt'; did you mean 't'"):
        Trial.open("tt", store)
    assert [e.actor for e in trial.log()] == ["Ann"]
    assert store.names() == ["t"]


def test_a_file_with_faults_creates_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(ConfigError, match="control: unknown arm 'odl'"):
        Trial.create(spec_of(control="odl"), store)
    assert store.names() == []


def test_two_views_of_one_trial_see_each_other() -> None:
    one = new()
    two = Trial.open("t", one.store, actor="Bo")
    first = one.ask("north")
    assert two.ask("north").id == first.id
    two.tell(first.id, {"yield": 5.0, "cost": 1.0})
    assert one.status().answered == 1
    one.add_arm("fourth")
    assert set(two.ask("south").probabilities) == {"old", "new", "third", "fourth"}
    assert one.decision(2)[1][0].actor == "Bo"
    verified(one)


def test_the_status_counts() -> None:
    trial = new(about="maize")
    given = [trial.ask(), trial.open_episode(), trial.ask()]
    assert given[1] == 2
    trial.tell(1, {"yield": 5.0})
    trial.tell(2, {"yield": 5.0, "cost": 1.0})
    trial.amend(2, {"yield": 6.0}, reason="typo")
    trial.mark_missing(3, reason="hail")
    status = trial.status()
    assert (status.name, status.about, status.status, status.episode) == ("t", "maize", "running", 2)
    assert (status.decisions, status.answered, status.missing, status.amended, status.awaited) == (6, 2, 1, 1, 3)
    assert (status.users, status.arms, status.policy) == (3, ["old", "new", "third"], "dri_med")
    assert status.events == len(list(trial.log()))
    assert status.plain()["notes"] == []


@pytest.mark.parametrize("number", [0, 2, -1, 10**12])
def test_a_decision_that_does_not_exist_is_not_found(number: int) -> None:
    trial = new()
    trial.ask("north")
    with pytest.raises(InputError, match=f"trial 't' has no decision {number}"):
        trial.decision(number)


def test_the_log_can_be_read_in_parts() -> None:
    trial = new()
    play(trial, 2)
    everything = list(trial.log())
    assert [e.seq for e in everything] == list(range(1, len(everything) + 1))
    assert list(trial.log(after=3)) == everything[3:]
    assert list(trial.log(kinds=["decision"])) == [e for e in everything if e.kind == "decision"]
    assert list(trial.log(user="south")) == [e for e in everything if e.user == "south"]
    assert list(trial.log(newest_first=True, limit=2)) == everything[:-3:-1]


def test_a_user_may_get_another_control_and_the_old_decisions_keep_theirs() -> None:
    store = MemoryStore()
    trial = Trial.create(SMALL, store)
    for _ in range(3):
        trial.open_episode()
        trial.tell_many([Report(g.id, {"yield": 5.0}) for g in trial.ask()])
    trial.change_control("north", "new", reason="practice has changed")
    trial.open_episode()
    north, south = trial.ask(["north", "south"])
    assert north.effects is not None
    assert south.effects is not None
    assert north.effects["new"].estimate == 0 == south.effects["old"].estimate
    found = verify(store, "small")
    assert found.ok
    assert found.exact == found.decisions


@pytest.mark.parametrize(
    ("user", "control", "reason"),
    [("nobody", "new", "x"), ("north", "newer", "x"), ("north", {"old": 0.5, "new": 0.6}, "x"), ("north", "new", " ")],
)
def test_a_control_that_makes_no_sense_is_refused(user: str, control: Any, reason: str) -> None:
    trial = Trial.create(SMALL, MemoryStore())
    before = trial.status().events
    with pytest.raises(DrimedError):
        trial.change_control(user, control, reason=reason)
    assert trial.status().events == before


# Requests that come again in another season


def test_a_request_is_answered_as_it_was_also_in_a_later_episode() -> None:
    """Those who had a decision before the request got it again; they do so when the request is repeated."""
    trial = new()
    trial.open_episode()
    trial.ask("north")
    first = trial.ask(key="all")
    trial.add_user("lake", {})
    trial.ask("lake")
    assert [g.user for g in trial.ask(key="all")] == ["north", "south", "west"], "somebody joined"
    trial.open_episode()
    with nothing_written(trial):
        assert [g.id for g in trial.ask(key="all")] == [g.id for g in first]
        assert [g.id for g in trial.ask(["north", "south", "west"], key="all")] == [g.id for g in first]
    refused(trial, lambda: trial.ask(["south", "lake"], key="all"), ConflictError, "for other users")


def test_the_control_plots_of_a_trial_stay_comparable_when_a_control_changes() -> None:
    """Differences to control plots are learned from with one map for each arm: another control would need another."""
    trial = new(feedback="difference", users={"north": {}, "south": {}})
    refused(trial, lambda: trial.add_user("west", {"control": "new"}), SpecError, "control")
    refused(trial, lambda: trial.change_control("north", "new", reason="r"), SpecError, "control")


def test_a_metric_that_never_varies_does_not_stop_a_trial() -> None:
    trial, rng = new(users={f"u{i}": {} for i in range(100)}, tolerance={"absolute": 30.0}), np.random.default_rng(0)
    for _ in range(45):
        trial.open_episode()
        given = trial.ask()
        trial.tell_many([Report(g.id, {"yield": float(rng.normal(5, 1)), "cost": 1.0}) for g in given])
    assert trial.ask("u0").propensity is not None


def test_everything_constant_does_not_stop_a_trial() -> None:
    trial = new(users={f"u{i}": {} for i in range(100)}, tolerance={"absolute": 30.0})
    for _ in range(25):
        trial.open_episode()
        trial.tell_many([Report(g.id, {"yield": 5.0, "cost": 1.0}) for g in trial.ask()])
    assert trial.ask("u0").propensity is not None
