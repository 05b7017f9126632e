"""Variances of a field model: most plausible values, and how far they may be from them.

The log variances, and the residual covariance, maximise marginal likelihood times a weak prior. The search starts at
the prior's centre whatever came before, and ends with Newton steps: the result is a function of the data alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.learning.field.likelihood import Design, Slopes, slopes
from drimed.learning.field.search import Found, curved, descend
from drimed.learning.field.structure import Parameters
from drimed.linear.arrays import FloatArray, IntArray

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
