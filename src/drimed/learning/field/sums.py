"""Sums over the cells of a cluster and their elimination, compiled: steps of drimed.learning.field.kernels."""

from __future__ import annotations

import numpy as np

from drimed.learning.field.triangles import add_row, inverse_root, solved, squared, triangulated, turned
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import helper

Entries = tuple[IntArray, IntArray]  # of the columns that a cell has: their first rows in a matrix, and their slots


@helper
def inverses(R: FloatArray) -> tuple[FloatArray, FloatArray]:
    """R^-1 restricted to what was observed, and log det, for each noise group and pattern: (g, 2^M, M, M), (g, 2^M)."""
    groups, M = R.shape[0], R.shape[1]
    W, log_det = np.zeros((groups, 1 << M, M, M)), np.zeros((groups, 1 << M))
    index, observed = np.zeros(M, np.int64), np.zeros((M, M))
    for pattern in range(1, 1 << M):
        n = 0
        for m in range(M):
            if (pattern >> m) & 1:
                index[n] = m
                n += 1
        for g in range(groups):
            for a in range(n):
                for h in range(n):
                    observed[a, h] = R[g, index[a], index[h]]
            log_det[g, pattern] = triangulated(observed, n, n, 0.0, 0.0)
            inverse = squared(inverse_root(observed, n), n)
            for a in range(n):
                for h in range(n):
                    W[g, pattern, index[a], index[h]] = inverse[a, h]
    return W, log_det


@helper
def collected(T: FloatArray, cols: IntArray, first: int, end: int, place: IntArray, found: IntArray) -> int:
    """Number the columns that cells have, and count them; those come first of whose kind there are most.

    Columns of one kind share no cell: the more of them are eliminated first, the more of the factor is zero.
    """
    E = cols.shape[1]
    sizes = np.zeros(E, np.int64)
    for e in range(E):
        for i in range(first, end):
            col = cols[i, e]
            if col >= 0 and place[col] < 0 and T[i, 0, 0] > 0.0:
                place[col] = 0
                sizes[e] += 1
    n = 0
    for _ in range(E):
        e = int(np.argmax(sizes))
        if sizes[e] <= 0:
            break
        sizes[e] = 0
        for i in range(first, end):
            col = cols[i, e]
            if col >= 0 and place[col] == 0 and T[i, 0, 0] > 0.0:
                place[col], found[n] = -2, col
                n += 1
    for t in range(n):
        place[found[t]] = t
    return n


@helper
def collected_in_order(
    T: FloatArray, cols: IntArray, first: int, end: int, place: IntArray, order: IntArray, n: int, found: IntArray
) -> int:
    """The same, in an order that was found before: the n columns of `order`."""
    for i in range(first, end):
        if T[i, 0, 0] > 0.0:
            for e in range(cols.shape[1]):
                if cols[i, e] >= 0:
                    place[cols[i, e]] = 0
    count = 0
    for s in range(n):
        if place[order[s]] == 0:
            place[order[s]], found[count] = count, order[s]
            count += 1
    return count


@helper
def rows_of(found: IntArray, n: int, spot: IntArray, M: int) -> None:
    """From n columns of theta to their rows of A, M each, in their place."""
    for back in range(n):
        t = n - 1 - back
        row = M * spot[found[t]]
        for m in range(M):
            found[M * t + m] = row + m


@helper
def forget(place: IntArray, found: IntArray, n: int) -> None:
    """No column has a number any more."""
    for t in range(n):
        place[found[t]] = -1


@helper
def deviations(v: FloatArray, family: IntArray, found: IntArray, n: int) -> FloatArray:
    """The prior deviation of each of the columns that were found: (M n)."""
    M = v.shape[0]
    dev = np.empty(M * n)
    for t in range(n):
        for m in range(M):
            dev[M * t + m] = np.sqrt(v[m, family[found[t]]])
    return dev


@helper
def add_outcomes(T: FloatArray, W: FloatArray, observed: FloatArray, squares: FloatArray) -> None:
    """Add a cell to the numbers of observations and to their squares."""
    M = W.shape[0]
    first = T.shape[0] - M
    for m in range(M):
        if W[m, m] > 0.0:
            observed[m] += T[0, 0]
        for k in range(M):
            squares[m, k] += W[m, k] * T[first + m, first + k]


