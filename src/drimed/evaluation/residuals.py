"""What is left of the outcomes when the model is taken out, and what to do about it.

Input are standardised residuals: independent and standard normal if the model is right. A regression hands over its
columns as well (`design`), and outcomes or residuals over their noise: its coefficients are taken out here, and the
degrees of freedom that they cost are counted. Residuals are looked at by season, group, user and arm and by pairs of
these, over time, along each covariate, by their spread, their order and their tails. Checks of levels and lines go
forward: the clearest finding is taken out before the others are looked at again, so that one cause gives one alarm. An
alarm needs p < alpha divided by the number of checks, over all metrics (Bonferroni): a model that is right raises any
alarm with probability alpha at most, at one look.

Shapes: n rows, M metrics, c covariates.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, ShapeError
from drimed.evaluation import residual_tests as tests
from drimed.evaluation import residual_words as words
from drimed.evaluation.residual_tests import Space
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

FEWEST = 20  # rows of a metric below which nothing is said
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
    design: FloatArray | None = None  # (n, M, d), over the noise like the values; None: nothing was fitted to these
    fitted: FloatArray | None = None  # (n, M), the model's means
    outcomes: FloatArray | None = None  # (n, M), in their own units

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
        for name in ("arm", "user", "group", "season", "order"):
            given = getattr(self, name)
            if given is not None and len(given) != n:
                raise ShapeError(f"{name} must have one entry for each of {n} residuals, got {len(given)}")
        if self.design is not None and self.design.shape[:2] != (n, M):
            raise ShapeError(f"design must have shape ({n}, {M}, d), got {self.design.shape}")
        wide = {"covariates": (n, len(self.names)), "fitted": (n, M), "outcomes": (n, M)}
        for name, shape in wide.items():
            given = getattr(self, name)
            if given is not None and given.shape != shape:
                raise ShapeError(f"{name} must have shape {shape}, got {given.shape}")


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


@dataclass(frozen=True)
class _Candidate:
    """A test that can be made on what has been taken out so far."""

    name: str
    test: Callable[[FloatArray, Space], tuple[float, float]]
    adds: Space


def check_residuals(
    residuals: Residuals, *, kind: str = "paper", terms: Collection[str] = (), alpha: float = 0.01
) -> tuple[Check, ...]:
    """All checks that can be made, alarms first; `kind` and `terms` say what the model has, for the advice.

    >>> rng = np.random.default_rng(0)
    >>> season = np.repeat(np.arange(6), 20)
    >>> shifting = rng.standard_normal((120, 1)) + rng.standard_normal((6, 1))[season]
    >>> who, arm = np.tile(np.arange(20), 6), rng.integers(0, 3, 120)
    >>> found = check_residuals(Residuals(values=shifting, metrics=("yield",), arm=arm, user=who, season=season))
    >>> [c.name for c in found if c.alarm]
    ['season']
    """
    checks.share("alpha", alpha)
    if kind not in words.KINDS:
        raise ConfigError(f"kind must be one of {words.KINDS}, got {kind!r}")
    parts = [part for m in range(len(residuals.metrics)) if (part := _Part.of(residuals, m)) is not None]
    count = sum(part.count for part in parts)
    results = [r for part in parts for r in part.results(alpha / max(count, 1))]
    said = [_said(r, kind, frozenset(terms), alpha, count) for r in results if not np.isnan(r.p)]
    return tuple(sorted(said, key=lambda c: (not c.alarm, not c.serious, c.p_value)))


def _said(r: _Result, kind: str, terms: frozenset[str], alpha: float, count: int) -> Check:
    p = min(1.0, r.p * count)
    if p >= alpha:
        return Check(r.name, r.metric, p, False, False, "nothing found", "")
    advice = words.advice(r.name, kind, terms)
    return Check(r.name, r.metric, p, True, words.serious(r.name), words.found(r.name, r.metric, r.size), advice)


@dataclass(frozen=True)
class _Part:
    """One metric's residuals and labels, and the tests that can be made."""

    metric: str
    e: FloatArray  # (n,)
    model: Space  # what was fitted to them
    factors: dict[str, IntArray]
    order: FloatArray
    levels: list[_Candidate]
    spread: list[_Candidate]
    values: str | None  # outcomes that take few values
    where: IntArray  # (n,), rows in the input

    @classmethod
    def of(cls, r: Residuals, m: int) -> _Part | None:
        there: BoolArray = np.isfinite(r.values[:, m])
        if there.sum() < FEWEST or np.ptp(r.values[there, m]) == 0:
            return None
        factors = _factors(r, there)
        order = np.arange(len(there)) if r.order is None else np.asarray(r.order)
        covariates = {} if r.covariates is None else dict(zip(r.names, r.covariates[there].T, strict=True))
        spread = [_by_spread(name, Space((factors[name],))) for name in ("arm", "group", "season") if name in factors]
        if r.fitted is not None and np.ptp(r.fitted[there, m]) > 0:
            spread.append(_by_spread("fitted mean", Space((), (_column(r.fitted[there, m]),))))
        values = None if r.outcomes is None else tests.few_values(r.outcomes[there, m])
        time = order[there].astype(np.float64)
        levels = [*_levels(factors), *_trend(factors, time), *_lines(factors, covariates)]
        return cls(
            r.metrics[m],
            r.values[there, m],
            r.model(m, there),
            factors,
            time,
            levels,
            spread,
            values,
            np.flatnonzero(there).astype(np.intp),
        )

    @property
    def count(self) -> int:
        """How many tests there are: with order, outliers and tails."""
        return len(self.levels) + len(self.spread) + 3

    def results(self, threshold: float) -> list[_Result]:
        """The p-value of every test; those of levels one after the other."""
        plain = tests.fit(self.e, self.model)
        scores = tests.normal_scores(self.e if plain is None else plain.rest)
        base, found = forward(self.levels, scores, threshold, self.model)
        left = tests.fit(self.e, base)
        if left is None:  # two factors with many levels were found: nothing more can be told
            return self._named(found)
        kept = left.leverage < LEVERAGE
        rest = left.rest[kept] / np.sqrt(1 - left.leverage[kept])
        if kept.sum() < FEWEST or np.ptp(rest) == 0:
            return self._named(found)
        found["serial"] = tests.serial(rest, tests.codes(self.factors["user"][kept]), self.order[kept])
        if self.values is not None:
            found[self.values] = (0.0, 0.0)
            return self._named(found)
        if kept.all():
            found |= forward(self.spread, tests.normal_scores(np.abs(rest)), threshold, Space())[1]
        p, row = tests.outlier(rest)
        found["outlier"] = p, float(self.where[kept][row])
        found["tails"] = tests.heavy(np.delete(rest, row) if p < threshold else rest)
        return self._named(found)

    def _named(self, found: dict[str, tuple[float, float]]) -> list[_Result]:
        return [_Result(name, self.metric, p, size) for name, (p, size) in found.items()]


