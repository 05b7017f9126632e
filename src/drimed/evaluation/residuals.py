"""What is left of the outcomes when the model is taken out, and what to do about it.

Input are standardised residuals: independent and standard normal if the model is right. A regression hands over its
columns as well (`design`), and outcomes or residuals over their noise: its coefficients are taken out here, and the
degrees of freedom that they cost are counted. Residuals are looked at by season, group, user and arm and by pairs of
these, over time, along each covariate and by each category, by their spread, their order and their tails. Checks of
levels and lines go forward: the clearest finding is taken out before the others are looked at again, so that one cause
gives one alarm. An alarm needs p < alpha divided by the number of checks, over all metrics (Bonferroni): a model that
is right raises any alarm with probability alpha at most, at one look.

Shapes: n rows, M metrics, c covariates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np

from drimed.errors import ShapeError
from drimed.evaluation import residual_candidates as candidates
from drimed.evaluation import residual_tests as tests
from drimed.evaluation import residual_words as words
from drimed.evaluation.residual_tests import Space
from drimed.evaluation.residual_words import Described
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

FEWEST = 20  # rows of a metric below which nothing is said
PAPER = Described()
LEVERAGE = 0.75  # rows that what was taken out fits more closely than this say little about spread and tails


@final
@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Residuals with what is known of their decisions. Labels may be numbers or names."""

    values: FloatArray  # (n, M), standard normal once the design is taken out if the model is right; NaN: not observed
    metrics: tuple[str, ...]
    arm: Sequence[Any] | IntArray  # (n,)
    user: Sequence[Any] | IntArray  # (n,)
    group: Sequence[Any] | IntArray | None = None  # (n,)
    season: IntArray | None = None  # (n,), numbers in the order of time
    order: FloatArray | IntArray | None = None  # (n,), in time; None: as they stand
    covariates: FloatArray | None = None  # (n, c)
    names: tuple[str, ...] = ()  # of the covariates
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # (n,) each, labels
    design: FloatArray | None = None  # (n, M, d), over the noise like the values; None: nothing was fitted to these
    fitted: FloatArray | None = None  # (n, M), the model's means
    outcomes: FloatArray | None = None  # (n, M), in their own units
    decision: IntArray | None = None  # (n,), numbers by which a single one is named; None: by its row

    def model(self, m: int, there: BoolArray) -> Space:
        """What was fitted to one metric."""
        if self.design is None:
            return Space()
        X = self.design[there, m]
        return Space((), (X[:, X.any(0)],))

    def __post_init__(self) -> None:
        n, M = self.values.shape if self.values.ndim == 2 else (-1, -1)
        if len(self.metrics) != M:
            raise ShapeError(f"values must be (n, {len(self.metrics)}), one column for each metric, got {n, M}")
        for name in ("arm", "user", "group", "season", "order", "decision"):
            given = getattr(self, name)
            _one_each(name, given, n)
        for name, labels in self.categories.items():
            _one_each(name, labels, n)
        if self.design is not None and self.design.shape[:2] != (n, M):
            raise ShapeError(f"design must have shape ({n}, {M}, d), got {self.design.shape}")
        wide = {"covariates": (n, len(self.names)), "fitted": (n, M), "outcomes": (n, M)}
        for name, shape in wide.items():
            given = getattr(self, name)
            if given is not None and given.shape != shape:
                raise ShapeError(f"{name} must have shape {shape}, got {given.shape}")


def _one_each(name: str, given: Sequence[Any] | FloatArray | IntArray | None, n: int) -> None:
    if given is not None and len(given) != n:
        raise ShapeError(f"{name} must have one entry for each of {n} residuals, got {len(given)}")


@final
@dataclass(frozen=True, slots=True)
class Check:
    """One look at the residuals of one metric."""

    name: str  # "season", "group x arm", "trend", "rain: line", "spread by arm", ...
    metric: str
    p_value: float  # times the number of checks made, at most 1
    alarm: bool
    serious: bool  # the ranges and the promise rest on what failed
    found: str  # in words
    advice: str  # what to do; empty without an alarm


@dataclass(frozen=True)
class _Result:
    name: str
    metric: str
    p: float
    size: float
    place: str = ""  # of the one outcome that was found


def check_residuals(residuals: Residuals, *, model: Described = PAPER, alpha: float = 0.01) -> tuple[Check, ...]:
    """All checks that can be made, alarms first; `model` says what the model has, for the advice.

    With a discount, what moves slowly is not looked for.

    >>> rng = np.random.default_rng(0)
    >>> season = np.repeat(np.arange(6), 20)
    >>> shifting = rng.standard_normal((120, 1)) + rng.standard_normal((6, 1))[season]
    >>> who, arm = np.tile(np.arange(20), 6), rng.integers(0, 3, 120)
    >>> found = check_residuals(Residuals(values=shifting, metrics=("yield",), arm=arm, user=who, season=season))
    >>> [c.name for c in found if c.alarm]
    ['season']
    """
    checks.share("alpha", alpha)
    without = words.MOVING if model.discount else ()
    parts = [part for m in range(len(residuals.metrics)) if (part := _Part.of(residuals, m, without)) is not None]
    count = sum(part.count for part in parts)
    results = [r for part in parts for r in part.results(alpha / max(count, 1))]
    told = [replace(r, place=_place(residuals, r)) for r in results if not np.isnan(r.p)]
    said = [_said(r, model, alpha, count) for r in told]
    return tuple(sorted(said, key=lambda c: (not c.alarm, not c.serious, c.p_value)))


