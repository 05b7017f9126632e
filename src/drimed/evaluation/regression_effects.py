"""Effects against the control from the regression, for users and groups, at all times at once.

Every effect is a linear functional of theta: the reward of arm a against the control has w = x_a - x_0. The
self-normalised bound |<w, theta> - <w, theta_hat>| <= radius |w|_{V^-1} (Abbasi-Yadkori et al., 2011, Thm 2) holds for
all w and all times together, however the arms were chosen. It assumes that the mean is linear with one theta and that
theta and the noise keep the learner's bounds; it assumes nothing about the policy.
Shapes: leading `...` is any batch; H users, K arms, d features.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, final

import numpy as np

from drimed import streams
from drimed.errors import ConfigError, InputError
from drimed.models.offer import Fit, Offer
from drimed.numerics import quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick

NUMBERS_AT_ONCE = 4_000_000  # draws times users times arms: bounds the memory


@final
@dataclass(frozen=True, slots=True)
class Effects:
    """Estimates with two-sided intervals."""

    estimate: FloatArray  # (..., K)
    low: FloatArray  # (..., K)
    high: FloatArray  # (..., K)


@final
@dataclass(frozen=True, slots=True)
class Recommendation:
    """One arm for each user, and its lead over the next."""

    arm: IntArray  # (...), largest estimated mean reward
    runner_up: IntArray  # (...), the arm that comes closest; the arm itself where there is no other
    margin: FloatArray  # (...), estimated lead over the runner-up; infinite where there is no other
    best: FloatArray  # (...), posterior probability that it is the best


def reward_effects(fit: Fit, offer: Offer) -> Effects:
    """Effect of each arm on the reward, against the user's own control: (..., K).

    `offer` may carry the users as one more batch axis than the fit: then (..., H, K).

    >>> fit = Fit(np.array([1.0, 2.0]), np.eye(2) / 4, np.asarray(3.0), None, np.zeros(2), 1, 1.0)
    >>> effects = reward_effects(fit, Offer(features=np.eye(2), control=np.array([1.0, 0.0])))
    >>> effects.estimate.tolist(), effects.low.round(3).tolist()
    ([0.0, 1.0], [0.0, -1.121])
    """
    return _functionals(_with_users_axis(fit, offer), offer.features - offer.control_features[..., None, :])


def group_effects(fit: Fit, offers: Offer, members: Sequence[int]) -> Effects:
    """Effect of each arm on the mean reward of some users: (..., K). `offers` has the users as last batch axis.

    The functional of a group is the mean of its users' ones, so its interval is shorter than the mean of theirs.
    """
    w = offers.features - offers.control_features[..., None, :]  # (..., H, K, d)
    H = w.shape[-3]
    if not len(members) or min(members) < 0 or max(members) >= H:
        raise InputError(f"a group must be some of the users 0 to {H - 1}, got {list(members)}")
    return _functionals(fit, w[..., list(members), :, :].mean(-3))


def best_probabilities(fit: Fit, offer: Offer, *, seed: int, draws: int = 10_000) -> FloatArray:
    """P(best): how often each arm is best under draws of theta from its normal posterior: (..., K).

    A statement about belief (a flat prior, normal noise), not a guarantee. All users see the same draws.
    """
    if draws < 1:
        raise ConfigError(f"draws must be at least 1, got {draws}")
    fit = _with_users_axis(fit, offer)
    scale = np.asarray(fit.noise_bound**2 * np.asarray(fit.inflation), np.float64)[..., None, None]
    values, vectors = np.linalg.eigh(fit.metric * scale)
    root = vectors * np.sqrt(np.maximum(values, 0.0))[..., None, :]  # of a covariance that may be singular
    z = streams.generator(seed, "posterior").standard_normal((draws, fit.theta.shape[-1]))
    x, available = offer.features, offer.available
    again: Any = ...
    if x.ndim == 3 and len(fit.theta) == 1:  # one fit for all users, of whom many may be alike
        available = None if available is None else np.broadcast_to(available, x.shape[:-1])
        rows = [x.reshape(len(x), -1), *([] if available is None else [available])]
        _, first, again = np.unique(np.concatenate(rows, -1), axis=0, return_index=True, return_inverse=True)
        x, available, again = x[first], None if available is None else available[first], again.reshape(-1)
    batch, K = np.broadcast_shapes(x.shape[:-2], fit.theta.shape[:-1]), x.shape[-2]
    members = np.arange(math.prod(batch)).reshape(batch) * K
    wins = np.zeros(math.prod(batch) * K)
    at_once = max(1, NUMBERS_AT_ONCE // max(1, wins.size))
    for at in range(0, draws, at_once):
        some = z[at : at + at_once]  # (n, d)
        shape = (len(some), *(1,) * (root.ndim - 2), some.shape[-1])
        theta = fit.theta + np.matvec(root, some.reshape(shape))  # (n, ..., d)
        value = _masked(np.matvec(x, theta), available)
        wins += np.bincount((value.argmax(-1) + members).ravel(), minlength=wins.size)
    return np.asarray(wins.reshape(*batch, K)[again]) / draws


def recommend(
    fit: Fit, offer: Offer, *, seed: int, draws: int = 10_000, among: BoolArray | None = None
) -> Recommendation:
    """The arm of largest estimated reward for each user, with its lead over the next.

    Both are chosen `among` these available arms, (..., K); None: all. The chance of being best is against all of them.
    """
    p = best_probabilities(fit, offer, seed=seed, draws=draws)
    possible = offer.available
    if among is not None:
        possible = among if possible is None else among & possible
    means = _with_users_axis(fit, offer).mean(offer.features)  # (..., K)
    arm: IntArray = np.asarray(_masked(means, possible).argmax(-1))
    other = np.arange(means.shape[-1]) != arm[..., None]
    if possible is not None:
        other = other & possible
    gap = np.where(other, pick(means, arm)[..., None] - means, np.inf)
    runner_up = np.where(other.any(-1), gap.argmin(-1), arm)
    return Recommendation(arm, runner_up, gap.min(-1), np.asarray(pick(p, arm)))


def _functionals(fit: Fit, w: FloatArray) -> Effects:
    """<w, theta> with its interval: (..., n, d) -> (..., n)."""
    estimate = np.matvec(w, fit.theta)
    radius = np.asarray(fit.radius * np.sqrt(fit.inflation))[..., None]
    half = radius * np.sqrt(quadratic_forms.leverages(w, fit.metric))
    return Effects(estimate, estimate - half, estimate + half)


def _with_users_axis(fit: Fit, offer: Offer) -> Fit:
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


def _masked(value: FloatArray, available: BoolArray | None) -> FloatArray:
    return value if available is None else np.where(available, value, -np.inf)
