"""The past as a world: a table of what was measured in earlier seasons, from which seasons are drawn again.

A rehearsed season is one of the past, for all sites at once; what an arm brings at a site is what it brought there
then. Where it was not grown there then, it is what the site and season had in common plus the arm's usual difference
and one of the differences that were left over elsewhere. Components of variance come from the same table by analysis
of variance (random effects, expected mean squares). Shapes: Y seasons, G sites, K arms, M metrics.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from drimed import streams
from drimed.errors import InputError
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.rehearsal.scenarios import Scenario, control_arms
from drimed.trial import tables
from drimed.trial.columns import Column, Columns
from drimed.trial.names import METRIC, tidy
from drimed.trial.spec import TrialSpec
from drimed.trial.tables import Table, read, refuse

SITES = ("site", "user", "group")  # names of the column that says where
SWEEPS = 200  # of the fit of a table by site and season plus arm: far more than it needs
FEWEST_REPEATS = 5  # degrees of freedom from plots of one arm at one site in one season, to tell their noise


@dataclass(frozen=True)
class History:
    """What was measured, by season, site and arm."""

    seasons: tuple[str, ...]
    sites: tuple[str, ...]
    arms: tuple[str, ...]
    metrics: tuple[str, ...]
    mean: FloatArray  # (Y, G, K, M), of all plots; filled in where nothing was measured
    measured: BoolArray  # (Y, G, K, M)
    repeats: FloatArray  # (R, M), how far plots of one arm at one site in one season were from their mean
    freedom: FloatArray  # (M,), degrees of freedom of those
    digest: str

    @property
    def present(self) -> BoolArray:
        """Where something was measured at all: (Y, G)."""
        return np.asarray(self.measured.any((-2, -1)))

    @cached_property
    def lasting(self) -> FloatArray:
        """The mean of each arm at each site over the seasons it was there: (G, K, M)."""
        there = self.present[..., None, None]
        return np.asarray((self.mean * there).sum(0) / there.sum(0))

    @cached_property
    def components(self) -> dict[str, FloatArray]:
        """Standard deviations by kind, in the words of a scenario: (M,) each."""
        x = self.mean
        Y, G, K, _ = x.shape
        m = {axes: x.mean(axes, keepdims=True) for axes in ((), (0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2))}
        y, g, a, grand = m[1, 2], m[0, 2], m[0, 1], m[0, 1, 2]
        yg, ya, ga = m[(2,)], m[(1,)], m[(0,)]
        left = x - yg - ya - ga + y + g + a - grand

        def square(effect: FloatArray, plots: int, freedom: int) -> FloatArray:
            total = (effect**2).sum((0, 1, 2)) * plots
            return np.asarray(total / max(freedom, 1))

        e = square(left, 1, (Y - 1) * (G - 1) * (K - 1))
        e = np.where(e > 0, e, 0.0)
        s_yg = square(yg - y - g + grand, K, (Y - 1) * (G - 1))
        s_ya = square(ya - y - a + grand, G, (Y - 1) * (K - 1))
        s_ga = square(ga - g - a + grand, Y, (G - 1) * (K - 1))
        s_y, s_g = square(y - grand, G * K, Y - 1), square(g - grand, Y * K, G - 1)
        within = (self.repeats**2).sum(0) / np.maximum(self.freedom, 1)
        found = {
            "noise": np.where(self.freedom >= FEWEST_REPEATS, within, e),
            "site": (s_g - s_yg - s_ga + e) / (Y * K),
            "season": (s_y - s_yg - s_ya + e) / (G * K),
            "block": (s_yg - e) / K,
            "site_arm": (s_ga - e) / Y,
            "season_arm": (s_ya - e) / G,
        }
        enough = {"site": G > 1, "season": Y > 1, "block": Y > 1 and G > 1, "site_arm": G > 1, "season_arm": Y > 1}
        return {k: np.sqrt(np.maximum(v, 0.0)) * enough.get(k, True) for k, v in found.items()}

    def scenarios(self, spec: TrialSpec, seasons: int | None) -> dict[str, Scenario]:
        """The past itself, and what was estimated from it with the arms' differences and without any."""
        sd = {k: dict(zip(self.metrics, v.tolist(), strict=True)) for k, v in self.components.items()}
        usual = self.lasting.mean(0)  # (K, M)
        control = next(iter(sorted(control_arms(spec)))) if control_arms(spec) else self.arms[0]
        at = self.arms.index(control)
        level = dict(zip(self.metrics, usual[at].tolist(), strict=True))
        effects = {
            arm: dict(zip(self.metrics, (usual[k] - usual[at]).tolist(), strict=True))
            for k, arm in enumerate(self.arms)
            if arm not in control_arms(spec)
        }
        common: dict[str, Any] = {"seasons": seasons, "level": level} | sd
        return {
            "as in the past": Scenario(about="seasons of the past drawn again", seasons=seasons, history=True,
                                       noise=sd["noise"]),
            "as estimated from the past": Scenario(
                about="differences and variation as estimated from the past", effects=effects, **common
            ),
            "no difference": Scenario(
                about="all arms do the same; variation as in the past",
                **common | {"site_arm": dict.fromkeys(self.metrics, 0.0)},
            ),
        }  # fmt: skip


