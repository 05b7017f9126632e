"""Outcomes that are alike: how little they say about how much a metric may vary.

Yes or no: while everybody survives, the outcomes leave no residual, and no arm seems able to differ. But a share of n
outcomes that are all alike is known to about 1 / n only. So where a metric has taken two values, or one, its residual
counts one pair of outcomes more, one of either kind: a variance of about (their distance)^2 / (2 n) while all are
alike, as Laplace's and Jeffreys's rules have it, and next to nothing once both are common. A metric that never varied
may be two-valued if its value is an end of its range; of others the second value is as far as `measure` assumes.
Shapes: leading `...` is any batch; N cells, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.models.mixed.cells import FACTORS, Cells
from drimed.models.mixed.likelihood import Design
from drimed.models.mixed.terms import Layout, NoiseGroups
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.numerics.compiled import kernel

# From cells to the arrays of the likelihood, on a scale that the data choose.

# The guess rests on differences between outcomes that share all levels: of block, season, group and user. This many
# observations of a quarter of the overall variance are added, for trials that have hardly any such differences yet.
GUESS_WEIGHT, GUESS_SHARE = 2.0, 0.25
# Without any variation the noise is unknown: no tolerance is as large as this.
UNKNOWN = 1e50


@dataclass(frozen=True, slots=True)
class Scale:
    """How outcomes and covariates are standardised."""

    centre: FloatArray  # (..., C), of covariates, then metrics
    unit: FloatArray  # (..., C), positive
    known: FloatArray  # (...), 1 where every metric has shown variation, else 0


FEWEST = 8  # outcomes that are all alike, after which a metric is taken to be constant for now
HALF = 0.5  # of its level: another arm that differs by so much is nothing unusual
SPREADS = 8  # standard deviations of a measurement that a plausible range has room for
Range = tuple[float, float]


def measure(cells: Cells, covariates: int, ranges: tuple[Range, ...]) -> Scale:
    """The scale of cells that are sorted by season and block.

    A metric that has not varied in FEWEST outcomes is taken to vary by a part of its range, or of its level.
    """
    there = seen(cells, covariates)  # (..., N, C)
    weight = cells.n[..., None] * there
    total = weight.sum(-2)
    centre = (weight * cells.mean).sum(-2) / np.maximum(total, 1.0)
    off = (cells.mean - centre[..., None, :]) * there
    own = np.diagonal(cells.scatter, axis1=-2, axis2=-1) * there
    squares = (own + weight * off**2).sum(-2)
    variance = squares / np.maximum(total - 1, 1.0)
    places = [FACTORS.index(f) for f in ("season", "block", "group", "user")]
    within, freedom = _within(cells.keys[..., places], own, weight, off)
    guess = (within + GUESS_WEIGHT * GUESS_SHARE * variance) / (freedom + GUESS_WEIGHT)
    unit = np.sqrt(np.concatenate([variance[..., :covariates], guess[..., covariates:]], -1))
    # Round-off of a constant is not variation.
    varies = unit > 1e-10 * np.abs(centre)
    constant = ~varies[..., covariates:] & (total[..., covariates:] >= FEWEST)
    assumed = sd_if_constant(ranges, np.abs(centre[..., covariates:]))
    unit[..., covariates:] = np.where(constant, assumed, unit[..., covariates:])
    varies[..., covariates:] |= constant
    known = varies[..., covariates:].all(-1).astype(np.float64)
    return Scale(centre, np.where(varies, unit, 1.0), known)


def sd_if_constant(ranges: tuple[Range, ...], level: FloatArray) -> FloatArray:
    """Assumed standard deviation of metrics that have not varied yet, at this level: (..., M)."""
    width = np.array([high - low for low, high in ranges])
    return np.where(np.isfinite(width), width / SPREADS, np.where(level > 0, HALF * level, 1.0))


def build(
    cells: Cells, scale: Scale, common: Layout, own: Layout, *, noise: NoiseGroups, weight: FloatArray | None = None
) -> Design:
    """The design of cells that are sorted by cluster: `common` lays out theta, `own` a cluster's effects.

    `weight` (..., N) is how much an outcome of each cell counts; None: one.
    """
    covariates = cells.mean.shape[-1] - noise.metrics
    there = seen(cells, covariates)
    centre, unit = scale.centre[..., None, :], scale.unit[..., None, :]
    ones = np.ones(there.shape[-1] + 1)
    T = _moments(cells.n, cells.mean, cells.scatter, there, centre, unit, ones)
    if weight is not None:
        T *= weight[..., None, None]
    cols = common.columns(cells.keys)
    start, most = _starts(cells, common.cluster)
    touched = min(len(common.family), most * cols.shape[-1])
    return Design(
        T=T,
        pattern=cells.pattern,
        group=noise.of(cells.keys),
        cols=cols,
        slot=common.slot,
        zcols=own.columns(cells.keys),
        zslot=own.slot,
        start=start,
        family=common.family,
        zfamily=own.family,
        touched=np.zeros(max(touched, 1), np.intp),
    )


@kernel("void(f8, f8[:], f8[:,:], f8[:], f8[:], f8[:], f8[:], f8[:,:])", "(),(c),(c,c),(c),(c),(c),(u)->(u,u)")
def _moments(n, mean, scatter, seen, centre, unit, ones, T):  # type: ignore[no-untyped-def]
    """Sums of products of a cell's values, standardised, with a constant before them."""
    u = ones.copy()
    for a in range(len(mean)):
        u[1 + a] = (mean[a] - centre[a]) / unit[a] * seen[a]
    for a in range(len(u)):
        for h in range(len(u)):
            T[a, h] = n * u[a] * u[h]
    for a in range(len(mean)):
        for h in range(len(mean)):
            T[1 + a, 1 + h] += scatter[a, h] / (unit[a] * unit[h]) * (seen[a] * seen[h])


