"""Thompson sampling: draw a plausible theta, play its best arm.

Source: Agrawal and Goyal (2013); Abeille and Lazaric (2017) for the confidence-radius form. The probability of an
arm has no closed form beyond two arms, so the propensity of a decision is unknown; `probabilities` estimates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.special import ndtr, ndtri

from drimed.errors import ConfigError, InputError
from drimed.learning.offer import Fit, Offer
from drimed.linear import ridge
from drimed.linear.arrays import FloatArray
from drimed.linear.forms import NEVER_ZERO, covariance_root
from drimed.rules.rule import Ask, Randomisation, play_largest

SMALLEST_DRAW = 2.0**-54  # below the smallest positive uniform draw: a draw of exactly 0 has a finite quantile


@final
@dataclass(frozen=True, kw_only=True)
class LinTS:
    """argmax_a <x_a, theta~>, theta~ = theta_hat + v V^-1/2 eta with eta normal, drawn afresh for each decision.

    V = diag(3, 2), theta_hat = (.5, .1), v = 1: the first of two arms e1, e2 wins with probability .669371.

    >>> LinTS(v="radius").v
    'radius'
    """

    v: float | str = 1.0  # a number; "radius": the learner's radius; "2013": R sqrt(9 d log(t / delta))
    delta: float = 0.01  # of the 2013 constant

    reference: ClassVar[str] = "Agrawal and Goyal 2013"
    randomisation: ClassVar[Randomisation] = "sampled"

    def __post_init__(self) -> None:
        ok = self.v in ("radius", "2013") if isinstance(self.v, str) else 0 < self.v < np.inf
        if not ok:
            raise ConfigError(f"v must be a positive number, 'radius' or '2013', got {self.v!r}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must be in (0, 1), got {self.delta}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        d = fit.theta.shape[-1]
        if ask.draws is None or ask.draws.shape[-1] < 1 + d:
            raise InputError(f"Thompson sampling needs {1 + d} uniform draws per decision")
        eta = ndtri(np.maximum(ask.draws[..., 1 : 1 + d], SMALLEST_DRAW))
        value = np.matvec(offer.features, self._plausible(fit, eta))
        return play_largest(value, ask)

    def probabilities(self, fit: Fit, offer: Offer, normals: FloatArray) -> FloatArray:
        """P(a is chosen), for one member of a batch: exact for two arms, else the share among normals (n, d)."""
        x = offer.features  # (K, d)
        if x.shape[-2] == 2:
            D = x[0] - x[1]
            sd = self._inflation(fit) * np.sqrt(max(float(D @ fit.V_inv @ D), NEVER_ZERO))
            first = float(ndtr(float(D @ fit.theta) / sd))
            return np.array([first, 1 - first])
        value = self._plausible(fit, normals) @ x.T  # (n, K)
        return np.bincount(value.argmax(-1), minlength=x.shape[0]) / len(value)

    def _plausible(self, fit: Fit, eta: FloatArray) -> FloatArray:
        v = np.asarray(self._inflation(fit))[..., None]
        return fit.theta + v * np.matvec(covariance_root(fit.V_inv, "the covariance of the estimate"), eta)

    def _inflation(self, fit: Fit) -> FloatArray | float:
        if self.v == "radius":
            return fit.radius
        if self.v == "2013":
            return ridge.thompson_radius(fit.round, fit.theta.shape[-1], noise=fit.noise_bound, delta=self.delta)
        return float(self.v)
