"""Checks of whole trials: quiet where the model is right, withdrawing its promise where it is wrong."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from drimed.formatting import short
from drimed.records import Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.assumption_checks import RATE, Checks, agreement, check, describe_checks, unusual
from drimed.reports.page import report
from drimed.trial.dataset import load_dataset
from drimed.trial.estimates import EXACT, PROPENSITIES, value_range
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports.worlds import FIELD, PAPER, everybody, field, grown, play, summary

ARMS, SITES, SEASONS = ("a0", "a1", "a2", "a3"), 6, 10
SPEC: dict[str, Any] = {
    "name": "t",
    "model": {"kind": "paper"},
    "metrics": {"yield": {"range": [0.0, 100.0]}, "cost": {"range": [0.0, 100.0], "better": "lower"}},
    "arms": {arm: {} for arm in ARMS},
    "control": "a0",
    "preference": {"yield": 1.0, "cost": -0.5},
    "users": {f"u{i}": {"group": f"g{i % SITES}"} for i in range(12)},
    "tolerance": {"absolute": 20.0},
}
COIN: dict[str, Any] = {
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


@cache
def world(name: str, seed: int) -> tuple[Trial, Checks]:
    """A trial of the paper's kind with noise 10 in a world that has, or has not, more than arms."""
    rng = np.random.default_rng(seed)
    trial = Trial.create(SPEC | {"seed": seed}, MemoryStore())
    arm, year = 60 + 5 * rng.standard_normal((4, 2)), rng.standard_normal((SEASONS + 1, 2))
    site = rng.standard_normal((SITES, 4, 2))
    for season in range(1, SEASONS + 1):
        trial.open_episode()
        reports = []
        for given in trial.ask_many():
            a, s = ARMS.index(given.arm), int(given.user[1:]) % SITES
            shift = {"calm": 0.0, "seasons": 17 * year[season], "sites": 10 * site[s, a], "trend": 3.0 * season}[name]
            y = arm[a] + 10 * rng.standard_normal(2) + shift
            reports.append(Report(given.id, {"yield": float(y[0]), "cost": float(y[1])}))
        trial.tell_many(reports, confirm=True)
    with trial.reading() as (ledger, state):
        return trial, check(load_dataset(ledger, state), None)


def test_the_promise_stands_where_nothing_is_wrong() -> None:
    """At 1 % a look at most: any of four withdrawn has a chance of 4 %."""
    assert not any(world("calm", seed)[1].withdrawn for seed in range(4))


@pytest.mark.parametrize("name", ["seasons", "sites", "trend"])
def test_the_promise_is_withdrawn_where_the_model_is_wrong(name: str) -> None:
    assert sum(world(name, seed)[1].withdrawn is not None for seed in range(3)) >= 2


def test_a_withdrawn_promise_is_said_first_with_advice() -> None:
    found = analyse(world("seasons", 0)[0])
    said = summary(found)
    assert "do not hold, because the model is wrong: " in said[0]
    assert "outcomes differ between seasons" in said[0]
    assert any("the model has no season level" in alarm.advice for alarm in found.checks.alarms)


def test_every_check_has_a_sentence() -> None:
    trial, found = world("calm", 1)
    about = dict(describe_checks(found, trial.state()))
    assert list(about) == ["Effects", "Model", "Logged probabilities"]
    assert about["Model"].startswith(f"{len(found.residual_checks)} checks of the residuals")
    assert about["Model"].endswith("found nothing.")
    none = replace(found, residual_checks=())
    assert dict(describe_checks(none, trial.state()))["Model"] == "too few outcomes to check this yet."
    about = dict(describe_checks(field().checks, field().data.state))
    assert list(about) == ["Model", "Logged probabilities"], "the others are of the paper's model"


def test_effects_that_move_raise_an_alarm() -> None:
    found = analyse(play(PAPER, 40, shift=20)).checks
    assert any("effects themselves have moved" in a.what and (a.episode or 0) >= 20 for a in found.alarms)
    assert not any(a.what.startswith("cost") for a in found.alarms)


def test_noise_that_is_larger_than_claimed_raises_an_alarm_for_each_arm_and_withdraws_nothing() -> None:
    found = analyse(play(PAPER | {"noise": {"kind": "known", "sd": {"yield": 0.25, "cost": 3.0}}}, 40)).checks
    assert any(a.what.startswith("yield: outcomes under good scatter more than assumed") for a in found.alarms)
    assert not any(a.what.startswith("cost") for a in found.alarms)
    assert found.withdrawn is None


def test_a_mixed_model_with_seasons_and_sites_leaves_nothing_of_them() -> None:
    assert field().checks.residual_checks
    assert field().checks.alarms == []
    discounted = analyse(grown(FIELD | {"model": {"kind": "field", "discount": 0.7}}, 8))
    assert not discounted.checks.alarms
    said = dict(describe_checks(discounted.checks, discounted.data.state))["Model"]
    assert said.endswith("found nothing. Trends and arms that change were not looked for: the discount is for these.")


