"""What is left of outcomes, compiled: the derivative of the field model's likelihood with respect to the residual."""

from __future__ import annotations

import numpy as np

from drimed.learning.field.sums import Entries
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import helper


@helper
def second_moments(
    common: tuple[FloatArray, FloatArray, FloatArray, IntArray],
    own: tuple[FloatArray, FloatArray, FloatArray],
    HV: FloatArray,
    found: FloatArray,
    mean: FloatArray,
) -> None:
    """E[u] and E[u u'] of a cluster's part of theta and of its own effects, in this order and in units of outcomes.

    Both come as means, covariances and prior deviations; HV is minus the covariance of its effects with theta.
    """
    (est, X, dev, rows), (mine, C, zdev) = common, own
    n, Q = len(rows), len(zdev)
    for t in range(n):
        mean[t] = est[rows[t]] * dev[rows[t]]
        for s in range(n):
            found[t, s] = X[t, s] * dev[rows[t]] * dev[rows[s]]
    for a in range(Q):
        mean[n + a] = mine[a] * zdev[a]
        for s in range(n):
            found[n + a, s] = -HV[a, s] * zdev[a] * dev[rows[s]]
            found[s, n + a] = found[n + a, s]
        for h in range(Q):
            found[n + a, n + h] = C[a, h] * zdev[a] * zdev[h]
    for t in range(n + Q):
        for s in range(n + Q):
            found[t, s] += mean[t] * mean[s]


@helper
def add_squares(
    T: FloatArray,
    W: FloatArray,
    x: Entries,
    z: Entries,
    n: int,
    moments: tuple[FloatArray, FloatArray],
    gradient: FloatArray,
) -> None:
    """Add a cell: (W E[sum e e'] W - n W) / 2, with the effects' moments."""
    (rows, slots), (zrows, zslots), (mean, second) = x, z, moments
    M, E = W.shape[0], len(rows)
    first, count = T.shape[0] - M, E + len(zrows)
    row, which = np.empty(count, np.int64), np.empty(count, np.int64)
    for e in range(count):
        row[e], which[e] = (rows[e], slots[e]) if e < E else (n + zrows[e - E], zslots[e - E])
    squares, half = np.zeros((M, M)), np.zeros((M, M))
    for m in range(M):
        for k in range(m + 1):
            s = T[first + m, first + k]
            for e in range(count):
                moment, here = T[which[e]], second[row[e] + m]
                s -= mean[row[e] + m] * moment[first + k] + mean[row[e] + k] * moment[first + m]
                for h in range(count):
                    s += moment[which[h]] * here[row[h] + k]
            squares[m, k] = s
            squares[k, m] = s
    for m in range(M):
        for k in range(M):
            for j in range(M):
                half[m, k] += W[m, j] * squares[j, k]
    for m in range(M):
        for k in range(M):
            s = -T[0, 0] * W[m, k]
            for j in range(M):
                s += half[m, j] * W[j, k]
            gradient[m, k] += 0.5 * s
