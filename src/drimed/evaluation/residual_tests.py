"""Tests of residuals that are independent and alike if the model is right: levels, lines, spread, order, tails.

Levels and lines are tested by F twice, on the residuals and on the normal scores of their ranks, and the larger
p-value counts. Heavy tails do not raise the second. Ties do not raise the first: of outcomes that take few values,
all zeros fall into one narrow bundle of residuals, in which the order is that of the predicted means, and ranks would
make much of it. Where seasons (or groups, or users) have levels, a line in something that is the same for all rows of
a season is judged by the scatter of the seasons' means around it (`line_between`).

Shapes: n rows, p columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import final

import numpy as np
from scipy.special import fdtrc, ndtr, ndtri, stdtr

from drimed.linear.arrays import FloatArray, IntArray

DENSE = 60  # levels up to which a factor beside the finest, which is taken out by its means, is written out as columns
ROWS = 10_000  # that are worked on together
LEFT = 3  # degrees of freedom that must remain for the noise
LOST = 1e-6  # columns of which less than this share of their squares is left within levels are the same within them
RANK = 1e-9  # eigenvalues below this share of the largest belong to columns that say nothing new
MOST_OUTLIERS = 10  # that are drawn in
SHORTEST = 4  # rows of a user: with fewer, the sum of products around the circle is the same in every order


@final
@dataclass(frozen=True, slots=True)
class OwnLines:
    """A line for each level of a factor: (n, p), written out for some rows or one column at a time only."""

    x: FloatArray  # (n, 1)
    factor: IntArray  # (n,), codes from 0

    def __getitem__(self, rows: slice) -> FloatArray:
        return np.asarray(self.x[rows] * (self.factor[rows, None] == np.arange(self.shape[1])))

    @property
    def T(self) -> Iterator[FloatArray]:
        """The columns."""
        return (self.x[:, 0] * (self.factor == k) for k in range(self.shape[1]))

    @property
    def shape(self) -> tuple[int, int]:
        """n rows and p columns."""
        return len(self.factor), int(self.factor.max()) + 1


Columns = FloatArray | OwnLines  # (n, p)


@final
@dataclass(frozen=True, slots=True)
class Space:
    """Levels of factors and columns, together with a constant."""

    factors: tuple[IntArray, ...] = ()  # (n,) each, codes from 0
    columns: tuple[Columns, ...] = ()  # (n, p) each
    _fits: dict[int, tuple[FloatArray, Fitted | None]] = field(default_factory=dict, compare=False, repr=False)

    def and_(self, other: Space) -> Space:
        """What both span."""
        if not other.factors and not other.columns:
            return self
        return Space(self.factors + other.factors, self.columns + other.columns)

    def leaves(self, y: FloatArray) -> Fitted | None:
        """The fit to y; of several candidates beside one base, the base is fitted once."""
        kept = self._fits.get(id(y))
        if kept is None:
            if len(self._fits) > 1:  # residuals and their scores
                self._fits.clear()
            kept = self._fits[id(y)] = y, fit(y, self)  # y itself is kept, so that its id stays its own
        return kept[1]


@final
@dataclass(frozen=True, slots=True)
class Fitted:
    """What a space leaves of the residuals."""

    rest: FloatArray  # (n,)
    rank: int
    leverage: FloatArray | None = None  # (n,), where it was asked for


def codes(labels: Sequence[object] | FloatArray | IntArray) -> IntArray:
    """Labels as numbers from 0, in the order of the labels."""
    return np.asarray(np.unique(np.asarray(labels), return_inverse=True)[1], np.intp).reshape(-1)


def cells(a: IntArray, b: IntArray) -> IntArray:
    """The factor of all pairs that occur."""
    return codes(a * (int(b.max()) + 1) + b)


def nested(a: IntArray | FloatArray, b: IntArray) -> bool:
    """Whether every level of b lies within one level of a: whether a is constant within b."""
    one = np.zeros(int(b.max()) + 1, a.dtype)
    one[b] = a
    return bool((one[b] == a).all())


def normal_scores(values: FloatArray) -> FloatArray:
    """The normal quantiles of the ranks: (n,)."""
    _, at, many = np.unique(values, return_inverse=True, return_counts=True)
    rank = np.cumsum(many) - (many - 1) / 2  # of each value, from 1; equal ones share the mean of theirs
    return np.asarray(ndtri((rank[at] - 0.5) / len(values)), np.float64)


def tamed(rest: FloatArray, threshold: float) -> FloatArray:
    """Single outliers drawn in to the size of the next largest, so that one typing error does not hide all else: (n,).

    Where many are as large, as the ones among zeros, nothing changes.
    """
    found = rest - rest.mean()
    for _ in range(MOST_OUTLIERS):
        p, row = outlier(found)
        if p >= threshold:
            break
        found[row] = np.sign(found[row]) * np.abs(np.delete(found, row)).max()
    return found


def fit(y: FloatArray, space: Space, *, leverage: bool = False) -> Fitted | None:
    """Least squares; None where two factors have too many levels to be written out."""
    kept: list[IntArray] = []
    for factor in sorted(space.factors, key=lambda f: -int(f.max())):
        if not any(nested(factor, finer) for finer in kept):
            kept.append(factor)
    if len(kept) > 1 and int(kept[1].max()) >= DENSE:
        return None
    n = len(y)
    finest = kept[0] if kept else np.zeros(n, np.intp)  # taken out by its means
    count = np.bincount(finest).astype(np.float64)
    columns = [*(OwnLines(np.ones((n, 1)), f) for f in kept[1:]), *space.columns]
    rest = _centred(y[:, None], finest, count)[:, 0]
    own = 1 / count[finest] if leverage else None
    if not columns:
        return Fitted(rest, len(count), own)
    X = _Centred(columns, finest, count)
    gram, moment = X.products(rest)
    size = np.sqrt(np.diagonal(gram) / n)
    used = size > RANK
    if not used.any():
        return Fitted(rest, len(count), own)
    scale = 1 / size[used]
    values, vectors = np.linalg.eigh(scale[:, None] * gram[np.ix_(used, used)] * scale)
    free = values > RANK * n
    basis = np.zeros((len(size), int(free.sum())))  # (p, rank), X @ basis is orthonormal
    basis[used] = scale[:, None] * vectors[:, free] / np.sqrt(values[free])
    fitted, own_leverage = X.fitted(basis, basis.T @ moment, leverage=leverage)
    added = None if own is None or own_leverage is None else own + own_leverage
    return Fitted(rest - fitted, len(count) + int(free.sum()), added)


@dataclass(frozen=True)
class _Centred:
    """Columns less the mean of each level of a factor, some rows at a time: many columns would fill the memory."""

    columns: Sequence[Columns]
    factor: IntArray
    count: FloatArray

    def products(self, y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """X^T X and X^T y: those of the columns, less those of the levels' means."""
        crossed = [[_crossed(a, b) for b in self.columns] for a in self.columns]
        moment = np.concatenate([_crossed(c, y[:, None])[:, 0] for c in self.columns])
        raw, means = np.block(crossed), self._totals / self.count[:, None]
        gram = raw - self._totals.T @ means
        same = np.diagonal(gram) <= LOST * np.diagonal(raw)  # what is left of them is round-off
        gram[same], gram[:, same] = 0.0, 0.0
        return gram, moment - means.T @ np.bincount(self.factor, y)

    def fitted(
        self, basis: FloatArray, coefficients: FloatArray, *, leverage: bool
    ) -> tuple[FloatArray, FloatArray | None]:
        """X times basis times coefficients, and each row's leverage."""
        n, weights = len(self.factor), basis @ coefficients
        mean = self._totals / self.count[:, None]
        found, at = -(mean @ weights)[self.factor], 0
        for c in self.columns:
            own = weights[at : at + c.shape[1]]
            found += c.x[:, 0] * own[c.factor] if isinstance(c, OwnLines) else c @ own
            at += c.shape[1]
        if not leverage:
            return found, None
        lever = np.zeros(n)
        for start in range(0, n, ROWS):
            some = slice(start, start + ROWS)
            X = np.concatenate([c[some] for c in self.columns], 1) - mean[self.factor[some]]
            lever[some] = ((X @ basis) ** 2).sum(1)
        return found, lever

    @cached_property
    def _totals(self) -> FloatArray:
        """The sum of each column over each level: (L, p)."""
        return np.concatenate([_summed(c, self.factor, len(self.count)) for c in self.columns], 1)


