"""Designs: how to spread pulls over vectors w_a so that no direction stays badly known.

For a distribution q let V(q) = sum_a q_a w_a w_a^T and g(q) = max_a w_a^T V(q)^-1 w_a. Kiefer and Wolfowitz: the
smallest g is the rank r of the vectors. `approx` is the ApproxDesign of Balagopalan and Jun (2024) as the Dri-MED paper
specifies it, mended (docs/paper.md, I-18). Shapes: W is (..., K, d); a mask (..., K) is True for arms that may be used.
"""

from __future__ import annotations

import numpy as np

from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import invert, quadratic, upper_root

RANK_TOLERANCE = 1e-10  # a direction counts if some vector reaches it with this share of the longest length
COLLINEAR = 1e-13  # an arm whose squared distance to the span is below this share of its own length lies in it
LEVERAGE_TOLERANCE = 1e-9  # K = d independent arms have leverage exactly 1; round-off must not add pulls


def approx(W: FloatArray, mask: BoolArray | None = None) -> FloatArray:
    """Counts of a greedy cover: extreme arms along r directions, then the arm of leverage above 1, until none is.

    g(q) is at most the number of counted arms. With K <= 2r arms the start takes all of them, no leverage exceeds
    1, and the design is uniform; that is every call with five arms in four dimensions.
    """
    allowed = np.ones(W.shape[-2], bool) if mask is None else mask
    counts = _cover(*span(W, allowed), allowed)
    return counts / counts.sum(-1, keepdims=True)


@kernel("void(f8[:,:], b1[:], f8[:,:], f8[:,:], i8[:], i8[:])", "(k,d),(k)->(k,d),(k,d),(),(k)")
def span(W, allowed, x, T, rank, order):  # type: ignore[no-untyped-def]
    """Arms with their largest entry at 1, their coordinates in a basis of their span, its rank r, and r spanning arms.

    Designs do not depend on scale, and so squares neither over- nor underflow. Arms that are not allowed are zeros.
    Pivoted Cholesky of the Gram matrix, a column at a time: the next pivot is the arm farthest from the span so far
    (Todd's start). It keeps the relative precision of short arms beside long ones. The basis is orthonormal, and
    coordinates beyond the rank are zero. The r pivots are numbered 1, ..., r in `order`, all other arms 0.
    """
    K, d = W.shape
    largest, longest, r = 0.0, 0.0, 0
    for k in range(K):
        order[k] = 0
        for i in range(d):
            T[k, i] = 0.0
            if allowed[k]:
                largest = max(largest, abs(W[k, i]))
    length, rest = np.empty(K), np.empty(K)
    for k in range(K):
        length[k] = 0.0
        for i in range(d):
            x[k, i] = W[k, i] / largest if allowed[k] and largest > 0.0 else 0.0
            length[k] += x[k, i] * x[k, i]
        rest[k] = length[k]
        longest = max(longest, length[k])
    while r < min(K, d):
        far = -1
        for k in range(K):
            least = max(RANK_TOLERANCE * RANK_TOLERANCE * longest, COLLINEAR * length[k])
            if rest[k] > least and (far < 0 or rest[k] > rest[far]):
                far = k
        if far < 0:
            break
        root = np.sqrt(rest[far])
        for k in range(K):
            s = 0.0
            for i in range(d):
                s += x[k, i] * x[far, i]
            for j in range(r):
                s -= T[k, j] * T[far, j]
            T[k, r] = s / root
            rest[k] -= T[k, r] * T[k, r]
        rest[far] = 0.0
        r += 1
        order[far] = r
    rank[0] = r


