"""Benefit of a trial's decisions against giving all users the control: by season, by user, and in sentences.

Rewards of arms are estimated with all present outcomes, without chance in single ones. In a mixed model a sum over
decisions is one combination of effects; it changes with every decision, so its range fails with 5 % at each look. Each
decision counts in its own context, for its own user, in an average season.
Shapes: n decisions, L episodes, H users, K arms, U different offers, M metrics.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from drimed.formatting import ENDLESS, amount, listed
from drimed.models.mixed.effects import EffectPosterior, FittedModel
from drimed.models.mixed.prediction import parts_of
from drimed.models.offer import Fit, Offer
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.reports.effects import Inference
from drimed.trial.dataset import Dataset
from drimed.trial.estimates import with_room

ROUND_OFF = 1e-9  # of a decision that is the control itself, relative to its reward
NUMBERS_EACH = 62_500  # of a user: 64 users are worked on together
MOST_NAMED = 5  # users in one sentence


class Sums(NamedTuple):
    """Gains with their ranges: to the end of each episode, or over the decisions of each user."""

    value: FloatArray  # (L,) or (H,)
    low: FloatArray
    high: FloatArray


class Gains(NamedTuple):
    control: FloatArray  # (n,), the control's expected reward
    mixed: FloatArray  # (n,), of the lottery that the arm was drawn from, minus the control's
    total: Sums  # (L,), of the drawn arms
    by_user: Sums  # (H,)


@dataclass(frozen=True)
class UserBalance:
    """One user against the control, all its decisions together."""

    user: str
    decisions: int
    gain: float
    low: float
    high: float
    allowed: float  # minus the tolerance
    shortfalls: int  # decisions expected to be below the tolerance

    @property
    def verdict(self) -> str:
        return "worse off" if self.high < 0 else "not worse off" if self.low >= 0 else "open"


@dataclass(frozen=True)
class Benefit:
    """Cumulative numbers at the end of each episode, by the present estimates."""

    episode: IntArray  # (L,), from 1
    allocation: IntArray  # (L, K), decisions by arm
    held: IntArray  # (L,), choices that the guard changed
    gain: FloatArray  # (L,), expected reward of the arms given so far, minus the control's
    gain_low: FloatArray  # (L,), at all times by the paper's model; at this look by a mixed model
    gain_high: FloatArray  # (L,)
    allowed: FloatArray  # (L,), minus the tolerance so far: below it the promise is broken
    expected_shortfalls: int  # decisions expected to fall below the tolerance
    users: list[UserBalance]  # with a decision, in their order

    @property
    def verdict(self) -> str:
        """The promise so far, all decisions together."""
        if not len(self.gain) or self.gain_low[-1] >= self.allowed[-1]:
            return "the agreed limit was kept"
        if self.gain_high[-1] < self.allowed[-1]:
            return "the agreed limit was not kept"
        if self.gain[-1] >= self.allowed[-1]:
            return "the agreed limit was kept by the estimate, but not certainly"
        return "by the estimate the agreed limit was not kept, but not certainly"

    def describe(self, unit: str, *, users: str, largest: float, withdrawn: bool, named: bool = True) -> list[str]:
        """Sentences on losers and the worst case; `largest` is the largest effect of an arm that can be given."""
        if not self.users:
            return []
        text = [self._losers(unit, users, withdrawn, named)]
        low, limit = float(self.gain_low[-1]), float(self.allowed[-1])
        if not withdrawn and -ENDLESS < low < 0:
            even, side = ("Even the worst case", "above") if low >= limit else ("The worst case", "below")
            of_all = f"{even} for all together, {amount(low, unit)}"
            text.append(f"{of_all}, is {side} the agreed limit, {amount(limit, unit)}.")
        each = -limit / max(1, int(self.allocation.sum()))
        if 0 < largest < each:
            text.append(
                f"This limit allows {amount(each, unit)} in each decision, and the largest estimated effect of an arm "
                f"is {amount(largest, unit)}: keeping it promises little. A smaller tolerance would promise more."
            )
        return text

    def _losers(self, unit: str, users: str, withdrawn: bool, named: bool) -> str:
        lost = sorted((x for x in self.users if x.gain < ROUND_OFF * x.allowed), key=lambda x: x.gain)
        if not lost:
            return f"None of {len(self.users):,} {users} is estimated to have earned less than under the control."
        names = listed([f"{x.user} {amount(x.gain, unit)}" for x in lost], MOST_NAMED, ", ")
        sure = sum(x.verdict == "worse off" for x in lost)
        certainly = f"{sure:,} of them certainly" if sure else "none of them certainly"
        if withdrawn:
            certainly = "without a guarantee, because the model is wrong"
        some = f"{len(lost):,} of {len(self.users):,} {users} {'is' if len(lost) == 1 else 'are'}"
        less = "estimated to have earned less than under the control"
        names = f", all their decisions together: {names}" * named
        return f"{some} {less}{names}; {certainly}."


def benefit(data: Dataset, fit: Inference) -> Benefit:
    state = data.state
    H, K, L = len(state.users), len(state.problem.arms), state.episode.number
    place = data.episode - 1
    allocation = np.bincount(place * K + data.arm, minlength=L * K).reshape(L, K)
    if not len(data.arm):
        none, zero = np.zeros(0), np.zeros(L)
        gains = Gains(none, none, Sums(zero, zero, zero), Sums(none, none, none))
    else:
        gains = mixed_gains(data, fit) if isinstance(fit, FittedModel) else _regression_gains(data, fit)
    tolerance = getattr(state.policy.guard, "tolerance", None) if isinstance(state.policy, Policy) else None
    tolerance = tolerance or Tolerance(relative=state.spec.tolerance.relative, absolute=state.spec.tolerance.absolute)
    allowed = tolerance.allowed(gains.control)  # (n,)
    short: BoolArray = gains.mixed + allowed < -ROUND_OFF * (1 + np.abs(gains.control))
    counts, limits, falls = (np.bincount(data.user, w, H) for w in (None, -allowed, short))
    return Benefit(
        episode=np.arange(1, L + 1),
        allocation=allocation,
        held=np.bincount(place, data.held, L).astype(np.intp),
        gain=gains.total.value,
        gain_low=gains.total.low,
        gain_high=gains.total.high,
        allowed=-np.bincount(place, allowed, L).cumsum(),
        expected_shortfalls=int(short.sum()),
        users=[
            UserBalance(user, int(counts[h]), gain, low, high, float(limits[h]), int(falls[h]))
            for h, (user, gain, low, high) in enumerate(zip(state.users, *map(list, gains.by_user), strict=False))
            if counts[h]
        ],
    )


def _regression_gains(data: Dataset, fit: Fit) -> Gains:
    """By the paper's regression, in a typical context."""
    n, K, d = len(data.slot), len(data.state.problem.arms), fit.theta.shape[-1]
    x0, given, mixed = np.zeros((3, n, d))  # x_0; x_a - x_0 of the drawn arm; sum_a p_a (x_a - x_0)
    for slot in np.unique(data.slot):
        profile, typical = data.state.profiles[int(slot)], data.state.problem.covariates.typical
        offer = data.state.problem.offer([profile], [typical], [None])
        x, control, at = offer.features[0], offer.control_features[0], data.slot == slot
        x0[at] = control
        given[at] = x[data.arm[at]] - control
        mixed[at] = data.probabilities[at] @ x[:K] - control
    radius = float(fit.radius * np.sqrt(fit.inflation))

    def half(rows: FloatArray) -> FloatArray:
        return radius * np.sqrt(np.maximum(np.einsum("nd,de,ne->n", rows, fit.metric, rows), 0.0))

    def summed(place: IntArray, size: int, *, running: bool) -> Sums:
        rows = np.zeros((size, d))
        np.add.at(rows, place, given)
        rows = rows.cumsum(0) if running else rows
        value = rows @ fit.theta
        return Sums(value, value - half(rows), value + half(rows))

    total = summed(data.episode - 1, data.state.episode.number, running=True)
    by_user = summed(data.user, len(data.state.users), running=False)
    return Gains(x0 @ fit.theta, mixed @ fit.theta, total, by_user)