def _crossed(a: Columns, b: Columns) -> FloatArray:
    """A^T B; lines of their own have one entry in a row, and are not written out."""
    if isinstance(a, OwnLines):
        both = OwnLines(a.x * b.x, b.factor) if isinstance(b, OwnLines) else a.x * b
        return _summed(both, a.factor, a.shape[1])
    return _crossed(b, a).T if isinstance(b, OwnLines) else np.asarray(a.T @ b)


def _summed(c: Columns, factor: IntArray, levels: int) -> FloatArray:
    """The sum of each column over each level of a factor: (levels, p)."""
    if isinstance(c, OwnLines):
        p = c.shape[1]
        return np.bincount(factor * p + c.factor, c.x[:, 0], levels * p).astype(np.float64).reshape(levels, p)
    return np.stack([np.bincount(factor, column, levels) for column in c.T], 1)


def _centred(X: FloatArray, factor: IntArray, count: FloatArray) -> FloatArray:
    """Less the mean of each level."""
    total = np.stack([np.bincount(factor, column) for column in X.T], 1)
    return np.asarray(X - (total / count[:, None])[factor])


def explains(y: FloatArray, base: Space, more: Space) -> tuple[float, float]:
    """p-value of what `more` adds to the base, and how much: in standard deviations of the rest. NaN: cannot tell."""
    small, large = base.leaves(y), base.and_(more).leaves(y)
    if small is None or large is None:
        return np.nan, np.nan
    extra, left = large.rank - small.rank, len(y) - large.rank
    if extra < 1 or left < LEFT:
        return np.nan, np.nan
    noise = float(large.rest @ large.rest) / left
    gained = float(small.rest @ small.rest) - noise * left
    if noise <= 0:
        return np.nan, np.nan
    size = np.sqrt(max(0.0, gained - extra * noise) / len(y) / noise)
    return float(fdtrc(extra, left, max(0.0, gained) / extra / noise)), float(size)


