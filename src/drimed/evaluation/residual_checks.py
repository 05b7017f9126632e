"""Checks of a model's residuals, and advice about what they show.

The input is standardised residuals: independent and standard normal if the model is right. A regression hands over its
columns as well (`design`), and outcomes over their noise: its coefficients and their degrees of freedom are taken out
here. Tests of levels and lines go forward: the clearest finding is taken out before the others are tested again, so
that one cause gives one alarm. An alarm needs p < alpha divided by the number of tests, over all metrics (Bonferroni).

Levels and lines are tested by F twice, on the residuals and on the normal scores of their ranks, and the larger p-value
counts. Heavy tails do not raise the second. Ties do not raise the first: of outcomes that take few values all zeros
fall into one narrow bundle of residuals, where ranks only reflect the predicted means.
Shapes: n rows, M metrics, p columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any, NamedTuple, final

import numpy as np
from scipy import sparse
from scipy.special import chdtr, chdtrc, fdtrc, ndtr, ndtri, stdtr

from drimed.numerics import arrays
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

FEWEST = 20  # rows of a metric, and of an arm for its variance, below which nothing is said
FEWEST_UNITS = 5  # seasons, groups or users: with fewer, a line cannot be told from levels
LEVERAGE = 0.75  # rows that the findings fit more closely than this say little about spread and outliers
MOST_COUNT = 20  # of a small count
MOST_TIED = 10  # different outcomes: with no more, as of counts and of yes or no, spread follows the mean
DENSE = 60  # levels up to which a factor beside the finest, which is taken out by its means, is written as columns
ROWS = 10_000  # that are worked on together
LEFT = 3  # degrees of freedom that must remain for the noise
LOST = 1e-6  # columns of which less than this share of their squares is left within levels are the same within them
RANK = 1e-9  # eigenvalues below this share of the largest belong to columns that say nothing new
MOST_OUTLIERS = 10  # largest number of residuals that are clipped
TINY = 1e-150  # keeps 0 / 0 from arising, and its square too
SHORTEST = 4  # rows of a user: with fewer, the sum of products around the circle is the same in every order

PAIRS = (("season", "arm"), ("group", "arm"), ("user", "arm"), ("season", "group"))
MOVING = ("arm", "trend", "season x arm", "serial")  # a discount is for these: with one, they are not tested
CONTROL_PLOTS = {"season", "group", "user", "season x group", "trend"}  # a control plot shares these levels
OUTLIER = "outlier"
NOISE = "noise under "  # begins the name of a check of one arm
NOT_SERIOUS = ("spread by ", NOISE, OUTLIER, "tails", "two values", "small counts")
UNITS, SPREADS = ("season", "group", "user"), ("arm", "group", "season")
FINDINGS = {  # of a check by its name; {size} is what it measures
    **{unit: f"outcomes differ between {unit}s" for unit in UNITS},
    **{f"{unit} x arm": f"effects of arms differ between {unit}s" for unit in UNITS},
    **{f"spread by {unit}": f"outcomes scatter more in some {unit}s than in others" for unit in SPREADS},
    "arm": "arms differ from what the model says of them",
    "season x group": "groups shift against each other from season to season",
    "trend": "outcomes follow a trend over time",
    "serial": "an outcome of a user resembles the one before (correlation {size:.2f})",
    OUTLIER: "one outcome lies far from all others ({place})",
    "tails": "more outcomes lie far off than a normal distribution has",
    "two values": "outcomes take two values only",
    "small counts": "outcomes are small whole numbers",
}
COVARIATE_FINDINGS = {  # of a check by the part of its name after the covariate
    "line": "outcomes follow {}",
    "curve": "outcomes follow {} along a curve",
    "levels": "outcomes differ by {}",
    "arms": "what an arm does depends on {}",
}
TERMS = {  # of the model that would explain a finding
    **{unit: f"{unit} level" for unit in UNITS},
    **{f"{unit} x arm": f"effects that vary by {unit}" for unit in UNITS},
    "season x group": "level for each group and season (a block)",
    "trend": "season level",
}


class DeclaredCovariate(NamedTuple):
    """A covariate of a trial file."""

    table: str  # that declares it, such as context.rain
    affects: frozenset[str]  # level, effects, noise


@final
@dataclass(frozen=True, kw_only=True)
class ModelDescription:
    """Properties of a trial's model on which checks and advice depend."""

    kind: str = "paper"  # or field, people
    terms: frozenset[str] = frozenset()  # families that the model has: "season", "group x arm", ...
    covariates: Mapping[str, DeclaredCovariate] = field(default_factory=dict)
    seasons: bool = True  # false: the file says `seasons = false`
    arm_noise: bool = False  # whether each arm has its own noise
    arm_attributes: bool = False
    difference: bool = False  # there are control plots
    discount: bool = False

    def family(self, name: str) -> str:
        """The family of terms that would explain a finding. Where no groups are named, every user is one."""
        family = "season" if name == "trend" else name
        alone = "group" in self.terms and "user" not in self.terms
        return family.replace("user", "group") if alone and family.startswith("user") else family


