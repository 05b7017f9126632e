"""One arm's mean reward at all times, from its own plays alone.

A policy that stops playing an arm after bad luck makes the arm's sample mean too low, and its usual interval wrong; but
the sum of (reward - mean) / sigma^2 over the plays of one arm is a martingale, so the normal mixture holds at every
time, however plays were chosen. It needs no propensities. It assumes one mean for each arm of this user, and noise that
is sub-Gaussian with the given sigma. Shapes: leading `...` is any batch; n decisions in order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.errors import ShapeError
from drimed.evaluation import sequences
from drimed.evaluation.sequences import Band
from drimed.linear import checks
from drimed.linear.arrays import FloatArray


def arm_band(*, action: Any, reward: Any, arm: int, sigma: Any, alpha: float, tuned_at: float = 50.0) -> Band:
    """The mean reward of one arm after each of n decisions (..., n); infinitely wide before its first play.

    `sigma` (..., n) is the standard deviation of each reward; plays count by 1 / sigma^2. Tightest after `tuned_at`
    plays, as measured by the precision of the arm's first one.

    >>> band = arm_band(action=[0, 1, 0], reward=[1.0, 9.0, 3.0], arm=0, sigma=1.0, alpha=0.05)
    >>> bool(band.low[2] < 2 < band.high[2])
    True
    """
    a, r = np.asarray(action, np.intp), checks.finite("reward", reward)
    if a.shape != r.shape:
        raise ShapeError(f"action and reward must have one shape, got {a.shape} and {r.shape}")
    s = checks.positive("sigma", checks.finite("sigma", sigma))
    precision: FloatArray = np.where(a == arm, 1 / np.broadcast_to(s, r.shape) ** 2, 0.0)
    V = np.cumsum(precision, -1)  # the variance of the sum below
    some = np.where(V > 0, V, 1.0)
    first = np.take_along_axis(some, (V > 0).argmax(-1)[..., None], -1)
    radius = np.where(V > 0, np.sqrt(first) * sequences.mixture(V / first, alpha, tuned_at=tuned_at), np.inf)
    mean = np.cumsum(precision * r, -1) / some
    return Band(mean - radius / some, mean + radius / some)


def difference_band(
    *, action: Any, reward: Any, arm: int, control: int, sigma: Any, alpha: float, tuned_at: float = 50.0
) -> Band:
    """One arm's mean minus another's: both bands at half of alpha."""
    given = {"action": action, "reward": reward, "sigma": sigma, "alpha": alpha / 2, "tuned_at": tuned_at}
    new, old = arm_band(arm=arm, **given), arm_band(arm=control, **given)
    return Band(new.low - old.high, new.high - old.low)
