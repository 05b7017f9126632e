"""Trials for the study of evidence: seasons and sites with levels of their own, played by a policy above a floor.

A batch of trials is played at once, season by season. Floors may end for a trial when its question is answered: when
the model-free range of some arm against the control, with Bonferroni's correction, leaves zero out.
Shapes: S trials, L seasons, H users, K arms, n = L H decisions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drimed import streams
from drimed.environments.field import RANGE, FieldSetting, FieldWorld
from drimed.evaluation import scores
from drimed.evaluation.scores import Scores
from drimed.evaluation.sequences import Band
from drimed.learning.field.learner import Field
from drimed.learning.offer import Floor, Outcome
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import Policy
from drimed.rules.floors import Floors
from drimed.trial.build import build_policy
from drimed.trial.spec import TrialSpec

ALPHA = 0.05
LEVEL = 60.0  # of the control, in an average season
RESIDUAL = 10.0


@dataclass(frozen=True, kw_only=True)
class World:
    """What is true in each trial of a batch."""

    effects: tuple[float, ...]  # of each arm against the first, in residual deviations
    seasons: int = 40
    users: int = 12
    season: float = 17.0  # standard deviations of what seasons and sites add to all arms
    site: float = 12.0
    season_arm: float = 0.0  # and to each arm
    site_arm: float = 0.0
    controls: tuple[int, ...] = (0,)  # of the users in turn
    kind: str = "normal"  # noise: normal, or coins whose chance is the mean over RANGE
    missing: float = 0.0  # share of outcomes that never come
    latest: int = 0  # seasons after which an outcome comes, at most

    @property
    def arms(self) -> int:
        """K."""
        return len(self.effects)

    def control(self) -> IntArray:
        """Of each user: (H,)."""
        return np.resize(np.array(self.controls), self.users)

    def means(self, seeds: range) -> FloatArray:
        """(S, L, H, K)."""
        L, H, K = self.seasons, self.users, self.arms
        drawn = []
        for seed in seeds:
            rng = streams.generator(seed, "world")
            level = self.season * rng.standard_normal((L, 1, 1)) + self.site * rng.standard_normal((1, H, 1))
            own = self.season_arm * rng.standard_normal((L, 1, K)) + self.site_arm * rng.standard_normal((1, H, K))
            drawn.append(LEVEL + RESIDUAL * np.array(self.effects) + level + own)
        means = np.stack(drawn)
        return np.clip(means, 0.05 * RANGE, 0.95 * RANGE) if self.kind == "coins" else means


@dataclass(frozen=True)
class Played:
    """What happened, decision by decision, and what would have."""

    world: World
    user: IntArray  # (n,)
    season: IntArray  # (n,)
    action: IntArray  # (S, n)
    reward: FloatArray  # (S, n)
    probabilities: FloatArray  # (S, n, K)
    means: FloatArray  # (S, n, K)
    comes: IntArray  # (S, n), the season after which the outcome is known; the number of seasons: never

    @property
    def regret(self) -> FloatArray:
        """Over the trial, in residual deviations: (S,)."""
        got = np.take_along_axis(self.means, self.action[..., None], -1)[..., 0]
        return np.asarray((self.means.max(-1) - got).sum(-1) / RESIDUAL)


def dri_med(world: World, *, coarse: bool = False) -> Policy:
    """As a trial file makes it, with everything left to its default.

    Where only ranges are studied and not the policy, a coarse one will do: it fits its variances again when outcomes
    have doubled, and takes the most plausible ones.
    """
    spec = TrialSpec.read(
        {
            "name": "evidence",
            "model": {"kind": "field"},
            "metrics": {"yield": {"range": [0.0, RANGE]}},
            "arms": {f"arm {k}": {} for k in range(world.arms)},
            "control": "arm 0",
            "preference": {"yield": 1.0},
            "users": {f"site {h}": {} for h in range(world.users)},
        }
    )
    made = build_policy(spec, 1 + world.arms)
    if not isinstance(made, Policy):
        raise TypeError(f"expected a policy of parts, got {type(made).__name__}")
    return replace(made, learner=Field(growth=2.0, pairs=0)) if coarse else made


def play(
    world: World, policy: Policy, seeds: range, floors: Floors | None = None, *, ends: bool = False,
    on_season: Callable[[], None] = lambda: None,
) -> Played:  # fmt: skip
    """Every trial to its end."""
    S, L, H, K = len(seeds), world.seasons, world.users, world.arms
    means, setting = world.means(seeds), FieldSetting(arms=K, sites=H, plots=1, seasons=L)
    field = FieldWorld(setting, seeds)
    offers = replace(field.offers(np.arange(H)), control=np.broadcast_to(np.eye(K)[world.control()], (S, H, K)))
    luck = np.stack([streams.generator(s, "noise").standard_normal((L, H)) for s in seeds])
    coin = np.stack([streams.generator(s, "coins").random((L, H)) for s in seeds])
    comes = _arrivals(world, seeds)
    draws = np.stack([streams.uniforms(s, "policy", 0, L * H, 1) for s in seeds]).reshape(S, L, H, 1)
    state, on = policy.init(field.shape, (S,)), np.ones(S, bool)
    action, reward = np.zeros((S, L, H), np.intp), np.zeros((S, L, H))
    chances = np.zeros((S, L, H, K))
    for t in range(L):
        offer = offers if floors is None else replace(offers, floor=_floor(floors, on, t * H, (S, H)))
        state = policy.settle(policy.begin_episode(state, offer))
        decision = policy.decide(state, offer, draws[:, t])
        action[:, t], chances[:, t] = decision.action, decision.probabilities
        mean = np.take_along_axis(means[:, t], decision.action[..., None], -1)[..., 0]
        coins = RANGE * (coin[:, t] < mean / RANGE)
        reward[:, t] = coins if world.kind == "coins" else mean + RESIDUAL * luck[:, t]
        state = policy.commit(state, offer, decision)
        for late in range(min(world.latest, t) + 1):
            there = comes[:, t - late] == t
            state = policy.observe(state, offer, action[:, t - late], _outcome(reward[:, t - late], there), late)
        if ends and on.any():
            so_far = _so_far(world, np.flatnonzero(on), t + 1, action, reward, chances, means, comes)
            on[np.flatnonzero(on)[answered(so_far)]] = False
        on_season()
    return _so_far(world, np.arange(S), L, action, reward, chances, means, comes)


def _so_far(world: World, trials: IntArray, seasons: int, *columns: Any) -> Played:
    """Some trials up to a season, from columns (S, L, H, ...)."""
    n = seasons * world.users
    user, season = np.tile(np.arange(world.users), seasons), np.repeat(np.arange(seasons), world.users)
    flat: Any = (c[trials, :seasons].reshape(len(trials), n, *c.shape[3:]) for c in columns)
    return Played(world, user, season, *flat)


def present(played: Played, trial: int, season: int) -> Played:
    """What one trial knows after a season: the decisions whose outcome has come by then."""
    at = np.flatnonzero(played.comes[trial] <= season)
    columns: Any = (played.action, played.reward, played.probabilities, played.means, played.comes)
    return Played(played.world, played.user[at], played.season[at], *(c[trial : trial + 1, at] for c in columns))


def answered(played: Played, alpha: float = ALPHA) -> BoolArray:
    """Whether now the range of some arm leaves zero out: (S,)."""
    found = np.zeros(len(played.action), bool)
    for arm in range(1, played.world.arms):
        band = effect_band(played, arm, alpha / (played.world.arms - 1))
        found |= (band.low[:, -1] > 0) | (band.high[:, -1] < 0)
    return found


def effect_scores(played: Played, arm: int, *, users: IntArray | None = None, exact: bool = False) -> Scores:
    """Of one arm against each user's own control, for some users or all of them; nothing predicted the first."""
    K, rows = played.world.arms, _rows(played, users)
    g = np.eye(K)[arm] - np.eye(K)[played.world.control()[played.user]]
    where = {"user": played.user, "season": played.season}
    return scores.effect_scores(
        action=played.action[:, rows],
        reward=played.reward[:, rows],
        probabilities=played.probabilities[:, rows],
        contrast=g[rows],
        predictions=scores.running_predictions(played.action, played.reward, K, **where)[:, rows],
        reward_range=(0.0, RANGE) if exact else None,
    )