@final
@dataclass(frozen=True, kw_only=True)
class Residuals:
    """Residuals with the labels of their decisions. Labels may be numbers or names."""

    values: FloatArray  # (n, M), standard normal once the design is taken out if the model is right; NaN: not observed
    metrics: tuple[str, ...]
    arm: Sequence[Any] | IntArray  # (n,)
    user: Sequence[Any] | IntArray  # (n,)
    group: Sequence[Any] | IntArray | None = None  # (n,)
    season: IntArray | None = None  # (n,), numbers in the order of time
    covariates: Mapping[str, FloatArray] = field(default_factory=dict)  # (n,) each, numbers
    categories: Mapping[str, Sequence[Any]] = field(default_factory=dict)  # (n,) each, labels
    design: FloatArray | None = None  # (n, M, d), over the noise like the values; None: nothing was fitted to these
    outcomes: FloatArray | None = None  # (n, M), in their own units
    decision: IntArray | None = None  # (n,), numbers in the order of time; None: as they stand, named by their rows


@final
@dataclass(frozen=True, slots=True)
class Check:
    """One test of the residuals of one metric."""

    name: str  # "season", "group x arm", "trend", "rain: line", "spread by arm", ...
    metric: str
    p_value: float  # times the number of tests made, at most 1
    alarm: bool
    serious: bool  # the ranges and the promise rest on what failed
    found: str  # in words
    advice: str  # what to do; empty without an alarm


def check_residuals(
    residuals: Residuals, *, model: ModelDescription | None = None, alpha: float = 0.01
) -> tuple[Check, ...]:
    """Make all tests that can be made, alarms first; the advice depends on `model`."""
    arrays.share("alpha", alpha)
    model = model or ModelDescription()
    tests = [_MetricTests(residuals, m, MOVING if model.discount else ()) for m in range(len(residuals.metrics))]
    count = sum(each.count for each in tests)
    results = []
    for metric, each in zip(residuals.metrics, tests, strict=True):
        for name, (p, size) in (each.run(alpha / count) if each.count else {}).items():
            corrected = min(1.0, p * count)
            if corrected < alpha:
                text = f"{metric}: {_finding(name, size, residuals.decision)}"
                serious = not name.startswith(NOT_SERIOUS)
                results.append(Check(name, metric, corrected, True, serious, text, advice(name, model)))
            elif not np.isnan(p):
                results.append(Check(name, metric, corrected, False, False, "nothing found", ""))
    return tuple(sorted(results, key=lambda c: (not c.alarm, not c.serious, c.p_value)))


def _finding(name: str, size: float, decision: IntArray | None) -> str:
    if name.startswith(NOISE):
        way = "more" if size > 1 else "less"
        return f"outcomes under {name[len(NOISE) :]} scatter {way} than assumed ({size:.2g} times the variance)"
    if name not in FINDINGS:
        covariate, form = name.rsplit(": ", 1)
        return COVARIATE_FINDINGS[form].format(covariate)
    place = ""
    if name == OUTLIER:
        place = f"row {int(size) + 1}" if decision is None else f"decision {int(decision[int(size)])}"
    text = FINDINGS[name].format(size=size, place=place)
    return f"{text}, by about {size:.1f} standard deviations of a single outcome" if name in (*TERMS, "arm") else text


class Space(NamedTuple):
    """Levels of factors and columns, together with a constant."""

    factors: tuple[IntArray, ...] = ()  # (n,) each, codes from 0
    columns: tuple[Any, ...] = ()  # (n, p) each, dense or sparse

    def and_(self, other: Space) -> Space:
        """The sum of both spaces."""
        return Space(self.factors + other.factors, self.columns + other.columns)


