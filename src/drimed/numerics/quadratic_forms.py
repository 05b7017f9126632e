"""Quadratic forms of vectors: leverages, and distances to a leader.

Shapes: x is (..., K, d); A is symmetric, (..., d, d).
"""

from __future__ import annotations

import numpy as np

from drimed.numerics.arrays import FloatArray, IntArray, pick_shared
from drimed.numerics.compiled import helper, kernel

# Arms this close to the leader (share of its squared length) are its twins: gap and distance are both round-off,
# and their ratio means nothing.
TWIN = 1e-16
NEVER_ZERO = 1e-300  # keeps 0 / 0 from arising when every feature is zero
PIVOT = 1e-12  # a pivot below this share of its diagonal is round-off: keeps estimated covariances invertible


def distances(x: FloatArray, leader: IntArray, A: FloatArray) -> FloatArray:
    """|x_leader - x_a|^2 in A with the floor of a twin: (..., K, d), (...), (..., d, d) -> (..., K)."""
    best = pick_shared(x, leader, 2)[..., None, :]
    return np.maximum(leverages(best - x, A), TWIN * leverages(best, A) + NEVER_ZERO)


@kernel("void(f8[:,:], f8[:,:], f8[:])", "(k,d),(d,d)->(k)")
def leverages(x, A, lev):  # type: ignore[no-untyped-def]
    """x_a^T A x_a, never below zero: (..., K, d), (..., d, d) -> (..., K)."""
    at = np.empty(x.shape[1], np.int64)
    for k in range(x.shape[0]):
        lev[k] = max(quadratic(A, x, k, at), 0.0)


@kernel("void(f8[:,:], f8[:], f8[:,:], b1[:], i8[:], f8[:], f8[:])", "(k,d),(d),(d,d),(k)->(),(k),(k)")
def behind_leader(x, theta, A, allowed, leader, gap, distance):  # type: ignore[no-untyped-def]
    """The allowed arm of largest <x_a, theta>, each arm's gap to it, and its squared distance in A.

    Ties go to the lowest index. A twin of the leader has the floor of a distance, so that gap^2 / distance is 0.
    """
    K, d = x.shape
    best, top = 0, -np.inf
    for k in range(K):
        gap[k] = 0.0
        for i in range(d):
            gap[k] += x[k, i] * theta[i]
        if allowed[k] and gap[k] > top:
            best, top = k, gap[k]
    at, v = np.empty(d, np.int64), np.empty((1, d))
    for i in range(d):
        v[0, i] = x[best, i]
    least = TWIN * quadratic(A, v, 0, at) + NEVER_ZERO
    for k in range(K):
        gap[k] = top - gap[k]
        for i in range(d):
            v[0, i] = x[best, i] - x[k, i]
        distance[k] = max(quadratic(A, v, 0, at), least)
    leader[0] = best


@helper
def clear(A: FloatArray, rows: int, columns: int) -> None:
    """Set the first rows and columns of A to 0."""
    for a in range(rows):
        for h in range(columns):
            A[a, h] = 0.0


@helper
def add_matrix(X: FloatArray, share: float, Y: FloatArray) -> None:
    """X += share Y."""
    for s in range(X.shape[0]):
        for t in range(X.shape[1]):
            X[s, t] += share * Y[s, t]


@helper
def dot(u: FloatArray, v: FloatArray) -> float:
    """<u, v>, summed in order."""
    total = 0.0
    for i in range(u.shape[0]):
        total += u[i] * v[i]
    return total


@helper
def quadratic(A: FloatArray, x: FloatArray, k: int, at: IntArray) -> float:
    """x_k^T A x_k for row k, in sums over the entries of x_k that are not zero; `at` has room for their places."""
    n = 0
    for i in range(x.shape[1]):
        if x[k, i] != 0.0:
            at[n] = i
            n += 1
    total = 0.0
    for i in range(n):
        s = 0.0
        for j in range(n):
            s += A[at[i], at[j]] * x[k, at[j]]
        total += s * x[k, at[i]]
    return total


@helper
def invert(matrix: FloatArray, inverse: FloatArray) -> None:
    """Of a symmetric positive definite matrix, by its Cholesky factor; zeros cost nothing."""
    size = matrix.shape[0]
    W, B = np.empty((size, size)), np.empty((size, size))  # B: the inverse of W^T
    upper_root(matrix, W)
    clear(B, size, size)
    clear(inverse, size, size)
    for q in range(size):
        for o in range(q):
            if W[o, q] != 0.0:
                for p in range(o + 1):
                    B[q, p] -= W[o, q] * B[o, p]
        for p in range(q):
            B[q, p] /= W[q, q]
        B[q, q] = 1.0 / W[q, q]
    for o in range(size):
        for p in range(o + 1):
            if B[o, p] != 0.0:
                for q in range(o + 1):
                    inverse[p, q] += B[o, p] * B[o, q]


@helper
def upper_root(matrix: FloatArray, W: FloatArray) -> None:
    """W upper triangular with W^T W the symmetric positive definite matrix; zeros cost nothing."""
    size = matrix.shape[0]
    for s in range(size):
        for t in range(size):
            W[s, t] = matrix[s, t] if t >= s else 0.0
        for i in range(s):
            if W[i, s] != 0.0:
                for t in range(s, size):
                    W[s, t] -= W[i, s] * W[i, t]
        W[s, s] = np.sqrt(max(W[s, s], PIVOT * matrix[s, s]))
        for t in range(s + 1, size):
            W[s, t] /= W[s, s]
