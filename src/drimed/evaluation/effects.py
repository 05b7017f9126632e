"""Effects against the control from the regression: for users, groups, arms and metrics, at all times at once.

Every effect is a linear functional of theta: the reward of arm a against the control has w = x_a - x_0, metric m has
w = Phi_m(a) - sum_b pi_0(b) Phi_m(b). The self-normalised bound |<w, theta> - <w, theta_hat>| <= radius |w|_{V^-1}
(Abbasi-Yadkori et al., 2011, Thm 2) holds for all w and all times together, however the arms were chosen. It assumes
that the mean is linear with one theta, that theta and the noise keep the learner's bounds, and nothing about the
policy. Shapes: leading `...` is any batch; H users, K arms, M metrics, d features.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, InputError
from drimed.learning.offer import Fit, Offer
from drimed.linear import forms
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

ALL_TIMES = "at all times at once"
EACH_EPISODE = "in each episode, not in all at once: old evidence is forgotten"
LEARNED = "approximately: the noise is itself estimated"

NUMBERS_AT_ONCE = 4_000_000  # draws times users times arms: bounds the memory


@final
@dataclass(frozen=True, slots=True)
class Effects:
    """Estimates with two-sided intervals, and in which sense these hold."""

    estimate: FloatArray  # (..., K) or (..., K, M)
    low: FloatArray
    high: FloatArray
    holds: str

    @property
    def better(self) -> BoolArray:
        """Certainly above the control."""
        return self.low > 0

    @property
    def worse(self) -> BoolArray:
        """Certainly below the control."""
        return self.high < 0


@final
@dataclass(frozen=True, slots=True)
class Recommendation:
    """One arm for each user, and how far ahead it is."""

    arm: IntArray  # (...), largest estimated mean reward among the available arms
    runner_up: IntArray  # (...), the arm that comes closest; the arm itself where there is no other
    margin: FloatArray  # (...), estimated lead over the runner-up; infinite where there is no other
    certain_margin: FloatArray  # (...), by how much it leads every other arm at least; below zero: not certain
    best: FloatArray  # (...), posterior probability that it is the best
    effect: FloatArray  # (...), estimated effect against the control
    effect_low: FloatArray  # (...), which the effect exceeds with the learner's confidence


def reward_effects(fit: Fit, offer: Offer) -> Effects:
    """Of each arm on the reward, against the user's own control: (..., K).

    `offer` may carry the users as one more batch axis than the fit: then (..., H, K).

    >>> fit = Fit(np.array([1.0, 2.0]), np.eye(2) / 4, np.asarray(3.0), None, np.zeros(2), 1, 1.0)
    >>> effects = reward_effects(fit, Offer(features=np.eye(2), control=np.array([1.0, 0.0])))
    >>> effects.estimate.tolist(), effects.low.round(3).tolist()
    ([0.0, 1.0], [0.0, -1.121])
    """
    fit = _aligned(fit, offer)
    return _of(fit, offer.features - offer.control_features[..., None, :])


def metric_effects(fit: Fit, offer: Offer) -> Effects:
    """Of each arm on each metric, against the user's own control: (..., K, M)."""
    fit = _aligned(fit, offer)
    if offer.maps is None:
        raise InputError("effects on metrics need the arms' maps Phi; this offer has reward features only")
    control = np.einsum("...k,...kmd->...md", offer.control, offer.maps)
    w = offer.maps - control[..., None, :, :]  # Phi_m(a) - Phi_m(control)
    K, M, d = w.shape[-3:]
    flat = _of(fit, w.reshape(*w.shape[:-3], K * M, d))
    parts = flat.estimate, flat.low, flat.high
    estimate, low, high = (part.reshape(*part.shape[:-1], K, M) for part in parts)
    return Effects(estimate, low, high, flat.holds)


def group_effects(fit: Fit, offers: Offer, groups: Mapping[str, Sequence[int]]) -> dict[str, Effects]:
    """Of each arm on the mean reward of a group of users: name -> (..., K). `offers` has the users as last batch axis.

    The functional of a group is the mean of its users' ones, so its interval is shorter than the mean of theirs.
    """
    w = offers.features - offers.control_features[..., None, :]  # (..., H, K, d)
    H = w.shape[-3]
    found = {}
    for name, members in groups.items():
        if not len(members) or min(members) < 0 or max(members) >= H:
            raise InputError(f"group {name!r} must be some of the users 0 to {H - 1}, got {list(members)}")
        found[name] = _of(fit, w[..., list(members), :, :].mean(-3))
    return found