NOTHING = Space()


class Fitted(NamedTuple):
    """Residuals of a least-squares fit."""

    rest: FloatArray  # (n,)
    rank: int
    leverage: FloatArray | None = None  # (n,), where it was asked for


class _Candidate(NamedTuple):
    """A test that can be made on what has been taken out so far."""

    name: str
    test: Callable[[FloatArray, Space], tuple[float, float]]  # residuals, what is taken out -> p-value, size
    adds: Space


def codes(labels: Sequence[object] | FloatArray | IntArray) -> IntArray:
    """Labels as numbers from 0, in their order."""
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], np.intp).reshape(-1)


def own_lines(x: FloatArray, factor: IntArray) -> Any:
    """A line in x (n,) for each level of a factor: sparse (n, levels)."""
    n = len(factor)
    return sparse.csr_array((x, factor, np.arange(n + 1)), shape=(n, int(factor.max()) + 1))


def _cells(a: IntArray, b: IntArray) -> IntArray:
    """The factor of all pairs that occur."""
    return codes(a * (int(b.max()) + 1) + b)


def _nested(a: IntArray | FloatArray, b: IntArray) -> bool:
    """Whether a is constant within each level of b."""
    one = np.zeros(int(b.max()) + 1, a.dtype)
    one[b] = a
    return bool((one[b] == a).all())


def _column(x: FloatArray) -> FloatArray:
    """Centred and of size one: (n, 1)."""
    off = x - x.mean()
    return np.asarray((off / np.sqrt((off**2).mean()))[:, None])


def fit(y: FloatArray, space: Space, *, leverage: bool = False) -> Fitted | None:
    """Least squares; None where two factors have too many levels to be written as columns."""
    kept: list[IntArray] = []
    for factor in sorted(space.factors, key=lambda f: -int(f.max())):
        if not any(_nested(factor, finer) for finer in kept):
            kept.append(factor)
    if len(kept) > 1 and int(kept[1].max()) >= DENSE:
        return None
    n = len(y)
    finest = kept[0] if kept else np.zeros(n, np.intp)  # taken out by its means
    count = np.bincount(finest).astype(np.float64)
    rest = y - (np.bincount(finest, y) / count)[finest]
    own = 1 / count[finest] if leverage else None
    columns = [*(own_lines(np.ones(n), f) for f in kept[1:]), *space.columns]
    if not columns:
        return Fitted(rest, len(count), own)
    X = sparse.hstack([sparse.csr_array(c) for c in columns], format="csr")  # (n, p)
    raw = np.asarray((X.T @ X).toarray())
    totals = np.asarray((own_lines(np.ones(n), finest).T @ X).toarray())  # (levels, p)
    means = totals / count[:, None]
    gram = raw - totals.T @ means  # of the columns less the mean of each level
    same = np.diagonal(gram) <= LOST * np.diagonal(raw)  # the same within levels: what is left is round-off
    gram[same], gram[:, same] = 0.0, 0.0
    size = np.sqrt(np.maximum(np.diagonal(gram), 0.0) / n)
    used = size > RANK
    if not used.any():
        return Fitted(rest, len(count), own)
    scale = 1 / size[used]
    values, vectors = np.linalg.eigh(scale[:, None] * gram[np.ix_(used, used)] * scale)
    free = values > RANK * n
    basis = np.zeros((len(size), int(free.sum())))  # (p, rank), centred X @ basis is orthonormal
    basis[used] = scale[:, None] * vectors[:, free] / np.sqrt(values[free])
    weights = basis @ (basis.T @ (X.T @ rest))
    rest = rest - X @ weights + (means @ weights)[finest]
    if own is not None:
        for start in range(0, n, ROWS):
            rows = slice(start, start + ROWS)
            own[rows] += ((X[rows] @ basis - (means @ basis)[finest[rows]]) ** 2).sum(1)
    return Fitted(rest, len(count) + int(free.sum()), own)


