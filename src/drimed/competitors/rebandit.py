"""reBandit: random effects, and Thompson sampling smoothed so that probabilities stay between bounds.

Source: Ghosh et al. (2024), arXiv 2402.17739, and their code (smooth_allocation.py and config.py at
github.com/StatisticalReinforcementLearningLab/miwaves_rl_service). A message is sent with probability

    E rho(D),   rho(D) = lowest + (highest - lowest) / (1 + offset exp(-steepness D / sigma))

for the posterior of its advantage D; the defaults of their code make the rule cautious. Their slope is divided by a
deviation, both from a file of settings: 20 is from memory, not certain, and sigma the learner's of the control's arm.

Departures. Their mixed model is the learner `people`, with its priors instead of theirs and without action centring:
probabilities do not enter its likelihood. Their reward is engineered for one study; here it is the trial's. With more
than their two arms, rho(largest advantage) is the chance that the control, its arm of largest probability, is left, and
the arm of the largest advantage is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
from scipy.special import expit, ndtri

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability
from drimed.numerics.arrays import FloatArray, check_settings, eigen, pick
from drimed.policies.rules.base import Ask, Randomisation, every_arm
from drimed.policies.rules.thompson import quasi_random_points


@final
@dataclass(frozen=True, kw_only=True)
class SmoothAllocation:
    """p_a = E rho(max D) 1{D_a is the largest} for arms other than the control, which has the rest.

    A penalty is taken from an arm's advantage, in deviations of it. An advantage that is known to be 0, with two arms:
    p = .2 + .6 / (1 + 5) = .3.
    """

    lowest: float = 0.2  # L_min
    highest: float = 0.8  # L_max
    offset: float = 5.0  # c
    steepness: float = 20.0  # b, per deviation of the reward
    points: int = 256  # of the posterior

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        check_settings(self, positive=("offset", "steepness"), count=("points",))
        if not 0 <= self.lowest < self.highest <= 1:
            raise ConfigError(f"0 <= lowest < highest <= 1 is needed, got {self.lowest} and {self.highest}")
        if self.points % 2:
            raise ConfigError(f"points must be an even number, got {self.points}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        shape = every_arm(fit, offer)
        allowed = np.ones(shape, bool) if ask.mask is None else np.broadcast_to(ask.mask, shape)
        home = probability.best(np.broadcast_to(offer.control, shape), allowed)
        at_home = probability.one_hot(home, shape[-1]) > 0
        x = np.broadcast_to(offer.features, (*shape, offer.features.shape[-1]))
        w = x - np.take_along_axis(x, home[..., None, None], -2)
        deviation, mean = np.sqrt(fit.leverage(w)), fit.mean(w)
        if shape[-1] <= 2:  # one advantage: its quantiles are better than points
            draws = ndtri((np.arange(self.points) + 0.5) / self.points)[:, None] * deviation[..., None, :]
        else:
            values, vectors = eigen(np.matmul(np.matmul(w, fit.V_inv), np.swapaxes(w, -1, -2)), "the arms' advantages")
            root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]
            draws = np.matmul(quasi_random_points(self.points, shape[-1])[0], np.swapaxes(root, -1, -2))  # (..., s, K)
        if ask.penalty is not None:
            mean = mean - ask.penalty * deviation
        draws = np.where((allowed & ~at_home)[..., None, :], draws + mean[..., None, :], -np.inf)
        best = draws.argmax(-1)
        sigma = 1.0 if offer.sigma is None else pick(np.broadcast_to(offer.sigma, shape), home)[..., None]
        left = self.smooth(pick(draws, best) / sigma)  # (..., s)
        p = (left[..., None] * probability.one_hot(best, shape[-1])).mean(-2)
        p = np.where((allowed & ~at_home).any(-1, keepdims=True), p, 0.0)
        return np.where(at_home, 1 - p.sum(-1, keepdims=True), p)

    def smooth(self, advantage: FloatArray) -> FloatArray:
        """rho, of advantages in deviations of the reward."""
        return self.lowest + (self.highest - self.lowest) * expit(self.steepness * advantage - np.log(self.offset))
