"""LOSAN's learner: a confidence set that shrinks with the noise that is there, told only a bound on it.

Source: Jun and Kim (2024), arXiv 2402.07341, and their code (github.com/jungtaekkim/LOSAN-LOFAV), whose delta is .2.
With OFUL as the rule it is their algorithm, but for the random arm that begins theirs. For noise bounded by sigma_0,
lambda = sigma_0^2 / S^2 and the outcomes y_s of x_s in the order in which they come:

    w_s = min(1, 1 / |x_s|_{V_{s-1}^-1})                 V_s = lambda I + sum w^2 x x^T
    D_s = w_s |x_s|_{V_s^-1}                             theta_s = V_s^-1 sum w^2 x y
    beta_t = lambda S^2 / 2 + sigma_0^2 log(1 / delta) + sum_s D_s^2 w_s^2 (y_s - <x_s, theta_{s-1}>)^2 / 2

and |theta - theta_t|_{V_t} <= sqrt(2 beta_t) at all times. Weights and residuals are those of the moment, so that no
outcome can come late or be taken back, as live trials need: benchmarks use
`oful:learner=drimed.competitors.losan:LOSAN`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.competitors.field_learners import Wrapper
from drimed.models.linear_regression import Learner, for_each_user, whitened_rows
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape
from drimed.numerics import ridge
from drimed.numerics.arrays import FloatArray, IntArray, check_settings
from drimed.numerics.quadratic_forms import leverages
from drimed.numerics.ridge import Ridge


@dataclass(frozen=True, slots=True)
class OnlineEvidence:
    """The weighted regression, and how badly it predicted."""

    ridge: Ridge
    losses: FloatArray  # (...), sum_s D_s^2 w_s^2 (y_s - <x_s, theta_{s-1}>)^2 / 2
    noise: None = None


@final
@dataclass(frozen=True, kw_only=True)
class OnlineRegression(Wrapper):
    """Regression on rewards with a radius from its own one-step prediction errors.

    One feature, sigma_0 = S = 1, x = 1, y = 2, then y = 1: w = 1, V = 1, 2, 3; theta = 0, 1, 1; D^2 = 1/2, 1/3; the
    losses are 1/2 * 4 / 2 = 1, then 1/3 * 0 / 2 = 0. Of x = 4 from the start, w = 1/4.
    """

    inner: Learner = field(default_factory=lambda: Learner(weighting="none", feedback="reward"))
    what: str = "noise-adaptive radius"
    noise_bound: float = 1.0  # sigma_0
    norm_bound: float = 1.0  # S
    delta: float = 0.2

    keeps_features: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_settings(self, positive=("noise_bound", "norm_bound"), share=("delta",))

    @property
    def ridge_penalty(self) -> float:
        """lambda."""
        return (self.noise_bound / self.norm_bound) ** 2

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> OnlineEvidence:
        del episodes
        return OnlineEvidence(ridge.init(shape.d, self.ridge_penalty, batch), np.zeros(batch))

    def age(self, evidence: OnlineEvidence) -> OnlineEvidence:
        return evidence

    def add(
        self, evidence: OnlineEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> OnlineEvidence:
        """Learn from the outcomes, one user after the other."""
        del late
        X, Y = whitened_rows("none", "reward", offer, action, outcome)  # (..., n, 1, d) and (..., n, 1)
        for user in range(action.shape[-1]):
            x, y, state = X[..., user, :, :], Y[..., user, :], evidence.ridge
            leverage = leverages(x, state.V_inv)  # (..., 1)
            weight = 1 / np.sqrt(np.maximum(leverage, 1.0))
            gain = weight**2 * leverage  # D^2 = gain / (1 + gain)
            loss = gain / (1 + gain) * (weight * (y - np.matvec(x, state.theta))) ** 2 / 2
            more = ridge.observe(state, weight[..., None] * x, weight * y, self.ridge_penalty)
            evidence = OnlineEvidence(more, evidence.losses + loss[..., 0])
        return evidence

    def see(self, evidence: OnlineEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        state = evidence.ridge
        fit = Fit(state.theta, state.V_inv, self.radius(evidence), None, pulls, round, self.noise_bound)
        view = offer.with_noise(None)
        return Seen(for_each_user(fit), view, view)

    def radius(self, evidence: OnlineEvidence) -> FloatArray:
        """sqrt(2 beta): (...)."""
        prior = self.ridge_penalty * self.norm_bound**2 / 2
        return np.sqrt(2 * (prior + self.noise_bound**2 * np.log(1 / self.delta) + evidence.losses))


LOSAN = OnlineRegression()
