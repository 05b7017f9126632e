"""Outcomes of earlier seasons as a world: a table of the past, from which seasons are drawn again.

A rehearsed season is one of the past, for all sites at once; an arm brings at a site what it brought there then. Where
it was not grown there then, it brings the level of the site and season, the arm's usual difference and one of the
residuals from elsewhere. Components of variance come from the same table by analysis of variance (random effects,
expected mean squares). Shapes: Y seasons, G sites, K arms, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from drimed import streams
from drimed.errors import InputError
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.rehearsal.scenarios import Scenario, control_arms
from drimed.simulation.trial_world import Past
from drimed.trial import past
from drimed.trial.past import PastRow
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.tables import Table, refuse

SWEEPS = 200  # of the fit of a table by site and season plus arm: far more than it needs
FEWEST_REPEATS = 5  # degrees of freedom from plots of one arm at one site in one season, to estimate their noise


@dataclass(frozen=True)
class History(Past):
    """Outcomes of the arms and metrics of a trial."""

    freedom: FloatArray  # (M,), degrees of freedom of `repeats`
    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    digest: str

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
        within = (self.repeats**2).sum(0) / np.maximum(self.freedom, 1)
        variances = {
            "noise": np.where(self.freedom >= FEWEST_REPEATS, within, e),
            "site": (s_g - s_yg - s_ga + e) / (Y * K) * (G > 1),
            "season": (s_y - s_yg - s_ya + e) / (G * K) * (Y > 1),
            "block": (s_yg - e) / K * (Y > 1 and G > 1),
            "site_arm": (s_ga - e) / Y * (G > 1),
            "season_arm": (s_ya - e) / G * (Y > 1),
        }
        return {kind: np.sqrt(np.maximum(v, 0.0)) for kind, v in variances.items()}

    def scenarios(self, spec: TrialSpec, seasons: int | None) -> dict[str, Scenario]:
        """The past itself, and estimates from it with the arms' differences and without any."""
        controls, usual = control_arms(spec), self.lasting.mean(0)  # (K, M)
        at = self.arms.index(min(controls) if controls else self.arms[0])

        def by_metric(values: FloatArray) -> dict[str, float]:
            return dict(zip(self.metrics, values.tolist(), strict=True))

        sd: dict[str, Any] = {kind: by_metric(values) for kind, values in self.components.items()}
        common = sd | {"seasons": seasons, "level": by_metric(usual[at])}
        effects = {a: by_metric(usual[k] - usual[at]) for k, a in enumerate(self.arms) if a not in controls}
        return {
            "as in the past": Scenario(
                about="seasons of the past drawn again", seasons=seasons, history=True, noise=sd["noise"]
            ),
            "as estimated from the past": Scenario(
                about="differences and variation as estimated from the past", effects=effects, **common
            ),
            "no difference": Scenario(
                about="all arms do the same; variation as in the past",
                **common | {"site_arm": dict.fromkeys(self.metrics, 0.0)},
            ),
        }


def load(spec: TrialSpec, path: Path) -> History:
    """From a file, read as the trial itself would read it."""
    table, digest = past.read_bytes(path)
    return of_table(spec, table, digest[:16])


def of_table(spec: TrialSpec, table: Table, digest: str = "") -> History:
    """The history in a table; rows of arms that the trial does not have are passed over."""
    arms, metrics = tuple(spec.arms), tuple(spec.metrics)
    every = past.read_rows(Problem(spec), table)
    faults: dict[int, str] = {}
    for season, number in {row.season: row.number for row in reversed(every)}.items():
        if not any(row.metrics and row.arm in arms for row in every if row.season == season):
            faults[number] = f"season {season!r} is empty: no metric was measured in it on any arm; leave it out"
    refuse(faults)
    rows = [
        (row.season, _site(spec, row), row.arm, np.array([row.metrics.get(m, np.nan) for m in metrics]))
        for row in every
        if row.metrics and row.arm in arms
    ]
    if missing := [a for a in arms if not any(arm == a for _, _, arm, _ in rows)]:
        raise InputError(
            f"the history has no row for arm {missing[0]!r} of the trial, so nothing says what it would bring; "
            f"its arms are {', '.join(sorted({row.arm for row in every}))}"
        )
    seasons, sites = (tuple(dict.fromkeys(names)) for names in ([r[0] for r in rows], [r[1] for r in rows]))
    total, count = np.zeros((2, len(seasons), len(sites), len(arms), len(metrics)))
    places = [(seasons.index(s), sites.index(g), arms.index(a)) for s, g, a, _ in rows]
    for at, (*_, y) in zip(places, rows, strict=True):
        total[at] += np.where(np.isfinite(y), y, 0.0)
        count[at] += np.isfinite(y)
    measured, mean = count > 0, total / np.maximum(count, 1)
    several = np.array([count[at] > 1 for at in places])  # (n, M)
    residuals = np.array([y - mean[at] for at, (*_, y) in zip(places, rows, strict=True)])
    residuals = np.where(several & np.isfinite(residuals), residuals, 0.0)
    for m, metric in enumerate(metrics):
        for k, arm in enumerate(arms):
            if not measured[:, :, k, m].any():
                raise InputError(f"the history has no {metric!r} of arm {arm!r}, so nothing says what it would bring")
        mean[..., m] = _fill_in(mean[..., m], measured[..., m], m)
    freedom = np.maximum(count - 1, 0).sum((0, 1, 2))
    return History(seasons, sites, mean, measured, residuals[several.any(-1)], freedom, arms, metrics, digest)


def _site(spec: TrialSpec, row: PastRow) -> str:
    """The group of a unit, or the unit itself where it has none."""
    own = spec.resolved(spec.users[row.unit]).group if row.unit in spec.users else row.group
    return own or row.unit


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