def _place(residuals: Residuals, r: _Result) -> str:
    """What the one outcome is called that a check has found."""
    if r.name != words.OUTLIER:
        return ""
    row = int(r.size)
    return f"row {row + 1}" if residuals.decision is None else f"decision {int(residuals.decision[row])}"


def _said(r: _Result, model: Described, alpha: float, count: int) -> Check:
    p = min(1.0, r.p * count)
    if p >= alpha:
        return Check(r.name, r.metric, p, False, False, "nothing found", "")
    advice = words.advice(r.name, model)
    return Check(
        r.name, r.metric, p, True, words.serious(r.name), words.found(r.name, r.metric, r.size, r.place), advice
    )


@dataclass(frozen=True)
class _Part:
    """One metric's residuals and labels, and the tests that can be made."""

    metric: str
    e: FloatArray  # (n,)
    model: Space  # what was fitted to them
    factors: dict[str, IntArray]
    order: FloatArray
    levels: list[candidates.Candidate]
    spread: list[candidates.Candidate]
    values: str | None  # outcomes that take few values
    where: IntArray  # (n,), rows in the input
    serial: bool  # whether the order of a user's rows is looked at

    @classmethod
    def of(cls, r: Residuals, m: int, without: Sequence[str]) -> _Part | None:
        there: BoolArray = np.isfinite(r.values[:, m])
        if there.sum() < FEWEST or np.ptp(r.values[there, m]) == 0:
            return None
        factors = _factors(r, there)
        order = np.arange(len(there)) if r.order is None else np.asarray(r.order)
        covariates = {} if r.covariates is None else dict(zip(r.names, r.covariates[there].T, strict=True))
        spread = [
            candidates.by_spread(name, Space((factors[name],)))
            for name in ("arm", "group", "season")
            if name in factors
        ]
        if r.fitted is not None and np.ptp(r.fitted[there, m]) > 0:
            spread.append(candidates.by_spread("fitted mean", Space((), (candidates.column(r.fitted[there, m]),))))
        values = None if r.outcomes is None else tests.few_values(r.outcomes[there, m])
        time = order[there].astype(np.float64)
        categories = {name: tests.codes(np.asarray(v)[there]) for name, v in r.categories.items()}
        levels = [
            *candidates.levels(factors),
            *candidates.trend(factors, time),
            *candidates.lines(factors, covariates),
            *candidates.categories(factors, categories),
        ]
        return cls(
            r.metrics[m],
            r.values[there, m],
            r.model(m, there),
            factors,
            time,
            [c for c in levels if c.name not in without],
            spread,
            values,
            np.flatnonzero(there).astype(np.intp),
            "serial" not in without,
        )

    @property
    def count(self) -> int:
        """How many tests there are: with order, outliers and tails."""
        return len(self.levels) + len(self.spread) + 3

    def results(self, threshold: float) -> list[_Result]:
        """The p-value of every test; those of levels one after the other."""
        plain = tests.fit(self.e, self.model)
        e = self.e if plain is None else plain.rest
        ys = tests.tamed(e, threshold), tests.normal_scores(e)
        base, found = candidates.forward(self.levels, ys, threshold, self.model)
        left = tests.fit(self.e, base, leverage=True)
        if left is None or left.leverage is None:  # two factors with many levels were found: nothing more can be told
            return self._named(found)
        kept = left.leverage < LEVERAGE
        rest = left.rest[kept] / np.sqrt(1 - left.leverage[kept])
        if kept.sum() < FEWEST or np.ptp(rest) == 0:
            return self._named(found)
        if self.serial:
            found["serial"] = tests.serial(rest, tests.codes(self.factors["user"][kept]), self.order[kept])
        if self.values is not None:
            found[self.values] = (0.0, 0.0)
            return self._named(found)
        sizes = np.abs(tests.tamed(rest, threshold)), tests.normal_scores(np.abs(rest))
        spread = candidates.forward(self.spread, sizes, threshold, Space())[1] if kept.all() else {}
        found |= spread
        if any(p < threshold for p, _ in spread.values()):  # a mixture has heavy tails
            return self._named(found)
        p, row = tests.outlier(rest)
        found[words.OUTLIER] = p, float(self.where[kept][row])
        found["tails"] = tests.heavy(np.delete(rest, row) if p < threshold else rest)
        return self._named(found)

    def _named(self, found: dict[str, tuple[float, float]]) -> list[_Result]:
        return [_Result(name, self.metric, p, size) for name, (p, size) in found.items()]


def _factors(r: Residuals, there: BoolArray) -> dict[str, IntArray]:
    """Codes of arms, seasons, groups and users, where there are at least two; always of users."""
    given = {"arm": r.arm, "season": r.season, "group": r.group, "user": r.user}
    found = {name: tests.codes(np.asarray(v)[there]) for name, v in given.items() if v is not None}
    return {name: v for name, v in found.items() if v.max() > 0 or name == "user"}
