"""Estimates averaged over variances that are themselves uncertain.

The posterior of the log variances is taken as normal around its mode (Laplace), on a set of points of fixed position in
units of its deviations; each point counts as much as the true posterior says against the normal one. What results has
the mean of the means, and as covariance the mean of the covariances plus the covariance of the means.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.learning.field_design import Scale
from drimed.learning.field_likelihood import Design, evaluate
from drimed.learning.field_variances import Parameters, learn as most_plausible, log_posterior
from drimed.linear.arrays import FloatArray

WAYS = ("draws", "axes", "none")
PAIRS = 6  # antithetic pairs of draws
SEED = 0  # of the stream that the draws come from: they are the same for every trial
AXIS = 1.1  # how far beyond the sphere of the right radius the points on the axes lie
MOST_WEIGHT = 3.0  # a point counts at most exp(3) times what the normal posterior gives it


@dataclass(frozen=True, slots=True)
class Averaged:
    """A fit of the whole model, in standardised units."""

    scale: Scale
    nodes: FloatArray  # (..., B, p), parameters
    weight: FloatArray  # (..., B)
    theta: FloatArray  # (..., M, P)
    covariance: FloatArray  # (..., M, P, M, P)

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.theta.shape[:-2]


def learn(parameters: Parameters, design: Design, scale: Scale, batch: tuple[int, ...], way: str) -> Averaged:
    """Fit variances and everything else."""
    found = most_plausible(parameters, design, batch)
    k = parameters.uncertain
    points = _points(way, k)  # (B, k)
    # The rest, the residual's shape, stays at its mode.
    values, vectors = np.linalg.eigh(found.hessian[..., :k, :k])
    spread = vectors / np.sqrt(values)[..., None, :]
    nodes = np.repeat(found.x[..., None, :], len(points), -2)
    nodes[..., :k] += np.einsum("...ij,bj->...bi", spread, points)
    log_weight = np.empty(nodes.shape[:-1])
    for i, point in enumerate(points):
        value, _ = log_posterior(parameters, design, nodes[..., i, :])
        log_weight[..., i] = found.value - value + 0.5 * point @ point
    weight = np.exp(np.clip(log_weight, -10.0, MOST_WEIGHT)) * _base(way, k)
    weight /= weight.sum(-1, keepdims=True)
    return _average(parameters, design, scale, nodes, weight)


def again(parameters: Parameters, design: Design, scale: Scale, before: Averaged) -> Averaged:
    """Other data with the variances as they were, in units of what the outcomes are."""
    M, F = parameters.metrics, len(parameters.learned)
    c = scale.unit.shape[-1] - M
    shift = 2 * np.log(before.scale.unit[..., c:] / scale.unit[..., c:])  # (..., M)
    nodes = before.nodes.copy()
    nodes[..., : M * F] += np.repeat(shift, F, -1)[..., None, :]
    nodes[..., M * F : M * F + M] += shift[..., None, :]
    return _average(parameters, design, scale, nodes, before.weight)


def _average(parameters: Parameters, design: Design, scale: Scale, nodes: FloatArray, weight: FloatArray) -> Averaged:
    mean, square, covariance = None, None, None
    for i in range(nodes.shape[-2]):
        x, w = nodes[..., i, :], weight[..., i]
        found = evaluate(design, parameters.variances(x), parameters.residual(x), gradient=False)
        products = found.theta[..., :, :, None, None] * found.theta[..., None, None, :, :]
        second = w[..., None, None, None, None] * (found.covariance + products)
        first = w[..., None, None] * found.theta
        mean = first if mean is None else mean + first
        square = second if square is None else square + second
    covariance = square - mean[..., :, :, None, None] * mean[..., None, None, :, :]
    return Averaged(scale, nodes, weight, mean, covariance)


@cache
def _points(way: str, k: int) -> FloatArray:
    """Positions in units of the posterior's deviations: (B, k)."""
    if way == "none":
        return np.zeros((1, k))
    if way == "axes":
        far = AXIS * np.sqrt(k) * np.eye(k)
        return np.concatenate([np.zeros((1, k)), far, -far])
    half = ndtri(streams.uniforms(SEED, "variances", 0, PAIRS, k))
    return np.concatenate([half, -half])


@cache
def _base(way: str, k: int) -> FloatArray:
    if way != "axes":
        return np.ones(len(_points(way, k)))
    each = 1 / (2 * k * AXIS**2)
    return np.r_[1 - AXIS**-2, np.full(2 * k, each)]
