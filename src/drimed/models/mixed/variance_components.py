"""Estimates averaged over variances that are themselves uncertain.

The posterior of the log variances is taken as normal around its mode (Laplace). The model is fitted at some positions
in it (below); what results has the mean of the means, and as covariance the mean of the
covariances plus the covariance of the means.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.errors import NumericalError
from drimed.models.mixed.cells import GROWS
from drimed.models.mixed.likelihood import Design, Slopes, posterior, slopes, thinned
from drimed.models.mixed.likelihood_kernels import solved, triangulated
from drimed.models.mixed.observations import Scale
from drimed.models.mixed.terms import Parameters
from drimed.numerics.arrays import FloatArray, IntArray
from drimed.numerics.compiled import kernel
from drimed.numerics.quadratic_forms import eigen, inverse_root

# The least of many smooth functions at once: downhill steps, halved where they go too far.

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


# Variances of a field model: most plausible values, and how far they may be from them.

LIMIT = 12.0  # a log variance stays this near its prior's centre: 8 prior deviations
GENTLE, POLISH = 1e-3, 2  # a gradient from which so many steps of Newton, with the same curvature, lead to the mode
NO_PAIR = np.zeros(1)
NUDGE = 1e-5  # of the differences that tell how the residual's shape bends


@dataclass(frozen=True, slots=True)
class Learned:
    """The most plausible parameters, and the curvature of the log posterior there."""

    x: FloatArray  # (..., p)
    hessian: FloatArray  # (..., p, p), of minus the log posterior


def log_posterior(
    parameters: Parameters, design: Design, x: FloatArray, pair: FloatArray = NO_PAIR
) -> tuple[FloatArray, FloatArray]:
    """Minus the log of likelihood times prior, and its gradient: (..., p) -> (...), (..., p).

    `pair` (..., M) has for each metric the sum of squares of two outcomes that its residual counts besides, or 0.
    """
    return _posterior(parameters, slopes(design, parameters.variances(x), parameters.residual(x)), x, pair)


def log_posterior_curved(
    parameters: Parameters, design: Design, x: FloatArray, pair: FloatArray = NO_PAIR
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """The same, and its second derivatives: (..., p, p). Where the residual's shape is concerned, by differences."""
    found = slopes(design, parameters.variances(x), parameters.residual(x), curvature=True)
    value, g = _posterior(parameters, found, x, pair)
    k, p = parameters.uncertain, parameters.size
    H = np.empty((*x.shape, p))
    H[..., :k, :k] = parameters.precision[:k, :k] - parameters.curvature(found)
    at = np.arange(k - parameters.metrics, k)
    H[..., at, at] += 0.5 * pair * np.exp(-x[..., at])
    if k < p:
        axes = NUDGE * np.eye(p)[k:].reshape(p - k, *(1,) * (x.ndim - 1), p)
        rows = np.moveaxis((log_posterior(parameters, design, x + axes, pair)[1] - g) / NUDGE, 0, -2)
        H[..., k:, :], H[..., :k, k:] = rows, np.swapaxes(rows[..., :k], -1, -2)
    return value, g, H


def _posterior(parameters: Parameters, found: Slopes, x: FloatArray, pair: FloatArray) -> tuple[FloatArray, FloatArray]:
    off = x - parameters.centre
    pull = np.matvec(parameters.precision, off)
    value, g = -found.value + 0.5 * np.vecdot(off, pull), pull - parameters.gradient(x, found)
    at = slice(parameters.uncertain - parameters.metrics, parameters.uncertain)
    residual, counts = x[..., at], pair > 0  # one degree of freedom
    squares = pair * np.exp(-residual)
    g[..., at] += 0.5 * (counts - squares)
    return value + 0.5 * (counts * residual + squares).sum(-1), g


