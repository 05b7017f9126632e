"""Simple rules: optimism, Thompson sampling, and the baselines that exploration must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.special import ndtri

from drimed.errors import InputError, NumericalError
from drimed.models.offer import Fit, Offer, control_among
from drimed.numerics import probability, ridge
from drimed.numerics.arrays import FloatArray, check_settings
from drimed.policies.rules.base import TIES, Ask, Randomisation, every_arm, play_largest, widths

SMALLEST_DRAW = 2.0**-54  # below the smallest positive uniform draw: a draw of exactly 0 has a finite quantile


@final
@dataclass(frozen=True, kw_only=True)
class OFUL:
    """Optimism: argmax_a <x_a, theta_hat> + width(x_a).

    Source: Abbasi-Yadkori, Pal and Szepesvari (2011). With weighting "known" it is the weighted OFUL of Kirschner and
    Krause (2018); with a discount below 1 it is D-LinUCB (Russac, Vernade and Cappe, 2019).

    Three arms, V = diag(3, 2), theta_hat = (.5, .1), radius 4.316941: indices 2.992387, 3.152538, 3.243535.
    """

    width_squared: float | None = None  # None: the learner's radius; 2 measures well and promises nothing

    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        check_settings(self, not_negative=("width_squared",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return play_largest(self.index(fit, offer), ask)

    def index(self, fit: Fit, offer: Offer) -> FloatArray:
        """The upper confidence bounds: (..., K)."""
        return fit.mean(offer.features) + widths(fit, offer.features, self.width_squared)


@final
@dataclass(frozen=True, kw_only=True)
class LinTS:
    """Thompson sampling: argmax_a <x_a, theta~>, theta~ = theta_hat + v V^-1/2 eta with eta normal, for each decision.

    Source: Agrawal and Goyal (2013); Abeille and Lazaric (2017) for the confidence-radius form. The probability of an
    arm has no closed form beyond two arms, so the propensity of a decision is unknown.

    V = diag(3, 2), theta_hat = (.5, .1), v = 1: the first of two arms e1, e2 wins with probability .669371.
    """

    v: float | str = 1.0  # a number; "radius": the learner's radius; "2013": R sqrt(9 d log(t / delta))
    delta: float = 0.01  # of the 2013 constant

    randomisation: ClassVar[Randomisation] = "sampled"

    def __post_init__(self) -> None:
        check_settings(self, {"v": ("radius", "2013")}, positive=("v",), share=("delta",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        d = fit.theta.shape[-1]
        if ask.draws is None or ask.draws.shape[-1] < 1 + d:
            raise InputError(f"Thompson sampling needs {1 + d} uniform draws per decision")
        eta = ndtri(np.maximum(ask.draws[..., 1 : 1 + d], SMALLEST_DRAW))
        try:
            root = np.linalg.cholesky(fit.V_inv)
        except np.linalg.LinAlgError as error:
            least = float(np.linalg.eigvalsh(fit.V_inv).min())
            raise NumericalError(
                "Thompson sampling needs a positive definite covariance of the estimates, got one whose smallest "
                f"eigenvalue is {least:.2g}; outcomes that repeat exactly or span too many digits do this"
            ) from error
        inflation: FloatArray | float | str = fit.radius if self.v == "radius" else self.v
        if self.v == "2013":
            inflation = ridge.thompson_radius(fit.round, d, noise=fit.noise_bound, delta=self.delta)
        theta = fit.theta + np.asarray(inflation, np.float64)[..., None] * np.matvec(root, eta)
        return play_largest(np.matvec(offer.features, theta), ask)


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """p = pi_0, restricted to the allowed arms: no learning, no harm. A penalty does not change it."""

    randomisation: ClassVar[Randomisation] = "closed form"

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        p = offer.control if ask.mask is None else control_among(offer, ask.mask)
        return np.broadcast_to(p, every_arm(fit, offer))


@final
@dataclass(frozen=True, kw_only=True)
class Uniform:
    """p_a = 1 / (number of allowed arms): the randomised trial. A penalty does not change it."""

    randomisation: ClassVar[Randomisation] = "closed form"

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return probability.uniform(every_arm(fit, offer), ask.mask)


@final
@dataclass(frozen=True, kw_only=True)
class Greedy:
    """argmax_a <x_a, theta_hat>."""

    ties: str = "first"  # or "shared": equal parts, which are exact propensities all the same

    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        check_settings(self, TIES)

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return play_largest(fit.mean(offer.features), ask, self.ties)
