"""Learners: what every one of them does, and the paper's, linear regression on features.

Evidence goes in and comes out; it is a dataclass of arrays, with any batch before their own axes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.models import noise_estimation
from drimed.models.noise_estimation import Noise
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape
from drimed.numerics import arrays
from drimed.numerics import ridge as numerics_ridge
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick_shared
from drimed.numerics.ridge import Ridge

# From an outcome to whitened rows: where knowledge about the noise enters the regression.

WEIGHTINGS = ("none", "known", "learned")
FEEDBACKS = ("reward", "vector")


def rows_noise(
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
    # A metric that is not there stands alone with unit variance: it then leaves the factor of the others as it is.
    alone = np.where(both, covariance, np.eye(W.shape[-1]))
    return np.where(both, np.linalg.inv(np.linalg.cholesky(alone)), 0.0)


REFITS = ("scheduled", "converged")
# A sum that keeps less than this share of itself when something is taken out has lost its digits: what is left of a
# mistyped 1e12 among fives is round-off.
LOST_SHARE = 1e-6


class AnyLearner(Protocol):
    """From outcomes to a belief about the arms of an offer. The methods are pure."""

    @property
    def feedback(self) -> str:
        """ "reward" or "vector": what it learns from."""

    @property
    def weighting(self) -> str:
        """ "none", "known" or "learned": what it must be told, or learns, about the noise."""

    @property
    def noise_bound(self) -> float: ...

    @property
    def discount(self) -> float: ...

    @property
    def about(self) -> str:
        """In a few words."""

    @property
    def balances(self) -> bool:
        """Whether decisions that are taken together should be spread evenly over the places where they are taken."""

    @property
    def keeps_features(self) -> bool:
        """Whether its coefficients are those of the offers' own features, whoever is asked about."""

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Any:
        """No evidence, after so many episodes."""

    def age(self, evidence: Any) -> Any:
        """A new episode begins."""

    def add(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def remove(self, evidence: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def ready(self, evidence: Any) -> Any:
        """Whatever was put off is done: the evidence to decide on."""

    def see(self, evidence: Any, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """What rule and guard see of an offer: (..., n)."""

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether it can learn from outcomes of which these metrics were observed: (..., M) -> (...)."""

    def lost_digits(self, before: Any, after: Any) -> bool:
        """Whether `remove` left round-off."""

    def theta(self, evidence: Any) -> FloatArray: ...

    def coefficients(self, shape: Shape) -> int:
        """The length of a fit's theta."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What linear regression knows."""

    ridge: Ridge
    noise: Noise | None  # what is learned about the noise, or None


@final
@dataclass(frozen=True, kw_only=True)
class Learner:
    """Linear regression on outcomes, weighted by what is known about the noise.

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
    # Learned noise is fitted again on a schedule, one pass at a time (fast), or before each decision until it stands
    # still (converged): then what is decided does not depend on the order in which outcomes came.
    refits: str = "scheduled"

    keeps_features: ClassVar[bool] = True
    balances: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name, known in (("weighting", WEIGHTINGS), ("feedback", FEEDBACKS), ("refits", REFITS)):
            if getattr(self, name) not in known:
                raise ConfigError(f"{name} must be one of {known}, got {getattr(self, name)!r}")
        if not 0 < self.discount <= 1:
            raise ConfigError(f"discount must be in (0, 1], got {self.discount}")
        arrays.share("delta", self.delta)
        for name in ("noise_bound", "norm_bound", "ridge_penalty", "noise_guess"):
            if not (0 < getattr(self, name) < np.inf):
                raise ConfigError(f"{name} must be positive and finite, got {getattr(self, name)}")

    @cached_property
    def ridge_penalty(self) -> float:
        """lambda."""
        if self.regularisation is not None:
            return self.regularisation
        return (self.noise_bound / self.norm_bound) ** 2

    @cached_property
    def _guess(self) -> float:
        return self.noise_guess * self.norm_bound**2

    @property
    def about(self) -> str:
        """In a few words."""
        aged = f", discount {self.discount:g}" if self.discount < 1 else ""
        return f"{self.feedback}, {self.weighting} noise{aged}"

    # As a learner like the others: on evidence

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> Evidence:
        """Only evidence ages, so that the number of episodes does not matter."""
        del episodes
        return Evidence(self.init(shape, batch), self.init_noise(shape, batch))

    def age(self, evidence: Evidence) -> Evidence:
        """Let the evidence age by one episode."""
        noise = evidence.noise
        faded = noise if noise is None or self.discount == 1.0 else noise_estimation.fade(noise, self.discount)
        return Evidence(self.begin_episode(evidence.ridge), faded)

    def add(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """Learn from one decision, or from those of a whole episode."""
        return Evidence(*self.observe(evidence.ridge, evidence.noise, offer, action, outcome, late))

    def remove(self, evidence: Evidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Evidence:
        """Take back what `add` learned from one decision."""
        return Evidence(*self.forget(evidence.ridge, evidence.noise, offer, action, outcome, late))

    def ready(self, evidence: Evidence) -> Evidence:
        """With refits "converged", fitted."""
        found, model = self.settle(evidence.ridge, evidence.noise)
        return evidence if found is evidence.ridge else Evidence(found, model)

    def see(self, evidence: Evidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        """One fit for all users."""
        fit, seen = self.fit(evidence.ridge, evidence.noise, pulls, round), self.view(offer, evidence.noise)
        return Seen(_for_each_user(fit), seen, seen)

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Rewards need every metric that counts; vectors need one metric, or all while their noise is learned."""
        if self.feedback == "reward":
            return rewarded(observed, preference)
        return np.asarray(observed.all(-1) if self.weighting == "learned" else observed.any(-1))

    def lost_digits(self, before: Evidence, after: Evidence) -> bool:
        """Of sums of squares where the noise is learned, since V and b follow from them; else of V and b."""
        if before.noise is None or after.noise is None:
            return ridge_lost(before.ridge, after.ridge)
        there = after.noise.n[..., None] > 0
        square, left = (
            noise_estimation.squares(noise_estimation.absorb_learned(before.noise)),
            noise_estimation.squares(after.noise),
        )
        return bool((there & (left < LOST_SHARE * square)).any())

    def theta(self, evidence: Evidence) -> FloatArray:
        """The estimate: (..., d)."""
        return evidence.ridge.theta

    def coefficients(self, shape: Shape) -> int:
        """d."""
        return shape.d

    # On the regression and the noise model themselves

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> Ridge:
        """No evidence yet."""
        # While the noise is learned V follows from faded sums; V^-1 is then wider than the discounted estimate's own.
        discounted = self.discount < 1 and self.weighting != "learned"
        return numerics_ridge.init(shape.d, self.ridge_penalty, batch, discounted=discounted)

    def init_noise(self, shape: Shape, batch: tuple[int, ...] = ()) -> Noise | None:
        """Nothing learned about the noise yet; None where nothing will be."""
        if self.weighting != "learned":
            return None
        return noise_estimation.init(shape, batch, feedback=self.feedback, guess=self._guess)

    def begin_episode(self, state: Ridge) -> Ridge:
        """Let the evidence age by one episode."""
        return numerics_ridge.roll(state, self.discount, self.ridge_penalty)

    def observe(
        self, state: Ridge, model: Noise | None, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> tuple[Ridge, Noise | None]:
        """Add the outcome of playing `action` `late` episodes ago."""
        if self.weighting == "learned":
            if model is None:
                raise InputError("weighting 'learned' needs what was learned so far; start it with `init_noise`")
            for rows in self._rows(model, offer, action, outcome):
                state, model = self._add(state, model, rows, self.discount**late)
            return state, model
        Z, w = rows_noise(self.weighting, self.feedback, offer, action, outcome)
        if Z.ndim > state.V.ndim:  # a whole episode: the users' blocks of rows, one after the other
            Z, w = Z.reshape(*Z.shape[:-3], -1, Z.shape[-1]), w.reshape(*w.shape[:-2], -1)
        return numerics_ridge.observe(state, Z, w, self.ridge_penalty, self.discount**late), None

    def forget(
        self, state: Ridge, model: Noise | None, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> tuple[Ridge, Noise | None]:
        """Take one observation of `late` episodes ago out again, as if it had never come."""
        if model is not None:
            for rows in self._rows(model, offer, action, outcome):
                model = noise_estimation.remove(model, rows, self.discount**late)
            return self.refit(state, model)
        Z, w = rows_noise(self.weighting, self.feedback, offer, action, outcome)
        return numerics_ridge.remove(state, Z, w, self.ridge_penalty, self.discount**late), None

    def settle(self, state: Ridge, model: Noise | None) -> tuple[Ridge, Noise | None]:
        """What to decide on: with refits "converged", the fit that does not depend on the order of the data."""
        if model is None or self.refits != "converged" or model.seen == 0:
            return state, model
        return self.converge(state, model)

    def refit(self, state: Ridge, model: Noise, *, passes: int = 1) -> tuple[Ridge, Noise]:
        """All the past, weighted by the noise model after some more passes."""
        model, V, b = noise_estimation.refit(
            model, state.b.shape[-1], penalty=self.ridge_penalty, guess=self._guess, passes=passes
        )
        return self._replaced(state, V, b), model

    def converge(self, state: Ridge, model: Noise) -> tuple[Ridge, Noise]:
        """The state that does not depend on the order of the observations any more."""
        model, V, b = noise_estimation.converge(model, state.b.shape[-1], penalty=self.ridge_penalty, guess=self._guess)
        return self._replaced(state, V, b), model

    def fit(self, state: Ridge, model: Noise | None, pulls: FloatArray, round: int) -> Fit:
        """The view that rules and guards decide on."""
        logdet, spread = state.logdet, None
        if state.V2 is not None:  # Russac et al. (2019): for discounted data the width is |x| in V^-1 V2 V^-1
            logdet = numerics_ridge.logdet_of(state.V2, self.ridge_penalty)
            spread = np.matmul(np.matmul(state.V_inv, state.V2), state.V_inv)
        beta = numerics_ridge.oful_radius(
            logdet, noise=self.noise_bound, norm=self.norm_bound, regularisation=self.ridge_penalty, delta=self.delta
        )
        inflation = 1.0 if model is None else model.inflation
        return Fit(state.theta, state.V_inv, beta, spread, pulls, round, self.noise_bound, inflation)

    def view(self, offer: Offer, model: Noise | None) -> Offer:
        """The offer as this learner sees it: with the noise that it estimates, or the unit noise of V's own rows.

        Only `known` weighting passes on what the offer says about the noise.
        """
        if model is not None:
            return _with_noise(offer, noise_estimation.reward_noise_learned(model, offer))
        if self.weighting == "none" and offer.sigma is not None:
            return _with_noise(offer, None)
        return offer

    def _rows(self, model: Noise, offer: Offer, action: IntArray, outcome: Outcome) -> list[noise_estimation.Rows]:
        """One outcome as it came, or those of a whole episode, one user after the other."""
        if self.feedback == "vector" and outcome.observed is not None and not outcome.observed.all():
            raise InputError("learned noise counts an outcome when all its metrics are there; some are missing")
        rows = noise_estimation.rows(model, offer, action, *rows_noise("none", self.feedback, offer, action, outcome))
        if action.ndim == len(model.batch):
            return [rows]
        return [noise_estimation.of_user(rows, h) for h in range(action.shape[-1])]

    def _add(self, state: Ridge, model: Noise, rows: noise_estimation.Rows, weight: float) -> tuple[Ridge, Noise]:
        more = noise_estimation.add(model, rows, weight)
        if self.refits == "scheduled" and noise_estimation.is_due(more):
            return self.refit(state, more)
        return numerics_ridge.observe(state, *noise_estimation.whitened(more, rows), self.ridge_penalty, weight), more

    def _replaced(self, state: Ridge, V: FloatArray, b: FloatArray) -> Ridge:
        return numerics_ridge.refresh(replace(state, V=V, b=b), self.ridge_penalty)


def rewarded(observed: BoolArray, preference: FloatArray) -> BoolArray:
    """Whether the reward is known: every metric with a weight was observed. (..., M) -> (...)"""
    return np.asarray((observed | (preference == 0)).all(-1))


def ridge_lost(before: Ridge, after: Ridge) -> bool:
    """Whether so much was taken out of V or b that what is left is round-off, in any member of the batch."""
    gone = LOST_SHARE * np.linalg.norm(before.b - after.b, axis=-1) > np.linalg.norm(after.b, axis=-1)
    left, diagonal = np.diagonal(after.V, axis1=-2, axis2=-1), np.diagonal(before.V, axis1=-2, axis2=-1)
    return bool(gone.any() or (left < LOST_SHARE * diagonal).any())


def _for_each_user(fit: Fit) -> Fit:
    """The same fit for every user of an episode: an axis before the core axes."""
    return Fit(
        fit.theta[..., None, :],
        fit.V_inv[..., None, :, :],
        fit.radius[..., None],
        None if fit.spread is None else fit.spread[..., None, :, :],
        fit.pulls[..., None, :],
        fit.round,
        fit.noise_bound,
        fit.inflation[..., None] if isinstance(fit.inflation, np.ndarray) else fit.inflation,
    )


def _with_noise(offer: Offer, sigma: FloatArray | None) -> Offer:
    return Offer(
        features=offer.features,
        control=offer.control,
        sigma=sigma,
        maps=offer.maps,
        preference=offer.preference,
        context=offer.context,
        available=offer.available,
        user=offer.user,
        floor=offer.floor,
    )
