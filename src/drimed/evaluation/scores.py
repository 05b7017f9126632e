"""Model-free effects from an adaptive trial: augmented inverse propensity scores, and bands around their average.

For a contrast g over the arms (arm minus control), each decision gives a score

    s_t = sum_a g(a) q_t(a) + g(A_t) / e_t(A_t) (r_t - q_t(A_t))

whose mean given the past is the effect sum_a g(a) m_t(a), whatever the predictions q_t, as long as the propensities
e_t are the true ones and q_t was fixed before r_t was seen. So the average of the scores estimates the average effect
of the decisions so far, and effects may differ from user to user and from season to season. Decisions at which an arm
of the contrast had hardly a chance are left out: a single one of them would be the whole estimate.

The variance of a score is at most sum_a g(a)^2 / e_t(a) E[(r - q(a))^2]. The propensities are known, so only the mean
squared residual of each arm is estimated: that needs far fewer plays than the variance of the scores themselves.
Shapes: leading `...` is any batch; n decisions in order, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation import intervals, running
from drimed.evaluation.intervals import Interval
from drimed.evaluation.sequences import Band
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.linear.kernel import kernel

LEAST_CHANCE = 0.01  # decisions at which an arm of the contrast had less are left out
PLAYS = 10.0  # expected plays of the rarer arm before the asymptotic band begins
TELLING = 2.0  # of these, as many residuals must count effectively: rare events are long in coming
BORROWED = 5.0  # imagined residuals of an arm, as large as those of all arms
TUNED_AT = 5.0  # squared scales: the exact band of a score that 1 / LEAST_CHANCE may be the scale of


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """One number for each decision, with what was known about it before."""

    value: FloatArray  # (..., n); 0 where the decision is left out
    used: BoolArray  # (..., n), decisions with a contrast, at which each of its arms had a chance
    plays: FloatArray  # (..., n), expected plays of the rarer arm of the contrast so far
    telling: FloatArray  # (..., n), how many of them count effectively
    variance: FloatArray  # (..., n), of the sum of the scores so far, as estimated from what was seen by then
    precision: FloatArray  # (..., n), 1 / sum_a g(a)^2 / e(a); 0 where the decision is left out
    share: FloatArray  # (..., n), of the decisions so far that have a contrast: for the others the effect is zero
    ends: tuple[float, float] | None  # of the effect, for rewards within a range
    reach: float  # how far beyond these ends a score may be


def running_predictions(
    action: Any, reward: Any, K: int, *, user: Any = 0, season: Any = 0, arms: Any = None
) -> FloatArray:
    """Each arm's reward before each decision, from the decisions before it: (..., n) -> (..., n, K).

    An arm's mean, shifted by what this user and this season have had more than was predicted, each drawn towards zero
    as by one more decision without a surprise. The first prediction is zero. With `arms` (k,) only of these, and last
    of the arm that was played: (..., n, k + 1).

    >>> running_predictions([0, 1, 0], [4.0, 6.0, 4.0], 2)[..., 0].tolist()
    [0.0, 4.0, 4.5]
    """
    a, r = np.asarray(action, np.intp), checks.finite("reward", reward)
    if a.shape != r.shape:
        raise ShapeError(f"action and reward must have one shape, got {a.shape} and {r.shape}")
    places = [np.unique(x, return_inverse=True)[1].reshape(np.shape(x)).astype(np.intp) for x in (user, season)]
    several = [float(p.max(initial=0) > 0) for p in places]  # one user alone has nothing more than all users
    most = 1 + max(int(p.max(initial=0)) for p in places)
    wide = (np.broadcast_to(p, a.shape) for p in places)
    wanted = np.append(np.arange(K) if arms is None else np.asarray(arms, np.intp), -1)
    found = np.asarray(_predict(a, r, *wide, np.zeros(K), np.zeros(most), np.array(several), wanted))
    return found[..., :-1] if arms is None else found


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
    reward_range: tuple[float, float] | None = None,
    least_chance: float = LEAST_CHANCE,
) -> Scores:
    """The scores of n decisions (..., n) with the logged probabilities of all arms (..., n, K).

    The contrast (..., n, K) may differ from decision to decision, as where users have different controls.
    `predictions` (..., n, K) must come from the past alone; without any, running means serve, and the first decision
    is left out. With a `reward_range`, predictions are kept within it, and an exact band is possible.
    """
    e = checks.probabilities("probabilities", checks.finite("probabilities", probabilities))
    K = e.shape[-1]
    r = checks.finite("reward", reward)
    a: IntArray = np.asarray(action, np.intp)
    if r.shape != a.shape or e.shape[:-1] != a.shape:
        raise ShapeError(f"action, reward and probabilities do not fit: {a.shape}, {r.shape}, {e.shape}")
    checks.share("least_chance", least_chance)
    g = np.broadcast_to(checks.shaped("contrast", checks.finite("contrast", contrast), (K,)), e.shape)
    q = running_predictions(a, r, K) if predictions is None else _given(predictions, e.shape)
    if reward_range is not None:
        q = np.clip(q, *_checked_range(reward_range, r))
    needed = g != 0
    some = needed.any(-1)
    smallest = np.where(needed, e, 1.0).min(-1)
    used = some & (smallest >= least_chance)
    if predictions is None:
        used = used & (np.arange(a.shape[-1]) > 0)
    told = used[..., None] & needed
    ratio = np.where(told, g / np.where(told, e, 1.0), 0.0)  # g(a) / e(a)
    residual = r - pick(q, a)
    value = np.where(used, np.vecdot(g, q), 0.0) + pick(ratio, a) * residual
    plays = np.cumsum(np.where(used, smallest, 0.0), -1)
    squares, fourth = np.cumsum(residual**2, -1), np.cumsum(residual**4, -1)
    time = np.arange(1, a.shape[-1] + 1)
    effective = squares**2 / np.where(fourth > 0, fourth, 1.0)
    scale = (ratio * g).sum(-1)  # sum_a g(a)^2 / e(a)
    return Scores(
        value=value,
        used=used,
        plays=plays,
        telling=effective * plays / time,
        variance=_variance(a, residual, squares / time, ratio * g),
        precision=np.where(scale > 0, 1 / np.where(scale > 0, scale, 1.0), 0.0),
        share=np.cumsum(some, -1) / time,
        ends=_ends(g, reward_range),
        reach=float(np.ptp(reward_range or 0.0) * np.abs(g).max(initial=0.0)) * (1 / least_chance - 1),
    )


def effect_band(scores: Scores, alpha: float, *, method: str = "asymptotic") -> Band:
    """The average effect of the decisions so far, at all times at once: (..., n).

    What is averaged are the decisions that are used, times the share of decisions that have a contrast at all.
    `exact` needs a reward range. `asymptotic` needs none: its level is right in the limit of a late start, and it
    begins when the rarer arm was played PLAYS times in expectation and its residuals tell something of their size.
    """
    if method == "exact":
        within = _within(scores)
        if within is None:
            return Band(np.zeros_like(scores.value), np.zeros_like(scores.value))
        band = running.exact(scores.value, alpha, **within, used=scores.used)
    elif method == "asymptotic":
        begun = np.maximum.accumulate((scores.plays >= PLAYS) & (scores.telling >= TELLING), -1)
        total, count = np.cumsum(scores.value, -1), np.cumsum(scores.used, -1).astype(np.float64)
        band = running.asymptotic(total, count, scores.variance, begun, alpha)
    else:
        raise ConfigError(f"method must be 'exact' or 'asymptotic', got {method!r}")
    with np.errstate(invalid="ignore"):
        low, high = band.low * scores.share, band.high * scores.share
    return Band(np.where(np.isfinite(band.low), low, -np.inf), np.where(np.isfinite(band.high), high, np.inf))


def exact_now(scores: Scores, alpha: float) -> tuple[FloatArray, FloatArray]:
    """Where the exact band has come to after the last decision, without computing it before: (...) twice."""
    within = _within(scores)
    if within is None:
        return np.zeros(scores.value.shape[:-1]), np.zeros(scores.value.shape[:-1])
    band = running.exact_now(scores.value, alpha, **within, used=scores.used)
    return band.low * scores.share[..., -1], band.high * scores.share[..., -1]


def effect_at_end(scores: Scores, level: float) -> Interval:
    """An effect that stays the same, once, at an end that was fixed beforehand: studentised, by sqrt(precision).

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