def _explains(y: FloatArray, base: Space, more: Space) -> tuple[float, float]:
    """p-value of what `more` adds to the base, and its size in standard deviations of the rest. NaN: cannot tell."""
    small, large = fit(y, base), fit(y, base.and_(more))
    if small is None or large is None:
        return np.nan, np.nan
    extra, left = large.rank - small.rank, len(y) - large.rank
    if extra < 1 or left < LEFT or not (noise := float(large.rest @ large.rest) / left) > 0:
        return np.nan, np.nan
    gained = float(small.rest @ small.rest) - noise * left
    size = np.sqrt(max(0.0, gained - extra * noise) / len(y) / noise)
    return float(fdtrc(extra, left, max(0.0, gained) / extra / noise)), float(size)


def _line_between(y: FloatArray, base: Space, x: FloatArray, unit: IntArray) -> tuple[float, float]:
    """p-value and size of a line in x, which is the same within each unit, against the scatter of the units' means.

    Parts of the base that differ within units are taken out of the rows first, the rest of it out of the means; levels
    of the units themselves, or of parts of them, are what the line is judged by.
    """
    dense = [np.asarray(c.toarray() if sparse.issparse(c) else c) for c in base.columns]
    constant = [all(_nested(column, unit) for column in c.T) for c in dense]
    within = Space(
        tuple(f for f in base.factors if not _nested(unit, f) and not _nested(f, unit)),
        tuple(c for c, same in zip(base.columns, constant, strict=True) if not same),
    )
    between = [(f[:, None] == np.arange(int(f.max()) + 1)) for f in base.factors if _nested(f, unit) and f is not unit]
    between += [c for c, same in zip(dense, constant, strict=True) if same]
    fitted = fit(y, within)
    if fitted is None:
        return np.nan, np.nan
    count = np.bincount(unit).astype(np.float64)
    means, at = np.bincount(unit, fitted.rest) / count, np.bincount(unit, x) / count
    others = tuple((np.bincount(unit, column) / count)[:, None] for c in between for column in c.T)
    p, _ = _explains(means, Space((), others), Space((), (at[:, None],)))
    line = np.polyfit(at, means, 1)[0] if np.ptp(at) > 0 else 0.0
    return p, float(abs(line) * np.std(at))


def _by_level(name: str, adds: Space, given: Space = NOTHING) -> _Candidate:
    return _Candidate(name, lambda y, base: _explains(y, base.and_(given), adds), given.and_(adds))


def _by_line(name: str, x: FloatArray, factors: dict[str, IntArray], given: Space = NOTHING) -> _Candidate:
    """A line in x beyond what is given; where its units are found to have levels, against the scatter of these."""
    adds, values = Space((), (_column(x),)), codes(x)
    units = [factors[f] for f in UNITS if f in factors and _nested(values, factors[f])]
    if not units:
        return _by_level(name, adds, given)
    unit = units[0]  # the coarsest within which x is always the same

    def test(y: FloatArray, base: Space) -> tuple[float, float]:
        if int(unit.max()) + 1 < FEWEST_UNITS:
            return np.nan, np.nan
        if any(f is unit for f in base.factors):
            return _line_between(y, base.and_(given), x, unit)
        return _explains(y, base.and_(given), adds)

    return _Candidate(name, test, given.and_(adds))


def _level_tests(
    factors: dict[str, IntArray], time: FloatArray, numbers: dict[str, FloatArray], categories: dict[str, IntArray]
) -> list[_Candidate]:
    """Tests of levels of factors and of their pairs, of a trend, and of covariates and categories."""
    some = {name: v for name, v in factors.items() if v.max() > 0}
    if "group" in some and "user" in some and _nested(some["user"], some["group"]):
        some.pop("user")  # every user is a group
    tests = [_by_level(name, Space((v,))) for name, v in some.items()]
    for a, b in PAIRS:
        if a in some and b in some:
            tests.append(_by_level(f"{a} x {b}", Space((_cells(some[a], some[b]),)), Space((some[a], some[b]))))
    tests.append(_by_line("trend", factors["season"].astype(np.float64) if "season" in factors else time, factors))
    arm = factors.get("arm")
    for name, x in numbers.items():
        if np.ptp(x) == 0:
            continue
        straight = _column(x)
        tests.append(_by_line(f"{name}: line", x, factors))
        if len(np.unique(x)) > 2:
            curve = straight[:, 0] ** 2
            bent = curve - np.polyval(np.polyfit(straight[:, 0], curve, 1), straight[:, 0])
            tests.append(_by_line(f"{name}: curve", bent, factors, Space((), (straight,))))
        if arm is not None:
            own = Space((), (own_lines(straight[:, 0], arm),))
            tests.append(_by_level(f"{name}: arms", own, Space((arm,), (straight,))))
    for name, v in categories.items():
        if v.max() == 0 or any(_nested(factors[f], v) for f in ("group", "user") if f in factors):
            continue  # a category that only names users or groups is tested as a factor
        tests.append(_by_level(f"{name}: levels", Space((v,))))
        if arm is not None:
            tests.append(_by_level(f"{name}: arms", Space((_cells(v, arm),)), Space((v, arm))))
    return tests


