"""Model-free effects from an adaptive trial: augmented inverse propensity scores, and bands around their mean.

For a contrast g over the arms (arm minus control), each decision gives a score

    s_t = sum_a g(a) q_t(a) + g(A_t) / e_t(A_t) (r_t - q_t(A_t))

whose mean given the past is the effect sum_a g(a) m_t(a), whatever the predictions q_t, as long as the propensities
e_t are the true ones and q_t was fixed before r_t was seen. Its variance is about sum_a g(a)^2 / e_t(a): it explodes
while a policy plays an arm less and less. So decisions are weighted by what is known before them: the stabilised,
adaptive weights of Hadad et al. (2021), Zhan et al. (2021) and Bibaut et al. (2021). Decisions at which an arm of the
contrast had no chance at all say nothing about it and get weight zero.

What is estimated is the effect averaged with these weights: the effect itself where it stays the same, as in a
trial of the paper's kind (one user, fixed preferences, contexts that only move the noise).

`arm_band` needs no propensities. A policy that stops playing an arm after bad luck makes the arm's sample mean too low,
and its usual interval wrong; but the sum of (reward - mean) / sigma^2 over the plays of one arm is a martingale, so the
normal mixture holds at every time, however plays were chosen. It assumes one mean for each arm of this user, and noise
that is sub-Gaussian with the given sigma. Shapes: leading `...` is any batch; n decisions in order, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation import intervals, sequences
from drimed.evaluation.intervals import Interval
from drimed.evaluation.sequences import Band
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

NO_CHANCE = 1e-9  # a propensity below this is as good as none: a weight of 10^9 would be the whole estimate


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each decision, with what was known about it before."""

    value: FloatArray  # (..., n); 0 where the decision says nothing
    precision: FloatArray  # (..., n), 1 / sum_a g(a)^2 sigma(a)^2 / e(a); 0 where the decision says nothing
    chance: FloatArray  # (..., n), the smallest propensity among the arms of the contrast; 0 where one had none
    low: FloatArray | None  # (..., n), the least it could have been, for rewards within a range
    high: FloatArray | None  # (..., n)
    unit: float  # the range of the effect itself, for rewards within a range; else 1

    @property
    def used(self) -> BoolArray:
        """Decisions at which every arm of the contrast had a chance: (..., n)."""
        return self.precision > 0


def past_means(action: Any, reward: Any, K: int, *, prior: float = 0.0, arms: Any = None) -> FloatArray:
    """Each arm's mean reward before each decision, with one imagined reward of `prior`: (..., n) -> (..., n, K).

    With `arms` (k,) only of these: (..., n, k).

    >>> past_means(np.array([0, 1, 0]), np.array([1.0, 5.0, 3.0]), 2).tolist()
    [[0.0, 0.0], [0.5, 0.0], [0.5, 2.5]]
    """
    a, r = np.asarray(action, np.intp), checks.finite("reward", reward)
    played = (a[..., None] == np.asarray(range(K) if arms is None else arms, np.intp)).astype(np.float64)
    gained = played * r[..., None]
    counts = np.cumsum(played, -2) - played
    return (prior + np.cumsum(gained, -2) - gained) / (1 + counts)


def contrast(arm: int, control: Any, K: int) -> FloatArray:
    """g for one arm against the control, an index or a distribution over arms (..., K).

    >>> contrast(1, 0, 3).tolist()
    [-1.0, 1.0, 0.0]
    """
    if not 0 <= arm < K:
        raise InputError(f"arm must be from 0 to {K - 1}, got {arm}")
    if np.ndim(control) == 0:
        if not 0 <= int(control) < K:
            raise InputError(f"control must be an arm from 0 to {K - 1}, got {control}")
        control = np.eye(K)[int(control)]
    pi0 = checks.probabilities("control", checks.shaped("control", checks.finite("control", control), (K,)))
    return np.eye(K)[arm] - pi0


