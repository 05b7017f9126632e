"""Effects on the reward from propensities alone, for some users together: no model of the mean is believed.

What is estimated is the average effect of the arm against each user's own control, over the decisions so far at which
both had a chance; users whose control the arm is count with an effect of zero. Only the arms of a contrast matter: the
arm, and arms that are somebody's control. Shapes: n decisions, C arms that are somebody's control, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from drimed.evaluation import propensity_effects
from drimed.evaluation.propensity_effects import LEAST_CHANCE, PLAYS, Scores
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.records import Effect
from drimed.trial.gather import Gathered

REWARD = "reward"
PROPENSITIES = "propensities"
EXACT = "propensities, exact"  # for every number of decisions; rests on the ranges that the file declares
LEVEL = 0.95
ROUND_OFF = 1e-6  # plays


def model_free(seen: Gathered, members: Mapping[str, list[int]], given: IntArray, possible: BoolArray) -> list[Effect]:
    """Every arm that the propensities tell something about, for each of these groups of users, in their order.

    Where the file bounds the reward and decisions are drawn one by one, exact ranges come with the asymptotic ones.
    `given` and `possible` are (H, K).
    """
    log = Decisions.of(seen, seen.reward)
    # Exact ranges need decisions of which none tells anything about another's draw.
    bounds = None if seen.state.balances else reward_range(seen)
    found: dict[str, list[Effect]] = {who: [] for who in members}
    for k, arm in enumerate(seen.state.problem.arms if len(log.at) else ()):
        plays = log.plays(k)
        enough = {who: some for who, some in members.items() if plays[some].sum() >= PLAYS - ROUND_OFF}
        if not enough:
            continue
        table = log.table(k)
        for who, some in enough.items():
            times = int(given[some, k].sum()), bool(possible[some, k].any())
            for source, low, high in _told(log, table, some, bounds):
                ends = (low, high, low, high, source)
                found[who].append(Effect(who, arm, REWARD, (low + high) / 2, *ends, *times))
    return [effect for some_effects in found.values() for effect in some_effects]


def reward_range(seen: Gathered) -> tuple[float, float] | None:
    """What every reward lies between, by the ranges in the trial file; None: it has none, or rewards left them."""
    spec, problem = seen.state.spec, seen.state.problem
    declared = [spec.metrics[m].range for m in problem.metrics]
    ends = np.array([(np.nan, np.nan) if r is None else r for r in declared])  # (M, 2)
    if spec.feedback == "difference":
        ends = np.stack([ends[:, 0] - ends[:, 1], ends[:, 1] - ends[:, 0]], -1)
    profiles = seen.state.profiles.values()
    wish = np.array([p.preference for p in profiles]).reshape(-1, len(problem.metrics)) / problem.sizes
    each = np.where(wish[..., None] == 0, 0.0, wish[..., None] * ends)  # (profiles, M, 2)
    low, high = each.min(-1).sum(-1), each.max(-1).sum(-1)
    if not len(wish) or np.isnan(low).any():
        return None
    least, most = float(low.min()), float(high.max())
    inside = np.isnan(seen.reward) | ((seen.reward >= least) & (seen.reward <= most))
    return (least, most) if least < most and inside.all() else None


def metric_range(seen: Gathered, metric: str) -> tuple[float, float] | None:
    """What every value of a metric lies between, against its control plot where there is one; None: see above."""
    declared = seen.state.spec.metrics[metric].range
    if declared is None:
        return None
    low, high = declared
    if seen.state.spec.feedback == "difference":
        low, high = low - high, high - low
    m = seen.state.problem.metrics.index(metric)
    values = seen.vector[seen.observed[:, m], m]
    return (low, high) if ((values >= low) & (values <= high)).all() else None


def _told(
    log: Decisions, table: Table, some: list[int], bounds: tuple[float, float] | None
) -> Iterator[tuple[str, float, float]]:
    """The ranges as they are now, by where they come from; one that tells nothing is left out."""
    band = propensity_effects.asymptotic_band(log.scores(table, some), 1 - LEVEL)
    if not (band.low.size and np.isfinite(band.low[-1])):
        return
    yield PROPENSITIES, float(band.low[-1]), float(band.high[-1])
    if bounds is not None:
        found = log.scores(table, some, bounds)
        exact = propensity_effects.exact_band(found, 1 - LEVEL, now=True)
        low, high = exact.low, exact.high
        least, most = found.ends or bounds
        share = float(found.share[-1])
        if low > share * least or high < share * most:
            yield EXACT, float(low), float(high)


def ranges(
    seen: Gathered,
    members: Mapping[str, list[int]],
    arms: Sequence[str],
    *,
    alpha: float,
    metric: str | None = None,
    exact: bool = False,
) -> dict[tuple[str, str], tuple[float, float]]:
    """The range at all times of each arm for each of these groups of users, on a metric or (None) the reward.

    An effect of which nothing can be told yet goes from minus to plus infinity; so do exact ranges where an outcome has
    left what the trial file says to be its range.
    """
    known = seen.reward
    if metric is not None:
        m = seen.state.problem.metrics.index(metric)
        known = np.where(seen.observed[:, m], seen.vector[:, m], np.nan)
    log = Decisions.of(seen, known)
    found = dict.fromkeys(((who, arm) for who in members for arm in arms), (-np.inf, np.inf))
    bounds = (reward_range(seen) if metric is None else metric_range(seen, metric)) if exact else None
    for arm in arms if len(log.at) and not (exact and bounds is None) else ():
        k = seen.state.problem.arm(arm)
        plays = log.plays(k)
        if not any(plays[some].sum() >= PLAYS - ROUND_OFF for some in members.values()):
            continue
        table = log.table(k)
        for who, some in members.items():
            told = log.scores(table, some, bounds)
            if not told.value.size:
                continue
            if exact:
                band = propensity_effects.exact_band(told, alpha, now=True)
                found[who, arm] = float(band.low), float(band.high)
            else:
                band = propensity_effects.asymptotic_band(told, alpha)
                found[who, arm] = float(band.low[-1]), float(band.high[-1])
    return found


@dataclass(frozen=True)
class Table:
    """What one arm's effect is computed from; the last of the arms stands for all others."""

    action: IntArray  # (n,)
    probabilities: FloatArray  # (n, C + 2)
    contrast: FloatArray  # (n, C + 2)
    predictions: FloatArray  # (n, C + 2)


