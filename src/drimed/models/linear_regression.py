"""Learners: the protocol that each of them follows, and the paper's, linear regression on features.

Every weighting turns one outcome into a block of rows (Z, w) with unit noise; the regression only ever adds Z^T Z and
Z^T w. Noise that is learned (drimed.models.noise_estimation) starts from the rows without any weight.
Shapes: leading `...` is any batch; n users, K arms, M metrics, d features, m rows of an outcome.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.models import noise_estimation
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape
from drimed.numerics import arrays, ridge
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick_shared
from drimed.numerics.ridge import Ridge

# A sum that keeps less than this share of itself when something is taken out has lost its digits: what is left of a
# mistyped 1e12 among fives is round-off.
LOST_SHARE = 1e-6


class AnyLearner(Protocol):
    """From outcomes to a belief about the arms of an offer. The methods are pure."""

    @property
    def feedback(self) -> str:
        """The outcomes it learns from: "reward" or "vector"."""

    @property
    def weighting(self) -> str:
        """Knowledge of the noise: "none", "known" or "learned"."""

    @property
    def noise_bound(self) -> float: ...

    @property
    def discount(self) -> float: ...

    @property
    def about(self) -> str: ...

    @property
    def balances(self) -> bool:
        """Whether decisions of one request should be spread evenly over the places where they are taken."""

    @property
    def keeps_features(self) -> bool:
        """Whether its coefficients are those of the offers' own features, for every user."""

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Any:
        """No evidence, after so many episodes."""

    def age(self, evidence: Any) -> Any: ...

    def add(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def remove(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def ready(self, evidence: Any) -> Any:
        """The evidence to decide on, with all postponed work done."""

    def see(self, evidence: Any, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """The view of rule and guard on an offer: (..., n)."""

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether it can learn from outcomes of which these metrics were observed: (..., M) -> (...)."""

    def lost_digits(self, before: Any, after: Any) -> bool:
        """Whether `remove` left round-off."""

    def theta(self, evidence: Any) -> FloatArray: ...

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The regression, and the noise model where it is learned."""

    ridge: Ridge
    noise: NoiseModel | None


@final
@dataclass(frozen=True, kw_only=True)
class Learner:
    """Linear regression on outcomes, weighted by the noise.

    >>> Learner(weighting="none", noise_bound=2.0).ridge_penalty
    4.0
    """

    # none: every row counts the same; known: rows are divided by their noise; learned: by an estimate of it
    weighting: str = "known"
    feedback: str = "vector"  # reward: learn from p.Y; vector: learn from all of Y
    discount: float = 1.0  # gamma, per episode; 1 keeps everything, and is right while the mean stands still
    noise_bound: float = 1.0  # R: bound on the noise of a row; whitened rows have 1
    norm_bound: float = 1.0  # S: bound on |theta|
    regularisation: float | None = None  # lambda; None: R^2 / S^2
    delta: float = 0.01  # the radius may fail with this probability: over all time, or per episode when discounting
    # Learned noise starts from this variance, relative to (norm_bound |features|)^2, the largest squared mean. Rather
    # too large than too small: the first outcomes correct it, but a small one trusts them too much.
    noise_guess: float = 1.0
    # Ends of each metric's range, infinite: none; (): of no metric. They tell learned noise what is yes or no.
    ranges: tuple[tuple[float, float], ...] = ()

    keeps_features: ClassVar[bool] = True
    balances: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive = ("noise_bound", "norm_bound", "ridge_penalty", "noise_guess")
        words = {"weighting": ("none", "known", "learned"), "feedback": ("reward", "vector")}
        arrays.check_settings(self, words, discount=("discount",), share=("delta",), positive=positive)

    @cached_property
    def ridge_penalty(self) -> float:
        return (self.noise_bound / self.norm_bound) ** 2 if self.regularisation is None else self.regularisation

    @property
    def about(self) -> str:
        aged = f", discount {self.discount:g}" if self.discount < 1 else ""
        return f"{self.feedback}, {self.weighting} noise{aged}"

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Evidence:
        """No evidence; only evidence ages, so that the number of episodes does not matter."""
        del episodes
        if self.ranges and len(self.ranges) != shape.M:
            raise ConfigError(f"ranges must have two ends for each of {shape.M} metrics, got {len(self.ranges)}")
        # While the noise is learned V follows from faded sums; V^-1 is then wider than the discounted estimate's own.
        discounted = self.discount < 1 and self.weighting != "learned"
        start = ridge.init(shape.d, self.ridge_penalty, batch, discounted=discounted)
        if self.weighting != "learned":
            return Evidence(start, None)
        kinds = shape if self.feedback == "vector" else replace(shape, K=shape.H * shape.K, M=1)
        return Evidence(start, noise_estimation.init(kinds, batch, guess=self._guess))

    def age(self, evidence: Evidence) -> Evidence:
        model = evidence.noise
        if model is not None and self.discount < 1:
            model = noise_estimation.fade(model, self.discount)
        return Evidence(ridge.roll(evidence.ridge, self.discount, self.ridge_penalty), model)

    def add(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """Learn from the outcomes of `action` `late` episodes ago; noise that is learned is fitted by `ready`."""
        return self._change(evidence, (offer, action, outcome), late, ridge.observe, noise_estimation.add)

    def remove(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """Take the outcomes of `late` episodes ago out again, as if they had never come."""
        return self._change(evidence, (offer, action, outcome), late, ridge.remove, noise_estimation.remove)

    def _change(
        self,
        evidence: Evidence,
        told: tuple[Offer, IntArray, Outcome],
        late: int,
        of_ridge: Callable[..., Ridge],
        of_noise: Callable[..., NoiseModel],
    ) -> Evidence:
        (offer, action, outcome), weight = told, self.discount**late
        Z, y = whitened_rows(self.weighting, self.feedback, *told)
        if evidence.noise is not None:
            if self.feedback == "vector" and outcome.observed is not None and not outcome.observed.all():
                raise InputError("learned noise counts an outcome when all its metrics are there; some are missing")
            return replace(evidence, noise=of_noise(evidence.noise, offer, action, Z, y, weight))
        Z, y = Z.reshape(*Z.shape[:-3], -1, Z.shape[-1]), y.reshape(*y.shape[:-2], -1)
        return Evidence(of_ridge(evidence.ridge, Z, y, self.ridge_penalty, weight), None)

    def ready(self, evidence: Evidence) -> Evidence:
        """All the past, weighted by the noise as it is estimated from it."""
        model = evidence.noise
        if model is None or model.changes == model.fitted:
            return evidence
        penalty, ranges = self.ridge_penalty, self.ranges if self.feedback == "vector" else ()
        model, V, b = noise_estimation.refit(model, penalty=penalty, guess=self._guess, ranges=ranges)
        return Evidence(ridge.refresh(replace(evidence.ridge, V=V, b=b), penalty), model)

    def see(self, evidence: Evidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """One fit for all users, and the offer with the noise that this learner knows."""
        evidence = self.ready(evidence)
        view = self.view(evidence, offer)
        return Seen(for_each_user(self.fit(evidence, pulls, round)), view, view)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Rewards need every metric that counts; vectors need one metric, or all while their noise is learned."""
        if self.feedback == "reward":
            return rewarded(observed, preference)
        return np.asarray(observed.all(-1) if self.weighting == "learned" else observed.any(-1))

    def lost_digits(self, before: Evidence, after: Evidence) -> bool:
        """Of sums of squares where the noise is learned, since V and b follow from them; else of V and b."""
        if before.noise is None or after.noise is None:
            return ridge_lost(before.ridge, after.ridge)
        some = after.noise.n[..., None] > 0
        whole, left = (np.diagonal(e.moments, axis1=-2, axis2=-1) for e in (before.noise, after.noise))
        return bool((some & (left < LOST_SHARE * whole)).any())

    def theta(self, evidence: Evidence) -> FloatArray:
        """The estimate: (..., d)."""
        return self.ready(evidence).ridge.theta

    def coefficients(self, shape: Shape) -> int:
        return shape.d

    def fit(self, evidence: Evidence, pulls: FloatArray, round: int) -> Fit:
        state = evidence.ridge
        logdet, spread = state.logdet, None
        if state.V2 is not None:  # Russac et al. (2019): for discounted data the width is |x| in V^-1 V2 V^-1
            logdet = ridge.logdet_of(state.V2, self.ridge_penalty)
            spread = np.matmul(np.matmul(state.V_inv, state.V2), state.V_inv)
        bounds = {"noise": self.noise_bound, "norm": self.norm_bound, "regularisation": self.ridge_penalty}
        beta = ridge.oful_radius(logdet, **bounds, delta=self.delta)
        inflation = 1.0 if evidence.noise is None else evidence.noise.inflation
        return Fit(state.theta, state.V_inv, beta, spread, pulls, round, self.noise_bound, inflation)

    def view(self, evidence: Evidence, offer: Offer) -> Offer:
        """The offer with the noise as it is estimated, or unit noise; only `known` weighting keeps the offer's own."""
        if evidence.noise is None and (self.weighting != "none" or offer.sigma is None):
            return offer
        sigma = None if evidence.noise is None else noise_estimation.reward_noise(evidence.noise, offer)
        return offer.with_noise(sigma)

    @cached_property
    def _guess(self) -> float:
        return self.noise_guess * self.norm_bound**2


def whitened_rows(
    weighting: str, feedback: str, offer: Offer, action: IntArray, outcome: Outcome
) -> tuple[FloatArray, FloatArray]:
    """Z (..., m, d) and w (..., m): one row for reward feedback, M for vector feedback."""
    if feedback == "reward":
        if outcome.reward is None:
            raise InputError("reward feedback needs outcome.reward, got none")
        x, r = pick_shared(offer.features, action, 2), outcome.reward
        if weighting == "known":
            if offer.sigma is None:
                raise InputError("weighting 'known' needs the noise: give the offer sigma, or use weighting 'none'")
            s = pick_shared(offer.sigma, action, 1)
            x, r = x / s[..., None], r / s
        return x[..., None, :], np.asarray(r)[..., None]

    if outcome.vector is None:
        raise InputError("vector feedback needs outcome.vector (all metrics), got none; or use feedback 'reward'")
    if offer.maps is None:
        raise InputError("vector feedback needs the offer's maps Phi(a); or use feedback 'reward'")
    Z, y = pick_shared(offer.maps, action, 3), outcome.vector
    if weighting == "known":
        if offer.whitening is None:
            raise InputError("weighting 'known' needs the noise: give the offer a covariance, or use weighting 'none'")
        W = pick_shared(offer.whitening, action, 3)
        if offer.scale is not None:
            W = W / np.sqrt(offer.scale)[..., None, None]
        if outcome.observed is not None:
            W = marginal(W, outcome.observed)
        return np.matmul(W, Z), np.matvec(W, y)
    if outcome.observed is not None:
        return Z * outcome.observed[..., None], y * outcome.observed
    return Z, y


def marginal(W: FloatArray, observed: BoolArray) -> FloatArray:
    """A whitening of the observed metrics alone, with rows and columns of zeros for the others: (..., M, M).

    >>> W = np.linalg.inv(np.linalg.cholesky(np.array([[4.0, 1.0], [1.0, 2.0]])))
    >>> marginal(W, np.array([True, False])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    both = observed[..., :, None] & observed[..., None, :]
    covariance = np.linalg.inv(np.matmul(np.swapaxes(W, -1, -2), W))
    # A missing metric stands alone with unit variance: it then leaves the factor of the others as it is.
    alone = np.where(both, covariance, np.eye(W.shape[-1]))
    return np.where(both, np.linalg.inv(np.linalg.cholesky(alone)), 0.0)


def for_each_user(fit: Fit) -> Fit:
    """The same fit with a users' axis."""
    return replace(
        fit,
        theta=fit.theta[..., None, :],
        V_inv=fit.V_inv[..., None, :, :],
        radius=fit.radius[..., None],
        spread=None if fit.spread is None else fit.spread[..., None, :, :],
        pulls=fit.pulls[..., None, :],
        inflation=fit.inflation[..., None] if isinstance(fit.inflation, np.ndarray) else fit.inflation,
    )


def rewarded(observed: BoolArray, preference: FloatArray) -> BoolArray:
    """Whether the reward is known: every metric with a weight was observed. (..., M) -> (...)"""
    return np.asarray((observed | (preference == 0)).all(-1))


def ridge_lost(before: Ridge, after: Ridge) -> bool:
    """Whether so much was taken out of V or b that the rest is round-off, in any member of the batch."""
    gone = LOST_SHARE * np.linalg.norm(before.b - after.b, axis=-1) > np.linalg.norm(after.b, axis=-1)
    left, diagonal = np.diagonal(after.V, axis1=-2, axis2=-1), np.diagonal(before.V, axis1=-2, axis2=-1)
    return bool(gone.any() or (left < LOST_SHARE * diagonal).any())
