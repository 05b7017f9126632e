"""Ranges at all times from the propensities alone, of a batch of simulated trials.

Shapes: S trials, T looks, n decisions of which the outcomes were told, K arms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drimed.evaluation import propensity_effects
from drimed.learning.field.contrasts import ALPHA
from drimed.linear.arrays import FloatArray
from drimed.rehearsal.play import Season, controls
from drimed.rehearsal.scenarios import SimulatedTrials


def propensities(
    world: SimulatedTrials, seasons: Sequence[Season], looks: Sequence[int], alpha: float = ALPHA
) -> FloatArray:
    """The range of each arm's effect on the reward of all users, from what was told by each look: (S, T, K, 2).

    A range at all times is computed for every decision at once, so that one pass serves all looks. Only where a look
    has seen one user or one season so far, it predicts in another way, and has a pass of its own.
    """
    S, K, last = len(world.seeds), seasons[0].means.shape[-1], world.setting.seasons - 1
    found = np.empty((S, len(looks), K, 2))
    found[..., 0], found[..., 1] = -np.inf, np.inf
    if not all(s.exact for s in seasons):
        return found
    until = [now if now == last else now - world.setting.delay for now in looks]  # the last season that is told
    passes: dict[tuple[bool, bool], list[int]] = {}
    for t, end in enumerate(until):
        users = {int(u) for s in seasons if s.number <= end for u in world.population.user(s.number)}
        passes.setdefault((len(users) > 1, end > 0), []).append(t)
    for some in passes.values():
        seen = [s for s in seasons if s.number <= until[some[-1]]]
        if seen:
            _pass(world, seen, [until[t] for t in some], alpha, found[:, some[0] : some[-1] + 1])
    return found


def _pass(
    world: SimulatedTrials, seen: Sequence[Season], until: Sequence[int], alpha: float, found: FloatArray
) -> None:
    """Fill in the ranges after each of the seasons `until`: (S, T, K, 2)."""
    S, _, K, _ = found.shape
    action, reward = (np.concatenate([getattr(s, name) for s in seen], 1) for name in ("action", "reward"))
    e = np.concatenate([s.probabilities for s in seen], 1)
    control = np.concatenate([controls(world, s) for s in seen], 1)[0]
    user = np.concatenate([world.population.user(s.number) for s in seen])
    season = np.concatenate([np.full(s.action.shape[1], s.number) for s in seen])
    whole = np.isfinite(reward).all()
    for some in [slice(None)] if whole else [slice(s, s + 1) for s in range(S)]:
        at = np.flatnonzero(np.isfinite(reward[some]).all(0))
        # Nothing predicted the first decision of all, so it is left out; then place i is after decision i + 2.
        place = np.searchsorted(season[at], until, "right") - 2
        told = np.flatnonzero(place >= 0)
        if not len(told):
            continue
        a, r, p = action[some][:, at], reward[some][:, at], e[some][:, at]
        q = propensity_effects.running_predictions(a, r, K, user=user[at], season=season[at])
        for k in range(K):
            g = np.eye(K)[k] - control[at]
            if not g.any():
                continue
            scored = propensity_effects.effect_scores(
                action=a[:, 1:], reward=r[:, 1:], probabilities=p[:, 1:], contrast=g[1:], predictions=q[:, 1:]
            )
            band = propensity_effects.asymptotic_band(scored, alpha)
            found[some, told, k] = np.stack([band.low[:, place[told]], band.high[:, place[told]]], -1)