def seen(cells: Cells, covariates: int) -> FloatArray:
    """1 where a value is there, 0 where a metric is missing or the cell is empty: (..., N, C)."""
    M = cells.mean.shape[-1] - covariates
    metrics = (cells.pattern[..., None] >> np.arange(M)) & 1
    there = np.concatenate([np.ones((*cells.n.shape, covariates), np.intp), metrics], -1)
    return there * (cells.n > 0)[..., None].astype(np.float64)


def _within(label: IntArray, own: FloatArray, weight: FloatArray, off: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Sums of squares within groups of cells with the same label, and their degrees of freedom: (..., C) twice."""
    batch, N, C = weight.shape[:-2], weight.shape[-2], weight.shape[-1]
    members = int(np.prod(batch))
    member = np.repeat(np.arange(members), N)
    labels = np.column_stack([member, label.reshape(members * N, -1)])
    _, which = np.unique(labels, axis=0, return_inverse=True)
    which = which.reshape(-1)
    groups = int(which.max(initial=-1)) + 1
    w, o, s = (a.reshape(members * N, C) for a in (weight, off, own))
    count, first, squares = np.zeros((groups, C)), np.zeros((groups, C)), np.zeros((groups, C))
    np.add.at(count, which, w)
    np.add.at(first, which, w * o)
    np.add.at(squares, which, s + w * o**2)
    inner = np.maximum(squares - first**2 / np.maximum(count, 1.0), 0.0)
    freedom = np.maximum(count - 1, 0.0)
    owner = np.zeros(groups, np.intp)
    owner[which] = member
    found = np.zeros((2, members, C))
    np.add.at(found[0], owner, inner)
    np.add.at(found[1], owner, freedom)
    return found[0].reshape(*batch, C), found[1].reshape(*batch, C)


def _starts(cells: Cells, cluster: str) -> tuple[IntArray, int]:
    """The first cell of each occupied cluster, (..., L + 1), and the most cells that one has."""
    label = cells.keys[..., FACTORS.index(cluster)]
    N = label.shape[-1]
    flat, there = label.reshape(-1, N), cells.n.reshape(-1, N) > 0
    used = there.sum(-1)
    new = np.ones(flat.shape, bool)
    new[:, 1:] = flat[:, 1:] != flat[:, :-1]
    new &= there
    L = max(int(new.sum(-1).max(initial=0)), 1)
    start = np.repeat(used[:, None], L + 1, axis=1)
    rank = np.cumsum(new, -1) - 1
    member, cell = np.nonzero(new)
    start[member, rank[member, cell]] = cell
    most = int(np.diff(start, axis=-1).max(initial=0))
    return start.reshape(*cells.batch, L + 1), most


PAIR = 0.5  # sum of squares of two outcomes that are 1 apart
ROUND_OFF = 1e-9


def pair(cells: Cells, scale: Scale, covariates: int, ranges: tuple[Range, ...]) -> FloatArray:
    """The sum of squares of one pair of either kind, in the metrics' units: (..., M); 0 where a metric has more values.

    `ranges` has the ends of each metric's range, infinite where it has none.
    """
    there = seen(cells, covariates)[..., covariates:] > 0
    mean = cells.mean[..., covariates:]
    squares = np.diagonal(cells.scatter, axis1=-2, axis2=-1)[..., covariates:]
    low, high = np.where(there, mean, np.inf).min(-2), np.where(there, mean, -np.inf).max(-2)
    some = there.any(-2)
    low, high = np.where(some, low, 0.0), np.where(some, high, 0.0)
    apart = high - low
    n = cells.n[..., None]
    two = n * (mean - low[..., None, :]) * (high[..., None, :] - mean)  # the scatter that two values would have
    few = (~there | (np.abs(squares - two) <= ROUND_OFF * n * apart[..., None, :] ** 2)).all(-2)
    few &= (n * there).sum(-2) > 2  # any two outcomes have two values
    level = np.maximum(np.abs(low), np.abs(high))
    constant = (apart <= ROUND_OFF * level) & (~there | (squares <= n * (ROUND_OFF * level[..., None, :]) ** 2)).all(-2)
    first, last = (np.array([ends[i] for ends in ranges]) for i in (0, 1))
    at_an_end = (np.abs(low - first) <= ROUND_OFF * level) | (np.abs(low - last) <= ROUND_OFF * level)
    unseen = np.where(at_an_end, last - first, sd_if_constant(ranges, level))
    distance = np.where(constant, unseen, np.where(few, apart, 0.0))
    unit = scale.unit[..., covariates:]
    return np.asarray(PAIR * (distance / unit) ** 2)