def learn(parameters: Parameters, design: Design, batch: tuple[int, ...], pair: FloatArray = NO_PAIR) -> Learned:
    """The most plausible parameters of each member."""
    members, p = int(np.prod(batch)), parameters.size
    flat, besides = (
        _flatten(design, batch, members),
        np.broadcast_to(pair, (*batch, parameters.metrics)).reshape(members, -1),
    )

    def objective(x: FloatArray, which: IntArray) -> Found:
        if len(which) == members:
            return log_posterior_curved(parameters, flat, x, besides)
        return log_posterior_curved(parameters, _choose(flat, which), x, besides[which])

    x = np.repeat(parameters.centre[None], members, 0)
    bounds = parameters.centre - LIMIT, parameters.centre + LIMIT
    x, (_, g, hessian) = descend(objective, x, bounds, GENTLE)
    H = curved(hessian)
    for left in range(POLISH, 0, -1):
        x = np.clip(x - np.clip(np.linalg.solve(H, g[..., None])[..., 0], -0.1, 0.1), *bounds)
        g = log_posterior(parameters, flat, x, besides)[1] if left > 1 else g
    return Learned(x.reshape(*batch, p), H.reshape(*batch, p, p))


def _flatten(design: Design, batch: tuple[int, ...], members: int) -> Design:
    """One batch axis instead of any; the parts that all members share have none."""
    shared = {"slot", "zslot", "family", "zfamily", "touched"}
    parts = {
        name: array if name in shared else array.reshape(members, *array.shape[len(batch) :])
        for name, array in design._asdict().items()
    }
    return Design(**parts)


def _choose(design: Design, which: IntArray) -> Design:
    shared = {"slot", "zslot", "family", "zfamily", "touched"}
    return Design(**{k: a if k in shared else a[which] for k, a in design._asdict().items()})


# The positions at which estimates are averaged over uncertain variances, in units of the posterior's deviations.

SEED = 0  # of the stream "variances", which candidates come from
FEWEST = 8  # pairs of a design
CANDIDATES = 400  # from which a design is chosen
WIDE = 1.25  # the log of a variance is uncertain by so much, at most: where means are compared


@cache
def designed(metrics: int, each: int) -> FloatArray:
    """For `each` log variances and the residual's of every metric, the residuals' last: (B, metrics (each + 1)).

    Within a metric the covariance is the identity. Metrics share the positions in another order: they are coupled by
    their noise alone, so that all of them need no more positions than one.

    >>> points = designed(1, 6)
    >>> points.shape, bool(np.allclose(points.T @ points / len(points), np.eye(7)))
    ((16, 7), True)
    """
    half = _best_half(each + 1)
    n = len(half)
    turns = [np.roll(half, m, 0) * (-1.0) ** (m * np.arange(n))[:, None] for m in range(metrics)]
    first = np.concatenate([*(turn[:, :each] for turn in turns), *(turn[:, each:] for turn in turns)], -1)
    return np.concatenate([first, -first])


def _best_half(k: int) -> FloatArray:
    """Of some orthogonal candidates, (n, k), the one whose worst mean of a variance is nearest to a normal's."""
    n = max(FEWEST, k)
    normal = ndtri(streams.uniforms(SEED, "variances", 0, CANDIDATES * n, k)).reshape(CANDIDATES, n, k)
    q, r = np.linalg.qr(normal)
    candidates = np.sqrt(n) * q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[:, None, :]  # unique
    means = np.cosh(WIDE * candidates).mean(-2) / np.exp(WIDE**2 / 2)  # (CANDIDATES, k)
    # Rounded, so that another library's last digits choose the same.
    best = int(np.argmin(np.round(np.abs(means - 1).max(-1), 9)))
    return np.asarray(candidates[best])


MOST_CLUSTERS = 2000  # variances are learned from so many clusters at most: more would tell them no better
Known = tuple[FloatArray, FloatArray, FloatArray]  # mode, deviation and nodes of the parameters


@dataclass(frozen=True, slots=True)
class Averaged:
    """A fit of the whole model, in standardised units."""

    scale: Scale
    mode: FloatArray = field(metadata=GROWS)  # (..., p), the most plausible parameters
    deviation: FloatArray = field(metadata=GROWS)  # (..., p), how far from them they may be
    nodes: FloatArray = field(metadata=GROWS)  # (..., B, p), where the parameters were averaged over
    variance: FloatArray = field(metadata=GROWS)  # (..., B, M, families), that follow from them
    residual: FloatArray = field(metadata=GROWS)  # (..., B, g, M, M)
    theta: FloatArray = field(metadata=GROWS)  # (..., M, P)
    covariance: FloatArray = field(metadata=GROWS)  # (..., M, P, M, P)
    # At each node, where users have effects of their own: (..., B, M, P) and (..., B, M, P, M, P).
    each_theta: FloatArray | None = field(metadata=GROWS)
    each_covariance: FloatArray | None = field(metadata=GROWS)

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.theta.shape[:-2]