def _forward(
    candidates: list[_Candidate], ys: Sequence[FloatArray], threshold: float, model: Space
) -> tuple[Space, dict[str, tuple[float, float]]]:
    """Findings step by step, and p-value and size of every test: at its turn, or after the last step.

    A test is made on each of `ys`, and the largest p-value counts. A finding that a later one explains is dropped at
    the end: levels of seasons, where they are a trend.
    """

    def tested(candidate: _Candidate, base: Space) -> tuple[float, float]:
        return max((candidate.test(y, base) for y in ys), key=lambda result: np.nan_to_num(result[0], nan=np.inf))

    base, taken, open_ = model, list[_Candidate](), list(candidates)
    results = dict[str, tuple[float, float]]()
    while open_:
        now = {c.name: tested(c, base) for c in open_}
        best = min(open_, key=lambda c: np.nan_to_num(now[c.name][0], nan=1.0))
        if not now[best.name][0] < threshold:
            results |= now
            break
        results[best.name] = now[best.name]
        base = base.and_(best.adds)
        taken.append(best)
        open_.remove(best)
    for each in list(taken):
        others = reduce(Space.and_, (c.adds for c in taken if c is not each), model)
        again = tested(each, others)
        if again[0] >= threshold:  # NaN, where it cannot be separated from the others, stays
            results[each.name], base = again, others
            taken.remove(each)
    return base, results


class _MetricTests:
    """One metric's residuals, and the tests that can be made of them."""

    def __init__(self, r: Residuals, m: int, skipped: Sequence[str]) -> None:
        there: BoolArray = np.isfinite(r.values[:, m])
        self.e, self.where = r.values[there, m], np.flatnonzero(there)  # (n,) each: residuals, rows in the input
        self.levels, self.spread = list[_Candidate](), list[_Candidate]()
        if len(self.e) < FEWEST or np.ptp(self.e) == 0:
            return
        labels = {"arm": r.arm, "season": r.season, "group": r.group, "user": r.user}
        factors = {name: codes(np.asarray(v)[there]) for name, v in labels.items() if v is not None}
        factors = {name: v for name, v in factors.items() if v.max() > 0 or name == "user"}
        self.time = (np.arange(len(there)) if r.decision is None else r.decision)[there].astype(np.float64)
        numbers = {name: v[there] for name, v in r.covariates.items()}
        categories = {name: codes(np.asarray(v)[there]) for name, v in r.categories.items()}
        tests = _level_tests(factors, self.time, numbers, categories)
        self.levels = [c for c in tests if c.name not in skipped]
        self.spread = [_by_level(f"spread by {f}", Space((factors[f],))) for f in SPREADS if f in factors]
        X = None if r.design is None else r.design[there, m]
        self.model = NOTHING if X is None else Space((), (X[:, X.any(0)],))  # the columns that were fitted
        self.user = factors["user"]  # (n,)
        arms = np.asarray(r.arm)[there]
        self.noise = {} if X is None else {f"{NOISE}{arm}": arms == arm for arm in np.unique(arms)}
        values = np.empty(0) if r.outcomes is None else np.unique(r.outcomes[there, m])
        self.tied, self.few = 0 < len(values) <= MOST_TIED, _few_values(values)
        self.serial = "serial" not in skipped  # whether the order of a user's rows is tested

    @property
    def count(self) -> int:
        """Number of tests, with order, outliers and tails; 0: too few rows."""
        return len(self.levels) + len(self.spread) + len(self.noise) + 3 if self.levels else 0

    def run(self, threshold: float) -> dict[str, tuple[float, float]]:
        """p-value and size of every test; those of levels one after the other."""
        plain = fit(self.e, self.model)
        e = self.e if plain is None else plain.rest
        base, results = _forward(self.levels, (_tamed(e, threshold), _normal_scores(e)), threshold, self.model)
        left = fit(self.e, base, leverage=True)
        if left is None or left.leverage is None:  # two factors with many levels were found: nothing more can be told
            return results
        kept = left.leverage < LEVERAGE
        rest = left.rest[kept] / np.sqrt(1 - left.leverage[kept])
        if kept.sum() < FEWEST or np.ptp(rest) == 0:
            return results
        if self.serial:
            results["serial"] = _serial(rest, codes(self.user[kept]), self.time[kept])
        results |= {name: _variance(rest[mine[kept]]) for name, mine in self.noise.items()}
        if self.few:
            results[self.few] = 0.0, 0.0
        if self.tied:
            return results
        sizes = np.abs(_tamed(rest, threshold)), _normal_scores(np.abs(rest))
        spread = _forward(self.spread, sizes, threshold, NOTHING)[1] if kept.all() else {}
        results |= spread
        if not any(p < threshold for p, _ in spread.values()):  # a mixture has heavy tails
            p, row = _outlier(rest)
            results[OUTLIER] = p, float(self.where[kept][row])
            results["tails"] = _heavy_tails(np.delete(rest, row) if p < threshold else rest)
        return results


