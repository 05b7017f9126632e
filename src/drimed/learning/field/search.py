"""The least of many smooth functions at once: downhill steps, halved where they go too far.

Members are searched side by side by Newton's method, and those that are near enough drop out.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from drimed.learning.field.triangles import solved, triangulated
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.forms import eigen
from drimed.linear.kernel import kernel

MOST_STEPS = 100
LONGEST = 1.0  # step, in the coordinate that moves most
LEAST_CURVATURE = 0.1  # a tenth of a weak prior's
MOVED, ROUND_OFF = 1e-9, 1e-13  # of the value: what counts as progress, and what it cannot tell

# Values (members), gradients (members, p) and curvatures (members, p, p).
Found = tuple[FloatArray, ...]
Objective = Callable[[FloatArray, IntArray], Found]  # of points (members, p), and the numbers of these members
Bounds = tuple[FloatArray, FloatArray]


def descend(objective: Objective, x: FloatArray, bounds: Bounds, near: float) -> tuple[FloatArray, Found]:
    """From x to where no coordinate of the gradient exceeds `near`: x there, and what the objective says there."""
    active = np.arange(len(x))
    x, found = x.copy(), objective(x, active)
    end = tuple(part.copy() for part in found)
    for _ in range(MOST_STEPS):
        if not len(active):
            break
        step = downhill(found[2], found[1])
        step *= np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(-1, keepdims=True), 1e-300))
        x_new, new = _halved(objective, x[active], found, step, active, bounds)
        moved = found[0] - new[0] > MOVED * (1 + np.abs(found[0]))
        for whole, part in zip((x, *end), (x_new, *new), strict=True):
            whole[active] = part
        far = (np.abs(new[1]).max(-1) > near) & moved
        active, found = active[far], tuple(part[far] for part in new)
    return x, end


def _halved(
    objective: Objective, x: FloatArray, found: Found, step: FloatArray, active: IntArray, bounds: Bounds
) -> tuple[FloatArray, Found]:
    """The first of the steps 1, 1/2, 1/4, ... that lowers the objective enough."""
    f, g = found[:2]
    most = f + ROUND_OFF * (1 + np.abs(f))
    x_new = np.clip(x + step, *bounds)
    new = objective(x_new, active)
    share = np.ones(len(x))
    for _ in range(20):
        worse = ~(new[0] <= most + 1e-4 * np.vecdot(g, x_new - x))
        if not worse.any():
            break
        at = np.flatnonzero(worse)
        share[at] *= 0.5
        x_new[at] = np.clip(x[at] + share[at, None] * step[at], *bounds)
        for whole, part in zip(new, objective(x_new[at], active[at]), strict=True):
            whole[at] = part
    lost = ~(new[0] <= most)
    for whole, part in zip((x_new, *new), (x, *found), strict=True):
        whole[lost] = part[lost]
    return x_new, new


def downhill(H: FloatArray, g: FloatArray) -> FloatArray:
    """-H^-1 g; where H bends downwards, as if it bent as much upwards."""
    step = np.asarray(_solved(H, g))
    bent = np.isnan(step[..., 0])
    if bent.any():
        values, vectors = np.linalg.eigh(0.5 * (H[bent] + np.swapaxes(H[bent], -1, -2)))
        along = np.matvec(np.swapaxes(vectors, -1, -2), g[bent]) / np.maximum(np.abs(values), LEAST_CURVATURE)
        step[bent] = -np.matvec(vectors, along)
    return step


def curved(H: FloatArray) -> FloatArray:
    """A Hessian made symmetric, with no curvature below a tenth of a weak prior's."""
    values, vectors = eigen(0.5 * (H + np.swapaxes(H, -1, -2)), "the curvature of the variances' posterior")
    values = np.maximum(values, LEAST_CURVATURE)
    return np.matmul(vectors * values[..., None, :], np.swapaxes(vectors, -1, -2))


@kernel("void(f8[:,:], f8[:], f8[:])", "(p,p),(p)->(p)")
def _solved(H, g, step):  # type: ignore[no-untyped-def]
    """-H^-1 g; NaN where H is not positive definite, or hardly."""
    p = g.shape[0]
    A = np.empty((p, p + 1))
    for a in range(p):
        A[a, p] = -g[a]
        for h in range(p):
            A[a, h] = H[a, h]
    if np.isnan(triangulated(A, p, p + 1, LEAST_CURVATURE, 0.0)):
        step[:] = np.nan
        return
    solved(A, p, A, p, p + 1)
    for a in range(p):
        step[a] = A[a, p]