def effect_scores(
    *,
    action: Any,
    reward: Any,
    probabilities: Any,
    contrast: Any,
    predictions: Any = None,
    sigma: Any = None,
    reward_range: tuple[float, float] | None = None,
) -> Scores:
    """The scores of n decisions (..., n) with the logged probabilities of all arms (..., n, K).

    `predictions` (..., n, K) must come from the past alone; without any, each arm's running mean serves. `sigma`
    (..., n, K), each arm's noise as known before, lets loud decisions count less. With a `reward_range`, predictions
    are kept within it and the scores' own ranges are known too.
    """
    e = checks.probabilities("probabilities", checks.finite("probabilities", probabilities))
    K = e.shape[-1]
    r = checks.finite("reward", reward)
    a: IntArray = np.asarray(action, np.intp)
    if r.shape != a.shape or e.shape[:-1] != a.shape:
        raise ShapeError(f"action, reward and probabilities do not fit: {a.shape}, {r.shape}, {e.shape}")
    g = np.broadcast_to(checks.shaped("contrast", checks.finite("contrast", contrast), (K,)), e.shape)
    least, most = reward_range or (0.0, 0.0)
    if predictions is None:
        q = past_means(a, r, K, prior=(least + most) / 2)
    else:
        q = np.broadcast_to(checks.shaped("predictions", checks.finite("predictions", predictions), (K,)), e.shape)
    if reward_range is not None:
        if not least < most:
            raise ConfigError(f"the reward range must be from low to high, got {least} to {most}")
        if r.size and not (least <= r.min() and r.max() <= most):
            raise InputError(f"rewards must be within {least} to {most}, got {float(r.min())} to {float(r.max())}")
        q = np.clip(q, least, most)
    needed = g != 0
    chance = e > NO_CHANCE
    usable = (chance | ~needed).all(-1)
    ratio = np.where(usable[..., None] & needed, g / np.where(chance, e, 1.0), 0.0)  # g(a) / e(a)
    model = np.where(usable, np.vecdot(g, q), 0.0)
    value = model + pick(ratio, a) * (r - pick(q, a))
    noise = 1.0 if sigma is None else checks.positive("sigma", checks.finite("sigma", sigma)) ** 2
    scale = (ratio * g * noise).sum(-1)  # sum_a g(a)^2 sigma(a)^2 / e(a)
    precision = np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0)
    smallest = np.where(usable, np.where(needed, e, 1.0).min(-1), 0.0)
    if reward_range is None:
        return Scores(value, precision, smallest, None, None, 1.0)
    ends = ratio * (least - q), ratio * (most - q)
    low = model + np.minimum(*ends).min(-1)
    high = model + np.maximum(*ends).max(-1)
    unit = (most - least) * float(np.abs(g).sum(-1).max(initial=0.0))
    return Scores(value, precision, smallest, low, high, unit or 1.0)


def effect_band(scores: Scores, alpha: float, *, method: str, plays: float = 50.0) -> Band:
    """The effect at all times at once.

    `bernstein` is exact and needs a reward range. `asymptotic` needs none: its level is right in the limit of a late
    start, and it starts when the arm that was played least has been played `plays` times in expectation.
    """
    if method == "bernstein":
        if scores.low is None or scores.high is None:
            raise ConfigError("an exact band needs the range of the reward; give reward_range, or method='asymptotic'")
        # Rounding in the scores must not look like a breach of their range.
        low, high = np.minimum(scores.low, scores.value), np.maximum(scores.high, scores.value)
        return sequences.bernstein(
            scores.value, alpha, low=low, high=high, precision=scores.precision, unit=scores.unit
        )
    if method == "asymptotic":
        enough = np.cumsum(scores.chance, -1) >= plays
        start = np.where(enough.any(-1), enough.argmax(-1) + 1, enough.shape[-1] + 1)
        return sequences.asymptotic(scores.value, alpha, weight=np.sqrt(scores.precision), start=np.maximum(start, 2))
    raise ConfigError(f"method must be 'bernstein' or 'asymptotic', got {method!r}")


def effect_at_end(scores: Scores, level: float) -> Interval:
    """The effect once, at an end that was fixed beforehand: studentised, with weights sqrt(precision).

    Hadad et al. (2021), Thm 2 with constant allocation: asymptotically normal although the data are adaptive.
    """
    if scores.value.ndim != 1:
        raise ShapeError(f"one run at a time, got scores of shape {scores.value.shape}")
    h = np.sqrt(scores.precision)
    total = h.sum()
    if not total > 0:
        raise InputError("no decision gave every arm of the contrast a chance: propensities cannot tell this effect")
    value = float(h @ scores.value / total)
    error = float(np.sqrt(np.sum(h * h * (scores.value - value) ** 2)) / total)
    return intervals.normal(value, error, level)


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
