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
from drimed.linear.kernel import kernel


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
    return _certified(x, x0, fit.theta, fit.metric, radius, tolerance.relative, tolerance.absolute)


@kernel(
    "void(f8[:,:], f8[:], f8[:], f8[:,:], f8, f8, f8, f8[:])",
    "(k,d),(d),(d),(d,d),(),(),()->(k)",
)
def _certified(x, x0, theta, S, r, rel, absolute, F):  # type: ignore[no-untyped-def]
    K, d = x.shape
    B, E = 0.0, 0.0
    Sx0 = np.zeros(d)
    for i in range(d):
        for j in range(d):
            Sx0[i] += S[i, j] * x0[j]
        B += rel * x0[i] * theta[i]
        E += rel * rel * x0[i] * Sx0[i]
    certain = E <= 0.0 or r * r * E <= B * B  # the sign of the control's mean is beyond doubt at this radius
    sign = 1.0 if B >= 0.0 else -1.0
    for k in range(K):
        A, C, D = 0.0, 0.0, 0.0
        for i in range(d):
            w = x[k, i] - x0[i]
            s = 0.0
            for j in range(d):
                s += S[i, j] * (x[k, j] - x0[j])
            A += w * theta[i]
            C += w * s
            D += rel * w * Sx0[i]
        t = sign
        if not certain:
            t = (B * np.sqrt(max(C * E - D * D, 0.0) / (r * r * E - B * B)) - D) / E
            t = min(max(t, -1.0), 1.0)
        F[k] = A + t * B - r * np.sqrt(max(C + 2.0 * D * t + E * t * t, 0.0)) + absolute
