"""Designs: how to spread pulls over vectors w_a so that no direction stays badly known.

For a distribution q let V(q) = sum_a q_a w_a w_a^T and g(q) = max_a w_a^T V(q)^-1 w_a. Kiefer and Wolfowitz:
the smallest g is the rank r of the vectors, and q attains it if and only if it maximises log det V(q).

`approx` is the ApproxDesign of Balagopalan and Jun (2024) as the Dri-MED paper specifies it, with the defects of
the published code mended (docs/paper.md, I-18). `frank_wolfe` finds the optimum: Todd's away-step method for the
minimum-volume ellipsoid (Todd and Yildirim, 2007; Ahipasaoglu, Sun and Todd, 2008).

Shapes: W is (..., K, d); a mask (..., K) is True for the arms that may be used.
"""

from __future__ import annotations

import numpy as np

from drimed.errors import ConfigError, NumericalError
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, outer, pick

RANK_TOLERANCE = 1e-10  # a direction counts if some vector reaches it with this share of the longest length
COLLINEAR = 1e-13  # an arm whose squared distance to the span is below this share of its length lies in it
LEVERAGE_TOLERANCE = 1e-9  # K = d independent arms have leverage exactly 1; round-off must not add pulls
MOST_STEPS = 100_000  # away steps converge linearly: this many means that something else is wrong

METHODS = ("none", "uniform", "approx", "frank_wolfe")


def design(W: FloatArray, method: str, mask: BoolArray | None = None) -> FloatArray:
    """The design by name: (..., K, d) -> (..., K)."""
    if method == "approx":
        return approx(W, mask)
    if method == "frank_wolfe":
        return frank_wolfe(W, mask)
    if method == "uniform":
        allowed = np.ones(W.shape[:-1], bool) if mask is None else np.broadcast_to(mask, W.shape[:-1])
        return allowed / allowed.sum(-1, keepdims=True)
    raise ConfigError(f"design must be one of {METHODS[1:]}, got {method!r}")