def people(affects: list[str]) -> Analysis:
    """240 people once each, 12 at a time; each ten years of age add two deviations to the effect of the new arm."""
    rng = np.random.default_rng(4)
    attributes: dict[str, Any] = {"age": {"typical": 50.0, "spread": 10.0}, "sex": {"levels": ["f", "m"]}}
    attributes = {name: one | {"affects": affects} for name, one in attributes.items()}
    spec = {
        "name": "p", "seed": 1, "decisions": "any number", "model": {"kind": "people"}, "metrics": {"steps": {}},
        "arms": {"old": {}, "new": {}}, "control": "old", "preference": {"steps": 1.0}, "attributes": attributes,
        "tolerance": {"absolute": 3.0},
    }  # fmt: skip
    trial = Trial.create(spec, MemoryStore())
    for first in range(0, 240, 12):
        who: dict[str, dict[str, Any]] = {
            f"p{first + i}": {"age": 50 + 10 * rng.standard_normal(), "sex": "fm"[i % 2]} for i in range(12)
        }
        asked = trial.ask_many(list(who), enrol={user: {"attributes": own} for user, own in who.items()})
        steps = [10 + 0.2 * (who[d.user]["age"] - 50) * (d.arm == "new") + rng.standard_normal() for d in asked]
        trial.tell_many([Report(d.id, {"steps": y}) for d, y in zip(asked, steps, strict=True)], confirm=True)
    return analyse(trial)


def test_an_attribute_that_changes_an_effect_is_noticed_where_the_model_leaves_it_out() -> None:
    left_out = people(["level"])
    assert left_out.checks.withdrawn is not None
    assert "depends on age" in left_out.checks.withdrawn
    assert any(a.advice.endswith('add "effects" to affects under [attributes.age]') for a in left_out.checks.alarms)
    assert people(["level", "effects"]).checks.withdrawn is None


@cache
def coins(policy: str = "uniform", episodes: int = 150) -> Analysis:
    trial, rng = Trial.create(COIN | {"policy": {"name": policy}}, MemoryStore()), np.random.default_rng(1)
    for _ in range(episodes):
        trial.open_episode()
        trial.tell_many([Report(d.id, {"cured": float(rng.random() < CHANCE[d.arm])}) for d in trial.ask_many()])
    return analyse(trial)


def test_model_and_propensities_agree_where_both_are_right() -> None:
    found = coins().agreement
    assert (found.compared, found.disagreements, found.scarce) == (2, [], [])
    assert "no sign that they disagree, in 2 effects" in found.describe()


def test_ranges_with_nothing_in_common_are_an_alarm_with_advice() -> None:
    a = coins()
    true, free = everybody(a, "new"), everybody(a, "new", source=PROPENSITIES)
    low, high = true.ends
    moved = [replace(x, estimate=x.estimate + 5, low=low + 5, high=high + 5) if x is true else x for x in a.effects]
    parted = agreement(a.data, a.fit, moved)
    (one,) = parted.disagreements
    by_model, by_propensities = one.split(" by the model, and ")
    assert by_model == f"the effect of new for all users is {short(low + 5)} to {short(high + 5)}"
    assert float(by_propensities.split()[0]) < free.ends[0], "at the level of the alarm, for all effects together"
    assert parted.rate == 0.01 + RATE / 2  # the paper's ranges hold together at 1 - delta
    (alarm,) = parted.alarms
    assert "without the model the answer differs" in alarm.what
    assert "believe the range that needs no model" in alarm.advice
    assert "Without the model the answer differs" in report(replace(a, agreement=parted))
    edge = free.ends[1]
    near = replace(true, low=edge + 0.01, high=edge + 1, estimate=edge + 0.5)
    assert agreement(a.data, a.fit, [near if x is true else x for x in a.effects]).disagreements == []


def test_mistyped_outcomes_are_alarms_in_their_first_season() -> None:
    trial = grown(FIELD, 1)
    assert unusual(analyse(trial).data) == []
    for wrong in (1, 2):
        trial.amend(wrong, {"yield": 800.0}, reason="a slip", confirm=True)
    a = analyse(trial)
    alarm = next(x for x in a.checks.alarms if "unusual outcomes were recorded: decision 1: yield 800" in x.what)
    assert "; decision 2: yield 800 is far from the 9 values" in alarm.what
    assert "outlier" not in " ".join(x.what for x in a.checks.alarms), "said once"
    assert alarm.what in report(a)


def test_exact_ranges_come_where_the_file_bounds_the_reward() -> None:
    a = coins()
    assert value_range(a.data) == (0.0, 1.0)
    (low, high), (usual_low, usual_high) = (everybody(a, "new", source=s).ends for s in (EXACT, PROPENSITIES))
    assert 0 < low < usual_low < 0.8 < usual_high < high
    assert "without the model, exact" in report(a)


def test_scarce_arms_are_named_with_the_use_of_a_floor() -> None:
    a = coins("control", 40)
    assert a.agreement.scarce == ["new", "other"]
    said = "new and other were given too rarely beside the control for a check without a model."
    assert a.agreement.missing.startswith(said)
    assert a.agreement.missing in report(a)
    assert "cannot be compared" in a.agreement.describe()
