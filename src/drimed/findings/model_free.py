"""Effects on the reward from propensities alone, for some users together.

Only the arms of a contrast matter, the arm and the user's control, and decisions at which one of them had no chance say
nothing: the rest is left out before anything is computed, and changes no number.
Shapes: n decisions, C arms of which each is a control of somebody, H users, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.evaluation import scores
from drimed.findings.gather import Gathered
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Effect

REWARD = "reward"
PROPENSITIES = "propensities"
FEWEST = 20  # decisions below which propensities alone tell nothing
LEVEL = 0.95


def model_free(seen: Gathered, who: str, some: list[int], given: IntArray, possible: BoolArray) -> list[Effect]:
    """Every arm that the propensities tell something about; given and possible are (H, K)."""
    log = _decisions(seen, some)
    found: list[Effect] = []
    for k, arm in enumerate(seen.state.problem.arms):
        s = None if log is None else _scores(log, k)
        if s is None:
            continue
        band = scores.effect_band(s, 1 - LEVEL, method="asymptotic")
        low, high = float(band.low[-1]), float(band.high[-1])
        if np.isfinite(low) and np.isfinite(high):
            ends = (low, high, low, high, PROPENSITIES)
            times, can = int(given[some, k].sum()), bool(possible[some, k].any())
            found.append(Effect(who, arm, REWARD, (low + high) / 2, *ends, times, can))
    return found


@dataclass(frozen=True)
class _Decisions:
    """Decisions whose reward and propensity are known."""

    at: IntArray  # (n,), their places among all
    probabilities: FloatArray  # of all decisions and arms
    total: FloatArray  # (n,), of the probabilities: one, but for decimals that were written and read again
    action: IntArray  # (n,)
    reward: FloatArray  # (n,)
    controls: IntArray  # (C,), arms that are somebody's control
    weights: FloatArray  # (n, C), of each in the control of this decision's user
    means: FloatArray  # (n, C), their mean rewards before each decision

    def chances(self, arm: int) -> FloatArray:
        """The probability of one arm: (n,)."""
        return np.asarray(self.probabilities[self.at, arm] / self.total)


def _decisions(seen: Gathered, some: list[int]) -> _Decisions | None:
    state, K = seen.state, len(seen.state.problem.arms)
    member = np.zeros(len(state.users), bool)
    member[some] = True
    at = np.flatnonzero(member[seen.user] & ~np.isnan(seen.reward) & ~np.isnan(seen.propensity))
    if len(at) < FEWEST:
        return None
    control = np.array([state.profiles[s].control[:K] for s in range(len(state.profiles))])  # by slot
    slot, action, reward = seen.slot[at], seen.arm[at], seen.reward[at]
    controls = np.flatnonzero(control[np.unique(slot)].any(0))
    means = scores.past_means(action, reward, K, arms=controls)
    weights = control[slot[:, None], controls]
    return _Decisions(at, seen.probabilities, seen.total[at], action, reward, controls, weights, means)


def _scores(log: _Decisions, k: int) -> scores.Scores | None:
    """Of arm k against the control; None: too few decisions gave all arms of the contrast a chance."""
    own = k in log.controls
    g = (log.controls == k) - log.weights  # (n, C)
    if own and not g.any():
        return None
    used = np.ones(len(log.at), bool) if own else log.chances(k) > scores.NO_CHANCE
    for i, arm in enumerate(log.controls):
        used &= (g[:, i] == 0) | (log.chances(int(arm)) > scores.NO_CHANCE)
    if used.sum() < FEWEST:
        return None
    arms, q = log.controls, log.means[used]
    if not own:
        mean = scores.past_means(log.action, log.reward, k + 1, arms=[k])
        arms, q = np.append(arms, k), np.concatenate([q, mean[used]], -1)
        g = np.concatenate([g, np.ones((len(g), 1))], -1)
    e = np.stack([log.chances(int(arm))[used] for arm in arms], -1)
    place = np.full(log.probabilities.shape[-1], len(arms))  # the last stands for all other arms
    place[arms] = np.arange(len(arms))
    nothing = np.zeros((len(e), 1))
    s = scores.effect_scores(
        action=place[log.action[used]],
        reward=log.reward[used],
        probabilities=np.concatenate([e, np.maximum(1 - e.sum(-1, keepdims=True), 0.0)], -1),
        contrast=np.concatenate([g[used], nothing], -1),
        predictions=np.concatenate([q, nothing], -1),
    )
    return s if s.used.sum() >= FEWEST else None
