"""Effects: true, the same from every source, and judged only with enough evidence."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.reports.effects import EVERYBODY, REWARD, evidence, fit_now, inference_learner, own_effects, usable
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.worlds import (
    CLEAR,
    COST,
    EFFECT,
    FIELD,
    PAPER,
    PAPER_EFFECT,
    PEOPLE,
    TIMES,
    WHY,
    YIELD,
    everybody,
    field,
    grown,
    one_season,
    paper,
    people,
    play,
    two_seasons,
)


def test_every_guaranteed_range_holds_the_truth() -> None:
    """At 1 % for all of them together, over one fixed seed."""
    a = paper()
    truth = {"reward": PAPER_EFFECT, "yield": {x: YIELD[x] - 5 for x in YIELD}, "cost": {x: COST[x] - 30 for x in COST}}
    for x in a.effects:
        (low, high), (likely_low, likely_high) = x.ends, x.likely_ends
        assert low <= truth[x.on][x.arm] <= high, x
        assert low <= likely_low <= x.estimate <= likely_high <= high, x
    assert sum(x.source == "model" for x in a.effects) == 3 * (3 * 3 + 6)  # arms x (groups x measures + users)
    assert {x.who for x in a.effects} == {EVERYBODY, "even", "odd", *PAPER["users"]}
    assert all(x.is_control for x in a.effects if x.arm == "old" and x.source == "model")


def test_ranges_of_a_mixed_model_hold_the_truth_and_are_of_use() -> None:
    """At one fixed seed; the long ranges are about 1.7 times as wide where much was learned."""
    own = [x for x in field().own_effects if x.arm != "old"]
    assert len(own) == 12
    for x in own:
        (low, high), (likely_low, likely_high) = x.ends, x.likely_ends
        assert low <= EFFECT[x.arm] <= high, x
        assert low <= likely_low <= x.estimate <= likely_high <= high, x
        assert 1.2 < (high - low) / (likely_high - likely_low) < 2.5, x
    assert everybody(field(), "good").likely_ends[0] > 0


def test_users_with_other_controls_and_levels_have_the_right_effects() -> None:
    """Half of the users are 60 higher and have another control; one level for all would be off by half of that."""
    users = {f"s{i}": {"control": "old" if i < 3 else "bad"} for i in range(6)}
    spec = {k: v for k, v in FIELD.items() if k != "context"} | {"users": users}
    rng = np.random.default_rng(7)
    trial = Trial.create(spec, MemoryStore())
    for _ in range(8):
        trial.open_episode()
        year = 15 * rng.standard_normal()
        reports = []
        for given in trial.ask_many():
            y = 60 + 60.0 * (int(given.user[1]) >= 3) + year + EFFECT[given.arm] + 4 * rng.standard_normal()
            reports.append(Report(given.id, {"yield": y, "cost": 20 + rng.standard_normal()}))
        trial.tell_many(reports, confirm=True)
    found = analyse(trial)
    truth = {user: EFFECT["good"] - EFFECT["old" if int(user[1]) < 3 else "bad"] for user in users}
    for x in found.own_effects:
        if x.arm == "good":
            assert abs(x.estimate - truth[x.who]) < 8, x
            assert x.ends[0] <= truth[x.who] <= x.ends[1]
    pooled = everybody(found, "good")
    assert pooled.likely_ends[0] <= np.mean(list(truth.values())) <= pooled.likely_ends[1]


@pytest.mark.parametrize("kind", ["paper", "field"])
def test_effects_of_some_users_come_from_the_state_alone(kind: str) -> None:
    a, some = (paper(), ["u4", "u1"]) if kind == "paper" else (field(), ["s4", "s1"])
    found = own_effects(a.data.state, some)
    wanted = [x for user in some for x in a.own_effects if x.who == user]
    assert [(x.who, x.arm, x.decisions, x.available, x.significant) for x in found] == [
        (x.who, x.arm, x.decisions, x.available, x.significant) for x in wanted
    ]
    np.testing.assert_allclose([x.estimate for x in found], [x.estimate for x in wanted], rtol=1e-9)
    np.testing.assert_allclose([x.ends for x in found], [x.ends for x in wanted], rtol=1e-6)


def test_a_policy_without_a_fit_for_inference_takes_that_of_the_analysis() -> None:
    found = analyse(play(PAPER | {"policy": {"name": "published_dri_med"}}, 4))
    with pytest.raises(InputError, match="give that of an analysis"):
        own_effects(found.data.state, ["u0"])
    assert own_effects(found.data.state, ["u0"], found.fit) == [x for x in found.own_effects if x.who == "u0"]


@pytest.mark.parametrize("policy", ["dri_med_reward", "oful", "published_dri_med"])
def test_inference_is_on_whole_outcomes_whatever_the_policy_learns_from(policy: str) -> None:
    found = analyse(play(PAPER | {"policy": {"name": policy}}, 8))
    seen, learner = found.data, inference_learner(found.data.state)
    whole = learner.add(learner.start(seen.state.problem.shape), *evidence(seen, np.flatnonzero(usable(seen, learner))))
    np.testing.assert_allclose(fit_now(seen)[0].theta, whole.ridge.theta, rtol=1e-9)
    assert {x.arm for x in found.effects} == set(PAPER_EFFECT)


def test_effects_say_which_arms_a_user_cannot_get_now() -> None:
    trial = play(PAPER | {"users": PAPER["users"] | {"u0": {"arms": ["old", "bad"]}}}, 2)
    trial.open_episode({u: {"rain": 5.0} for u in PAPER["users"]}, unavailable={"u1": ["bad"]})
    trial.add_arm("fourth")
    trial.retire_arm("fourth", reason="r")
    found = {(x.who, x.arm) for x in own_effects(trial.state(), ["u0", "u1", "u2"]) if not x.available}
    assert found == {("u0", "good"), ("u1", "bad"), *((u, "fourth") for u in ("u0", "u1", "u2"))}


def test_the_better_arm_is_recommended() -> None:
    for found in (paper(), field(), people()):
        assert {r.effect.arm for r in found.recommendations} == {"good"}
        assert len(found.recommendations) == len(found.data.state.users)
        assert np.mean([r.p_best for r in found.recommendations]) > 0.9


def test_an_arm_without_outcomes_is_not_recommended() -> None:
    trial = grown(FIELD, 8)
    trial.add_arm("new")
    trial.retire_arm("good", reason="dear")
    trial.retire_arm("bad", reason="poor")
    found = analyse(trial)
    assert max(x.estimate for x in found.own_effects if x.arm == "new") > 0  # as arms have done here on average
    assert {(r.effect.arm, r.alone) for r in found.recommendations} == {("old", True)}


def test_after_one_season_ranges_are_clear_of_zero_and_nothing_is_judged() -> None:
    for arm, way in (("good", 1), ("bad", -1)):
        some = [x for x in one_season().effects if (x.arm, x.on, x.source) == (arm, REWARD, "model")]
        assert len(some) == 1 + 2 + 4
        for x in some:
            assert min(way * end for end in x.ends) > 0, "the ranges stay as they are"
            assert (x.certain, x.likely, x.seasons, x.unconfirmed) == (0, 0, 1, WHY)
    better = [x for x in two_seasons().effects if (x.arm, x.on, x.source) == ("good", REWARD, "model")]
    assert all((x.certain, x.likely, x.verdict, x.seasons) == (1, 1, "better", 2) for x in better)


def test_seasons_of_the_whole_trial_count_and_those_of_each_arm_and_metric_alone() -> None:
    trial = grown(CLEAR, 2, times=TIMES)
    trial.add_user("late", {"plots": ["1"]})
    late = {x.arm: x for x in own_effects(trial.state(), ["late"])}["good"]
    assert (late.decisions, late.seasons, late.likely) == (0, 2, 1)
    trial.add_arm("new")
    trial.open_episode()
    reports = []
    for i, given in enumerate(trial.ask_many()):
        level = {"new": 160.0, "good": 120.0, "bad": 20.0}.get(given.arm, 60.0)
        reports.append(Report(given.id, {"yield": level + i % 3} | ({"cost": 20.0} if given.arm != "new" else {})))
    trial.tell_many(reports, confirm=True)
    found = analyse(trial)
    assert (everybody(found, "new", "yield").seasons, everybody(found, "new", "yield").likely) == (1, 0)
    assert everybody(found, "new", "cost").seasons == everybody(found, "new").seasons == 0, "the reward rests on both"
    assert everybody(found, "good").certain == 1


@pytest.mark.parametrize("spec", [PEOPLE | {"policy": {"name": "uniform"}}, CLEAR | {"model": {"seasons": False}}])
def test_models_in_which_no_season_acts_on_an_arm_alone_judge_after_one(spec: dict[str, Any]) -> None:
    x = everybody(analyse(grown(spec, 1, times=TIMES)), "good")
    assert (x.seasons, x.likely) == (None, 1)


def test_an_arm_that_is_better_everywhere_is_significant_at_every_site() -> None:
    found = two_seasons()
    assert all(x.significant for x in found.effects if (x.arm, x.on, x.source) == ("good", REWARD, "model"))
    assert {x.significant for x in paper().own_effects} == {None}, "the paper's ranges hold together as they are"


def test_with_many_users_one_of_them_is_judged_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    state = grown(CLEAR, 3, times=1.0).state()
    together = own_effects(state, list(state.users))
    monkeypatch.setattr("drimed.reports.effects.MOST_USERS", 3)
    alone = own_effects(state, list(state.users))
    for one, other in zip(together, alone, strict=True):
        assert bool(one.significant) >= bool(other.significant)
        assert replace(one, significant=None) == replace(other, significant=None)
    assert [x.significant for x in together] != [x.significant for x in alone]


def test_an_arm_that_is_retired_or_closed_for_a_season_keeps_its_effects() -> None:
    spec = FIELD | {"users": FIELD["users"] | {"s0": FIELD["users"]["s0"] | {"arms": ["old", "bad"]}}}
    trial = grown(spec, 4, times=2.0)
    contexts = {user: {"rain": 300.0} for user in spec["users"]}
    before = [replace(x, available=True) for x in analyse(trial).effects]
    trial.open_episode(contexts, unavailable={user: ["good"] for user in spec["users"] if user != "s0"})
    closed = analyse(trial)
    assert {x.who for x in closed.own_effects if x.arm == "good" and not x.available} == set(spec["users"])
    trial.retire_arm("good", reason="too dear")
    for found in (closed, analyse(trial)):
        for now, then in zip(found.effects, before, strict=True):
            assert now.estimate == pytest.approx(then.estimate, rel=1e-6, abs=1e-9)
            assert now.ends == pytest.approx(then.ends, rel=1e-6, abs=1e-9)
        judged = {x.who: found.can_be_judged(x) for x in found.own_effects if x.arm == "good"}
        assert judged == {user: user != "s0" for user in spec["users"]}
    assert "good" not in {r.effect.arm for r in analyse(trial).recommendations}


def test_a_control_plot_is_taken_out_of_the_plot_beside_it() -> None:
    spec = {k: v for k, v in FIELD.items() if k != "context"} | {"feedback": "difference"}
    spec |= {"users": {f"s{i}": {} for i in range(6)}}
    rng = np.random.default_rng(4)
    trial = Trial.create(spec, MemoryStore())
    for _ in range(6):
        trial.open_episode()
        block = {f"s{i}": 30 * rng.standard_normal() for i in range(6)}
        reports = []
        for given in trial.ask_many():
            y, beside = (60 + block[given.user] + e + 4 * rng.standard_normal() for e in (EFFECT[given.arm], 0.0))
            reports.append(Report(given.id, {"yield": y, "cost": 1 + rng.random()}, {"yield": beside, "cost": 1.5}))
        trial.tell_many(reports, confirm=True)
    assert abs(everybody(analyse(trial), "good", "yield").estimate - 12) < 5