def effect_band(played: Played, arm: int, alpha: float) -> Band:
    """In the reward's unit, after every decision but the first: (S, n - 1)."""
    return scores.effect_band(effect_scores(played, arm), alpha)


def truth(played: Played, arm: int, found: Scores, *, users: IntArray | None = None) -> FloatArray:
    """What the band is a range for: the average effect of the decisions that it uses, times its share."""
    rows = _rows(played, users)
    control = played.world.control()[played.user[rows]]
    means = played.means[:, rows]
    effect = means[..., arm] - np.take_along_axis(means, control[None, :, None], -1)[..., 0]
    count = np.maximum(np.cumsum(found.used, -1), 1)
    return np.asarray(np.cumsum(effect * found.used, -1) / count * found.share)


def _rows(played: Played, users: IntArray | None) -> IntArray:
    n = len(played.user)
    return np.arange(1, n) if users is None else 1 + np.flatnonzero(np.isin(played.user[1:], users))


def _floor(floors: Floors, on: BoolArray, decisions: int, shape: tuple[int, int]) -> Floor:
    now = floors.after(decisions)
    return Floor(
        control=np.broadcast_to((now.control * on)[:, None], shape),
        arms=np.broadcast_to((now.arms * on)[:, None], shape),
    )


def _outcome(reward: FloatArray, there: BoolArray) -> Outcome:
    return Outcome(reward, reward[..., None] / RANGE, there[..., None])


def _arrivals(world: World, seeds: range) -> IntArray:
    """The season after which each outcome comes: (S, L, H)."""
    L, H = world.seasons, world.users
    found = []
    for seed in seeds:
        rng = streams.generator(seed, "arrivals")
        late = rng.integers(0, world.latest + 1, (L, H))
        found.append(np.where(rng.random((L, H)) < world.missing, L, np.arange(L)[:, None] + late))
    return np.stack(found)
