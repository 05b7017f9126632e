"""Adaptive trials side by side, with every arm's probability known: what intervals have to stand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from drimed.evaluation.confidence_sequences import Band
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

MEANS = np.array([0.4, 0.5, 0.6])
K = len(MEANS)


@dataclass(frozen=True)
class Trials:
    """R trials of n decisions."""

    action: IntArray  # (R, n)
    reward: FloatArray  # (R, n)
    probabilities: FloatArray  # (R, n, K)


def greedy_trials(
    runs: int, n: int, *, seed: int = 0, means: FloatArray = MEANS, sd: float | None = None, decay: float = 0.5
) -> Trials:
    """Greedy on the running means; the rest, t^-decay, is explored. Coins, or normal rewards with `sd`.

    With a drift of the noise, normal rewards have twice the `sd` in the second half.
    """
    rng = np.random.default_rng(seed)
    count, total = np.ones((runs, K)), np.full((runs, K), means.mean())
    trials = Trials(np.empty((runs, n), np.intp), np.empty((runs, n)), np.empty((runs, n, K)))
    each = np.arange(runs)
    for t in range(n):
        explore = max((t + 1) ** -decay, 0.02)
        p = np.full((runs, K), explore / K)
        p[each, (total / count).argmax(-1)] += 1 - explore
        action = (p.cumsum(-1) < rng.random(runs)[:, None]).sum(-1).clip(0, K - 1)
        if sd is None:
            reward = (rng.random(runs) < means[action]).astype(np.float64)
        else:
            reward = means[action] + sd * (2 if t >= n // 2 else 1) * rng.standard_normal(runs)
        count[each, action] += 1
        total[each, action] += reward
        trials.action[:, t], trials.reward[:, t], trials.probabilities[:, t] = action, reward, p
    return trials


def contrast(arm: int, control: int, K: int) -> FloatArray:
    """One arm against the control."""
    return np.eye(K)[arm] - np.eye(K)[control]


def naive_effect(trials: Trials, arm: int, control: int, z: float, *, start: int = 50) -> Band:
    """Difference of sample means -+ z standard errors, as if arms had been allotted in advance; none before `start`."""
    sides = []
    for k in (arm, control):
        mine = (trials.action == k).astype(np.float64)
        n = np.maximum(mine.cumsum(-1), 1)
        mean = (mine * trials.reward).cumsum(-1) / n
        square = (mine * trials.reward**2).cumsum(-1) / n
        sides.append((mean, np.maximum(square - mean**2, 0) / n, mine.cumsum(-1)))
    (m1, v1, n1), (m0, v0, n0) = sides
    half = np.where((np.arange(m1.shape[-1]) < start) | (np.minimum(n0, n1) < 2), np.inf, z * np.sqrt(v1 + v0))
    return Band(m1 - m0 - half, m1 - m0 + half)


def holds(band: Band, mean: FloatArray | float) -> BoolArray:
    """Whether `mean` (...) is inside at all times: (...)."""
    m = np.asarray(mean)[..., None]
    return np.asarray(((band.low <= m) & (m <= band.high)).all(-1))