def load(spec: TrialSpec, path: Path) -> History:
    """A table with columns season, site (or user, or group), arm, and one for each metric."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return of_table(spec, read(data, path.name), hashlib.sha256(data).hexdigest()[:16])


def of_table(spec: TrialSpec, table: Table, digest: str = "") -> History:
    """Rows of arms that the trial does not have are passed over."""
    names = {name.casefold(): name for name in table.names}
    where = next((names[n] for n in SITES if n in names), None)
    wanted = {"season": names.get("season"), "site": where, "arm": names.get("arm")}
    own = [name for name in wanted.values() if name is not None]
    read_as = Columns.of_metrics(spec).read(replace(table, names=[n for n in table.names if n not in own]))
    wanted |= {m: next((n for n, c in read_as.items() if c == Column(METRIC, m)), None) for m in spec.metrics}
    if missing := [name for name, column in wanted.items() if column is None]:
        raise InputError(
            f"the history has no column {missing[0]!r}; it needs season, site (or user, or group), arm and "
            f"{', '.join(spec.metrics)}, and has {', '.join(table.names)}"
        )
    columns = {name: str(column) for name, column in wanted.items()}
    rows = _rows(spec, table, columns)
    arms, metrics = tuple(spec.arms), tuple(spec.metrics)
    if lost := [a for a in arms if not any(r[2] == a for r in rows)]:
        raise InputError(
            f"the history has no row for arm {lost[0]!r} of the trial, so nothing says what it would bring; "
            f"its arms are {', '.join(sorted({str(r.cells.get(columns['arm'])) for r in table.rows}))}"
        )
    seasons, sites = tuple(dict.fromkeys(r[0] for r in rows)), tuple(dict.fromkeys(r[1] for r in rows))
    return _filled(seasons, sites, arms, metrics, rows, digest)


_Plot = tuple[str, str, str, FloatArray]


def _rows(spec: TrialSpec, table: Table, columns: Mapping[str, str]) -> list[_Plot]:
    metrics = list(spec.metrics)
    marks = tables.marks(table.separator, (c for m in metrics for c in table.column(columns[m])))
    found, errors = [], {}
    told: dict[str, int] = {}  # season -> its first row, while nothing was measured in it
    measured: set[str] = set()
    for row in table.rows:
        texts = [tidy(tables.text(row.cells.get(columns[name], ""))) for name in ("season", "site", "arm")]
        if empty := [n for n, t in zip(("season", "site", "arm"), texts, strict=True) if not t]:
            errors[row.number] = f"column {empty[0]!r} is empty"
            continue
        told.setdefault(texts[0], row.number)
        if texts[2] not in spec.arms:
            continue
        try:
            given = (row.cells.get(columns[m]) for m in metrics)
            y = np.array([np.nan if tables.is_missing(v) else tables.number(m, v, marks)
                          for m, v in zip(metrics, given, strict=True)])  # fmt: skip
        except InputError as error:
            errors[row.number] = str(error)
            continue
        if np.isfinite(y).any():
            measured.add(texts[0])
            found.append((texts[0], texts[1], texts[2], y))
    for season, number in told.items():
        if season not in measured:
            errors.setdefault(
                number,
                f"season {season!r} is empty: no metric was measured in it on any arm of the trial; leave it out",
            )
    refuse(errors)
    return found


def _filled(
    seasons: Sequence[str], sites: Sequence[str], arms: Sequence[str], metrics: Sequence[str], rows: Sequence[_Plot],
    digest: str,
) -> History:  # fmt: skip
    shape = (len(seasons), len(sites), len(arms), len(metrics))
    total, count = np.zeros(shape), np.zeros(shape)
    places = [(seasons.index(s), sites.index(g), arms.index(a)) for s, g, a, _ in rows]
    for at, (*_, y) in zip(places, rows, strict=True):
        there = np.isfinite(y)
        total[at] += np.where(there, y, 0.0)
        count[at] += there
    measured = count > 0
    mean = total / np.maximum(count, 1)
    off = np.array([np.where(np.isfinite(y), y - mean[at], 0.0) for at, (*_, y) in zip(places, rows, strict=True)])
    several = np.array([count[at] > 1 for at in places])
    repeats = np.where(several, off, 0.0)
    for m, metric in enumerate(metrics):
        for k, arm in enumerate(arms):
            if not measured[:, :, k, m].any():
                raise InputError(f"the history has no {metric!r} of arm {arm!r}, so nothing says what it would bring")
        mean[..., m] = _additive(mean[..., m], measured[..., m], m)
    freedom = (np.maximum(count - 1, 0)).sum((0, 1, 2))
    kept = several.any(-1)
    return History(
        tuple(seasons), tuple(sites), tuple(arms), tuple(metrics), mean, measured,
        repeats[kept] if kept.any() else np.zeros((0, len(metrics))), freedom, digest,
    )  # fmt: skip


def _additive(y: FloatArray, there: BoolArray, stream: int) -> FloatArray:
    """Fill in (Y, G, K) by site and season plus arm, with a difference that was left over elsewhere."""
    arm = np.zeros(y.shape[-1])
    overall = float(y[there].mean())
    level = np.full(y.shape[:2], overall)
    for _ in range(SWEEPS):
        n = there.sum(-1)
        level = np.where(n > 0, (np.where(there, y - arm, 0.0)).sum(-1) / np.maximum(n, 1), overall)
        seen = there.sum((0, 1))
        arm = np.where(there, y - level[..., None], 0.0).sum((0, 1)) / np.maximum(seen, 1)
        arm -= arm.mean()
    fitted = level[..., None] + arm
    left = (y - fitted)[there]
    drawn = streams.generator(stream, "filled in").choice(left, y.shape)
    return np.where(there, y, fitted + drawn)