def approx(W: FloatArray, mask: BoolArray | None = None) -> FloatArray:
    """Counts of a greedy cover: extreme arms along r directions, then the arm of leverage above 1, until none is.

    g(q) is at most the number of counted arms. With K <= 2r arms the start takes all of them, no leverage exceeds 1,
    and the design is uniform; that is every call with five arms in four dimensions.

    >>> approx(np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])).round(4).tolist()
    [0.3333, 0.3333, 0.3333]
    """
    flat, allowed = _flatten(W, mask)
    n_arms = allowed.sum(-1)
    T, rank, _ = _span(flat, enough=-(-int(n_arms.max(initial=0)) // 2))
    counts = allowed.astype(np.float64)
    rows = np.flatnonzero(n_arms > 2 * rank)
    if rows.size:
        full = rank[rows] == flat.shape[-1]  # nothing to project: keep the axes that came in
        T = np.where(full[:, None, None], flat[rows], T[rows]) if full.any() else T[rows]
        counts[rows] = _cover(T, allowed[rows], rank[rows])
    return (counts / counts.sum(-1, keepdims=True)).reshape(W.shape[:-1])


def frank_wolfe(W: FloatArray, mask: BoolArray | None = None, *, tolerance: float = 1e-6) -> FloatArray:
    """The optimal design, to g(q) <= (1 + tolerance) r, by Wynn's steps towards and away from single arms.

    >>> frank_wolfe(np.array([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])).round(6).tolist()
    [0.5, 0.5, 0.0]
    """
    flat, allowed = _flatten(W, mask)
    T, rank, pivots = _span(flat, enough=flat.shape[-1])
    pivots[rank == 0] = allowed[rank == 0]  # nothing but zeros: no arm informs more than another
    q = pivots / pivots.sum(-1, keepdims=True)
    rows = np.flatnonzero(rank > 1)  # rank 1: all mass on the longest vector, which the start already has
    if rows.size:
        q[rows] = _wynn(T[rows], allowed[rows], rank[rows], q[rows], tolerance)
    return q.reshape(W.shape[:-1])


def leverages(W: FloatArray, q: FloatArray) -> FloatArray:
    """w_a^T V(q)^+ w_a for each arm: (..., K, d), (..., K) -> (..., K). Their q-mean is the rank."""
    V = np.matmul(np.swapaxes(W * q[..., None], -1, -2), W)
    return np.vecdot(np.matmul(W, np.linalg.pinv(V, hermitian=True)), W)


def _flatten(W: FloatArray, mask: BoolArray | None) -> tuple[FloatArray, BoolArray]:
    K, d = W.shape[-2:]
    flat = _unit_scale(W.reshape(-1, K, d))
    if mask is None:
        return flat, np.ones(flat.shape[:2], bool)
    allowed = np.broadcast_to(mask, W.shape[:-1]).reshape(-1, K)
    return np.where(allowed[..., None], flat, 0.0), allowed


def _span(W: FloatArray, enough: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """Coordinates of the arms in an orthonormal basis of their span, its rank, and which arms span it.

    Pivoted Cholesky of the Gram matrix, one column at a time: the next pivot is the arm farthest from the span so
    far (Todd's start). It keeps the relative precision of short arms beside long ones. Stops early where the rank
    has reached `enough`. Coordinates beyond the rank are zero.
    """
    n, K, d = W.shape
    row = np.arange(n)
    T = np.zeros((n, K, min(K, d)))
    rank = np.zeros(n, np.intp)
    pivots = np.zeros((n, K))
    lengths = np.vecdot(W, W)  # squared; (n, K)
    remainder = lengths
    least = np.maximum(RANK_TOLERANCE**2 * lengths.max(-1, keepdims=True), COLLINEAR * lengths)
    for j in range(min(K, d)):
        far = np.where(remainder > least, remainder, 0.0).argmax(-1)
        square = remainder[row, far]
        new = square > least[row, far]
        if not new.any():
            break
        column = np.matvec(W, W[row, far])
        if j:
            column = column - np.matvec(T[:, :, :j], T[row, far, :j])
        column = column * (new / np.sqrt(np.where(new, square, 1.0)))[:, None]
        T[:, :, j] = column
        remainder = remainder - column * column
        rank += new
        pivots[row, far] += new
        if j + 1 >= enough:
            break
    return T[:, :, : max(1, int(rank.max(initial=1)))], rank, pivots


def _unit_scale(W: FloatArray) -> FloatArray:
    """The longest arm's largest entry becomes 1: designs do not depend on scale, and squares must not overflow."""
    largest = np.abs(W).max((-2, -1), keepdims=True, initial=0.0)
    return W / np.where(largest > 0, largest, 1.0)


def _cover(T: FloatArray, allowed: BoolArray, rank: IntArray) -> FloatArray:
    """The start of Kumar and Yildirim (2005) and the greedy loop, on coordinates T (n, K, D): counts (n, K)."""
    n, K, D = T.shape
    chosen = np.zeros((n, K), bool)
    row = np.arange(n)
    live = np.arange(D) < rank[:, None]  # (n, D): which coordinates exist
    free = np.eye(D) * live[:, :, None]  # projector on the directions that no chosen pair has covered yet
    for i in range(int(rank.max(initial=0))):
        active = i < rank
        longest = np.diagonal(free, axis1=-2, axis2=-1).argmax(-1)
        along = np.matvec(T, free[row, longest])  # <w_a, b_i> with b_i orthogonal to the pairs so far
        high = np.where(allowed, along, -np.inf).argmax(-1)
        low = np.where(allowed, along, np.inf).argmin(-1)
        chosen[row[active], high[active]] = True
        chosen[row[active], low[active]] = True
        # All arms at the same height have no difference: then the arm itself covers the direction.
        flat_row = pick(along, high) - pick(along, low) <= RANK_TOLERANCE * np.abs(pick(along, high))
        pair = T[row, high] - np.where(flat_row[:, None], 0.0, T[row, low])
        covered = np.matvec(free, pair)
        length = np.vecdot(covered, covered)
        free = free - outer(covered, covered) / np.where(length > 0, length, 1.0)[:, None, None]

    counts = chosen.astype(np.float64)
    V = np.matmul(np.swapaxes(T * counts[..., None], -1, -2), T) + np.eye(D) * ~live[:, :, None]
    V_inv = np.linalg.inv(V)
    active_rows = row
    while active_rows.size:
        spread = np.matmul(T[active_rows], V_inv[active_rows])
        lev = np.vecdot(spread, T[active_rows])
        worst = lev.argmax(-1)
        high_lev = pick(lev, worst)
        going = high_lev > 1 + LEVERAGE_TOLERANCE
        active_rows, worst, high_lev = active_rows[going], worst[going], high_lev[going]
        u = pick(spread[going], worst)
        counts[active_rows, worst] += 1
        V_inv[active_rows] -= outer(u, u) / (1 + high_lev)[:, None, None]
    return counts


def _wynn(T: FloatArray, allowed: BoolArray, rank: IntArray, q: FloatArray, tolerance: float) -> FloatArray:
    """Todd's method on coordinates T (n, K, D), from weights q whose support spans."""
    live = np.arange(T.shape[-1]) < rank[:, None]
    rows = np.arange(T.shape[0])
    q = q.copy()
    for _ in range(MOST_STEPS):
        if not rows.size:
            return q
        t, p, r = T[rows], q[rows], rank[rows].astype(np.float64)
        V = np.matmul(np.swapaxes(t * p[..., None], -1, -2), t) + np.eye(T.shape[-1]) * ~live[rows][:, :, None]
        kappa = np.vecdot(np.matmul(t, np.linalg.inv(V)), t)  # (n', K)
        far = np.where(allowed[rows], kappa, -np.inf).argmax(-1)
        near = np.where(p > 0, kappa, np.inf).argmin(-1)
        high, low = pick(kappa, far), pick(kappa, near)
        going = (high > (1 + tolerance) * r) | (low < (1 - tolerance) * r)
        away = high + low < 2 * r
        arm, k = np.where(away, near, far), np.where(away, low, high)
        step = (k - r) / ((r - 1) * np.where(k > 0, k, 1.0))
        step = np.maximum(np.where(k > 0, step, -np.inf), -pick(p, arm))
        moved = p.copy()
        moved[np.arange(rows.size), arm] += step
        q[rows[going]] = (moved / (1 + step)[:, None])[going]
        rows = rows[going]
    raise NumericalError(f"the optimal design did not converge in {MOST_STEPS} steps; raise its tolerance")