def _within(scores: Scores) -> dict[str, float] | None:
    """Where the effect and the scores lie, for the exact band; None where no decision has a contrast: it is zero."""
    if scores.ends is None:
        raise ConfigError("an exact band needs the range of the reward; give reward_range, or method='asymptotic'")
    least, most = scores.ends
    if least == most:
        return None
    return {"least": least, "most": most, "reach": scores.reach, "tuned_at": TUNED_AT}


def _given(predictions: Any, shape: tuple[int, ...]) -> FloatArray:
    q = checks.shaped("predictions", checks.finite("predictions", predictions), shape[-1:])
    return np.broadcast_to(q, shape)


def _checked_range(reward_range: tuple[float, float], r: FloatArray) -> tuple[float, float]:
    least, most = reward_range
    if not least < most:
        raise ConfigError(f"the reward range must be from low to high, got {least} to {most}")
    if r.size and not (least <= r.min() and r.max() <= most):
        raise InputError(f"rewards must be within {least} to {most}, got {float(r.min())} to {float(r.max())}")
    return least, most


def _ends(g: FloatArray, reward_range: tuple[float, float] | None) -> tuple[float, float] | None:
    """The least and the most that any of the effects can be."""
    if reward_range is None:
        return None
    up, down = np.maximum(g, 0.0).sum(-1), np.minimum(g, 0.0).sum(-1)
    least, most = reward_range
    return float((up * least + down * most).min(initial=0.0)), float((up * most + down * least).max(initial=0.0))


