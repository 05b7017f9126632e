"""The margin to the control, and the smallest value it can have in the confidence set.

A choice with mean feature x keeps its promise if <x - x_0, theta> + rel |<x_0, theta>| + abs >= 0. The sign of the
control's mean is unknown, and (1 - rel) mu_0 would lie above mu_0 when mu_0 < 0: the tolerance is on |mu_0|.

For w = x - x_0 the worst case over |theta - theta_hat|_V <= r is, by minimax over the bilinear form |u| = max t u,

    F = max_{|t| <= 1} <w + t rel x_0, theta_hat> - r |w + t rel x_0|_{V^-1} + abs

which is exact: F >= 0 if and only if the promise holds for every theta in the set. It has a closed form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.fit import Fit
from drimed.linear.arrays import FloatArray


@final
@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far below the control a choice may fall: relative |mu_0| + absolute, in the user's reward unit.

    >>> float(Tolerance(relative=0.1, absolute=0.05).allowed(np.array(-2.0)))
    0.25
    """

    relative: float = 0.1
    absolute: float = 0.0

    def __post_init__(self) -> None:
        if not 0 <= self.relative < 1:
            raise ConfigError(f"relative tolerance must be in [0, 1), got {self.relative}")
        if not 0 <= self.absolute < np.inf:
            raise ConfigError(f"absolute tolerance must be at least 0 and finite, got {self.absolute}")

    def allowed(self, control_mean: FloatArray) -> FloatArray:
        """The shortfall that is tolerated for a control of this mean."""
        return self.relative * np.abs(control_mean) + self.absolute


def estimated(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance) -> FloatArray:
    """The margin at theta_hat: x (..., K, d), x0 (..., d) -> (..., K)."""
    mu0 = np.vecdot(x0, fit.theta)
    return fit.mean(x) - (mu0 - tolerance.allowed(mu0))[..., None]


def certified(fit: Fit, x: FloatArray, x0: FloatArray, tolerance: Tolerance, radius: FloatArray) -> FloatArray:
    """F, the smallest margin in the confidence set of this radius: x (..., K, d), x0 (..., d) -> (..., K)."""
    w = x - x0[..., None, :]
    r = radius[..., None]
    A = fit.mean(w)
    spread = np.matmul(w, fit.metric)
    C = np.vecdot(spread, w)
    if tolerance.relative == 0:
        return A - r * np.sqrt(np.maximum(C, 0)) + tolerance.absolute
    B = tolerance.relative * np.vecdot(x0, fit.theta)[..., None]
    D = tolerance.relative * np.matvec(spread, x0)
    E = tolerance.relative**2 * np.vecdot(np.matvec(fit.metric, x0), x0)[..., None]
    t = _worst_sign(B, C, D, E, r)
    return A + t * B - r * np.sqrt(np.maximum(C + 2 * D * t + E * t * t, 0)) + tolerance.absolute


def _worst_sign(B: FloatArray, C: FloatArray, D: FloatArray, E: FloatArray, r: FloatArray) -> FloatArray:
    """The t that attains F: the control's sign where it is certain at this radius, else a point between."""
    uncertainty = r * r * E - B * B
    certain = (uncertainty <= 0) | (E <= 0)
    cross = np.sqrt(np.maximum(C * E - D * D, 0) / np.where(certain, 1.0, uncertainty))
    between = np.clip((B * cross - D) / np.where(certain, 1.0, E), -1.0, 1.0)
    return np.where(certain, np.sign(B), between)
