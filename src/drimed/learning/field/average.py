"""Estimates averaged over variances that are themselves uncertain.

The posterior of the log variances is taken as normal around its mode (Laplace). The model is fitted at some positions
in it (drimed.learning.field.nodes); what results has the mean of the means, and as covariance the mean of the
covariances plus the covariance of the means.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from drimed.errors import NumericalError
from drimed.learning.field import nodes as positions
from drimed.learning.field.cells import GROWS
from drimed.learning.field.design import Scale
from drimed.learning.field.likelihood import Design, posterior, thinned
from drimed.learning.field.search import curved
from drimed.learning.field.structure import Parameters
from drimed.learning.field.variances import learn as most_plausible
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.forms import inverse_root

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


def learn(
    parameters: Parameters, design: Design, scale: Scale, batch: tuple[int, ...], *, integrated: bool, each: bool,
    pair: FloatArray,
) -> Averaged:  # fmt: skip
    """Fit variances and everything else, averaged over a design, or at the mode alone.

    `pair` is what residuals count besides the outcomes, see drimed.learning.field.alike.
    """
    found = most_plausible(parameters, thinned(design, MOST_CLUSTERS), batch, pair)
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
    points = positions.designed(M, k // M - 1) if integrated else np.zeros((1, k))  # (B, k)
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