def mixed_gains(data: Dataset, fit: FittedModel) -> Gains:
    """By a mixed model, of users themselves or of users alike as it promises."""
    n, K, H = len(data.slot), fit.structure.arms, len(data.state.users)
    control, mixed = np.zeros((2, n))
    for at, which, offers in _different_offers(data, np.arange(n)):
        reward = np.einsum("ukm,um->uk", fit.means(offers), fit.preferences(offers))
        control[at] = (offers.control * reward).sum(-1)[which]
        # Of the arms in each decision's lottery, minus the control's.
        w = with_room(data.probabilities[at], K) - offers.control[which]
        w[np.abs(w).max(-1) < ROUND_OFF] = 0.0  # the control itself, written in decimals
        mixed[at] = (w * reward[which]).sum(-1)
    total = _summed_effects(data, fit, np.arange(n), data.episode - 1, data.state.episode.number, running=True)
    by_user = np.zeros((3, H))
    for some in parts_of(H, NUMBERS_EACH):
        theirs = np.flatnonzero((data.user >= some.start) & (data.user < some.stop))
        if len(theirs):
            sums = _summed_effects(data, fit, theirs, data.user - some.start, some.stop - some.start)
            by_user[:, some] = sums.mean, *sums.at_all_times()
    return Gains(control, mixed, Sums(total.mean, *total.at_all_times()), Sums(*by_user))


def _summed_effects(
    data: Dataset, fit: FittedModel, decisions: IntArray, place: IntArray, size: int, *, running: bool = False
) -> EffectPosterior:
    """Posterior of the drawn arms' effects, summed over the decisions of each place, or of all places so far."""
    parts = []
    for at, which, offers in _different_offers(data, decisions):
        contrast = np.eye(fit.structure.arms)[data.arm[at]] - offers.control[which]  # (n, K)
        weights = np.zeros((size, len(offers.control), *contrast.shape[1:], fit.structure.metrics))
        np.add.at(weights, (place[at], which), contrast[:, :, None] * fit.preferences(offers)[which][:, None, :])
        parts.append((offers, weights.cumsum(0) if running else weights))
    return fit.posterior(parts, fit.learner.promise)


def _different_offers(data: Dataset, decisions: IntArray) -> Iterator[tuple[IntArray, IntArray, Offer]]:
    """Different offers, some at a time: the decisions with these, the number of each one's offer, and the offers."""
    asked = data.slot[:, None] if data.context is None else np.column_stack([data.slot, data.context])
    _, first, which = np.unique(asked[decisions], axis=0, return_index=True, return_inverse=True)
    which, first = which.reshape(-1), decisions[first]
    order = np.argsort(which, kind="stable")
    ends = np.searchsorted(which[order], np.arange(len(first) + 1))
    for part in parts_of(len(first), 1):
        at = order[ends[part.start] : ends[part.stop]]
        yield decisions[at], which[at] - part.start, data.offers(first[part])