def _normal_scores(values: FloatArray) -> FloatArray:
    """Normal quantiles of the ranks: (n,)."""
    _, at, many = np.unique(values, return_inverse=True, return_counts=True)
    rank = np.cumsum(many) - (many - 1) / 2  # of each value, from 1; equal ones share the mean of theirs
    return np.asarray(ndtri((rank[at] - 0.5) / len(values)), np.float64)


def _tamed(rest: FloatArray, threshold: float) -> FloatArray:
    """Single outliers, clipped to the size of the next largest, so that one typing error does not hide all else: (n,).

    Where many are as large, as the ones among zeros, nothing changes.
    """
    tamed = rest - rest.mean()
    for _ in range(MOST_OUTLIERS):
        p, row = _outlier(tamed)
        if p >= threshold:
            break
        tamed[row] = np.sign(tamed[row]) * np.abs(np.delete(tamed, row)).max()
    return tamed


def _serial(rest: FloatArray, user: IntArray, order: FloatArray) -> tuple[float, float]:
    """p-value and size of the correlation between neighbours in the order of each user's rows.

    Wald and Wolfowitz's sum of products around the circle, with its mean and variance over all orders of a user's rows:
    levels of users do not matter, nor does the shape of the noise.
    """
    long = np.bincount(user)[user] >= SHORTEST
    if not long.any():
        return np.nan, np.nan
    who, at = codes(user[long]), np.lexsort((order[long], user[long]))
    T = np.bincount(who).astype(np.float64)
    x = (rest[long] - (np.bincount(who, rest[long]) / T)[who])[at]
    who = who[at]
    first = np.r_[0, np.cumsum(T)[:-1]].astype(np.intp)
    following = np.arange(1, len(x) + 1)
    following[first + T.astype(np.intp) - 1] = first  # around the circle
    s2, s4 = np.bincount(who, x**2), np.bincount(who, x**4)
    mean = -s2 / (T - 1)
    variance = (s2**2 - s4) / (T - 1) + (s2**2 - 2 * s4) / ((T - 1) * (T - 2)) - mean**2
    off, spread = float((x @ x[following]) - mean.sum()), float(np.sqrt(max(0.0, variance.sum())))
    if spread <= 0:
        return np.nan, np.nan
    return float(2 * ndtr(-abs(off) / spread)), off / float(s2.sum())


def _variance(rest: FloatArray) -> tuple[float, float]:
    """p-value of a variance of one, and the variance; heavy tails alone do not look like a wrong one."""
    if len(rest) < FEWEST:
        return np.nan, np.nan
    off, variance = rest - rest.mean(), float((rest**2).mean())
    excess = (off**4).mean() / max((off**2).mean(), TINY) ** 2 - 3
    freedom = 2 * len(rest) / (2 + max(excess, 0.0))  # Var(e^2) is 2 + excess for unit variance
    return float(2 * min(chdtr(freedom, freedom * variance), chdtrc(freedom, freedom * variance))), variance


