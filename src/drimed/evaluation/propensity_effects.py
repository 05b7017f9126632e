"""Effects of arms from an adaptive trial, from the propensities alone, and a test of these.

Each decision gives a score for a contrast g over the arms (arm minus control)

    s_t = sum_a g(a) q_t(a) + g(A_t) / e_t(A_t) (r_t - q_t(A_t))

whose mean given the past is the effect sum_a g(a) m_t(a), whatever the predictions q_t, as long as the propensities
e_t are the true ones and q_t was fixed before r_t was seen (docs/evaluation.md). Decisions at which an arm of the
contrast had hardly a chance are left out: one of them would be the whole estimate. The variance of a score is at most
sum_a g(a)^2 / e_t(a) E[(r - q(a))^2]: with known propensities only the mean squared residual of each arm is estimated.
Shapes: leading `...` is any batch; n decisions in order, K arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation import confidence_sequences
from drimed.evaluation.confidence_sequences import Band
from drimed.numerics import arrays, probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.numerics.compiled import kernel

LEAST_CHANCE = 0.01  # decisions at which an arm of the contrast had less are left out
PLAYS = 10.0  # expected plays of the rarer arm before the asymptotic band begins
TELLING = 2.0  # of these, as many residuals must count effectively: rare events are long in coming
BORROWED = 5.0  # imagined residuals of an arm, as large as those of all arms
TUNED_AT = 5.0  # squared scales: the exact band of a score that 1 / LEAST_CHANCE may be the scale of
PRIOR_PLAYS = 5.0  # of each arm, at its logged rate: before there is evidence, bets are small


@final
@dataclass(frozen=True, slots=True)
class Scores:
    """Scores of n decisions, with sums that were known by then."""

    value: FloatArray  # (..., n); 0 where the decision is left out
    used: BoolArray  # (..., n), decisions with a contrast, at which each of its arms had a chance
    plays: FloatArray  # (..., n), expected plays of the rarer arm of the contrast so far
    telling: FloatArray  # (..., n), how many of them count effectively
    variance: FloatArray  # (..., n), of the sum of the scores so far, as estimated by then
    share: FloatArray  # (..., n), of the decisions so far that have a contrast: for the others the effect is zero
    ends: tuple[float, float] | None  # of the effect, for rewards within a range
    reach: float  # how far beyond these ends a score may be


def running_predictions(
    action: Any, reward: Any, K: int, *, user: Any = 0, season: Any = 0, arms: Any = None
) -> FloatArray:
    """Each arm's reward before each decision, from the decisions before it: (..., n) -> (..., n, K).

    An arm's mean, shifted by how much this user and this season exceeded their predictions, each shrunk towards zero
    as by one more decision without a surprise. The first prediction is zero. With `arms` (k,) only of these, and last
    of the arm that was played: (..., n, k + 1).
    """
    a, r = np.asarray(action, np.intp), arrays.finite("reward", reward)
    if a.shape != r.shape:
        raise ShapeError(f"action and reward must have one shape, got {a.shape} and {r.shape}")
    codes = [np.unique(x, return_inverse=True)[1].reshape(np.shape(x)).astype(np.intp) for x in (user, season)]
    several = [float(c.max(initial=0) > 0) for c in codes]  # one user alone has nothing more than all users
    most = 1 + max(int(c.max(initial=0)) for c in codes)
    wanted = np.append(np.arange(K) if arms is None else np.asarray(arms, np.intp), -1)
    users, seasons = (np.broadcast_to(c, a.shape) for c in codes)
    predicted = _predict(a, r, users, seasons, np.zeros(K), np.zeros(most), np.array(several), wanted)
    return np.asarray(predicted[..., :-1] if arms is None else predicted)


def effect_scores(
    *, action: Any, reward: Any, probabilities: Any, contrast: Any, predictions: Any = None,
    reward_range: tuple[float, float] | None = None,
) -> Scores:  # fmt: skip
    """Scores of n decisions (..., n) with the logged probabilities of all arms (..., n, K).

    The contrast (..., n, K) may differ from decision to decision, as where users have different controls.
    `predictions` (..., n, K) must come from the past alone; without any, running means serve, and the first decision
    is left out. With a `reward_range`, predictions are kept within it, and an exact band is possible.
    """
    e = arrays.probabilities("probabilities", arrays.finite("probabilities", probabilities))
    r = arrays.finite("reward", reward)
    a: IntArray = np.asarray(action, np.intp)
    if r.shape != a.shape or e.shape[:-1] != a.shape:
        raise ShapeError(f"action, reward and probabilities do not fit: {a.shape}, {r.shape}, {e.shape}")
    g = np.broadcast_to(arrays.finite("contrast", contrast), e.shape)
    past = running_predictions(a, r, e.shape[-1]) if predictions is None else predictions
    q = np.broadcast_to(arrays.finite("predictions", past), e.shape)
    ends = None
    if reward_range is not None:
        least, most = reward_range
        if not least < most:
            raise ConfigError(f"the reward range must be from low to high, got {least} to {most}")
        if r.size and not (least <= r.min() and r.max() <= most):
            raise InputError(f"rewards must be within {least} to {most}, got {float(r.min())} to {float(r.max())}")
        q = np.clip(q, least, most)
        up, down = np.maximum(g, 0.0).sum(-1), np.minimum(g, 0.0).sum(-1)
        lowest, highest = (up * least + down * most).min(initial=0.0), (up * most + down * least).max(initial=0.0)
        ends = float(lowest), float(highest)
    needed = g != 0
    some = needed.any(-1)
    smallest = np.where(needed, e, 1.0).min(-1)
    used = some & (smallest >= LEAST_CHANCE)
    if predictions is None:
        used = used & (np.arange(a.shape[-1]) > 0)
    weighted = used[..., None] & needed
    ratio = np.where(weighted, g / np.where(weighted, e, 1.0), 0.0)  # g(a) / e(a)
    residual = r - pick(q, a)
    plays = np.cumsum(np.where(used, smallest, 0.0), -1)
    squares, fourth = np.cumsum(residual**2, -1), np.cumsum(residual**4, -1)
    time = np.arange(1, a.shape[-1] + 1)
    effective = squares**2 / np.where(fourth > 0, fourth, 1.0)
    return Scores(
        value=np.where(used, np.vecdot(g, q), 0.0) + pick(ratio, a) * residual,
        used=used, plays=plays, telling=effective * plays / time, share=np.cumsum(some, -1) / time, ends=ends,
        variance=_variance(a, residual, squares / time, ratio * g),
        reach=float(np.ptp(reward_range or 0.0) * np.abs(g).max(initial=0.0)) * (1 / LEAST_CHANCE - 1),
    )  # fmt: skip


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


def asymptotic_band(scores: Scores, alpha: float) -> Band:
    """The average effect of the decisions so far, at all times at once: (..., n).

    The average is over the decisions that are used, times the share of decisions that have a contrast at all. Its
    level is right in the limit of a late start: it begins when the rarer arm was played PLAYS times in expectation
    and its residuals tell something of their size.
    """
    begun = np.maximum.accumulate((scores.plays >= PLAYS) & (scores.telling >= TELLING), -1)
    total, count = np.cumsum(scores.value, -1), np.cumsum(scores.used, -1).astype(np.float64)
    band = confidence_sequences.asymptotic(total, count, scores.variance, begun, alpha)
    open_ = ~np.isfinite(band.low)
    with np.errstate(invalid="ignore"):  # infinity times a share of zero
        low, high = band.low * scores.share, band.high * scores.share
    return Band(np.where(open_, -np.inf, low), np.where(open_, np.inf, high))


def exact_band(scores: Scores, alpha: float) -> Band:
    """The same for rewards within a known range, exactly, after the last decision: (...)."""
    if scores.ends is None:
        raise ConfigError("an exact band needs the range of the reward; give reward_range to effect_scores")
    (least, most), share = scores.ends, scores.share[..., -1]
    if least == most:  # no decision has a contrast
        return Band(np.zeros(share.shape), np.zeros(share.shape))
    band = confidence_sequences.exact(
        scores.value, alpha, least=least, most=most, reach=scores.reach, used=scores.used, tuned_at=TUNED_AT
    )
    return Band(band.low * share, band.high * share)


def calibration_p_value(action: IntArray, probabilities: FloatArray) -> float:
    """p-value of logged probabilities (n, K) against the choices (n,), at any size and however often one looks.

    It bets: before each decision it tilts the logged probabilities towards arms that were played more often than they
    said, and multiplies its stake by tilted over logged probability of what was played. If they are true, the stake is
    a martingale from 1, and reaches 1 / alpha with a chance of at most alpha.
    """
    p, played = probabilities, probability.one_hot(action, probabilities.shape[-1])
    expected, realised = (np.cumsum(x, axis=0) - x for x in (p, played))  # (n, K), before each decision
    tilt = (realised + PRIOR_PLAYS) / (expected + PRIOR_PLAYS)
    stakes = np.cumsum(np.log(np.vecdot(tilt, played) / np.vecdot(tilt, p)))  # logarithms
    return float(np.exp(-stakes.max(initial=0.0)))


@kernel(
    "void(i8[:], f8[:], i8[:], i8[:], f8[:], f8[:], f8[:], i8[:], f8[:, :])", "(n),(n),(n),(n),(k),(m),(f),(w)->(n,w)"
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
