"""Effects on the reward from propensities alone, for some users together: no model of the mean is believed.

What is estimated is the average effect of the arm against each user's own control, over the decisions so far at which
both had a chance; users whose control the arm is count with an effect of zero. Only the arms of a contrast matter: the
arm, and arms that are somebody's control. Shapes: n decisions, C arms that are somebody's control, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.evaluation import scores
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Effect
from drimed.trial.gather import Gathered

REWARD = "reward"
PROPENSITIES = "propensities"
LEVEL = 0.95
ROUND_OFF = 1e-6  # plays


def model_free(seen: Gathered, members: Mapping[str, list[int]], given: IntArray, possible: BoolArray) -> list[Effect]:
    """Every arm that the propensities tell something about, for each of these groups of users, in their order.

    `given` and `possible` are (H, K).
    """
    log = _Decisions.of(seen, seen.reward)
    found: dict[str, list[Effect]] = {who: [] for who in members}
    for k, arm in enumerate(seen.state.problem.arms if len(log.at) else ()):
        plays = log.plays(k)
        enough = {who: some for who, some in members.items() if plays[some].sum() >= scores.PLAYS - ROUND_OFF}
        if not enough:
            continue
        table = log.table(k)
        for who, some in enough.items():
            band = scores.effect_band(log.scores(table, some), 1 - LEVEL)
            if not (band.low.size and np.isfinite(band.low[-1])):
                continue
            low, high = float(band.low[-1]), float(band.high[-1])
            times, can = int(given[some, k].sum()), bool(possible[some, k].any())
            ends = (low, high, low, high, PROPENSITIES)
            found[who].append(Effect(who, arm, REWARD, (low + high) / 2, *ends, times, can))
    return [effect for some_effects in found.values() for effect in some_effects]


def ranges(
    seen: Gathered, members: Mapping[str, list[int]], arms: Sequence[str], *, alpha: float, metric: str | None = None
) -> dict[tuple[str, str], tuple[float, float]]:
    """The range at all times of each arm for each of these groups of users, on a metric or (None) the reward.

    An effect of which nothing can be told yet goes from minus to plus infinity.
    """
    known = seen.reward
    if metric is not None:
        m = seen.state.problem.metrics.index(metric)
        known = np.where(seen.observed[:, m], seen.vector[:, m], np.nan)
    log = _Decisions.of(seen, known)
    found = dict.fromkeys(((who, arm) for who in members for arm in arms), (-np.inf, np.inf))
    for arm in arms if len(log.at) else ():
        k = seen.state.problem.arm(arm)
        plays = log.plays(k)
        if not any(plays[some].sum() >= scores.PLAYS - ROUND_OFF for some in members.values()):
            continue
        table = log.table(k)
        for who, some in members.items():
            band = scores.effect_band(log.scores(table, some), alpha)
            if band.low.size:
                found[who, arm] = float(band.low[-1]), float(band.high[-1])
    return found


@dataclass(frozen=True)
class _Table:
    """What one arm's effect is computed from; the last of the arms stands for all others."""

    action: IntArray  # (n,)
    probabilities: FloatArray  # (n, C + 2)
    contrast: FloatArray  # (n, C + 2)
    predictions: FloatArray  # (n, C + 2)


@dataclass(frozen=True)
class _Decisions:
    """Decisions of which what is measured and the propensity are known."""

    seen: Gathered
    measured: FloatArray  # of all decisions, NaN: not known
    at: IntArray  # (n,), their places among all

    @classmethod
    def of(cls, seen: Gathered, measured: FloatArray) -> _Decisions:
        return cls(seen, measured, np.flatnonzero(~np.isnan(measured) & ~np.isnan(seen.propensity)))

    @cached_property
    def control(self) -> FloatArray:
        """The probability of each arm under the control, by slot of a profile."""
        state, K = self.seen.state, len(self.seen.state.problem.arms)
        return np.array([state.profiles[s].control[:K] for s in range(len(state.profiles))]).reshape(-1, K)

    def plays(self, k: int) -> FloatArray:
        """How often at most arm k was played in expectation, for each user, where it had a chance: (H,)."""
        seen, at = self.seen, self.at
        chance = seen.probabilities[at, k] / seen.total[at]
        told = np.where(chance >= scores.LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(seen.user[at], told, len(seen.state.users)), np.float64)

    def table(self, k: int) -> _Table:
        """Of arm k."""
        seen, at = self.seen, self.at
        slot, action = seen.slot[at], seen.arm[at]
        controls = np.flatnonzero(self.control[np.unique(slot)].any(0))
        arms = np.append(controls[controls != k], k)
        K = len(seen.state.problem.arms)
        place = np.full(K, len(arms))
        place[arms] = np.arange(len(arms))
        e = seen.probabilities[at[:, None], arms] / seen.total[at, None]
        g = (arms == k) - self.control[slot[:, None], arms]
        q = scores.running_predictions(
            action, self.measured[at], K, user=seen.user[at], season=seen.episode[at], arms=arms
        )
        others = np.maximum(1 - e.sum(-1, keepdims=True), 0.0)
        return _Table(place[action], np.concatenate([e, others], -1), np.concatenate([g, np.zeros_like(others)], -1), q)

    def scores(self, table: _Table, some: list[int]) -> scores.Scores:
        """Of the decisions of some users; nothing predicted the first decision of all, so it is left out."""
        member = np.zeros(len(self.seen.state.users), bool)
        member[some] = True
        rows = 1 + np.flatnonzero(member[self.seen.user[self.at[1:]]])
        return scores.effect_scores(
            action=table.action[rows],
            reward=self.measured[self.at[rows]],
            probabilities=table.probabilities[rows],
            contrast=table.contrast[rows],
            predictions=table.predictions[rows],
        )
