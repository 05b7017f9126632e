"""Ranges at all times from the propensities alone, of a batch of simulated trials.

Shapes: S trials, n decisions of which the outcomes were told, K arms.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drimed.evaluation import scores
from drimed.learning.field.contrasts import ALPHA
from drimed.linear.arrays import FloatArray, IntArray
from drimed.rehearsal.play import Season, controls
from drimed.rehearsal.world import World


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