@kernel("void(f8[:,:], f8[:,:], i8, i8[:], b1[:], f8[:])", "(k,d),(k,d),(),(k),(k)->(k)")
def _cover(x, span, r, order, allowed, counts):  # type: ignore[no-untyped-def]
    """The start of Kumar and Yildirim (2005), then the arm of largest leverage while it exceeds 1."""
    (K, d), n = x.shape, 0
    for k in range(K):
        counts[k] = 1.0 if allowed[k] else 0.0
        n += allowed[k]
    if n <= 2 * r or r == 0:
        return
    _extremes(span if r < d else x, r, allowed, counts)  # at full rank the axes that came in are kept
    T, at, u = in_spanning_arms(span, order, r), np.empty(r, np.int64), np.empty(r)
    V, V_inv = np.empty((r, r)), np.empty((r, r))
    information(T, counts, V)
    upper_root(V, V_inv)
    for i in range(r):
        if not V_inv[i, i] * V_inv[i, i] > COLLINEAR * V[i, i]:
            # The start has missed a direction by round-off: the spanning arms have them all.
            for k in range(K):
                if order[k] > 0:
                    counts[k] = max(counts[k], 1.0)
            information(T, counts, V)
    invert(V, V_inv)
    while True:
        worst, most = -1, 1.0 + LEVERAGE_TOLERANCE
        for k in range(K):
            lev = quadratic(V_inv, T, k, at)
            if lev > most:
                worst, most = k, lev
        if worst < 0:
            return
        counts[worst] += 1.0
        for i in range(r):
            u[i] = 0.0
            for j in range(r):
                u[i] += V_inv[i, j] * T[worst, j]
        for i in range(r):
            for j in range(r):
                V_inv[i, j] -= u[i] * u[j] / (1.0 + most)


@helper
def in_spanning_arms(span: FloatArray, order: IntArray, r: int) -> FloatArray:
    """Coordinates with the r spanning arms as the basis: (K, r).

    Designs and leverages do not change under w -> A w, and arms whose lengths lie many powers of ten apart become
    coordinates of the order of 1. The basis is triangular: solve from its last row.
    """
    K = span.shape[0]
    basis, T = np.empty((r, r)), np.empty((K, r))
    for k in range(K):
        if order[k] > 0:
            for j in range(r):
                basis[order[k] - 1, j] = span[k, j]
    for k in range(K):
        for j in range(r - 1, -1, -1):
            s = span[k, j]
            for i in range(j + 1, r):
                s -= T[k, i] * basis[i, j]
            T[k, j] = s / basis[j, j]
    return T


@helper
def information(T: FloatArray, q: FloatArray, V: FloatArray) -> None:
    """V = sum_a q_a t_a t_a^T."""
    for i in range(V.shape[0]):
        for j in range(V.shape[0]):
            V[i, j] = 0.0
            for k in range(T.shape[0]):
                V[i, j] += q[k] * T[k, i] * T[k, j]


@helper
def _extremes(T: FloatArray, r: int, allowed: BoolArray, counts: FloatArray) -> None:
    """Count the two extreme arms along each of r directions, each orthogonal to the differences of the pairs so far."""
    K = T.shape[0]
    free = np.empty((r, r))  # projector on the directions that no chosen pair has covered yet
    along, covered = np.empty(K), np.empty(r)
    for i in range(r):
        for j in range(r):
            free[i, j] = 1.0 if i == j else 0.0
    for k in range(K):
        counts[k] = 0.0
    for _ in range(r):
        axis, high, low = 0, -1, -1
        for j in range(r):
            if free[j, j] > free[axis, axis]:
                axis = j
        for k in range(K):
            along[k] = 0.0  # <w_k, b> with b orthogonal to the pairs so far
            for i in range(r):
                along[k] += T[k, i] * free[axis, i]
            if allowed[k] and (high < 0 or along[k] > along[high]):
                high = k
            if allowed[k] and (low < 0 or along[k] < along[low]):
                low = k
        counts[high] = 1.0
        counts[low] = 1.0
        # All arms at one height have no difference: then the arm itself covers the direction.
        other = 0.0 if along[high] - along[low] <= RANK_TOLERANCE * abs(along[high]) else 1.0
        size = 0.0
        for i in range(r):
            covered[i] = 0.0
            for j in range(r):
                covered[i] += free[i, j] * (T[high, j] - other * T[low, j])
            size += covered[i] * covered[i]
        if size > 0.0:
            for i in range(r):
                for j in range(r):
                    free[i, j] -= covered[i] * covered[j] / size
