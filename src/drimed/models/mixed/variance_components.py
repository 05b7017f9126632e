"""Variance components: their posterior mode, and everything else integrated over their uncertainty.

The log variances, and the residual covariance, maximise marginal likelihood times a weak prior. The search starts at
the prior's centre, so that the result is a function of the data alone. Around the mode their posterior is taken as
normal (Laplace), and the posterior of theta is an even mixture over some nodes of it.

Nodes come in antithetic pairs and are the same for every trial. A variance is the exponential of a node, so few random
draws would misjudge its mean: of twelve, for seven variances, one came out 2.7 times too large and others 0.8 times.
Designed nodes have exactly the covariance that they should have, and means of variances within a tenth.
Shapes: leading `...` is any batch; p parameters, M metrics, P columns of theta, B nodes, g noise groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.errors import NumericalError
from drimed.models.mixed.likelihood import Design, columns_in_use, derivatives, posterior_at_nodes
from drimed.models.mixed.observations import GROWS, Scale
from drimed.models.mixed.terms import Parameters, Structure
from drimed.numerics.arrays import FloatArray, IntArray, eigen, inverse_root

MOST_CLUSTERS = 2000  # variances are learned from so many clusters at most: more would tell them no better
LIMIT = 12.0  # a log variance stays this near its prior's centre: 8 prior deviations
GENTLE, POLISH = 1e-3, 2  # a gradient from which so many steps of Newton, with the same curvature, lead to the mode
NUDGE = 1e-5  # of the differences that give the curvature of the residual's shape
NO_PAIR = np.zeros(1)

MOST_STEPS = 100
LONGEST = 1.0  # step, in the coordinate that moves most
LEAST_CURVATURE = 0.1  # a tenth of a weak prior's
MOVED, ROUND_OFF = 1e-9, 1e-13  # of the value: what counts as progress, and what it cannot tell

SEED = 0  # of the stream "variances", which candidates for nodes come from
FEWEST = 8  # pairs of nodes
CANDIDATES = 400  # from which nodes are chosen
WIDE = 1.25  # the log of a variance is uncertain by so much, at most: where means are compared

Value = tuple[FloatArray, ...]  # values (members), gradients (members, p) and curvatures (members, p, p)
Objective = Callable[[FloatArray, IntArray], Value]  # of points (members, p), and the numbers of these members
Bounds = tuple[FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class IntegratedPosterior:
    """A fit of the whole model, in standardised units."""

    scale: Scale
    mode: FloatArray = field(metadata=GROWS)  # (..., p), the most plausible parameters
    deviation: FloatArray = field(metadata=GROWS)  # (..., p), of the parameters
    nodes: FloatArray = field(metadata=GROWS)  # (..., B, p)
    variance: FloatArray = field(metadata=GROWS)  # (..., B, M, families), that follow from them
    residual: FloatArray = field(metadata=GROWS)  # (..., B, g, M, M)
    theta: FloatArray = field(metadata=GROWS)  # (..., M, P)
    covariance: FloatArray = field(metadata=GROWS)  # (..., M, P, M, P)
    # At each node, where clusters are units with effects of their own: (..., B, M, P) and (..., B, M, P, M, P).
    each_theta: FloatArray | None = field(metadata=GROWS)
    each_covariance: FloatArray | None = field(metadata=GROWS)

    @property
    def batch(self) -> tuple[int, ...]:
        return self.theta.shape[:-2]


def fit(
    structure: Structure, design: Design | None, scale: Scale, batch: tuple[int, ...], pair: FloatArray = NO_PAIR
) -> IntegratedPosterior:
    """Variances and everything else, or the prior where there is no design.

    `pair` are pseudo-outcomes of the residuals, see `add_binary_pseudo_outcomes`.
    """
    parameters = structure.parameters
    k, M = parameters.uncertain, parameters.metrics
    if design is None:
        curvature = bounded(parameters.log_prior(parameters.centre)[2])
        mode, H = (np.broadcast_to(a, (*batch, *a.shape)) for a in (parameters.centre, curvature))
    else:
        mode, H = posterior_mode(parameters, design.thin(MOST_CLUSTERS), batch, pair)
    points = designed_nodes(M, k // M - 1)  # (B, k)
    nodes = np.repeat(mode[..., None, :], len(points), -2)
    # The residual's shape, which many outcomes determine, stays at its mode.
    nodes[..., :k] += np.matmul(points, inverse_root(H[..., :k, :k], "the curvature of the variances' posterior"))
    deviation = np.sqrt(np.diagonal(np.linalg.inv(H), axis1=-2, axis2=-1))
    return integrate(structure, design, scale, (mode, deviation, nodes))


def integrate(
    structure: Structure, design: Design | None, scale: Scale, laplace: tuple[FloatArray, FloatArray, FloatArray]
) -> IntegratedPosterior:
    """The mixture over the nodes; mode, deviation and nodes of the parameters are given."""
    variance, residual = structure.parameters.variances(laplace[2]), structure.parameters.residual(laplace[2])
    if design is None:
        family = structure.common.family
        by_column = variance[..., family[columns_in_use(len(family))]]  # (..., B, M, P)
        size = by_column.shape[-2] * by_column.shape[-1]
        means, flat = np.zeros(by_column.shape), by_column.reshape(*by_column.shape[:-2], size)
        covariances = (flat[..., None] * np.eye(size)).reshape(*by_column.shape, *by_column.shape[-2:])
    else:
        _, means, covariances = posterior_at_nodes(design, variance, residual)
    if not (np.isfinite(means).all() and np.isfinite(covariances).all()):
        raise NumericalError(
            "the posterior of the mixed model is not finite: outcomes or covariates differ in scale by more than a "
            "double can hold; look for values that are far too large"
        )
    each = (None, None) if structure.cluster == "season" else (means, covariances)
    return IntegratedPosterior(scale, *laplace, variance, residual, *mixture(means, covariances, 2), *each)


def mixture(means: FloatArray, covariances: FloatArray, core: int) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of an even mixture: the nodes' axis stands before the `core` axes of a mean."""
    axis = -core - 1
    mean = means.mean(axis)
    off = (means - np.expand_dims(mean, axis)).reshape(*means.shape[:axis], means.shape[axis], -1)
    between = np.matmul(np.swapaxes(off, -1, -2), off) / means.shape[axis]
    within = covariances.mean(-2 * core - 1)
    return mean, within + between.reshape(within.shape)


