"""The learner: which rows it keeps, how it weighs them, and how sure it claims to be."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning import noise
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer, Outcome, Shape
from drimed.linear import radius, ridge
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.ridge import Ridge


@final
@dataclass(frozen=True, kw_only=True)
class Learner:
    """Linear regression on outcomes, weighted by what is known about the noise.

    >>> Learner(weighting="none", noise_bound=2.0).ridge_penalty
    4.0
    """

    weighting: str = "known"  # none: every row counts the same; known: rows are divided by their noise
    feedback: str = "vector"  # reward: learn from p.Y; vector: learn from all of Y
    discount: float = 1.0  # gamma, per episode; 1 keeps everything, and is right while the mean stands still
    noise_bound: float = 1.0  # R: bound on the noise of a row; whitened rows have 1
    norm_bound: float = 1.0  # S: bound on |theta|
    regularisation: float | None = None  # lambda; None: R^2 / S^2
    delta: float = 0.01  # the time-uniform radius may fail with this probability

    def __post_init__(self) -> None:
        if self.weighting not in noise.WEIGHTINGS:
            raise ConfigError(f"weighting must be one of {noise.WEIGHTINGS}, got {self.weighting!r}")
        if self.feedback not in noise.FEEDBACKS:
            raise ConfigError(f"feedback must be one of {noise.FEEDBACKS}, got {self.feedback!r}")
        if not 0 < self.discount <= 1:
            raise ConfigError(f"discount must be in (0, 1], got {self.discount}")
        if not 0 < self.delta < 1:
            raise ConfigError(f"delta must be in (0, 1), got {self.delta}")
        for name in ("noise_bound", "norm_bound", "ridge_penalty"):
            if not (0 < getattr(self, name) < np.inf):
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @cached_property
    def ridge_penalty(self) -> float:
        """lambda."""
        if self.regularisation is not None:
            return self.regularisation
        return (self.noise_bound / self.norm_bound) ** 2

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> Ridge:
        """No evidence yet."""
        return ridge.init(shape.d, self.ridge_penalty, batch, discounted=self.discount < 1)

    def begin_episode(self, state: Ridge) -> Ridge:
        """Let the evidence age by one episode."""
        return ridge.roll(state, self.discount, self.ridge_penalty)

    def observe(self, state: Ridge, offer: Offer, action: IntArray, outcome: Outcome) -> Ridge:
        """Add what came of playing `action`."""
        Z, w = noise.rows(self.weighting, self.feedback, offer, action, outcome)
        if Z.ndim > state.V.ndim:  # a whole episode: the users' blocks of rows, one after the other
            Z, w = Z.reshape(*Z.shape[:-3], -1, Z.shape[-1]), w.reshape(*w.shape[:-2], -1)
        return ridge.observe(state, Z, w, self.ridge_penalty)

    def fit(self, state: Ridge, pulls: FloatArray, round: int) -> Fit:
        """The view that rules and guards decide on."""
        logdet, spread = state.logdet, None
        if state.V2 is not None:  # Russac et al. (2019): for discounted data the width is |x| in V^-1 V2 V^-1
            logdet = ridge.logdet_of(state.V2, self.ridge_penalty)
            spread = np.matmul(np.matmul(state.V_inv, state.V2), state.V_inv)
        beta = radius.oful(
            logdet,
            noise=self.noise_bound,
            norm=self.norm_bound,
            regularisation=self.ridge_penalty,
            delta=self.delta,
        )
        return Fit(state.theta, state.V_inv, beta, spread, pulls, round, self.noise_bound)

    def view(self, offer: Offer) -> Offer:
        """The offer as this learner sees it: without weighting, every arm has the unit noise of V's own rows."""
        if self.weighting == "none" and offer.sigma is not None:
            return _without_noise(offer)
        return offer


def _without_noise(offer: Offer) -> Offer:
    return Offer(
        features=offer.features,
        control=offer.control,
        maps=offer.maps,
        preference=offer.preference,
        context=offer.context,
        available=offer.available,
        user=offer.user,
    )
