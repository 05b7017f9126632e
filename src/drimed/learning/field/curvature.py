"""Second derivatives of the field model's likelihood with respect to log variances, compiled.

By Louis' identity, with m and C the posterior mean and covariance of all effects in prior deviations, and D = I - C,

    d^2 log L / d log v_k d log v_j = 1/2 sum over (k, j) of D^2 - m_k' D m_j,   plus the gradient where k = j

over theta and the effects of all clusters. Those of two clusters depend on each other through theta alone: with rows h
of G B, C is G + h V h' within a cluster and h V h' between two. So theta's effects are rows of the unit matrix, sums
run over pairs of rows, and what is different within a cluster is added by `add_local`. Of a family that has more rows
than theta has columns, only the sum of h h' counts: as many rows as theta has columns, with that sum, stand for them.
Rows of matrices run over metrics last.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.triangles import add_row, product, rooted, turned
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import helper


@helper
def add_local(
    C: FloatArray, G: FloatArray, mean: FloatArray, own: tuple[IntArray, IntArray], Q: int, M: int, H: FloatArray
) -> None:
    """Within one cluster: what is there beside h V h'."""
    columns, family = own
    F = H.shape[0] // M
    unit_of = np.empty(Q, np.int64)
    for a in range(Q):
        unit_of[a] = a % M * F + family[columns[a // M]]
    for a in range(Q):
        here = unit_of[a]
        for h in range(Q):
            there = unit_of[h]
            low, unit = C[a, h] - G[a, h], 1.0 if a == h else 0.0
            of_both = unit - C[a, h]
            H[here, there] += 0.5 * (of_both * of_both - low * low) - mean[a] * mean[h] * (unit - G[a, h])


@helper
def add_common(
    V: FloatArray,
    est: FloatArray,
    theirs: tuple[IntArray, IntArray],
    own: tuple[IntArray, IntArray],
    clusters: tuple[FloatArray, IntArray, IntArray, FloatArray],
    M: int,
    H: FloatArray,
) -> None:
    """Theta, and all clusters by way of theta."""
    (family, seen), (zfamily, columns) = theirs, own
    D, units = V.shape[0], H.shape[0]
    F = units // M
    unit_of = np.empty(D, np.int64)
    pull = np.zeros((units, D))  # of the means of each family's effects
    for a in range(D):
        unit_of[a] = a % M * F + family[seen[a // M]]
        pull[unit_of[a], a] = est[a]
        H[unit_of[a], unit_of[a]] += 0.5 - V[a, a] - est[a] * est[a]
    rows, unit = gathered(clusters, (zfamily, columns), D, M, pull)
    n = len(unit)
    VX, XT, squares = np.empty((n, D)), np.empty((D, n)), np.empty(n)
    product(rows, 0, n, D, V, D, VX)
    turned(rows, n, D, XT)
    half = np.zeros((units, units))  # of pairs in one of their two orders
    for a in range(D):
        sums = half[unit_of[a]]
        for h in range(a):
            sums[unit_of[h]] += V[a, h] * V[a, h]
        sums[unit_of[a]] += 0.5 * V[a, a] * V[a, a]
    for i in range(n):
        sums = half[unit[i]]
        for a in range(D):
            sums[unit_of[a]] += VX[i, a] * VX[i, a]
        squares[i:] = 0.0
        for a in range(D):
            add_row(squares[i:], VX[i, a], XT[a, i:])
        squares[i] *= np.sqrt(0.5)
        for j in range(i, n):
            sums[unit[j]] += squares[j] * squares[j]
    for u in range(units):
        for w in range(units):
            H[u, w] += 0.5 * (half[u, w] + half[w, u])
    towards, turn = np.empty((units, D)), np.empty((D, units))
    product(pull, 0, units, D, V, D, towards)
    turned(pull, units, D, turn)
    for u in range(units):
        for a in range(D):
            if towards[u, a] != 0.0:
                add_row(H[u], towards[u, a], turn[a])


@helper
def gathered(
    clusters: tuple[FloatArray, IntArray, IntArray, FloatArray],
    own: tuple[IntArray, IntArray],
    D: int,
    M: int,
    pull: FloatArray,
) -> tuple[FloatArray, IntArray]:
    """The rows of all clusters' effects on theta, (n, D), and the family of each; their means are taken from `pull`."""
    (sums, touched, counts, mean), (zfamily, columns) = clusters, own
    units = pull.shape[0]
    F, L = units // M, counts.shape[0]
    size = np.zeros(units, np.int64)
    for at in range(L):
        for a in range(M * counts[at, 1]):
            size[a % M * F + zfamily[columns[at, a // M]]] += 1
    n = 0
    for u in range(units):
        n += min(size[u], D)
    rows, unit, full = np.zeros((n, D)), np.empty(n, np.int64), np.empty(D)
    n = 0
    for u in range(units):
        many = size[u] > D
        end = n + min(size[u], D)
        unit[n:end] = u
        i = n
        for at in range(L):
            Q = M * counts[at, 1]
            for a in range(Q):
                if a % M * F + zfamily[columns[at, a // M]] != u:
                    continue
                full[:] = 0.0
                for t in range(M * counts[at, 0]):
                    full[touched[at, t]] = sums[at, a, Q + t]
                add_row(pull[u], -mean[at, a], full)
                for row in range(D if many else 0):
                    if full[row] != 0.0:
                        add_row(rows[n + row, row:], full[row], full[row:])
                if not many:
                    rows[i] = full
                i += 1
        if many:
            rooted(rows[n:end], D)
        n = end
    return rows, unit
