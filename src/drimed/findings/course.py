"""The course of a trial, episode by episode: who got what, and what that is worth against giving everybody the control.

What arms are worth is estimated with everything that is known now; chance in single outcomes is not part of it, so a
trial that only gave the control has gained exactly nothing.
Shapes: n decisions, L episodes, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.findings import field_worth
from drimed.findings.field_worth import Summed, Worth
from drimed.findings.inference import Inference
from drimed.guards.margin import Tolerance
from drimed.learning.field.contrasts import Known
from drimed.learning.offer import Fit
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.trial.gather import Gathered
from drimed.trial.model_ranges import typical_context

ROUND_OFF = 1e-9  # of a decision that is the control itself, relative to its reward


@dataclass(frozen=True)
class ByUser:
    """What each user gained or lost, all its decisions together: (H,), in the order of the users."""

    decisions: IntArray
    gain: FloatArray  # expected reward of the arms that were given, minus the control's, as estimated now
    low: FloatArray | None  # for each user by itself; None: not worked out
    high: FloatArray | None
    allowed: FloatArray  # minus the tolerance
    shortfalls: IntArray  # decisions expected to fall below the tolerance


@dataclass(frozen=True)
class Course:
    """Cumulative numbers at the end of each episode, from the estimate as it is now."""

    episode: IntArray  # (L,), from 1
    allocation: IntArray  # (L, K), decisions by arm
    held: IntArray  # (L,), choices that the guard changed
    gain: FloatArray  # (L,), expected reward of the arms that were given so far, minus the control's, as estimated
    gain_low: FloatArray  # (L,), guaranteed at all times by the paper's model; at this look by those of the field
    gain_high: FloatArray  # (L,)
    allowed: FloatArray  # (L,), minus the tolerance so far: below it the promise is broken
    expected_shortfalls: int  # decisions expected to fall below the tolerance, judged by the estimate as it is now
    certain_shortfalls: int  # of these, certainly so
    by_user: ByUser

    @property
    def verdict(self) -> str:
        """Whether the promise was kept so far, all decisions together."""
        if not len(self.gain) or self.gain_low[-1] >= self.allowed[-1]:
            return "certainly within the tolerance"
        if self.gain_high[-1] < self.allowed[-1]:
            return "certainly below what the tolerance allows"
        if self.gain[-1] >= self.allowed[-1]:
            return "within the tolerance as estimated, but not certainly so"
        return "below what the tolerance allows as estimated, but not certainly so"


def course(seen: Gathered, fit: Inference) -> Course:
    """The whole course so far."""
    state = seen.state
    K, L = len(state.problem.arms), state.episode.number
    allocation = np.zeros((L, K), np.intp)
    np.add.at(allocation, (seen.episode - 1, seen.arm), 1)
    held = np.bincount(seen.episode - 1, seen.held, L).astype(np.intp) if L else np.zeros(0, np.intp)
    worth = field_worth.worth(seen, fit) if isinstance(fit, Known) else _worth(seen, fit)
    allowed = _tolerance(seen).allowed(worth.control)
    limit = -np.bincount(seen.episode - 1, allowed, L).cumsum()
    short: BoolArray = worth.mixed + allowed < -ROUND_OFF * (1 + np.abs(worth.control))
    certain = short & (worth.mixed_high + allowed < 0)
    shortfalls = int(short.sum()), int(certain.sum())
    by_user = _by_user(seen, worth, allowed, short)
    return Course(np.arange(1, L + 1), allocation, held, *worth.total, limit, *shortfalls, by_user)


def _by_user(seen: Gathered, worth: Worth, allowed: FloatArray, short: BoolArray) -> ByUser:
    H, summed = len(seen.state.users), worth.by_user
    counts, falls = (np.bincount(seen.user, w, H).astype(np.intp) for w in (None, short))
    gain, limit = (np.bincount(seen.user, w, H).astype(np.float64) for w in (worth.drawn, -allowed))
    low, high = (None, None) if summed is None else (summed.low, summed.high)
    return ByUser(counts, gain, low, high, limit, falls)


def _worth(seen: Gathered, fit: Fit) -> Worth:
    """By the paper's regression."""
    state = seen.state
    K = len(state.problem.arms)
    n, d = len(seen.slot), fit.theta.shape[-1]
    x0 = np.zeros((n, d))
    given = np.zeros((n, d))  # x_a - x_0 of the arm that was drawn
    mixed = np.zeros((n, d))  # sum_a p_a (x_a - x_0)
    for slot in np.unique(seen.slot):
        offer = state.problem.offer(state.profiles[int(slot)], typical_context(state), None)
        at = seen.slot == slot
        x0[at] = offer.control_features
        given[at] = offer.features[seen.arm[at]] - offer.control_features
        mixed[at] = seen.probabilities[at] @ offer.features[:K] - offer.control_features
    expected = mixed @ fit.theta
    wide = _radius(fit) * np.sqrt(np.maximum(np.einsum("nd,de,ne->n", mixed, fit.metric, mixed), 0.0))
    own = np.zeros((len(state.users), d))
    np.add.at(own, seen.user, given)
    return Worth(x0 @ fit.theta, expected, expected + wide, given @ fit.theta, _added(seen, fit, given), _of(fit, own))


def summed(seen: Gathered, fit: Inference, weights: FloatArray) -> Summed:
    """The arms' rewards with weights (n, K) that add up to zero in each decision, at the end of each episode."""
    if isinstance(fit, Known):
        return field_worth.summed(seen, fit, weights)
    state, x = seen.state, np.zeros((len(seen.slot), fit.theta.shape[-1]))
    for slot in np.unique(seen.slot):
        offer = state.problem.offer(state.profiles[int(slot)], typical_context(state), None)
        at = seen.slot == slot
        x[at] = weights[at] @ offer.features[: weights.shape[-1]]
    return _added(seen, fit, x)


def _added(seen: Gathered, fit: Fit, x: FloatArray) -> Summed:
    """Of each decision's features (n, d)."""
    total = np.zeros((seen.state.episode.number, x.shape[-1]))
    np.add.at(total, seen.episode - 1, x)
    return _of(fit, total.cumsum(0))


def _of(fit: Fit, total: FloatArray) -> Summed:
    """Of some sums of features, (..., d)."""
    value = total @ fit.theta
    half = _radius(fit) * np.sqrt(np.maximum(np.einsum("ld,de,le->l", total, fit.metric, total), 0.0))
    return Summed(value, value - half, value + half)


def _radius(fit: Fit) -> float:
    return float(fit.radius * np.sqrt(fit.inflation))


def _tolerance(seen: Gathered) -> Tolerance:
    policy = seen.state.policy
    own = getattr(policy.guard, "tolerance", None) if isinstance(policy, Policy) else None
    said = seen.state.spec.tolerance
    return own or Tolerance(relative=said.relative, absolute=said.absolute)
