"""The checks of whole trials of the paper's kind: quiet in its world, and withdrawing its promise outside."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.records import Report
from drimed.reports.analysis import Analysis, analyse
from drimed.reports.checks import Checks, check, describe_checks
from drimed.reports.page import report
from drimed.reports.wording import summary
from drimed.trial.dataset import load_dataset
from drimed.trial.estimates import check_trial_residuals
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.reports import field_trials

ARMS, SITES = ("a0", "a1", "a2", "a3"), 6
LOOKS = (3, 5, 10)  # seasons of twelve decisions
RUNS = 8
JUDGED = r">certainly<|>likely</td>|(more|less)( \(\w+\))?, (certainly|likely)"  # of an arm, in tables and charts


def spec(seed: int) -> dict[str, Any]:
    return {
        "name": "t",
        "seed": seed,
        "model": {"kind": "paper"},
        "metrics": {"yield": {"range": [0.0, 100.0]}, "cost": {"range": [0.0, 100.0], "better": "lower"}},
        "arms": {arm: {} for arm in ARMS},
        "control": "a0",
        "preference": {"yield": 1.0, "cost": -0.5},
        "users": {f"u{i}": {"group": f"g{i % SITES}"} for i in range(12)},
        "tolerance": {"absolute": 20.0},
    }


def grown(world: str, seed: int, seasons: int = LOOKS[-1]) -> tuple[Trial, dict[int, Checks]]:
    """A trial with noise 10, and its checks after some seasons."""
    rng = np.random.default_rng(seed)
    trial = Trial.create(spec(seed), MemoryStore())
    arm, year = 60 + 5 * rng.standard_normal((4, 2)), rng.standard_normal((seasons + 1, 2))
    site, found = rng.standard_normal((SITES, 4, 2)), {}
    for season in range(1, seasons + 1):
        trial.open_episode()
        reports = []
        for given in trial.ask_many():
            a, s = ARMS.index(given.arm), int(given.user[1:]) % SITES
            shift = {"calm": 0.0, "seasons": 17 * year[season], "sites": 10 * site[s, a], "trend": 3.0 * season}[world]
            y = arm[a] + 10 * rng.standard_normal(2) + shift
            reports.append(Report(given.id, {"yield": float(y[0]), "cost": float(y[1])}))
        trial.tell_many(reports, confirm=True)
        if season in LOOKS:
            with trial.reading() as (ledger, state):
                found[season] = check(load_dataset(ledger, state))
    return trial, found


def withdrawn(world: str) -> list[float]:
    """In which share of trials the promise is withdrawn, by look."""
    runs = [grown(world, seed)[1] for seed in range(RUNS)]
    return [float(np.mean([run[look].withdrawn is not None for run in runs])) for look in LOOKS]


def test_the_promise_stands_where_nothing_is_wrong() -> None:
    """Eight trials with three looks each, at 1 % a look at most: any withdrawn has a chance of 21 %, two of 2 %."""
    assert sum(withdrawn("calm")) * RUNS <= 1


@pytest.mark.parametrize(
    ("world", "least"), [("seasons", [0.5, 0.6, 1.0]), ("sites", [0.0, 0.3, 0.8]), ("trend", [0.0, 0.0, 0.8])]
)
def test_the_promise_is_withdrawn_where_the_model_is_wrong(world: str, least: list[float]) -> None:
    assert (np.array(withdrawn(world)) >= least).all()


def test_a_withdrawn_promise_is_said_first_and_not_repeated() -> None:
    trial, _ = grown("seasons", 0)
    found = analyse(trial)
    said = summary(found)
    assert said[0].startswith("The ranges and the promise to stay near the control do not hold")
    assert "outcomes shift between seasons" in said[0]
    assert not any("certainly" in s or "guaranteed" in s or "likely better" in s for s in said)
    assert any("the model has no season level" in alarm.advice for alarm in found.checks.alarms)
    page = report(found)
    assert page.index("do not hold") < page.index("120 decisions")
    assert found.benefit.verdict not in page
    assert not re.search(JUDGED, page)
    assert "not judged" in page
    standing = replace(found, checks=replace(found.checks, withdrawn=None))
    assert any(found.benefit.verdict in s for s in summary(standing))
    assert re.search(JUDGED, report(standing))


def test_the_page_says_what_was_checked() -> None:
    trial, found = grown("calm", 1)
    model = dict(describe_checks(found[10], trial.state()))["Model"]
    assert model.startswith(f"{len(found[10].residual_checks)} checks of the residuals")
    assert model.endswith("found nothing.")
    none = replace(found[10], residual_checks=())
    assert dict(describe_checks(none, trial.state()))["Model"] == "too few outcomes to check this yet."


def test_residuals_of_another_model_are_taken_as_they_are() -> None:
    trial, _ = grown("seasons", 2)
    with trial.reading() as (ledger, state):
        seen = load_dataset(ledger, state)
    rng = np.random.default_rng(0)
    at = np.arange(len(seen.number))
    quiet = check_trial_residuals(seen, at, rng.standard_normal((len(at), 2)), terms={"season"})
    assert check(seen, quiet).residual_checks == quiet
    assert not any(c.alarm for c in quiet)
    shifted = rng.standard_normal((len(at), 2)) + 2 * rng.standard_normal(11)[seen.episode][:, None]
    loud = check(seen, check_trial_residuals(seen, at, shifted, terms={"season"}))
    assert loud.withdrawn is not None
    assert any("it does not cover this" in a.advice for a in loud.alarms)


def people(affects: list[str]) -> Analysis:
    """240 people once each, 12 at a time; each ten years of age add two deviations to what the new arm does."""
    rng = np.random.default_rng(4)
    trial = Trial.create(
        {
            "name": "p",
            "seed": 1,
            "decisions": "any number",
            "model": {"kind": "people"},
            "metrics": {"steps": {}},
            "arms": {"old": {}, "new": {}},
            "control": "old",
            "preference": {"steps": 1.0},
            "attributes": {
                "age": {"typical": 50.0, "spread": 10.0, "affects": affects},
                "sex": {"levels": ["f", "m"], "affects": affects},
            },
            "tolerance": {"absolute": 3.0},
        },
        MemoryStore(),
    )
    for first in range(0, 240, 12):
        who: dict[str, dict[str, Any]] = {
            f"p{first + i}": {"age": 50 + 10 * rng.standard_normal(), "sex": "fm"[i % 2]} for i in range(12)
        }
        asked = trial.ask_many(list(who), enrol={user: {"attributes": own} for user, own in who.items()})
        steps = [10 + 0.2 * (who[d.user]["age"] - 50) * (d.arm == "new") + rng.standard_normal() for d in asked]
        trial.tell_many([Report(d.id, {"steps": y}) for d, y in zip(asked, steps, strict=True)], confirm=True)
    return analyse(trial)


def test_an_attribute_that_changes_what_an_arm_does_is_noticed_where_the_model_leaves_it_out() -> None:
    left_out = people(["level"])
    assert left_out.checks.withdrawn is not None
    assert "depends on age" in left_out.checks.withdrawn
    assert any(a.advice.endswith('add "effects" to affects under [attributes.age]') for a in left_out.checks.alarms)
    assert {"age: arms", "sex: arms"} <= {c.name for c in left_out.checks.residual_checks}
    assert people(["level", "effects"]).checks.withdrawn is None


def test_a_discount_raises_no_alarm_where_nothing_moves_and_the_page_says_what_is_not_looked_for() -> None:
    """Twelve seasons: the first would be expected to scatter 7 times as much as the last."""
    found = analyse(field_trials.grown(field_trials.FIELD | {"model": {"kind": "field", "discount": 0.7}}, 12))
    assert not found.checks.alarms
    said = dict(describe_checks(found.checks, found.data.state))["Model"]
    assert said.endswith("found nothing. Trends and arms that change were not looked for: the discount is for these.")