def _outlier(rest: FloatArray) -> tuple[float, int]:
    """p-value of the largest residual being one of normal noise (Grubbs's bound), and its row."""
    n = len(rest)
    off = rest - rest.mean()
    row = int(np.abs(off).argmax())
    share = float(off[row] ** 2 / (off @ off)) * n / (n - 1)  # of all squares, at most 1
    t = np.sqrt((n - 2) * share / max(1 - share, RANK))
    return min(1.0, float(2 * n * stdtr(n - 2, -t))), row


def _heavy_tails(rest: FloatArray) -> tuple[float, float]:
    """p-value of tails being heavier than the normal's, and the excess kurtosis. Anscombe and Glynn (1983)."""
    n, off = len(rest), rest - rest.mean()
    b2 = float((off**4).mean() / (off**2).mean() ** 2)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (b2 - 3 * (n - 1) / (n + 1)) / np.sqrt(variance)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    A = 6 + 8 / skew * (2 / skew + np.sqrt(1 + 4 / skew**2))  # degrees of freedom of a chi-square of that skewness
    z = (1 - 2 / (9 * A) - np.cbrt((1 - 2 / A) / (1 + x * np.sqrt(2 / (A - 4))))) / np.sqrt(2 / (9 * A))
    return float(ndtr(-z)), b2 - 3


def _few_values(values: FloatArray) -> str | None:
    """Whether these different outcomes are two, or small counts."""
    counts = len(values) > 1 and values[0] >= 0 and values[-1] <= MOST_COUNT and (values == np.round(values)).all()
    return "two values" if len(values) == 2 else "small counts" if counts else None


def advice(name: str, model: ModelDescription) -> str:
    """Advice on a finding, without a capital or a full stop."""
    if name.startswith(NOISE):
        return "ranges are too narrow or too wide: correct the noise in the trial file, or have it learned"
    if ": " in name:
        covariate, form = name.rsplit(": ", 1)
        return _about_covariate(covariate, form, model)
    if name in TERMS:
        return _about_terms(name, model)
    own_level = "" if model.family("user") in model.terms else 'use [model] kind = "field", or '
    others = {
        "arm": "look for an arm that has changed in the course of the trial, or that was recorded as another",
        "serial": f"outcomes of a user are not independent and ranges are too narrow: {own_level}ask less often",
        OUTLIER: "check whether it was typed and measured correctly, and amend it if not",
        "tails": "look for outcomes of another kind among them; ranges hold in large samples only",
        "two values": 'declare kind = "yes/no"; as numbers effects are differences of shares, in large samples',
        "small counts": 'declare kind = "count"; as numbers they scatter the more the larger they are',
    }
    if name == "arm" and model.arm_attributes and "arm" not in model.terms:
        return "give the arms effects of their own instead of attributes, or add the attribute that is missing"
    way = 'declare what scales it as a context field with affects = ["noise"]'
    if name == "spread by arm" and not model.arm_noise:
        way = "have the noise learned for each arm" if model.kind == "paper" else 'set noise = "arm" in [model]'
    return others.get(name, f"{way}, or use the logarithm")


def _about_terms(name: str, model: ModelDescription) -> str:
    family, term = model.family(name), TERMS[name]
    if family in model.terms:
        return f"the model has a term for it ({term}), which does not cover this: look for one that has changed"
    season, way = family.startswith("season"), "look at the outcomes behind it"
    if model.kind == "people" and family == "season":
        way = "begin a new episode from time to time, and each will have one"
    elif model.kind != "field":
        way = 'use [model] kind = "field"'
    elif season and not model.seasons:
        way = "remove seasons = false from [model]"
    plots = name in CONTROL_PLOTS and model.kind != "people" and not model.difference
    return f"the model has no {term}: {way}" + (", or use control plots" if plots else "")


def _about_covariate(covariate: str, form: str, model: ModelDescription) -> str:
    declared = model.covariates.get(covariate)
    role = "effects" if form == "arms" else "level"
    if declared is None:
        return f"the model leaves it out: declare {covariate} as a context field that affects the {role}"
    if role not in declared.affects or model.kind == "paper":
        field_model = 'use [model] kind = "field", and ' if model.kind == "paper" else ""
        return f'the model leaves it out: {field_model}add "{role}" to affects under [{declared.table}]'
    if form == "curve":
        return f"the model has a straight line in {covariate}: add its square or logarithm as a field of its own"
    return f"the model has {covariate}, and it does not cover this: look at the outcomes behind it"