@helper
def entries(cols: IntArray, slot: IntArray, place: IntArray, M: int, room: IntArray) -> Entries:
    """The columns that a cell has, written to `room` (2, E), where `place` numbers them."""
    rows, slots, n = room[0], room[1], 0
    for e in range(slot.shape[0]):
        if cols[e] >= 0:
            rows[n], slots[n] = M * place[cols[e]], slot[e]
            n += 1
    return rows[:n], slots[:n]


@helper
def add_block(T: FloatArray, W: FloatArray, x: Entries, A: FloatArray, right: int) -> None:
    """Add a cell to the upper triangle of x x', and to x y, whose columns begin at `right`."""
    rows, slots = x
    n, M = len(rows), W.shape[0]
    first = T.shape[0] - M
    for e in range(n):
        here, moment = rows[e], T[slots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], A[here + m]
                row[right + k] += w * moment[first + k]
                for h in range(e, n):
                    if rows[h] >= here:
                        row[rows[h] + k] += w * moment[slots[h]]
                    else:
                        A[rows[h] + m, here + k] += w * moment[slots[h]]


@helper
def add_cross(T: FloatArray, W: FloatArray, z: Entries, x: Entries, B: FloatArray, first: int) -> None:
    """Add a cell to z x', whose columns begin at `first`."""
    (zrows, zslots), (rows, slots) = z, x
    M = W.shape[0]
    for e in range(len(zrows)):
        moment = T[zslots[e]]
        for m in range(M):
            for k in range(M):
                w, row = W[m, k], B[zrows[e] + m, first + k :]
                for h in range(len(rows)):
                    row[rows[h]] += w * moment[slots[h]]


@helper
def in_units(S: FloatArray, n: int, width: int, dev: FloatArray) -> None:
    """[S | B] in units of the prior deviations of its rows, with their prior added."""
    for a in range(n):
        for h in range(a, n):
            S[a, h] *= dev[a] * dev[h]
        S[a, a] += 1.0
        for h in range(n, width):
            S[a, h] *= dev[a]


@helper
def take(S: FloatArray, Q: int, n: int, taken: FloatArray, squares: FloatArray) -> None:
    """What elimination takes from [A | b], B'G [B | c], in its upper triangle, and from the squares."""
    M = squares.shape[0]
    for t in range(n):
        taken[t, t : n + M] = 0.0
        for a in range(Q):
            share = S[a, Q + t]
            if share != 0.0:
                add_row(taken[t, t : n + M], share, S[a, Q + t : Q + n + M])
    for a in range(Q):
        for m in range(M):
            for k in range(M):
                squares[m, k] -= S[a, Q + n + m] * S[a, Q + n + k]


@helper
def inside(U: FloatArray, Q: int, N: FloatArray, found: FloatArray) -> None:
    """U^-1 (I + N) U'^-1, written to `found`; N is symmetric and is used up."""
    for a in range(Q):
        N[a, a] += 1.0
    solved(U, Q, N, 0, Q)
    turned(N, Q, Q, found)
    solved(U, Q, found, 0, Q)


@helper
def eliminated(
    A: FloatArray, D: int, v: FloatArray, family: IntArray, seen: IntArray, squares: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, float]:
    """Theta of [A | b], which is factored, once the clusters are taken out: prior deviations, and in their units mean
    and covariance; log det. What theta explains is taken from the squares, and A's last columns are means by metric.
    """
    M = v.shape[0]
    dev = deviations(v, family, seen, D // M)
    in_units(A, D, D + M, dev)
    log_det = triangulated(A, D, D + M, 0.0, 1.0)
    take(A, D, 0, A, squares)
    V = squared(inverse_root(A, D), D)
    solved(A, D, A, D, D + M)
    est = np.zeros(D)
    for a in range(D):
        for m in range(M):
            est[a] += A[a, D + m]
    return dev, est, V, log_det


@helper
def tell(
    est: FloatArray,
    V: FloatArray,
    dev: FloatArray,
    seen: IntArray,
    prior: tuple[FloatArray, IntArray],
    theta: FloatArray,
    covariance: FloatArray,
) -> None:
    """Write down theta and its covariance, in units of outcomes; a column that no cell has is as before any data."""
    v, family = prior
    M, P, D = theta.shape[0], theta.shape[1], len(est)
    theta[:], covariance[:] = 0.0, 0.0
    for m in range(M):
        for col in range(P):
            covariance[m, col, m, col] = v[m, family[col]]
    for a in range(D):
        metric, col = a % M, seen[a // M]
        theta[metric, col] = est[a] * dev[a]
        for h in range(D // M):
            for m in range(M):
                covariance[metric, col, m, seen[h]] = V[a, M * h + m] * dev[a] * dev[M * h + m]
