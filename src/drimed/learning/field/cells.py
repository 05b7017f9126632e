"""Outcomes of a field as cells: those with the same factors are kept as a count, a mean and a scatter.

New outcomes are appended; `compact` sorts the cells and merges equal ones, so that what is fitted does not depend on
the order in which outcomes came. Means and scatters are kept instead of raw sums: a level that is large against the
noise costs no digits. Shapes: leading `...` is any batch; N cells, C values (covariates, then M metrics).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError
from drimed.linear.arrays import FloatArray, IntArray

GROWS = {"grows": True}  # arrays of a stored state that may be longer than those of a new one
FACTORS = ("season", "block", "group", "user", "arm")


@dataclass(frozen=True, slots=True)
class Cells:
    """Everything a field model remembers of the data; a cell of count 0 is empty."""

    keys: IntArray = field(metadata=GROWS)  # (..., N, 5), the values of FACTORS
    pattern: IntArray = field(metadata=GROWS)  # (..., N), bit m is set where metric m was observed
    n: FloatArray = field(metadata=GROWS)  # (..., N)
    mean: FloatArray = field(metadata=GROWS)  # (..., N, C), 0 for metrics that are missing
    scatter: FloatArray = field(metadata=GROWS)  # (..., N, C, C), sum of products of deviations from the mean
    used: int  # cells beyond this one are free

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.n.shape[:-1]

    @property
    def count(self) -> FloatArray:
        """How many outcomes each member has: (...)."""
        return self.n.sum(-1)

    @property
    def squares(self) -> FloatArray:
        """The sum of squares of each value: (..., C)."""
        return (np.diagonal(self.scatter, axis1=-2, axis2=-1) + self.n[..., None] * self.mean**2).sum(-2)


@dataclass(frozen=True, slots=True)
class Rows:
    """B outcomes of each member."""

    keys: IntArray  # (..., B, 5)
    pattern: IntArray  # (..., B)
    values: FloatArray  # (..., B, C)


def init(values: int, batch: tuple[int, ...] = (), room: int = 16) -> Cells:
    """No outcomes."""
    return Cells(
        np.zeros((*batch, room, len(FACTORS)), np.intp),
        np.zeros((*batch, room), np.intp),
        np.zeros((*batch, room)),
        np.zeros((*batch, room, values)),
        np.zeros((*batch, room, values, values)),
        0,
    )


def add(cells: Cells, rows: Rows) -> Cells:
    """Count outcomes in."""
    start, end = cells.used, cells.used + rows.pattern.shape[-1]
    room = max(cells.n.shape[-1], 2 * end if end > cells.n.shape[-1] else 0)
    keys, pattern, n, mean, scatter = (
        _with_room(array, room, len(cells.batch))
        for array in (cells.keys, cells.pattern, cells.n, cells.mean, cells.scatter)
    )
    keys[..., start:end, :] = rows.keys
    pattern[..., start:end] = rows.pattern
    n[..., start:end] = 1.0
    mean[..., start:end, :] = rows.values
    return Cells(keys, pattern, n, mean, scatter, end)


def remove(cells: Cells, rows: Rows) -> Cells:
    """Take outcomes out again that were counted in."""
    n, mean, scatter = cells.n.copy(), cells.mean.copy(), cells.scatter.copy()
    for member in np.ndindex(*cells.batch):
        for i in range(rows.pattern.shape[-1]):
            at = (*member, i)
            same = (cells.keys[member] == rows.keys[at]).all(-1) & (cells.pattern[member] == rows.pattern[at])
            _take_out(n[member], mean[member], scatter[member], same, rows.values[at])
    return replace(cells, n=n, mean=mean, scatter=scatter)


def compact(cells: Cells, first: int = 0) -> Cells:
    """The same outcomes in an order of their own, by the factor number `first` before the others, equal keys merged."""
    members, N = int(np.prod(cells.batch)), cells.n.shape[-1]
    flat = [a.reshape(members * N, *a.shape[len(cells.batch) + 1 :]) for a in _arrays(cells)]
    member = np.repeat(np.arange(members), N)
    kept = flat[2] > 0
    keys, pattern, n, mean, scatter = (a[kept] for a in flat)
    member = member[kept]
    order = [first, *(f for f in range(len(FACTORS)) if f != first)]
    labels = np.column_stack([member, keys[:, order], pattern])
    sort = np.lexsort([*(mean.T[::-1]), *(labels.T[::-1])])
    labels, keys, pattern, n, mean, scatter = (a[sort] for a in (labels, keys, pattern, n, mean, scatter))
    starts = np.flatnonzero(np.r_[True, (labels[1:] != labels[:-1]).any(-1)]) if len(n) else np.zeros(0, np.intp)
    which = np.cumsum(np.r_[False, (labels[1:] != labels[:-1]).any(-1)]) if len(n) else starts
    total = np.add.reduceat(n, starts) if len(n) else n
    # A cell that stands alone keeps its digits: deviations from its own mean are exactly 0.
    centre = mean[starts] + _sums(n[:, None] * (mean - mean[starts][which]), starts) / total[:, None]
    off = mean - centre[which]
    spread = _sums(scatter + n[:, None, None] * off[:, :, None] * off[:, None, :], starts)
    owner = labels[starts, 0]
    place = np.arange(len(starts)) - np.searchsorted(owner, owner)
    most = int(place.max(initial=-1)) + 1
    packed = init(cells.mean.shape[-1], (members,), max(most, 1))
    for target, source in zip(_arrays(packed), (keys[starts], pattern[starts], total, centre, spread), strict=True):
        target[owner, place] = source
    keys, pattern, n, mean, scatter = (a.reshape(*cells.batch, *a.shape[1:]) for a in _arrays(packed))
    return Cells(keys, pattern, n, mean, scatter, most)


def _arrays(cells: Cells) -> tuple[NDArray[Any], ...]:
    return cells.keys, cells.pattern, cells.n, cells.mean, cells.scatter


def _sums(array: FloatArray, starts: IntArray) -> FloatArray:
    return np.add.reduceat(array, starts, axis=0) if len(starts) else array


def _with_room(array: NDArray[Any], room: int, axis: int) -> NDArray[Any]:
    if array.shape[axis] >= room:
        return array.copy()
    wide = np.zeros((*array.shape[:axis], room, *array.shape[axis + 1 :]), array.dtype)
    wide[(slice(None),) * axis + (slice(0, array.shape[axis]),)] = array
    return wide


def _take_out(n: FloatArray, mean: FloatArray, scatter: FloatArray, same: IntArray, values: FloatArray) -> None:
    """Undo one addition in place: from the outcome's own cell, else from the cell it was merged into."""
    alone = np.flatnonzero(same & (n == 1) & (mean == values).all(-1))
    merged = np.flatnonzero(same & (n > 1))
    if len(alone):
        n[alone[0]] = 0.0
        mean[alone[0]] = 0.0
        scatter[alone[0]] = 0.0
    elif len(merged):
        at = merged[0]
        left = n[at] - 1
        off = values - mean[at]
        mean[at] -= off / left
        scatter[at] -= np.outer(off, off) * n[at] / left
        if left == 1:
            scatter[at] = 0.0
        n[at] = left
    else:
        raise InputError("an outcome can be taken out only if it was counted in; this one was not")
