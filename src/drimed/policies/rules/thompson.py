"""Thompson sampling with exact propensities: each arm as often as it is the best one in the posterior.

Source: Thompson (1933). A draw of the arms' mean rewards is replaced by a fixed set of quasi-random points, so the
probability that an arm is best is a function of the posterior alone: it can be logged, replayed and evaluated.
Shapes: leading `...` is any batch; K arms, d features, s points.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import ClassVar, final

import numpy as np
from scipy.special import chdtri, ndtri, stdtr

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, eigen
from drimed.policies.rules.base import Ask, Randomisation, shared, tied

LEAST_FREEDOM = 2.0  # of tails with a variance
NORMAL_FREEDOM = 1e6  # degrees of freedom that are as good as infinite
ALIKE = 1e-12  # of the largest variance of a sum of arms: less is the round-off of arms that never differ


@final
@dataclass(frozen=True, kw_only=True)
class Thompson:
    """p_a = P(arm a has the largest mean reward), by quasi-random points of the posterior.

    An arm that is best in hardly any point has the probability that it beats the leader instead, which is larger than
    that of being best and falls off as the posterior does: no arm's probability is zero. Arms that tie in all points
    share theirs. Of two arms the probability is exact. A penalty is taken from an arm's reward, in deviations of its
    distance to the leader.
    """

    points: int = 256
    even: float = 0.0  # share of the probability that all allowed arms have alike, to learn about each of them

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        if self.points < 2 or self.points % 2:
            raise ConfigError(f"points must be an even number, at least 2, got {self.points}")
        if not 0 <= self.even <= 1:
            raise ConfigError(f"even must be a share between 0 and 1, got {self.even}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x, K, mask = offer.features, offer.features.shape[-2], ask.mask
        leader, gap, distance = fit.behind_leader(x, mask)
        gap = np.where(tied(fit.mean(x), mask), 0.0, gap)  # or round-off would choose between arms that are alike
        nu = np.minimum(fit.freedom, NORMAL_FREEDOM)[..., None]
        scale = np.sqrt(distance * (nu - LEAST_FREEDOM) / nu)  # Student's distribution with the variances of V^-1
        penalty = 0.0 if ask.penalty is None else ask.penalty
        beats = np.where(distance > 0, stdtr(nu, -gap / np.where(distance > 0, scale, 1.0) - penalty), 0.0)
        if K == 2 and fit.draws is None:
            p = np.where(np.arange(2) == leader[..., None], 1 - beats[..., ::-1], beats)
        else:
            best = self._best(fit, x, nu, penalty * np.sqrt(distance), mask)
            p = np.maximum(best, np.minimum(beats, 1 / self.points))
        if mask is not None:
            p = np.where(mask, p, 0.0)
        p = (1 - self.even) * p / p.sum(-1, keepdims=True)
        return p + self.even * probability.uniform(p.shape, mask) if self.even else p

    def _best(self, fit: Fit, x: FloatArray, nu: FloatArray, penalty: FloatArray, mask: BoolArray | None) -> FloatArray:
        """The share of points, or of the posterior's own draws, in which each allowed arm is best: (..., K)."""
        if fit.draws is not None:
            rewards = np.swapaxes(np.matmul(x, np.swapaxes(fit.draws, -1, -2)), -1, -2)  # (..., S, K), S contiguous
            rewards = rewards - penalty[..., None, :]
            return shared(tied(rewards, None if mask is None else mask[..., None, :])).mean(-2)
        values, vectors = eigen(np.matmul(np.matmul(x, fit.V_inv), np.swapaxes(x, -1, -2)), "the arms' mean rewards")
        root = vectors * np.sqrt(np.where(values > ALIKE * values[..., -1:], values, 0.0))[..., None, :]
        normal, uniform = quasi_random_points(self.points, x.shape[-2])
        draws = np.matmul(normal, np.swapaxes(root, -1, -2))  # (..., s, K)
        if (nu < NORMAL_FREEDOM).any():
            draws *= np.sqrt((nu - LEAST_FREEDOM) / chdtri(nu, uniform))[..., None]
        draws += (fit.mean(x) - penalty)[..., None, :]
        return shared(tied(draws, None if mask is None else mask[..., None, :])).mean(-2)


@cache
def quasi_random_points(count: int, dimensions: int) -> tuple[FloatArray, FloatArray]:
    """Antithetic pairs of standard normal points, and a uniform number for each pair: (count, K) and (count,).

    An additive recurrence on the generalised golden ratio (Roberts 2018), which fills the cube evenly, scaled so that
    the points' covariance is exactly the identity.
    """
    ratio = 1.5
    for _ in range(64):
        ratio = (1 + ratio) ** (1 / (dimensions + 2))
    steps = ratio ** -np.arange(1.0, dimensions + 2)
    cube = (0.5 + np.outer(np.arange(1, count // 2 + 1), steps)) % 1.0
    half = ndtri(cube[:, :dimensions])
    if count > 2 * dimensions:
        half = half @ np.linalg.inv(np.linalg.cholesky(half.T @ half / len(half))).T
    return np.concatenate([half, -half]), np.tile(cube[:, dimensions], 2)
