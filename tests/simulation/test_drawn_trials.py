"""Fields that are as the model believes fields to be: there its ranges must hold as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.drawn_trials import LEARNED, believed, drawn, measured_in

TRIALS, EACH = 48, 4


def test_deviations_are_spread_as_the_prior_says() -> None:
    """The largest of twelve standardised moments of 400 draws is beyond 4 in one seed of a thousand."""
    families = believed()
    assert set(families) == {"arm", "site", "site_arm", "season", "block", "season_arm"}
    found = [drawn(i) for i in range(400)]
    for name, f in families.items():
        logs = np.array([2 * np.log(getattr(d, name) / d.residual) for d in found])
        z = (logs - np.log(f.centre)) / f.spread
        assert abs(z.mean()) * np.sqrt(400) < 4
        assert abs((z**2).mean() - 1) * np.sqrt(400 / 2) < 4


@pytest.fixture(scope="module")
def after() -> dict[int, list[dict[str, float]]]:
    found: dict[int, list[dict[str, float]]] = {3: [], 5: []}
    for trial in range(TRIALS):
        seeds = range(EACH * trial, EACH * (trial + 1))
        for look in measured_in(drawn(trial), seeds, 5, LEARNED):
            found[look["seasons"]].append(look)
    return found


@pytest.mark.parametrize(("level", "error"), [(0.95, 0.0076), (0.99, 0.0031)])
@pytest.mark.parametrize("seasons", [3, 5])
def test_ranges_hold_as_often_as_they_say(
    after: dict[int, list[dict[str, float]]], seasons: int, level: float, error: float
) -> None:
    """`error` is the standard error of so many trials, measured on 192 others; 3.5 of them are exceeded in one seed of
    2,000. With the most plausible variances alone (pairs = 0) the ranges hold in .912 and .968 after three seasons.
    """
    held = np.mean([look[f"holds.{level:g}"] for look in after[seasons]])
    assert abs(held - level) < 3.5 * error
