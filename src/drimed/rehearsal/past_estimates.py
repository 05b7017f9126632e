"""Estimates from outcomes of earlier seasons: how much they vary, what arms brought, and how good sites are.

Components of variance come by analysis of variance (random effects, expected mean squares) from a table of means. Where
an arm was not grown at a site in a season, its mean is that of the site and season, plus the arm's usual difference,
plus one of the residuals from elsewhere. Shapes: Y seasons, G sites, K arms of the past, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed import streams
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.trial.events import HistoryRead, PastUnit
from drimed.trial.spec import TrialSpec

SWEEPS = 200  # of the fit of a table by site and season plus arm: far more than it needs
FEWEST_REPEATS = 5  # degrees of freedom from plots of one arm at one site in one season, to estimate their noise


@dataclass(frozen=True)
class Estimates:
    """A table of means, filled in, and the scatter of repeated plots."""

    sites: list[str]
    arms: list[str]
    mean: FloatArray  # (Y, G, K, M)
    measured: BoolArray  # (Y, G, K, M)
    within: FloatArray  # (M,), sum of squares of plots of one arm at one site in one season around their mean,
    freedom: FloatArray  # (M,), and its degrees of freedom

    @staticmethod
    def of(spec: TrialSpec, past: HistoryRead) -> Estimates:
        nothing = [None] * len(past.arm)
        y = np.array([past.metrics.get(m, nothing) for m in spec.metrics], np.float64).T  # (n, M)
        by_unit = [_site(spec, unit) for unit in past.units]
        sites = list(dict.fromkeys(by_unit))
        at = np.array(past.season), np.array([sites.index(by_unit[u]) for u in past.unit]), np.array(past.arm)
        total, count = np.zeros((2, len(past.seasons), len(sites), len(past.arms), len(spec.metrics)))
        np.add.at(total, at, np.where(np.isfinite(y), y, 0.0))
        np.add.at(count, at, np.isfinite(y))
        mean, measured = total / np.maximum(count, 1), count > 0
        within = np.where(np.isfinite(y), (y - mean[at]) ** 2, 0.0).sum(0)
        for m in np.flatnonzero(measured.any((0, 1, 2))).tolist():
            mean[..., m] = _fill_in(mean[..., m], measured[..., m], m)
        return Estimates(sites, past.arms, mean, measured, within, np.maximum(count - 1, 0).sum((0, 1, 2)))

    @cached_property
    def components(self) -> dict[str, FloatArray]:
        """Standard deviations by kind, named as in a scenario: (M,) each."""
        x = self.mean
        Y, G, K, _ = x.shape
        y, g, a, grand = (x.mean(axes, keepdims=True) for axes in ((1, 2), (0, 2), (0, 1), (0, 1, 2)))
        yg, ya, ga = (x.mean(axis, keepdims=True) for axis in (2, 1, 0))

        def square(effect: FloatArray, plots: int, freedom: int) -> FloatArray:
            return np.asarray((effect**2).sum((0, 1, 2)) * plots / max(freedom, 1))

        e = square(x - yg - ya - ga + y + g + a - grand, 1, (Y - 1) * (G - 1) * (K - 1))
        s_yg = square(yg - y - g + grand, K, (Y - 1) * (G - 1))
        s_ya = square(ya - y - a + grand, G, (Y - 1) * (K - 1))
        s_ga = square(ga - g - a + grand, Y, (G - 1) * (K - 1))
        s_y, s_g = square(y - grand, G * K, Y - 1), square(g - grand, Y * K, G - 1)
        variances = {
            "noise": np.where(self.freedom >= FEWEST_REPEATS, self.within / np.maximum(self.freedom, 1), e),
            "site": (s_g - s_yg - s_ga + e) / (Y * K) * (G > 1),
            "season": (s_y - s_yg - s_ya + e) / (G * K) * (Y > 1),
            "block": (s_yg - e) / K * (Y > 1 and G > 1),
            "site_arm": (s_ga - e) / Y * (G > 1),
            "season_arm": (s_ya - e) / G * (Y > 1),
        }
        return {kind: np.sqrt(np.maximum(v, 0.0)) for kind, v in variances.items()}

    @property
    def usual(self) -> FloatArray:
        """The mean of each arm over sites, each over the seasons in which it was there: (K, M)."""
        return np.asarray(((self.mean * self._present[..., None, :]).sum(0) / self._present.sum(0)[:, None]).mean(0))

    @property
    def site_levels(self) -> dict[str, FloatArray]:
        """Of each site against the others of its seasons, by name: (M,) each."""
        level, here = self.mean.mean(2), self._present  # (Y, G, M) and (Y, G, 1)
        season = (level * here).sum(1, keepdims=True) / here.sum(1, keepdims=True)
        return dict(zip(self.sites, ((level - season) * here).sum(0) / here.sum(0), strict=True))

    @cached_property
    def _present(self) -> BoolArray:
        """Whether anything was measured at a site in a season: (Y, G, 1)."""
        return np.asarray(self.measured.any((-2, -1)))[..., None]


def _site(spec: TrialSpec, unit: PastUnit) -> str:
    """The group of a unit, or the unit itself where it has none."""
    name = unit["name"]
    own = spec.resolved(spec.users[name]).group if name in spec.users else unit["group"]
    return own or name


def _fill_in(y: FloatArray, measured: BoolArray, stream: int) -> FloatArray:
    """Fill in (Y, G, K) by site and season plus arm, with a residual from elsewhere."""
    arm, overall = np.zeros(y.shape[-1]), float(y[measured].mean())
    in_season, of_arm = measured.sum(-1), np.maximum(measured.sum((0, 1)), 1)
    level = np.full(y.shape[:2], overall)
    for _ in range(SWEEPS):
        sums = np.where(measured, y - arm, 0.0).sum(-1)
        level = np.where(in_season > 0, sums / np.maximum(in_season, 1), overall)
        arm = np.where(measured, y - level[..., None], 0.0).sum((0, 1)) / of_arm
        arm -= arm.mean()
    fitted = level[..., None] + arm
    residuals = streams.generator(stream, "filled in").choice((y - fitted)[measured], y.shape)
    return np.where(measured, y, fitted + residuals)