@dataclass(frozen=True)
class Decisions:
    """Decisions of which what is measured and the propensity are known."""

    seen: Gathered
    measured: FloatArray  # of all decisions, NaN: not known
    at: IntArray  # (n,), their places among all

    @classmethod
    def of(cls, seen: Gathered, measured: FloatArray) -> Decisions:
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
        told = np.where(chance >= LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(seen.user[at], told, len(seen.state.users)), np.float64)

    def control_plays(self) -> FloatArray:
        """How often at most every arm of the control was played in expectation, for each user: (H,)."""
        chance = self._control_chance
        told = np.where(chance >= LEAST_CHANCE, chance, 0.0)
        return np.asarray(np.bincount(self.seen.user[self.at], told, len(self.seen.state.users)), np.float64)

    def together(self, k: int) -> float:
        """Expected plays of the rarer of arm k and the control, where both had a chance."""
        both = np.minimum(self.seen.probabilities[self.at, k] / self.seen.total[self.at], self._control_chance)
        return float(both[both >= LEAST_CHANCE].sum())

    def is_control(self, k: int) -> bool:
        """Whether arm k is the control of everybody."""
        return bool((self.control[np.unique(self.seen.slot[self.at]), k] == 1).all())

    @cached_property
    def _control_chance(self) -> FloatArray:
        """Of the rarest arm of the control, decision by decision: (n,)."""
        seen, at = self.seen, self.at
        found = np.full(len(at), np.inf)
        for a in np.flatnonzero(self.control.any(0)):
            mine = self.control[seen.slot[at], a] > 0
            found[mine] = np.minimum(found[mine], seen.probabilities[at[mine], a] / seen.total[at[mine]])
        return found

    def table(self, k: int) -> Table:
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
        q = self.predictions(arms)
        others = np.maximum(1 - e.sum(-1, keepdims=True), 0.0)
        return Table(place[action], np.concatenate([e, others], -1), np.concatenate([g, np.zeros_like(others)], -1), q)

    def predictions(self, arms: IntArray) -> FloatArray:
        """Of what these arms give, and last the one that was played, before each decision: (n, k + 1)."""
        seen, at = self.seen, self.at
        K = len(seen.state.problem.arms)
        return propensity_effects.running_predictions(
            seen.arm[at], self.measured[at], K, user=seen.user[at], season=seen.episode[at], arms=arms
        )

    def scores(self, table: Table, some: list[int], bounds: tuple[float, float] | None = None) -> Scores:
        """Of the decisions of some users; nothing predicted the first decision of all, so it is left out."""
        member = np.zeros(len(self.seen.state.users), bool)
        member[some] = True
        rows = 1 + np.flatnonzero(member[self.seen.user[self.at[1:]]])
        return propensity_effects.effect_scores(
            action=table.action[rows],
            reward=self.measured[self.at[rows]],
            probabilities=table.probabilities[rows],
            contrast=table.contrast[rows],
            predictions=table.predictions[rows],
            reward_range=bounds,
        )