def forward(
    candidates: list[_Candidate], y: FloatArray, threshold: float, base: Space
) -> tuple[Space, dict[str, tuple[float, float]]]:
    """What was found step by step, and p-value and size of every test: at its turn, or after the last step."""
    found, open_ = dict[str, tuple[float, float]](), list(candidates)
    while open_:
        now = {c.name: c.test(y, base) for c in open_}
        best = min(open_, key=lambda c: np.nan_to_num(now[c.name][0], nan=1.0))
        if not now[best.name][0] < threshold:
            return base, found | now
        found[best.name] = now[best.name]
        base = base.and_(best.adds)
        open_.remove(best)
    return base, found


def _factors(r: Residuals, there: BoolArray) -> dict[str, IntArray]:
    """Codes of arms, seasons, groups and users, where there are at least two; always of users."""
    given = {"arm": r.arm, "season": r.season, "group": r.group, "user": r.user}
    found = {name: tests.codes(np.asarray(v)[there]) for name, v in given.items() if v is not None}
    return {name: v for name, v in found.items() if v.max() > 0 or name == "user"}


def _levels(factors: dict[str, IntArray]) -> list[_Candidate]:
    """Levels of single factors, and of pairs beyond those of their two factors."""
    some = {name: v for name, v in factors.items() if v.max() > 0}
    if "group" in some and "user" in some and tests.nested(some["user"], some["group"]):
        some.pop("user")  # every user is a group
    made = [_by_level(name, Space((v,))) for name, v in some.items()]
    for a, b in (("season", "arm"), ("group", "arm"), ("user", "arm"), ("season", "group")):
        if a in some and b in some:
            made.append(_by_level(f"{a} x {b}", Space((tests.cells(some[a], some[b]),)), Space((some[a], some[b]))))
    return made


def _by_level(name: str, adds: Space, given: Space = Space()) -> _Candidate:  # noqa: B008  frozen and empty
    return _Candidate(name, lambda y, base: tests.explains(y, base.and_(given), adds), given.and_(adds))


def _by_spread(name: str, adds: Space) -> _Candidate:
    return _by_level(f"spread by {name}", adds)


def _trend(factors: dict[str, IntArray], time: FloatArray) -> list[_Candidate]:
    """A line over the seasons, or over time where there is one season."""
    if "season" in factors:
        return [_line("trend", factors["season"].astype(np.float64), factors)]
    return [_line("trend", time, factors)]


def _lines(factors: dict[str, IntArray], covariates: dict[str, FloatArray]) -> list[_Candidate]:
    """A line and a curve in each covariate, and lines of their own for the arms."""
    made = []
    for name, x in covariates.items():
        if np.ptp(x) == 0:
            continue
        straight = _column(x)
        curve = straight**2
        made.append(_line(f"{name}: line", x, factors))
        if len(np.unique(x)) > 2:
            made.append(_curve(f"{name}: curve", straight, curve, factors))
        if "arm" in factors:
            arm = factors["arm"]
            own = straight * (arm[:, None] == np.arange(int(arm.max()) + 1))
            made.append(_by_level(f"{name} x arm", Space((), (own,)), Space((arm,), (straight,))))
    return made


def _line(name: str, x: FloatArray, factors: dict[str, IntArray]) -> _Candidate:
    unit = _constant_within(x, factors)
    adds = Space((), (_column(x),))
    if unit is None:
        return _by_level(name, adds)
    return _Candidate(name, lambda y, base: tests.line_between(y, base, x, unit), adds)


def _curve(name: str, straight: FloatArray, curve: FloatArray, factors: dict[str, IntArray]) -> _Candidate:
    unit = _constant_within(straight[:, 0], factors)
    adds = Space((), (straight, curve))
    if unit is None:
        return _by_level(name, Space((), (curve,)), Space((), (straight,)))
    bent = curve[:, 0] - np.polyval(np.polyfit(straight[:, 0], curve[:, 0], 1), straight[:, 0])
    line = Space((), (straight,))
    return _Candidate(name, lambda y, base: tests.line_between(y, base.and_(line), bent, unit), adds)


def _constant_within(x: FloatArray, factors: dict[str, IntArray]) -> IntArray | None:
    """The coarsest of seasons, groups and users within which x is always the same."""
    values = tests.codes(x)
    return next(
        (factors[f] for f in ("season", "group", "user") if f in factors and tests.nested(values, factors[f])), None
    )


def _column(x: FloatArray) -> FloatArray:
    """Centred and of size one: (n, 1)."""
    off = x - x.mean()
    return np.asarray((off / np.sqrt((off**2).mean()))[:, None])
