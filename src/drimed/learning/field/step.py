"""One more outcome between two fits: what is common is updated in place of being fitted again.

Given theta, a cluster's own effects depend on its own cells alone. So an outcome is an observation of theta,

    y - z . shift = (x - gain' z) . theta + N(0, z' noise z + R)

and costs one step of a Kalman filter, whatever the number of clusters and of outcomes, for any cluster in any order.
With the variances as they were it is exact; theta's posterior is taken as normal where it is a mixture.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from drimed.learning.field import design as field_design
from drimed.learning.field import own as field_own
from drimed.learning.field.average import Averaged, mixture
from drimed.learning.field.cells import Cells
from drimed.learning.field.likelihood import own
from drimed.learning.field.structure import Structure
from drimed.linear.arrays import FloatArray, IntArray


def step(learned: Averaged, cells: Cells, at: int, structure: Structure) -> Averaged:
    """Add cell number `at`, a single outcome; those before it are already in."""
    common, theirs, parameters = structure.common, structure.own, structure.parameters
    covariates, noise_groups = structure.covariates, structure.noise
    key, pattern, values = cells.keys[..., at, :], cells.pattern[..., at], cells.mean[..., at, :]
    place = structure.cluster_place
    before = _squeezed(field_own.of_clusters(cells.live(at), place, key[..., place][..., None]))
    design = field_design.build(before, learned.scale, common, theirs, noise=noise_groups)
    each, spread = learned.each_theta, learned.each_covariance
    v, R = learned.variance, learned.residual  # (..., B, ...)
    if each is None:
        mode = learned.mode[..., None, :]
        v, R = parameters.variances(mode), parameters.residual(mode)
    effects = own(design, v, R)
    standard = (values - learned.scale.centre) / learned.scale.unit
    z, y = standard[..., :covariates], standard[..., None, covariates:]
    X, Z = common.rows(key, z)[..., None, None, :], theirs.rows(key, z)[..., None, None, :]  # one row, for each node
    G = field_own.through(effects, X, Z)[..., 0, :, :, :]  # (..., B, M, M, P)
    offset = np.einsum("...kq,...mq->...km", Z, effects.shift)[..., 0, :]
    noise = field_own.sandwich(Z, effects.noise)[..., 0, :, 0, :] + _of_group(R, noise_groups.of(key))
    there = ((pattern[..., None] >> np.arange(parameters.metrics)) & 1)[..., None, :].astype(np.float64)
    if each is None or spread is None:
        theta, covariance = _conditioned(
            learned.theta[..., None, :, :], learned.covariance[..., None, :, :, :, :], G, y - offset, noise, there
        )
        return replace(learned, theta=theta[..., 0, :, :], covariance=covariance[..., 0, :, :, :, :])
    each, spread = _conditioned(each, spread, G, y - offset, noise, there)
    theta, covariance = mixture(each, spread, 2)
    return replace(learned, theta=theta, covariance=covariance, each_theta=each, each_covariance=spread)


def _conditioned(
    theta: FloatArray, covariance: FloatArray, G: FloatArray, y: FloatArray, noise: FloatArray, there: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """theta and its covariance after y = G theta + N(0, noise), where a metric is there."""
    M, P = theta.shape[-2:]
    lead = theta.shape[:-2]
    C = covariance.reshape(*lead, M * P, M * P)
    rows = (G * there[..., None, None]).reshape(*lead, M, M * P)
    both = there[..., :, None] * there[..., None, :]
    CG = np.matmul(C, np.swapaxes(rows, -1, -2))  # (..., D, M)
    S = np.matmul(rows, CG) + np.where(both > 0, noise, np.eye(M))
    flat = theta.reshape(*lead, M * P)
    surprise = (y - np.matvec(rows, flat)) * there
    gain = np.swapaxes(np.linalg.solve(S, np.swapaxes(CG, -1, -2)), -1, -2)
    C = C - np.matmul(gain, np.swapaxes(CG, -1, -2))
    C = 0.5 * (C + np.swapaxes(C, -1, -2))
    return (flat + np.matvec(gain, surprise)).reshape(theta.shape), C.reshape(covariance.shape)


def _of_group(R: FloatArray, group: IntArray) -> FloatArray:
    """R (..., B, g, M, M) of each member's noise group: (..., B, M, M)."""
    index = group.reshape(*group.shape, 1, 1, 1, 1)
    return np.take_along_axis(R, np.broadcast_to(index, (*R.shape[:-3], 1, 1, 1)), -3)[..., 0, :, :]


def _squeezed(cells: Cells) -> Cells:
    """Without the axis of clusters, of which there is one."""
    return Cells(
        cells.keys[..., 0, :, :],
        cells.pattern[..., 0, :],
        cells.n[..., 0, :],
        cells.mean[..., 0, :, :],
        cells.scatter[..., 0, :, :, :],
        cells.used,
    )