def _variance(action: IntArray, residual: FloatArray, pooled: FloatArray, weight: FloatArray) -> FloatArray:
    """Of the sum of the scores after each decision: (..., n). `weight` is g(a)^2 / e(a), (..., n, K).

    An arm that is seldom played borrows from all arms, and its residuals count as no smaller than theirs.
    """
    V = np.zeros_like(residual)
    for k in np.flatnonzero(weight.reshape(-1, weight.shape[-1]).any(0)):
        mine = action == k
        squares, count = np.cumsum(np.where(mine, residual**2, 0.0), -1), np.cumsum(mine, -1)
        own = (squares + BORROWED * pooled) / (count + BORROWED)
        V += np.maximum(own, pooled) * np.cumsum(weight[..., k], -1)
    return V


@kernel(
    "void(i8[:], f8[:], i8[:], i8[:], f8[:], f8[:], f8[:], i8[:], f8[:, :])",
    "(n),(n),(n),(n),(k),(m),(f),(w)->(n,w)",
)
def _predict(action, reward, user, season, arms, places, several, wanted, predicted):  # type: ignore[no-untyped-def]
    """Running means of arms, and of what users and seasons have more than was predicted. Arm -1: the one played."""
    n, K, P = action.shape[0], arms.shape[0], places.shape[0]
    arm_sum, arm_count = np.zeros(K), np.zeros(K)
    more, count = np.zeros((2, P)), np.zeros((2, P))
    total = 0.0
    for i in range(n):
        u, s, a = user[i], season[i], action[i]
        shift = more[0, u] / (1.0 + count[0, u]) + more[1, s] / (1.0 + count[1, s])
        overall = total / i if i > 0 else 0.0
        for w in range(wanted.shape[0]):
            k = wanted[w] if wanted[w] >= 0 else a
            predicted[i, w] = (overall + arm_sum[k]) / (1.0 + arm_count[k]) + shift
        off = reward[i] - (overall + arm_sum[a]) / (1.0 + arm_count[a]) - shift
        for f in range(2):
            at = u if f == 0 else s
            if i > 0 and several[f] > 0.0:
                more[f, at] += off + more[f, at] / (1.0 + count[f, at])
                count[f, at] += 1.0
        total += reward[i] - shift
        arm_sum[a] += reward[i] - shift
        arm_count[a] += 1.0
