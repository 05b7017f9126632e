"""The stopping rules of the trial file, judged in simulated trials: when they are met, and what they end.

Shapes: S trials, T looks, R rules, K arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from drimed.evaluation import scores
from drimed.evaluation.stopping import OF_ALL_ARMS
from drimed.learning.field.contrasts import ALPHA
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.rehearsal.people import rehearsed_rules
from drimed.rehearsal.play import Season, controls
from drimed.rehearsal.world import World


def ends_floor(world: World) -> Callable[[Sequence[Season]], BoolArray] | None:
    """Whether the floor has ended after some seasons, in each trial (S,); None: it does not end with a rule."""
    floors = world.crowd.state.spec.floors
    until = None if floors is None else floors.until
    if until is None:
        return None
    return lambda seasons: np.asarray(_said(world, seasons, seasons[-1], until).any(-1))


def judged(world: World, seasons: Sequence[Season], truth: FloatArray) -> tuple[BoolArray, BoolArray]:
    """Which rules are met by each look, and which of their claims are false: (S, T, R) twice."""
    state, looked = world.crowd.state, [s for s in seasons if s.look is not None]
    names = rehearsed_rules(state)
    met = np.zeros((len(world.seeds), len(looked), len(names)), bool)
    wrong = np.zeros_like(met)
    for r, name in enumerate(names):
        assert state.spec.stopping is not None
        rule, view = state.spec.stopping.rules[name], state.looked.views[name]
        arms = [state.problem.arm(a) for a in view.arms]
        false: BoolArray = np.asarray(~view.rule(rule).judge(truth[:, arms], truth[:, arms]).met)  # (S, arms)
        if rule.kind in OF_ALL_ARMS:
            false = np.asarray(false.any(-1, keepdims=True))
        for t, season in enumerate(looked):
            said = _said(world, seasons, season, name)
            met[:, t, r], wrong[:, t, r] = said.any(-1), (said & false).any(-1)
    return np.logical_or.accumulate(met, 1), np.logical_or.accumulate(wrong, 1)


def seasons_played(world: World, looks: Sequence[int], met: BoolArray) -> IntArray:
    """How many seasons each trial has before a rule stops it, or it ends: (S,)."""
    state, L = world.crowd.state, world.setting.seasons
    rules = {} if state.spec.stopping is None else state.spec.stopping.rules
    stops = [r for r, name in enumerate(rehearsed_rules(state)) if rules[name].then == "stop"]
    over: BoolArray = np.asarray(met[:, :, stops].any(-1))  # (S, T)
    return np.asarray(np.where(over.any(1), np.array(looks)[over.argmax(1)] + 1, L))


def _said(world: World, seasons: Sequence[Season], season: Season, name: str) -> BoolArray:
    """Whether a rule is met by the look after a season, for each of its arms or (S, 1) for all together."""
    state = world.crowd.state
    assert state.spec.stopping is not None
    rule, view = state.spec.stopping.rules[name], state.looked.views[name]
    judge, arms = view.rule(rule), [state.problem.arm(a) for a in view.arms]
    low, high = _ranges(world, seasons, season, rule.evidence, view.alpha(rule))
    if rule.kind in OF_ALL_ARMS:
        return np.asarray(judge.judge_all(low[:, arms], high[:, arms]).met[:, None])
    return np.asarray(judge.judge(low[:, arms], high[:, arms]).met)


def _ranges(
    world: World, seasons: Sequence[Season], season: Season, evidence: str, alpha: float
) -> tuple[FloatArray, FloatArray]:
    if evidence == "model" and season.look is not None:
        return season.look.found.at_all_times(alpha)
    found = propensities(world, seasons, season.number, alpha)
    return found[..., 0], found[..., 1]


def propensities(world: World, seasons: Sequence[Season], now: int, alpha: float = ALPHA) -> FloatArray:
    """The range of each arm's effect on the reward of all users, from what was told by now: (S, K, 2)."""
    last = world.setting.seasons - 1
    seen = [s for s in seasons if s.number <= (now if now == last else now - world.setting.delay)]
    S, K = len(world.seeds), seasons[0].means.shape[-1]
    found = np.stack([np.full((S, K), -np.inf), np.full((S, K), np.inf)], -1)
    if not seen or not seen[0].exact:
        return found
    action, reward = (np.concatenate([getattr(s, name) for s in seen], 1) for name in ("action", "reward"))
    e = np.concatenate([s.probabilities for s in seen], 1)
    control = np.concatenate([controls(world, s) for s in seen], 1)[0]
    user = np.concatenate([world.crowd.user(s.number) for s in seen])
    season = np.concatenate([np.full(s.action.shape[1], s.number) for s in seen])
    whole = np.isfinite(reward).all()
    for some in [slice(None)] if whole else [slice(s, s + 1) for s in range(S)]:
        at = np.flatnonzero(np.isfinite(reward[some]).all(0))
        if len(at) < 2:
            continue
        a, r, p = action[some][:, at], reward[some][:, at], e[some][:, at]
        q = scores.running_predictions(a, r, K, user=user[at], season=season[at])
        for k in range(K):
            g = np.eye(K)[k] - control[at]
            if not g.any():
                continue
            found[some, k] = np.stack(_band(a, r, p, g, q, alpha), -1)
    return found


def _band(
    a: IntArray, r: FloatArray, p: FloatArray, g: FloatArray, q: FloatArray, alpha: float
) -> tuple[FloatArray, FloatArray]:
    """At all times, after the last decision; nothing predicted the first decision of all, so it is left out."""
    told = scores.effect_scores(
        action=a[:, 1:], reward=r[:, 1:], probabilities=p[:, 1:], contrast=g[1:], predictions=q[:, 1:]
    )
    band = scores.effect_band(told, alpha)
    return band.low[:, -1], band.high[:, -1]