# The mode


def posterior_mode(
    parameters: Parameters, design: Design, batch: tuple[int, ...], pair: FloatArray = NO_PAIR
) -> tuple[FloatArray, FloatArray]:
    """The most plausible parameters of each member, (..., p), and the curvature of minus the log posterior there."""
    members, p = int(np.prod(batch)), parameters.size
    flat = design.flatten(batch)
    pairs = np.broadcast_to(pair, (*batch, parameters.metrics)).reshape(members, -1)

    def objective(x: FloatArray, which: IntArray) -> Value:
        here = flat if len(which) == members else flat.take(which)
        return log_posterior(parameters, here, x, pairs[which], curvature=True)

    x = np.repeat(parameters.centre[None], members, 0)
    bounds = parameters.centre - LIMIT, parameters.centre + LIMIT
    x, (_, g, hessian) = minimise(objective, x, bounds, GENTLE)
    H = bounded(hessian)
    for left in range(POLISH, 0, -1):
        x = np.clip(x - np.clip(np.linalg.solve(H, g[..., None])[..., 0], -0.1, 0.1), *bounds)
        g = log_posterior(parameters, flat, x, pairs)[1] if left > 1 else g
    return x.reshape(*batch, p), H.reshape(*batch, p, p)


def log_posterior(
    parameters: Parameters, design: Design, x: FloatArray, pair: FloatArray = NO_PAIR, *, curvature: bool = False
) -> Value:
    """Minus the log of likelihood times prior, and its gradient: (..., p) -> (...), (..., p).

    With `curvature` its second derivatives, (..., p, p); where the residual's shape is concerned, by differences.
    `pair` (..., M) has for each metric the sum of squares of a pair of pseudo-outcomes, or 0.
    """
    there = derivatives(design, parameters.variances(x), parameters.residual(x), curvature=curvature)
    prior, pull, bend = parameters.log_prior(x)
    k, p = parameters.uncertain, parameters.size
    at = np.arange(k - parameters.metrics, k)
    residual, counts = x[..., at], pair > 0  # a pair has one degree of freedom
    squares = pair * np.exp(-residual)
    value = prior - there.value + 0.5 * (counts * residual + squares).sum(-1)
    g = pull - parameters.gradient(x, there)
    g[..., at] += 0.5 * (counts - squares)
    if not curvature:
        return value, g
    H = np.empty((*x.shape, p))
    H[..., :k, :k] = bend[..., :k, :k] - parameters.curvature(there)
    H[..., at, at] += 0.5 * squares
    if k < p:
        axes = NUDGE * np.eye(p)[k:].reshape(p - k, *(1,) * (x.ndim - 1), p)
        rows = np.moveaxis((log_posterior(parameters, design, x + axes, pair)[1] - g) / NUDGE, 0, -2)
        H[..., k:, :], H[..., :k, k:] = rows, np.swapaxes(rows[..., :k], -1, -2)
    return value, g, H