def best_probabilities(fit: Fit, offer: Offer, *, seed: int, draws: int = 10_000) -> FloatArray:
    """P(best): how often each arm is best under draws of theta from its normal posterior: (..., K).

    A statement about belief (a flat prior, normal noise), not a guarantee. All users see the same draws.
    """
    if draws < 1:
        raise ConfigError(f"draws must be at least 1, got {draws}")
    fit = _aligned(fit, offer)
    scale = np.asarray(fit.noise_bound**2 * np.asarray(fit.inflation), np.float64)[..., None, None]
    values, vectors = np.linalg.eigh(fit.metric * scale)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]  # of a covariance that may be singular
    z = streams.generator(seed, "posterior").standard_normal((draws, fit.theta.shape[-1]))
    x, available = offer.features, offer.available
    again: Any = ...
    if x.ndim == 3 and len(fit.theta) == 1:  # one fit for all users, of whom many may be alike
        available = None if available is None else np.broadcast_to(available, x.shape[:-1])
        first, again = _distinct(x, available)
        x, available = x[first], None if available is None else available[first]
    batch, K = np.broadcast_shapes(x.shape[:-2], fit.theta.shape[:-1]), x.shape[-2]
    members = np.arange(math.prod(batch)).reshape(batch) * K
    wins = np.zeros(math.prod(batch) * K)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, wins.size))
    for at in range(0, draws, at_once):
        some = z[at : at + at_once]  # (n, d)
        shape = (len(some), *(1,) * (root.ndim - 2), some.shape[-1])
        theta = fit.theta + np.matvec(root, some.reshape(shape))  # (n, ..., d)
        value = _allowed(np.matvec(x, theta), available)
        wins += np.bincount((value.argmax(-1) + members).ravel(), minlength=wins.size)
    return np.asarray(wins.reshape(*batch, K)[again]) / draws


def _distinct(x: FloatArray, available: BoolArray | None) -> tuple[IntArray, IntArray]:
    """The first of all users who are offered the same, and for each user which of them that is: (u,), (H,)."""
    rows = [x.reshape(len(x), -1), *([] if available is None else [available])]
    _, first, again = np.unique(np.concatenate(rows, -1), axis=0, return_index=True, return_inverse=True)
    return first, again.reshape(-1)


def recommend(
    fit: Fit, offer: Offer, *, seed: int, draws: int = 10_000, among: BoolArray | None = None
) -> Recommendation:
    """The arm of largest estimated reward for each user, with its lead over the next.

    Both are chosen `among` these available arms, (..., K); None: all. The chance of being best is against all of them.
    """
    p = best_probabilities(fit, offer, seed=seed, draws=draws)
    against_control = reward_effects(fit, offer)
    fit = _aligned(fit, offer)
    x, possible = offer.features, offer.available
    if among is not None:
        possible = among if possible is None else among & possible
    arm: IntArray = np.asarray(_allowed(fit.mean(x), possible).argmax(-1))
    lead = _of(fit, pick(np.broadcast_to(x, (*arm.shape, *x.shape[-2:])), arm)[..., None, :] - x)  # (..., K)
    K = x.shape[-2]
    other = np.arange(K) != arm[..., None]
    if possible is not None:
        other = other & possible
    gap = np.where(other, lead.estimate, np.inf)
    second = np.where(other.any(-1), gap.argmin(-1), arm)
    return Recommendation(
        arm,
        second,
        gap.min(-1),
        np.where(other, lead.low, np.inf).min(-1),
        np.asarray(pick(p, arm)),
        np.asarray(pick(against_control.estimate, arm)),
        np.asarray(pick(against_control.low, arm)),
    )


def _of(fit: Fit, w: FloatArray) -> Effects:
    """The functionals <w, theta>: (..., n, d) -> (..., n)."""
    estimate = np.matvec(w, fit.theta)
    radius = np.asarray(fit.radius * np.sqrt(fit.inflation))[..., None]
    half = radius * np.sqrt(forms.leverages(w, fit.metric))
    holds = ALL_TIMES if fit.spread is None else EACH_EPISODE
    if np.any(np.asarray(fit.inflation) != 1.0):
        holds = LEARNED
    return Effects(estimate, estimate - half, estimate + half, holds)


def _aligned(fit: Fit, offer: Offer) -> Fit:
    """The fit with an axis for the users, where the offer has one more than the fit."""
    if offer.features.ndim - 2 <= fit.theta.ndim - 1:
        return fit
    return replace(
        fit,
        theta=fit.theta[..., None, :],
        V_inv=fit.V_inv[..., None, :, :],
        radius=np.asarray(fit.radius)[..., None],
        spread=None if fit.spread is None else fit.spread[..., None, :, :],
        pulls=fit.pulls[..., None, :],
        inflation=fit.inflation[..., None] if isinstance(fit.inflation, np.ndarray) else fit.inflation,
    )


def _allowed(value: FloatArray, available: BoolArray | None) -> FloatArray:
    return value if available is None else np.where(available, value, -np.inf)
