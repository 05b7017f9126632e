"""Outcomes as cells, and cells as the design of the likelihood.

Outcomes with the same factors are a cell: a count, a mean and a scatter. New outcomes are appended; `compact` sorts the
cells and merges equal ones, so that a fit does not depend on the order in which outcomes came. Means and scatters are
kept instead of raw sums: a level that is large against the noise costs no digits. A longer list of cells shares its
arrays with the shorter one it came from: adding an outcome costs the same whatever the number of cells.

Each metric is centred on its mean and divided by a first guess of its residual deviation, each covariate by its own
deviation. Both are functions of the data alone, so that neither units nor levels matter.
Shapes: leading `...` is any batch; N cells, F factors, C values (covariates, then M metrics).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from drimed.errors import InputError, ShapeError
from drimed.models.mixed.likelihood import Design
from drimed.models.mixed.terms import FACTORS, Range, Structure
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, outer

GROWS = {"grows": True}  # arrays of a stored state that may be longer than those of a new one
FREE = -1  # the pattern of a place that was never written
# The guess of the noise rests on differences between outcomes that share block, season, group and user. This many
# observations of a quarter of the overall variance are added, for trials that have hardly any such differences yet.
GUESS_WEIGHT, GUESS_SHARE = 2.0, 0.25
UNKNOWN = 1e50  # deviation of what is not known at all: no tolerance is as large
FEWEST = 8  # outcomes that are all alike, after which a metric is taken to be constant for now
HALF = 0.5  # of its level: another arm that differs by so much is nothing unusual
SPREADS = 8  # standard deviations of a measurement that a plausible range has room for
CONSTANT = 1e-10  # of its mean: a unit below this is the round-off of a constant
PAIR = 0.5  # sum of squares of two outcomes that are 1 apart
ROUND_OFF = 1e-9
_WRITING = Lock()


@dataclass(frozen=True, slots=True)
class Rows:
    """B outcomes of each member."""

    keys: IntArray  # (..., B, F)
    pattern: IntArray  # (..., B), bit m is set where metric m was observed
    values: FloatArray  # (..., B, C), 0 for metrics that are missing


def make_rows(
    keys: IntArray, covariates: FloatArray, y: FloatArray, observed: BoolArray | None, shape: tuple[int, int, int]
) -> Rows:
    """Outcomes y (..., B, M) of decisions, checked against the numbers of factors, covariates and metrics."""
    F, c, M = shape
    if (keys.shape[-1], covariates.shape[-1], y.shape[-1]) != shape:
        got = f"{keys.shape[-1]}, {covariates.shape[-1]} and {y.shape[-1]}"
        raise ShapeError(f"expected {F} factors, {c} covariates and {M} metrics, got {got}")
    present = np.ones(y.shape, bool) if observed is None else np.broadcast_to(observed, y.shape)
    if not (np.isfinite(covariates).all() and np.isfinite(y[present]).all()):
        raise InputError("outcomes and covariates must be finite; leave out a metric that is missing")
    pattern = (present << np.arange(M)).sum(-1).astype(np.intp)
    values = np.concatenate([np.broadcast_to(covariates, (*y.shape[:-1], c)), np.where(present, y, 0.0)], -1)
    return Rows(np.broadcast_to(keys, (*y.shape[:-1], F)), pattern, values)


@dataclass(frozen=True, slots=True)
class Cells:
    """All outcomes of a mixed model; a cell of count 0 is empty."""

    keys: IntArray = field(metadata=GROWS)  # (..., N, F), the values of the factors
    pattern: IntArray = field(metadata=GROWS)  # (..., N), bit m is set where metric m was observed
    n: FloatArray = field(metadata=GROWS)  # (..., N)
    mean: FloatArray = field(metadata=GROWS)  # (..., N, C), 0 for metrics that are missing
    scatter: FloatArray = field(metadata=GROWS)  # (..., N, C, C), sum of products of deviations from the mean
    used: int  # cells beyond this one belong to longer lists

    @staticmethod
    def empty(values: int, batch: tuple[int, ...] = (), room: int = 16, factors: int = len(FACTORS)) -> Cells:
        """No outcomes."""
        return Cells(
            np.zeros((*batch, room, factors), np.intp),
            np.full((*batch, room), FREE, np.intp),
            np.zeros((*batch, room)),
            np.zeros((*batch, room, values)),
            np.zeros((*batch, room, values, values)),
            0,
        )

    @property
    def batch(self) -> tuple[int, ...]:
        return self.n.shape[:-1]

    @property
    def arrays(self) -> tuple[Any, Any, Any, Any, Any]:
        """Keys, patterns, counts, means and scatters."""
        return self.keys, self.pattern, self.n, self.mean, self.scatter

    @property
    def count(self) -> FloatArray:
        """The number of outcomes of each member: (...)."""
        return self.n[..., : self.used].sum(-1)

    @property
    def squares(self) -> FloatArray:
        """The sum of squares of each value: (..., C)."""
        own = self.live()
        return (np.diagonal(own.scatter, axis1=-2, axis2=-1) + own.n[..., None] * own.mean**2).sum(-2)

    def live(self, until: int | None = None) -> Cells:
        """The first `until` cells, or all that are used."""
        return self.at(slice(0, self.used if until is None else until))

    def at(self, places: IntArray | slice) -> Cells:
        """Some of the cells."""
        kept = (slice(None),) * len(self.batch) + (places,)
        keys, pattern, n, mean, scatter = (a[kept] for a in self.arrays)
        return Cells(keys, pattern, n, mean, scatter, n.shape[-1])

    def observed(self, covariates: int) -> FloatArray:
        """1 where a value was observed, 0 where a metric is missing or the cell is empty: (..., N, C)."""
        metrics = (self.pattern[..., None] >> np.arange(self.mean.shape[-1] - covariates)) & 1
        all_values = np.concatenate([np.ones((*self.n.shape, covariates), np.intp), metrics], -1)
        return all_values * (self.n > 0)[..., None].astype(np.float64)

    def add(self, rows: Rows, weight: float = 1.0) -> Cells:
        """With more outcomes, each counted `weight` times; one without any metric is an empty cell."""
        cells, start, end = self, self.used, self.used + rows.pattern.shape[-1]
        with _WRITING:  # the first that comes may use the free places; the others copy
            if end > cells.pattern.shape[-1] or (cells.pattern[..., start:end] != FREE).any():
                cells = cells._copied(max(16, 2 * end))
            cells.pattern[..., start:end] = rows.pattern
        cells.keys[..., start:end, :] = rows.keys
        cells.n[..., start:end] = weight * (rows.pattern > 0)
        cells.mean[..., start:end, :] = rows.values
        return Cells(*cells.arrays, end)

    def remove(self, rows: Rows, exact: int = 0) -> Cells:
        """Without outcomes that were added: from a cell of one outcome, else from the cell they were merged into.

        Outcomes in a cell have the first `exact` values in common.
        """
        cells = self._copied(self.n.shape[-1])
        for member in np.ndindex(*cells.batch):
            keys, pattern, n, mean, scatter = (a[member][: cells.used] for a in cells.arrays)
            for i in range(rows.pattern.shape[-1]):
                at = (*member, i)
                same = (keys == rows.keys[at]).all(-1) & (pattern == rows.pattern[at])
                same &= (mean[:, :exact] == rows.values[at][:exact]).all(-1)
                away = np.abs(mean - rows.values[at])
                last = away <= ROUND_OFF * np.abs(mean).max(0, initial=0.0)  # of a cell that others were taken out of
                for found in (same & (n == 1) & (away == 0).all(-1), same & (n > 1), same & (n == 1) & last.all(-1)):
                    if found.any():
                        break
                else:
                    raise InputError("an outcome can be taken out only if it was counted in; this one was not")
                cell, left = found.argmax(), n[found.argmax()] - 1
                if left == 0:
                    mean[cell] = 0.0
                else:
                    off = rows.values[at] - mean[cell]
                    mean[cell] -= off / left
                    scatter[cell] -= np.outer(off, off) * n[cell] / left
                if left <= 1:
                    scatter[cell] = 0.0
                n[cell] = left
        return cells

    def compact(self, first: int = 0, exact: int = 0) -> Cells:
        """The same outcomes sorted, by the factor number `first` before the others, equal keys merged.

        With `exact` so many covariates, from the first on, must be equal too.
        """
        cells = self.live()
        members, N, F = int(np.prod(cells.batch)), cells.n.shape[-1], cells.keys.shape[-1]
        flat = [a.reshape(members * N, *a.shape[len(cells.batch) + 1 :]) for a in cells.arrays]
        order = [first, *(f for f in range(F) if f != first)]
        labels = np.column_stack([np.repeat(np.arange(members), N), flat[0][:, order], flat[1]])
        if exact:
            labels = np.column_stack([labels, np.unique(flat[3][:, :exact], axis=0, return_inverse=True)[1]])
        sort = np.lexsort([*(flat[3].T[::-1]), *(labels.T[::-1])])
        sort = sort[flat[2][sort] > 0]
        labels, keys, pattern, n, mean, scatter = (a[sort] for a in (labels, *flat))
        new = np.ones(len(n), bool)
        new[1:] = (labels[1:] != labels[:-1]).any(-1)
        starts, which = np.flatnonzero(new), np.cumsum(new) - 1

        def sums(array: FloatArray) -> FloatArray:
            return np.add.reduceat(array, starts, axis=0) if len(starts) < len(array) else array

        total = sums(n)
        # A cell that stands alone keeps its digits: deviations from its own mean are exactly 0.
        centre = mean[starts] + sums(n[:, None] * (mean - mean[starts][which])) / total[:, None]
        off = mean - centre[which]
        spread = sums(scatter + n[:, None, None] * off[:, :, None] * off[:, None, :])
        owner = labels[starts, 0]
        place = np.arange(len(starts)) - np.searchsorted(owner, owner)
        most = int(place.max(initial=-1)) + 1
        packed = Cells.empty(cells.mean.shape[-1], (members,), max(most, 1), F)
        for target, source in zip(packed.arrays, (keys[starts], pattern[starts], total, centre, spread), strict=True):
            target[owner, place] = source
        keys, pattern, n, mean, scatter = (a.reshape(*cells.batch, *a.shape[1:]) for a in packed.arrays)
        return Cells(keys, pattern, n, mean, scatter, most)

    def of_clusters(self, place: int, clusters: IntArray) -> Cells:
        """The cells of each cluster, by factor number `place`: (..., N) cells and clusters (..., n) -> (..., n, m)."""
        cells = self.live()
        label = cells.keys[..., place]
        if not cells.batch and clusters.size < label.size:  # most cells belong to others
            theirs = np.flatnonzero(np.isin(label, clusters) if clusters.size > 1 else label == clusters.ravel()[0])
            cells, label = cells.at(theirs), label[theirs]
        match = (label[..., None, :] == clusters[..., None]) & (cells.n > 0)[..., None, :]  # (..., n, N)
        matches = np.nonzero(match)
        if not len(matches[0]):
            return Cells.empty(cells.mean.shape[-1], clusters.shape, 1, cells.keys.shape[-1])
        count = match.sum(-1)
        most = int(count.max())
        index = np.zeros((*match.shape[:-1], most), np.intp)
        before = np.cumsum(count.ravel()) - count.ravel()  # the first match of each cluster
        owner = np.ravel_multi_index(matches[:-1], match.shape[:-1])
        index.reshape(-1, most)[owner, np.arange(len(owner)) - before[owner]] = matches[-1]
        take = (*(a[..., None, None] for a in np.indices(cells.batch, sparse=True)), index)
        keys, pattern, n, mean, scatter = (a[take] for a in cells.arrays)
        return Cells(keys, pattern, np.where(np.arange(most) < count[..., None], n, 0.0), mean, scatter, most)

    def _copied(self, room: int) -> Cells:
        """A copy with so many places."""
        wide = Cells.empty(self.mean.shape[-1], self.batch, max(room, self.used), self.keys.shape[-1])
        for target, source in zip(wide.live(self.used).arrays, self.live().arrays, strict=True):
            target[...] = source
        return Cells(*wide.arrays, self.used)


@dataclass(frozen=True, slots=True)
class Scale:
    """Standardisation of outcomes and covariates."""

    centre: FloatArray  # (..., C), of covariates, then metrics
    unit: FloatArray  # (..., C), positive
    known: FloatArray  # (...), 1 where every metric has shown variation, else 0

    def expand(self) -> Scale:
        """The same with one more batch axis, of length 1."""
        return Scale(self.centre[..., None, :], self.unit[..., None, :], self.known[..., None])

    def standardise(self, values: FloatArray) -> FloatArray:
        """Covariates (..., K, c), or all values (..., K, C), in the units that the fit uses."""
        c = values.shape[-1]
        return np.asarray((values - self.centre[..., None, :c]) / self.unit[..., None, :c])


def measure(cells: Cells, structure: Structure) -> Scale:
    """The scale of cells that are compact.

    A metric with a declared spread counts GUESS_WEIGHT outcomes of it, and its noise is known from the start. Another
    one that has not varied in FEWEST outcomes is taken to vary by a part of its range, or of its level.
    """
    covariates, ranges, spreads = structure.covariates, structure.ranges, structure.spreads
    observed = cells.observed(covariates)  # (..., N, C)
    weight = cells.n[..., None] * observed
    total = weight.sum(-2)
    centre = (weight * cells.mean).sum(-2) / np.maximum(total, 1.0)
    off = (cells.mean - centre[..., None, :]) * observed
    own = np.diagonal(cells.scatter, axis1=-2, axis2=-1) * observed
    variance = (own + weight * off**2).sum(-2) / np.maximum(total - 1, 1.0)
    within, freedom = _within_groups(cells, own, weight, off)
    assumed = GUESS_SHARE * variance
    if spreads:
        declared = np.array(spreads)
        assumed[..., covariates:] = np.where(declared > 0, declared**2, assumed[..., covariates:])
    guess = (within + GUESS_WEIGHT * assumed) / (freedom + GUESS_WEIGHT)
    unit = np.sqrt(np.concatenate([variance[..., :covariates], guess[..., covariates:]], -1))
    centre[..., list(structure.unscaled)], unit[..., list(structure.unscaled)] = 0.0, 1.0
    varies = unit > CONSTANT * np.abs(centre)
    constant = ~varies[..., covariates:] & (total[..., covariates:] >= FEWEST)
    level = np.abs(centre[..., covariates:])
    unit[..., covariates:] = np.where(constant, sd_if_constant(ranges, level), unit[..., covariates:])
    varies[..., covariates:] |= constant
    known = np.asarray(varies[..., covariates:].all(-1), np.float64)
    return Scale(centre, np.where(varies, unit, 1.0), known)


def sd_if_constant(ranges: tuple[Range, ...], level: FloatArray) -> FloatArray:
    """Assumed standard deviation of metrics that have not varied yet, at this level: (..., M)."""
    width = np.array([high - low for low, high in ranges])
    return np.where(np.isfinite(width), width / SPREADS, np.where(level > 0, HALF * level, 1.0))


def add_binary_pseudo_outcomes(cells: Cells, scale: Scale, covariates: int, ranges: tuple[Range, ...]) -> FloatArray:
    """Sum of squares of one pair of pseudo-outcomes for metrics with one or two values, standardised: (..., M).

    While all of n outcomes are alike they leave no residual, but a share of n outcomes is known to about 1 / n only. So
    the residual counts one pair more, one outcome of either value: a variance of about (their distance)^2 / (2 n), as
    by the rules of Laplace and Jeffreys, and next to nothing once both values are common. A metric that never varied
    may be binary if its value is an end of its range; else the second value is as far as `sd_if_constant` assumes. 0
    for metrics with more values.
    """
    observed = cells.observed(covariates)[..., covariates:] > 0
    mean, n = cells.mean[..., covariates:], cells.n[..., None]
    squares = np.diagonal(cells.scatter, axis1=-2, axis2=-1)[..., covariates:]
    some = observed.any(-2)
    low = np.where(some, np.where(observed, mean, np.inf).min(-2), 0.0)
    high = np.where(some, np.where(observed, mean, -np.inf).max(-2), 0.0)
    apart = high - low
    binary_scatter = n * (mean - low[..., None, :]) * (high[..., None, :] - mean)  # that two values would have
    binary = (~observed | (np.abs(squares - binary_scatter) <= ROUND_OFF * n * apart[..., None, :] ** 2)).all(-2)
    binary &= (n * observed).sum(-2) > 2  # any two outcomes have two values
    level = np.maximum(np.abs(low), np.abs(high))
    constant = (apart <= ROUND_OFF * level) & (~observed | (squares <= n * (ROUND_OFF * level[..., None, :]) ** 2)).all(
        -2
    )
    first, last = (np.array([ends[i] for ends in ranges]) for i in (0, 1))
    at_an_end = (np.abs(low - first) <= ROUND_OFF * level) | (np.abs(low - last) <= ROUND_OFF * level)
    other = np.where(at_an_end, last - first, sd_if_constant(ranges, level))
    distance = np.where(constant, other, np.where(binary, apart, 0.0))
    return np.asarray(PAIR * (distance / scale.unit[..., covariates:]) ** 2)


def make_design(structure: Structure, cells: Cells, scale: Scale, discount: float = 1.0) -> Design:
    """The design of cells that are sorted by cluster; an outcome counts `discount` times as much a season later."""
    common, own = structure.common, structure.own
    observed, unit = cells.observed(structure.covariates), scale.unit[..., None, :]
    u = np.ones((*cells.n.shape, cells.mean.shape[-1] + 1))  # a constant, and the means
    u[..., 1:] = (cells.mean - scale.centre[..., None, :]) / unit * observed
    T = outer(cells.n[..., None] * u, u)
    T[..., 1:, 1:] += cells.scatter / outer(unit, unit) * outer(observed, observed)
    if discount < 1:
        season = cells.keys[..., FACTORS.index("season")]
        newest = np.where(cells.n > 0, season, 0).max(-1, keepdims=True)
        T *= (discount ** (newest - season).astype(np.float64))[..., None, None]
    cols = common.columns(cells.keys)
    start, most = _starts(cells, structure.cluster_place)
    touched = max(min(len(common.family), most * cols.shape[-1]), 1)
    return Design(
        T=T,
        pattern=cells.pattern,
        group=structure.noise_group(cells.keys),
        cols=cols,
        slot=common.slot,
        zcols=own.columns(cells.keys),
        zslot=own.slot,
        start=start,
        family=common.family,
        zfamily=own.family,
        touched=np.zeros(touched, np.intp),
    )


def _within_groups(cells: Cells, own: FloatArray, weight: FloatArray, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sums of squares within outcomes that share season, block, group and user, and degrees of freedom: (..., C)."""
    N, C = weight.shape[-2:]
    members = int(np.prod(cells.batch))
    places = [FACTORS.index(f) for f in ("season", "block", "group", "user")]
    member = np.repeat(np.arange(members), N)
    labels = np.column_stack([member, cells.keys[..., places].reshape(members * N, -1)])
    _, which = np.unique(labels, axis=0, return_inverse=True)
    which = which.reshape(-1)
    groups = int(which.max(initial=-1)) + 1
    sums = np.zeros((3, groups, C))
    for total, part in zip(sums, (weight, weight * off, own + weight * off**2), strict=True):
        np.add.at(total, which, part.reshape(members * N, C))
    count, first, squares = sums
    owner = np.zeros(groups, np.intp)
    owner[which] = member
    within, freedom = np.zeros((2, members, C))
    np.add.at(within, owner, np.maximum(squares - first**2 / np.maximum(count, 1.0), 0.0))
    np.add.at(freedom, owner, np.maximum(count - 1, 0.0))
    return within.reshape(*cells.batch, C), freedom.reshape(*cells.batch, C)


def _starts(cells: Cells, place: int) -> tuple[IntArray, int]:
    """The first cell of each occupied cluster, (..., L + 1), and the most cells that one has."""
    label = cells.keys[..., place]
    N = label.shape[-1]
    flat, occupied = label.reshape(-1, N), cells.n.reshape(-1, N) > 0
    new = np.ones(flat.shape, bool)
    new[:, 1:] = flat[:, 1:] != flat[:, :-1]
    new &= occupied
    L = max(int(new.sum(-1).max(initial=0)), 1)
    start = np.repeat(occupied.sum(-1)[:, None], L + 1, axis=1)
    member, cell = np.nonzero(new)
    start[member, (np.cumsum(new, -1) - 1)[member, cell]] = cell
    return start.reshape(*cells.batch, L + 1), int(np.diff(start, axis=-1).max(initial=0))