def learn_average(
    parameters: Parameters, design: Design, scale: Scale, batch: tuple[int, ...], *, integrated: bool, each: bool,
    pair: FloatArray,
) -> Averaged:  # fmt: skip
    """Fit variances and everything else, averaged over a design, or at the mode alone.

    `pair` is what residuals count besides the outcomes, see drimed.models.mixed.observations.
    """
    found = learn(parameters, thinned(design, MOST_CLUSTERS), batch, pair)
    known = _nodes(parameters, found.x, found.hessian, integrated=integrated)
    return _average(parameters, design, scale, known, each=each)


def before_any_data(
    parameters: Parameters, family: IntArray, scale: Scale, batch: tuple[int, ...], *, integrated: bool, each: bool
) -> Averaged:
    """What the prior says, for columns of these families (P,)."""
    x, H = (np.broadcast_to(a, (*batch, *a.shape)) for a in (parameters.centre, curved(parameters.precision)))
    known = _nodes(parameters, x, H, integrated=integrated)
    variance, residual = parameters.variances(known[2]), parameters.residual(known[2])
    M, P = parameters.metrics, len(family)
    by_column = variance[..., family].reshape(*variance.shape[:-2], M * P)
    covariances = (by_column[..., None] * np.eye(M * P)).reshape(*variance.shape[:-2], M, P, M, P)
    means = np.zeros((*variance.shape[:-2], M, P))
    own = (means, covariances) if each else (None, None)
    return Averaged(scale, *known, variance, residual, *mixture(means, covariances, 2), *own)


def _nodes(parameters: Parameters, x: FloatArray, hessian: FloatArray, *, integrated: bool) -> Known:
    """The mode, the deviations around it, and the positions to average over."""
    k, M = parameters.uncertain, parameters.metrics
    points = designed(M, k // M - 1) if integrated else np.zeros((1, k))  # (B, k)
    # The residual's shape, which many outcomes tell, stays at its mode.
    nodes = np.repeat(x[..., None, :], len(points), -2)
    nodes[..., :k] += np.matmul(points, inverse_root(hessian[..., :k, :k], "the curvature of the variances' posterior"))
    deviation = np.sqrt(np.diagonal(np.linalg.inv(hessian), axis1=-2, axis2=-1))
    return x, deviation, nodes


def again(parameters: Parameters, design: Design, before: Averaged) -> Averaged:
    """Other data, in the units and with the variances that were learned before."""
    known = before.mode, before.deviation, before.nodes
    return _average(parameters, design, before.scale, known, each=before.each_theta is not None)


def mixture(means: FloatArray, covariances: FloatArray, core: int) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of an even mixture: the nodes' axis stands before the `core` axes of a mean."""
    axis = -core - 1
    mean = means.mean(axis)
    off = (means - np.expand_dims(mean, axis)).reshape(*means.shape[:axis], means.shape[axis], -1)
    between = np.matmul(np.swapaxes(off, -1, -2), off) / means.shape[axis]
    within = covariances.mean(-2 * core - 1)
    return mean, within + between.reshape(within.shape)


def _average(parameters: Parameters, design: Design, scale: Scale, known: Known, *, each: bool) -> Averaged:
    nodes = known[2]
    variance, residual = parameters.variances(nodes), parameters.residual(nodes)
    found = posterior(design, variance, residual)
    if not (np.isfinite(found.theta).all() and np.isfinite(found.covariance).all()):
        raise NumericalError(
            "the posterior of the mixed model is not finite: outcomes or covariates differ in scale by more than a "
            "double can hold; look for values that are far too large"
        )
    theta, covariance = mixture(found.theta, found.covariance, 2)
    own = (found.theta, found.covariance) if each else (None, None)
    return Averaged(scale, *known, variance, residual, theta, covariance, *own)
