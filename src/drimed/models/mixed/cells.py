"""Outcomes of a field as cells: those with the same factors are kept as a count, a mean and a scatter.

New outcomes are appended; `compact` sorts the cells and merges equal ones, so that what is fitted does not depend on
the order in which outcomes came. Means and scatters are kept instead of raw sums: a level that is large against the
noise costs no digits. A longer list of cells shares its arrays with the shorter one it came from: adding an outcome
costs the same whatever the number of cells. Shapes: leading `...` is any batch; N cells, F factors, C values
(covariates, then M metrics).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import numpy as np

from drimed.errors import InputError
from drimed.numerics.arrays import FloatArray, IntArray

GROWS = {"grows": True}  # arrays of a stored state that may be longer than those of a new one
FACTORS = ("season", "block", "group", "user", "arm", "noise")  # of every model; categories come after them
FREE = -1  # the pattern of a place that was never written
_WRITING = Lock()


@dataclass(frozen=True, slots=True)
class Cells:
    """Everything a field model remembers of the data; a cell of count 0 is empty."""

    keys: IntArray = field(metadata=GROWS)  # (..., N, F), the values of the factors
    pattern: IntArray = field(metadata=GROWS)  # (..., N), bit m is set where metric m was observed
    n: FloatArray = field(metadata=GROWS)  # (..., N)
    mean: FloatArray = field(metadata=GROWS)  # (..., N, C), 0 for metrics that are missing
    scatter: FloatArray = field(metadata=GROWS)  # (..., N, C, C), sum of products of deviations from the mean
    used: int  # cells beyond this one are not ours

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.n.shape[:-1]

    @property
    def count(self) -> FloatArray:
        """How many outcomes each member has: (...)."""
        return self.n[..., : self.used].sum(-1)

    @property
    def squares(self) -> FloatArray:
        """The sum of squares of each value: (..., C)."""
        own = self.live()
        return (np.diagonal(own.scatter, axis1=-2, axis2=-1) + own.n[..., None] * own.mean**2).sum(-2)

    def live(self, until: int | None = None) -> Cells:
        """Without the places that are not ours: the first `until` cells, or all."""
        end = self.used if until is None else until
        return self.at(slice(0, end))

    def at(self, places: IntArray | slice) -> Cells:
        """Some of the cells."""
        kept = (slice(None),) * len(self.batch) + (places,)
        keys, pattern, n, mean, scatter = (a[kept] for a in _arrays(self))
        return Cells(keys, pattern, n, mean, scatter, n.shape[-1])


@dataclass(frozen=True, slots=True)
class Rows:
    """B outcomes of each member."""

    keys: IntArray  # (..., B, F)
    pattern: IntArray  # (..., B)
    values: FloatArray  # (..., B, C)


def init(values: int, batch: tuple[int, ...] = (), room: int = 16, factors: int = len(FACTORS)) -> Cells:
    """No outcomes."""
    return Cells(
        np.zeros((*batch, room, factors), np.intp),
        np.full((*batch, room), FREE, np.intp),
        np.zeros((*batch, room)),
        np.zeros((*batch, room, values)),
        np.zeros((*batch, room, values, values)),
        0,
    )


def add(cells: Cells, rows: Rows) -> Cells:
    """Count outcomes in; one of which nothing was observed is an empty cell."""
    start, end = cells.used, cells.used + rows.pattern.shape[-1]
    with _WRITING:  # whoever comes first may use the free places; the others copy
        if end > cells.pattern.shape[-1] or (cells.pattern[..., start:end] != FREE).any():
            cells = _with_room(cells, max(16, 2 * end))
        cells.pattern[..., start:end] = rows.pattern
    cells.keys[..., start:end, :] = rows.keys
    cells.n[..., start:end] = rows.pattern > 0
    cells.mean[..., start:end, :] = rows.values
    return Cells(*_arrays(cells), end)


def remove(cells: Cells, rows: Rows) -> Cells:
    """Take outcomes out again that were counted in."""
    cells = _with_room(cells, cells.n.shape[-1])
    for member in np.ndindex(*cells.batch):
        keys, pattern, n, mean, scatter = (a[member][: cells.used] for a in _arrays(cells))
        for i in range(rows.pattern.shape[-1]):
            at = (*member, i)
            same = (keys == rows.keys[at]).all(-1) & (pattern == rows.pattern[at])
            _take_out(n, mean, scatter, same, rows.values[at])
    return cells


def compact(cells: Cells, first: int = 0) -> Cells:
    """The same outcomes in an order of their own, by the factor number `first` before the others, equal keys merged."""
    cells = cells.live()
    members, N, F = int(np.prod(cells.batch)), cells.n.shape[-1], cells.keys.shape[-1]
    flat = [a.reshape(members * N, *a.shape[len(cells.batch) + 1 :]) for a in _arrays(cells)]
    member = np.repeat(np.arange(members), N)
    order = [first, *(f for f in range(F) if f != first)]
    labels = np.column_stack([member, flat[0][:, order], flat[1]])
    sort = np.lexsort([*(flat[3].T[::-1]), *(labels.T[::-1])])
    sort = sort[flat[2][sort] > 0]
    labels, keys, pattern, n, mean, scatter = (a[sort] for a in (labels, *flat))
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
    packed = init(cells.mean.shape[-1], (members,), max(most, 1), F)
    for target, source in zip(_arrays(packed), (keys[starts], pattern[starts], total, centre, spread), strict=True):
        target[owner, place] = source
    keys, pattern, n, mean, scatter = (a.reshape(*cells.batch, *a.shape[1:]) for a in _arrays(packed))
    return Cells(keys, pattern, n, mean, scatter, most)


def _arrays(cells: Cells) -> tuple[Any, Any, Any, Any, Any]:
    return cells.keys, cells.pattern, cells.n, cells.mean, cells.scatter


def _sums(array: FloatArray, starts: IntArray) -> FloatArray:
    """Of the rows from each start to the next. Pairs alone need no loop over rows of any number: it is slow."""
    if not len(starts):
        return array
    size = np.diff(starts, append=len(array))
    if size.max() > 2:
        return np.add.reduceat(array, starts, axis=0)
    found, pairs = array[starts], np.flatnonzero(size == 2)
    found[pairs] += array[starts[pairs] + 1]
    return found


def _with_room(cells: Cells, room: int) -> Cells:
    """A copy of the cells with so many places."""
    wide = init(cells.mean.shape[-1], cells.batch, max(room, cells.used), cells.keys.shape[-1])
    for target, source in zip(_arrays(wide.live(cells.used)), _arrays(cells.live()), strict=True):
        target[...] = source
    return Cells(*_arrays(wide), cells.used)


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
