"""The model beside what is known without it: they part where they should, and silence has a reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.evaluation import propensity_effects
from drimed.records import Effect, Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.checks import RATE, Agreement, ScarceArm, agreement, foreseen_half_width
from drimed.reports.effects import EVERYBODY, MODEL
from drimed.reports.page import report
from drimed.trial.estimates import EXACT, PROPENSITIES, reward_range
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

SPEC: dict[str, Any] = {
    "name": "t",
    "seed": 5,
    "decisions": "any number",
    "model": {"kind": "paper"},
    "metrics": {"cured": {"range": [0.0, 1.0]}},
    "arms": {"old": {}, "new": {}, "other": {}},
    "control": "old",
    "preference": {"cured": 1.0},
    "users": {f"u{i}": {} for i in range(6)},
    "noise": {"kind": "known", "sd": {"cured": 0.5}},
    "policy": {"name": "uniform"},
}
CHANCE = {"old": 0.1, "new": 0.9, "other": 0.1}


def played(spec: dict[str, Any], episodes: int) -> Trial:
    trial, rng = Trial.create(spec, MemoryStore()), np.random.default_rng(1)
    for _ in range(episodes):
        trial.open_episode()
        trial.tell_many([Report(d.id, {"cured": float(rng.random() < CHANCE[d.arm])}) for d in trial.ask_many()])
    return trial


@pytest.fixture(scope="module")
def found() -> Analysis:
    return analyse(played(SPEC, 150))


def one(a: Analysis, arm: str, source: str) -> Effect:
    return next(x for x in a.effects if (x.who, x.arm, x.source) == (EVERYBODY, arm, source) and x.on == "reward")


def test_model_and_propensities_agree_where_both_are_right(found: Analysis) -> None:
    assert found.agreement.compared == 2
    assert found.agreement.disagreements == []
    assert "no sign that they disagree, in 2 effects" in found.agreement.describe()
    assert found.agreement.scarce_arms == []


def test_ranges_with_nothing_in_common_are_an_alarm_with_advice(found: Analysis) -> None:
    true = one(found, "new", MODEL)
    shifted = replace(true, estimate=true.estimate + 5, low=true.ends[0] + 5, high=true.ends[1] + 5)
    moved = [shifted if x is true else x for x in found.effects]
    parted = agreement(found.data, found.fit, moved)
    assert [(x.who, x.arm) for x in parted.disagreements] == [(EVERYBODY, "new")]
    assert parted.disagreements[0].model == (true.ends[0] + 5, true.ends[1] + 5)
    assert parted.disagreements[0].model_free[1] < parted.disagreements[0].model[0]
    wider = one(found, "new", PROPENSITIES)
    assert parted.disagreements[0].model_free[0] < wider.ends[0]
    assert parted.rate == 0.01 + RATE / 2  # the paper's ranges hold together at 1 - delta
    (alarm,) = parted.alarms
    assert "without the model the answer is another" in alarm.what
    assert "believe the range that needs no model" in alarm.advice
    html = report(replace(found, agreement=parted))
    assert "Without the model the answer is another" in html


def test_ranges_that_part_only_at_95_percent_are_no_alarm(found: Analysis) -> None:
    true, free = one(found, "new", MODEL), one(found, "new", PROPENSITIES)
    near = replace(true, low=free.ends[1] + 0.01, high=free.ends[1] + 1, estimate=free.ends[1] + 0.5)
    moved = [near if x is true else x for x in found.effects]
    assert agreement(found.data, found.fit, moved).disagreements == []


def test_exact_ranges_come_where_the_file_bounds_the_reward(found: Analysis) -> None:
    assert reward_range(found.data) == (0.0, 1.0)
    sure, usual = one(found, "new", EXACT), one(found, "new", PROPENSITIES)
    assert sure.ends[0] < usual.ends[0] < 0.8 < usual.ends[1] < sure.ends[1]
    assert sure.ends[0] > 0
    assert "without the model, exact" in report(found)
    assert "outside the range that the trial file gives its metric" in report(found)


def test_the_bounds_of_the_reward_follow_from_preferences_and_ranges() -> None:
    metrics = {"cured": {"range": [0.0, 1.0]}, "cost": {"range": [10.0, 30.0], "better": "lower"}, "moisture": {}}
    users = {"a": {"preference": {"cured": 2.0, "cost": -0.1}}, "b": {"preference": {"cured": 1.0}}}
    spec = SPEC | {"metrics": metrics, "users": users, "model": {"kind": "field"}, "policy": {"name": "dri_med"}}
    spec.pop("noise")
    assert reward_range(analyse(Trial.create(spec, MemoryStore())).data) == (-3.0, 1.0)  # a: -3 .. 1, b: 0 .. 1
    without = {"cured": {}, "cost": metrics["cost"], "moisture": {}}
    assert reward_range(analyse(Trial.create(spec | {"metrics": without}, MemoryStore())).data) is None


def test_silence_says_what_is_scarce_and_what_a_floor_would_give() -> None:
    guarded = SPEC | {"policy": {"name": "control"}}
    a = analyse(played(guarded, 40))
    assert [x.arm for x in a.agreement.scarce_arms] == ["new", "other"]
    new = a.agreement.scarce_arms[0]
    assert (new.scarce, new.plays, new.decisions) == ("arm", 0.0, 240)
    assert new.half is not None
    assert "[floors] arms = 0.05, where the guard allows it, 240 more decisions would give a range" in new.describe()
    assert "cannot be compared" in a.agreement.describe()
    floored = analyse(played(guarded | {"policy": {"name": "dri_med"}, "floors": {"arms": 0.02}}, 5))
    assert any("With its floor that takes about" in x.describe() for x in floored.agreement.scarce_arms)


def test_the_range_foreseen_is_the_one_that_comes() -> None:
    rng, n, floor, sd = np.random.default_rng(2), 2000, 0.1, 3.0
    action = (rng.random(n) >= floor).astype(int)
    reward = sd * rng.standard_normal(n)
    found = propensity_effects.effect_scores(
        action=action, reward=reward, probabilities=np.tile([floor, 1 - floor], (n, 1)), contrast=[-1.0, 1.0]
    )
    band = propensity_effects.asymptotic_band(found, 0.05)
    half = float(band.high[-1] - band.low[-1]) / 2
    assert foreseen_half_width(sd, floor, n) == pytest.approx(half, rel=0.15)
    assert foreseen_half_width(sd, floor, 50) is None


def test_many_arms_that_were_hardly_played_have_one_sentence() -> None:
    few = [ScarceArm(f"a{i}", "arm", 0.1 * i, None, 40, 0.0) for i in range(3)]
    assert len(Agreement(0, RATE, [], few).describe_scarce()) == 3
    both = ScarceArm("b", "both", 4.0, None, 40, 0.0)
    many = [*few, ScarceArm("a3", "arm", 1.2, None, 40, 0.0), both]
    one, other = Agreement(0, RATE, [], many).describe_scarce()
    assert one.startswith("Nothing can be said about 4 arms without the model yet (a0, a1, a2 and 1 more): ")
    assert "the most that one of them had is 1.2 (a3). A floor would change that" in one
    assert other == both.describe()


def test_where_there_are_floors_none_is_advised() -> None:
    said = ScarceArm("b", "both", 8.98, None, 54, 0.1).describe()
    assert said.endswith("and 10 are needed. With the floors that takes about 11 more decisions.")
    assert "A floor would change that" in ScarceArm("b", "both", 8.98, None, 54, 0.0).describe()