# Newton's method for many functions at once


def minimise(objective: Objective, x: FloatArray, bounds: Bounds, near: float) -> tuple[FloatArray, Value]:
    """From x to where no coordinate of the gradient exceeds `near`: x there, and the objective's value.

    Members are searched side by side by steps that are halved where they go too far; those near enough drop out.
    """
    active = np.arange(len(x))
    x, now = x.copy(), objective(x, active)
    end = tuple(part.copy() for part in now)
    for _ in range(MOST_STEPS):
        if not len(active):
            break
        step = newton_step(now[2], now[1])
        step *= np.minimum(1.0, LONGEST / np.maximum(np.abs(step).max(-1, keepdims=True), 1e-300))
        x_new, new = _line_search(objective, x[active], now, step, active, bounds)
        moved = now[0] - new[0] > MOVED * (1 + np.abs(now[0]))
        for whole, part in zip((x, *end), (x_new, *new), strict=True):
            whole[active] = part
        far = (np.abs(new[1]).max(-1) > near) & moved
        active, now = active[far], tuple(part[far] for part in new)
    return x, end


def _line_search(
    objective: Objective, x: FloatArray, now: Value, step: FloatArray, active: IntArray, bounds: Bounds
) -> tuple[FloatArray, Value]:
    """The first of the steps 1, 1/2, 1/4, ... that lowers the objective enough."""
    f, g = now[:2]
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
    for whole, part in zip((x_new, *new), (x, *now), strict=True):
        whole[lost] = part[lost]
    return x_new, new


def newton_step(H: FloatArray, g: FloatArray) -> FloatArray:
    """-H^-1 g; where H bends downwards, as if it bent as much upwards."""
    values, vectors = eigen(0.5 * (H + np.swapaxes(H, -1, -2)), "the curvature of the posterior")
    return -np.matvec(vectors, np.vecmat(g, vectors) / np.maximum(np.abs(values), LEAST_CURVATURE))


def bounded(H: FloatArray) -> FloatArray:
    """A Hessian made symmetric, with no curvature below a tenth of a weak prior's."""
    values, vectors = eigen(0.5 * (H + np.swapaxes(H, -1, -2)), "the curvature of the variances' posterior")
    values = np.maximum(values, LEAST_CURVATURE)
    return np.matmul(vectors * values[..., None, :], np.swapaxes(vectors, -1, -2))


# Nodes, in units of the posterior's deviations


@cache
def designed_nodes(metrics: int, each: int) -> FloatArray:
    """Nodes for `each` log variances and the residual's of every metric, the residuals' last: (B, metrics (each + 1)).

    Within a metric the covariance is the identity. Metrics share the positions in another order: they are coupled by
    their noise alone, so that all of them need no more positions than one.

    >>> points = designed_nodes(1, 6)
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
