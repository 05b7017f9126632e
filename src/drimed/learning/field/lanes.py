"""Sums over cells and their elimination at all nodes side by side, compiled.

The same steps as in drimed.learning.field.sums and triangles, in the same order, so that the numbers of each node are
the same to the last bit. The last axis of every array is the node: the compiler vectorises over it, whatever columns
a cell has. There it vectorises over columns, and with one node elimination by these loops would take two to four times
as long: so both are written out.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.sums import Entries
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import helper


@helper
def add_moment(x: FloatArray, w: FloatArray, t: float) -> None:
    """x += w t, at each node."""
    for b in range(len(x)):
        x[b] += w[b] * t


@helper
def add_rows(x: FloatArray, share: FloatArray, y: FloatArray) -> None:
    """x += share y, for rows (n, nodes)."""
    for h in range(x.shape[0]):
        for b in range(len(share)):
            x[h, b] += share[b] * y[h, b]


@helper
def take_rows(x: FloatArray, share: FloatArray, y: FloatArray) -> None:
    """x -= share y."""
    for h in range(x.shape[0]):
        for b in range(len(share)):
            x[h, b] -= share[b] * y[h, b]


@helper
def matters(share: FloatArray) -> bool:
    """Whether it is not zero at some node: a zero of the factor costs nothing."""
    found = False
    for b in range(len(share)):
        found |= share[b] != 0.0
    return found


@helper
def add_blocks(T: FloatArray, W: FloatArray, x: Entries, A: FloatArray, right: int) -> None:
    """Add a cell to the upper triangle of x x', and to x y, whose columns begin at `right`."""
    rows, slots = x
    n, M = len(rows), W.shape[0]
    first = T.shape[0] - M
    for e in range(n):
        here, moment = rows[e], T[slots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], A[here + m]
                add_moment(row[right + k], w, moment[first + k])
                for h in range(e, n):
                    if rows[h] >= here:
                        add_moment(row[rows[h] + k], w, moment[slots[h]])
                    else:
                        add_moment(A[rows[h] + m, here + k], w, moment[slots[h]])


@helper
def add_crosses(T: FloatArray, W: FloatArray, z: Entries, x: Entries, B: FloatArray, first: int) -> None:
    """Add a cell to z x', whose columns begin at `first`."""
    (zrows, zslots), (rows, slots) = z, x
    M = W.shape[0]
    for e in range(len(zrows)):
        moment = T[zslots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], B[zrows[e] + m, first + k :]
                for h in range(len(rows)):
                    add_moment(row[rows[h]], w, moment[slots[h]])


@helper
def all_in_units(S: FloatArray, n: int, width: int, dev: FloatArray) -> None:
    """[S | B] in units of the prior deviations (n, nodes) of its rows, with their prior added."""
    nodes = dev.shape[1]
    for a in range(n):
        for h in range(a, n):
            for b in range(nodes):
                S[a, h, b] *= dev[a, b] * dev[h, b]
        for b in range(nodes):
            S[a, a, b] += 1.0
        for h in range(n, width):
            for b in range(nodes):
                S[a, h, b] *= dev[a, b]


@helper
def all_triangulated(A: FloatArray, n: int, width: int, log_det: FloatArray) -> None:
    """U in the place of the first n columns of A = U'U, U'^-1 B in that of the further ones, B; adds the log det."""
    nodes = len(log_det)
    found, by = np.zeros(nodes), np.empty(nodes)
    for a in range(n):
        for k in range(a):
            if matters(A[k, a]):
                take_rows(A[a, a:width], A[k, a], A[k, a:width])
        for b in range(nodes):
            found[b] += np.log(A[a, a, b])
            by[b] = 1.0 / np.sqrt(A[a, a, b])
        for h in range(a, width):
            for b in range(nodes):
                A[a, h, b] *= by[b]
    log_det += found


@helper
def take_all(S: FloatArray, Q: int, n: int, taken: FloatArray, squares: FloatArray) -> None:
    """What elimination takes from [A | b], B'G [B | c], in its upper triangle, and from the squares."""
    M, nodes = squares.shape[0], squares.shape[2]
    for t in range(n):
        taken[t, t : n + M] = 0.0
        for a in range(Q):
            if matters(S[a, Q + t]):
                add_rows(taken[t, t : n + M], S[a, Q + t], S[a, Q + t : Q + n + M])
    for a in range(Q):
        for m in range(M):
            for k in range(M):
                for b in range(nodes):
                    squares[m, k, b] -= S[a, Q + n + m, b] * S[a, Q + n + k, b]


@helper
def subtract(A: FloatArray, right: int, ours: IntArray, taken: FloatArray, M: int) -> None:
    """Take a cluster's share from its rows of [A | b]."""
    n = len(ours)
    for t in range(n):
        row, less = A[ours[t]], taken[t]
        for s in range(t, n + M):
            x, y = row[ours[s] if s < n else right + s - n], less[s]
            for b in range(len(x)):
                x[b] -= y[b]