def line_between(y: FloatArray, base: Space, x: FloatArray, unit: IntArray) -> tuple[float, float]:
    """p-value and size of a line in x, which is the same within each unit, against the scatter of the units' means.

    What the base has that differs within units is taken out of the rows first, the rest of it out of the means; levels
    of the units themselves, or of parts of them, are what the line is judged by.
    """
    within = Space(
        tuple(f for f in base.factors if not nested(unit, f) and not nested(f, unit)),
        tuple(c for c in base.columns if not all(nested(column, unit) for column in c.T)),
    )
    between = [(f[:, None] == np.arange(int(f.max()) + 1)) for f in base.factors if nested(f, unit) and f is not unit]
    between += [c for c in base.columns if all(nested(column, unit) for column in c.T)]
    found = fit(y, within)
    if found is None:
        return np.nan, np.nan
    count = np.bincount(unit).astype(np.float64)
    means = np.bincount(unit, found.rest) / count
    at = np.bincount(unit, x) / count
    others = [np.bincount(unit, column) / count for c in between for column in c.T]
    units = Space((), tuple(v[:, None] for v in others))
    p, _ = explains(means, units, Space((), (at[:, None],)))
    line = np.polyfit(at, means, 1)[0] if np.ptp(at) > 0 else 0.0
    return p, float(abs(line) * np.std(at))


def serial(rest: FloatArray, user: IntArray, order: FloatArray) -> tuple[float, float]:
    """p-value and size of the correlation between neighbours in the order of each user's rows.

    Wald and Wolfowitz's sum of products around the circle, with its mean and variance over all orders of a user's rows:
    levels of users do not matter, nor does the shape of the noise.
    """
    count = np.bincount(user)
    long = count[user] >= SHORTEST
    if not long.any():
        return np.nan, np.nan
    who, at = codes(user[long]), np.lexsort((order[long], user[long]))
    x, who = _centred(rest[long][:, None], who, np.bincount(who).astype(np.float64))[at, 0], who[at]
    T = np.bincount(who).astype(np.float64)
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


def outlier(rest: FloatArray) -> tuple[float, int]:
    """p-value of the largest residual being one of normal noise (Grubbs's bound), and its row."""
    n = len(rest)
    off = rest - rest.mean()
    row = int(np.abs(off).argmax())
    share = float(off[row] ** 2 / (off @ off)) * n / (n - 1)  # of all squares, at most 1
    t = np.sqrt((n - 2) * share / max(1 - share, RANK))
    return min(1.0, float(2 * n * stdtr(n - 2, -t))), row


def heavy(rest: FloatArray) -> tuple[float, float]:
    """p-value of tails being heavier than the normal's, and the excess kurtosis. Anscombe and Glynn (1983)."""
    n, off = len(rest), rest - rest.mean()
    b2 = float((off**4).mean() / (off**2).mean() ** 2)
    variance = 24 * n * (n - 2) * (n - 3) / ((n + 1) ** 2 * (n + 3) * (n + 5))
    x = (b2 - 3 * (n - 1) / (n + 1)) / np.sqrt(variance)
    skew = 6 * (n**2 - 5 * n + 2) / ((n + 7) * (n + 9)) * np.sqrt(6 * (n + 3) * (n + 5) / (n * (n - 2) * (n - 3)))
    A = 6 + 8 / skew * (2 / skew + np.sqrt(1 + 4 / skew**2))  # degrees of freedom of a chi-square of that skewness
    z = (1 - 2 / (9 * A) - np.cbrt((1 - 2 / A) / (1 + x * np.sqrt(2 / (A - 4))))) / np.sqrt(2 / (9 * A))
    return float(ndtr(-z)), b2 - 3


def few_values(outcomes: FloatArray) -> str | None:
    """Whether outcomes take two values only, or are small counts."""
    values = np.unique(outcomes)
    if len(values) == 2:
        return "two values"
    counts = values.min() >= 0 and values.max() <= 20 and bool((values == np.round(values)).all())
    return "small counts" if counts and len(values) > 1 else None
