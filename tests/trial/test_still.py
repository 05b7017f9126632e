"""A metric that does not vary, such as a fixed cost, must not keep a trial on its control for good."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.mixed.observations import FEWEST
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

COST = {"old": 100.0, "new": 140.0}
SITES = [f"site {i}" for i in range(6)]


def _trial(level: float = 1.0, **cost: object) -> Trial:
    spec = {
        "name": "cost",
        "metrics": {"yield": {"range": [0, 12]}, "cost": {"better": "lower", **cost}},
        "arms": {"old": {}, "new": {}},
        "control": "old",
        "preference": {"yield": 200.0, "cost": -1.0 / level if level else -1.0},
        "users": {site: {} for site in SITES},
        "tolerance": {"relative": 0.2, "absolute": 300.0},
        "seed": 4,
    }
    return Trial.create(spec, MemoryStore())


def _season(trial: Trial, number: int, level: float = 1.0) -> list[str]:
    rng = np.random.default_rng(number)
    given = trial.ask_many(None, episode=number)
    grown = 6 + rng.normal() + 0.6 * rng.normal(size=len(given))
    trial.tell_many(
        [
            Report(d.id, {"yield": float(y + 0.8 * (d.arm == "new")), "cost": level * COST[d.arm]})
            for d, y in zip(given, grown, strict=True)
        ],
        confirm=True,
    )
    return [d.arm for d in given]


@pytest.mark.parametrize("cost", [{}, {"range": [0, 400]}], ids=["no range", "a range"])
def test_a_fixed_cost_does_not_freeze_a_trial(cost: dict[str, object]) -> None:
    trial = _trial(1.0, **cost)
    first = [_season(trial, s) for s in (1, 2)]
    assert first == [["old"] * 6] * 2, f"before there are {FEWEST} outcomes nothing is certified"
    later = [arm for s in range(3, 9) for arm in _season(trial, s)]
    assert "new" in later
    effects = trial.ask("site 0", episode=9).effects
    assert effects is not None
    assert effects["new"].high - effects["new"].low < 1000
    assert verify(trial.store, "cost").ok


def test_without_a_range_the_unit_of_a_fixed_cost_changes_no_decision() -> None:
    """Half of the level is assumed, whatever the level is written in."""
    played = []
    for level in (1.0, 1024.0):  # a power of two: nothing is rounded
        trial = _trial(level)
        played.append([_season(trial, s, level) for s in range(1, 6)])
    assert played[0] == played[1]


def test_a_metric_that_is_always_zero_does_not_freeze_a_trial() -> None:
    trial = _trial(0.0)
    assert "new" in [arm for s in range(1, 7) for arm in _season(trial, s, 0.0)]


def test_a_fixed_cost_raises_no_alarm_about_the_model() -> None:
    trial = _trial()
    for s in range(1, 12):
        _season(trial, s)
    assert not [a.what for a in analyse(trial).checks.alarms if "cost" in a.what]
