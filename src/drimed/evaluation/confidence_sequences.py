"""Confidence sequences and tests that hold at all times at once: averages of conditional means, and a constant theta.

Observations x_t have means mu_t given the past, which may differ from time to time. After t of them a band covers
(mu_1 + ... + mu_t) / t. It is not intersected over time: the average at one time is not the average at another.
`exact` bounds how far below its prediction an observation can fall: for y >= -c, 0 <= b c < 1 (Fan et al. 2015)

    exp(b y - psi(b) y^2) <= 1 + b y,   psi(b) = (-log(1 - b c) - b c) / c^2

so with y_t = x_t - prediction_t, S = sum (x_t - mu_t) and V = sum y_t^2, exp(b S - psi(b) V) is a supermartingale for
every b; `boundary` mixes over b (Howard et al. 2021, Prop. 9, gamma-exponential). `asymptotic` needs an estimate of the
variance of the sum instead, and is right in the limit of a late start (Waudby-Smith et al. 2024). Shapes: leading
`...` is any batch of runs; the last axis is time. Of `mean_drift`: L episodes, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from scipy.special import gammainc, gammaln, logsumexp

from drimed.errors import ConfigError, InputError
from drimed.numerics import arrays
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.numerics.compiled import kernel

TUNED_AT = 200.0  # squared scales: where V has this size the boundary is lowest
LAST_STEP = 1e-8  # relative: after a step of Newton's as small as this the boundary is exact but for round-off,
STEPS = 30  # which for squares beyond 1e9 is larger than that; from where the search begins it takes five
ROUND_OFF = 1e-9  # of the range: rounding in an observation must not look like a breach of its range

# The supremum is taken over |theta| <= norm_bound by a penalty of this size, times |theta|^2 / norm_bound^2 / 2: it
# costs half of it in evidence, and keeps the fit defined before there are d rows.
PENALTY = 0.01


@final
@dataclass(frozen=True, slots=True)
class Band:
    """Lower and upper ends: at each time (..., n), or after the last observation (...)."""

    low: FloatArray
    high: FloatArray


def boundary(V: Any, alpha: float, *, scale: float = 1.0, tuned_at: float = TUNED_AT) -> FloatArray:
    """The largest S that is plausible at any time while the squares add up to V, of any shape.

    >>> boundary(np.array([0.0, 100.0, 10_000.0]), 0.05).round(1).tolist()
    [12.6, 30.3, 331.1]
    """
    arrays.share("alpha", alpha)
    if not (scale > 0 and tuned_at > 0):
        raise ConfigError(f"scale and tuned_at must be positive, got {scale} and {tuned_at}")
    a, need = tuned_at / _tightest(alpha), np.log(1 / alpha)
    b = np.asarray(V, np.float64) / scale**2 + a
    start = a * np.log(a) - gammaln(a) - np.log(gammainc(a, a)) - a + gammaln(b)

    # The excess of the mixture is convex in S: Newton's first step leads beyond the root, and all others down to it.
    s = np.sqrt(2 * b * need) + need
    moving = np.ones(s.shape, bool)
    for _ in range(STEPS):
        y = s + b
        below = gammainc(b, y)
        excess = start + np.log(below) - b * np.log(y) + y - need
        slope = s / y + np.exp((b - 1) * np.log(y) - y - gammaln(b)) / below
        step = np.where(moving, excess / slope, 0.0)  # an entry that has arrived stays, whatever is computed beside it
        s = s - step
        moving = np.abs(step) > LAST_STEP * s
        if not moving.any():
            break
    return np.asarray(scale * s, np.float64)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Lower:
    """Lower bounds on the average of the means, which go on where they stopped.

    Observations are at least `least`, and their means at most `most`. A huge observation is cut before it counts: that
    lowers its mean, so the bound stays valid.
    """

    alpha: float
    least: float = 0.0
    most: float = 1.0
    guess: float | None = None  # of the first mean; None: the middle
    tuned_at: float = TUNED_AT
    sums: FloatArray = field(default_factory=lambda: np.zeros(3))  # (..., 3): their number, their sum as counted, V

    def __post_init__(self) -> None:
        arrays.share("alpha", self.alpha)
        if not self.least < self.most:
            raise ConfigError(f"least must be below most, got {self.least} and {self.most}")

    def extend(self, x: Any, used: Any = True) -> Lower:
        """Add observations (..., n), of those that are `used`."""
        x = arrays.finite("x", x)
        counts: BoolArray = np.broadcast_to(np.asarray(used, bool), x.shape)
        if (counts & (x < self.least - ROUND_OFF * (self.most - self.least))).any():
            raise InputError(f"observations must be at least {self.least:g}, got {float(x[counts].min()):g}")
        guess = (self.least + self.most) / 2 if self.guess is None else self.guess
        settings = np.array([self.least, self.most, guess])
        return replace(self, sums=np.asarray(_add(x, counts.astype(np.float64), self.sums, settings)))

    def bound(self) -> FloatArray:
        """Of the average so far: (...)."""
        count, total, V = np.moveaxis(self.sums, -1, 0)
        far = boundary(V, self.alpha, scale=self.most - self.least, tuned_at=self.tuned_at)
        return np.maximum(self.least, np.where(count > 0, (total - far) / np.maximum(count, 1), self.least))


def exact(
    x: Any, alpha: float, *, least: float = 0.0, most: float = 1.0, reach: float = 0.0, used: Any = True,
    tuned_at: float = TUNED_AT,
) -> Band:  # fmt: skip
    """Two-sided band for means within [least, most] of observations x (..., n) within that range widened by `reach`."""
    x, middle = arrays.finite("x", x), (least + most) / 2
    below = Lower(alpha=alpha / 2, least=least - reach, most=most, guess=middle, tuned_at=tuned_at)
    above = replace(below, least=-most - reach, most=-least, guess=-middle)
    low, minus_high = below.extend(x, used).bound(), above.extend(-x, used).bound()
    return Band(np.maximum(low, least), np.minimum(-minus_high, most))


def asymptotic(total: FloatArray, count: FloatArray, V: FloatArray, begun: BoolArray, alpha: float) -> Band:
    """From the sum of `count` observations so far and an estimate V of its variance; infinitely wide before `begun`.

    All are (..., n). Tightest where the variance has become twice that at the beginning.
    """
    arrays.share("alpha", alpha)
    if not V.shape[-1]:
        return Band(V, V)
    first = np.take_along_axis(V, begun.argmax(-1)[..., None], -1)
    rho = np.where(first > 0, first, 1.0) * 2 / _tightest(alpha)
    open_ = ~begun | (V <= 0) | (count <= 0)
    half = np.sqrt((V + rho) * np.log((V + rho) / (rho * alpha**2)))
    some = np.maximum(count, 1)
    half, mean = np.where(open_, np.inf, half / some), total / some
    return Band(mean - half, mean + half)


def _tightest(alpha: float) -> float:
    """A mixture is tightest near a variance of rho times this: Howard et al. (2021), Eq. 26."""
    return float(2 * np.log(1 / alpha) + np.log(1 + 2 * np.log(1 / alpha)))


@final
@dataclass(frozen=True, slots=True)
class MeanDrift:
    """Evidence against a constant theta after each episode."""

    evidence: FloatArray  # (..., L), log E
    alpha: float

    @property
    def alarm(self) -> IntArray:
        """First episode, from 0, at the end of which the alarm is raised; -1: none."""
        crossed = self.evidence >= np.log(1 / self.alpha)
        return np.where(crossed.any(-1), crossed.argmax(-1), -1)


def mean_drift(
    gram: FloatArray, moment: FloatArray, *, alpha: float, norm_bound: float = 1.0, every: int = 5,
    jumps: tuple[float, ...] = (1.0, 0.3, 0.1),
) -> MeanDrift:  # fmt: skip
    """Test a constant theta at all times: evidence after each of L episodes, from sums over its whitened rows (z, w).

    Against every constant theta an e-process weighs one theta until an episode tau and another afterwards:

        E_l = sum_tau prior(tau) m(rows up to tau) m(rows after tau | rows up to tau) / sup_theta p_theta(rows up to l)

    with m normal mixtures of the likelihood, the second centred at the estimate at tau. Under a constant theta E ever
    reaches 1 / alpha with probability `alpha` at most, for any policy (universal inference, Wasserman et al. 2020). The
    noise of whitened rows is taken as 1-sub-Gaussian: noise that is larger than claimed raises alarms too.

    `gram` (..., L, d, d) are sums of z z^T, `moment` (..., L, d) of z w. |theta| is at most `norm_bound`. Candidate
    change-points are `every` so many episodes; `jumps` are lengths of change, in norm bounds, with equal weights.
    """
    A, b = np.cumsum(gram, -3), np.cumsum(moment, -2)
    L, d = b.shape[-2:]
    S2 = norm_bound**2
    before, theta = _log_mixture(A, b, d / S2)  # (..., L) and (..., L, d)
    before = before - _half_logdet(A, d / S2)
    constant = _log_mixture(A, b, PENALTY / S2)[0] + PENALTY / 2  # at least the supremum, less a term that cancels
    evidence = np.full(before.shape, -np.inf)
    for j, tau in enumerate(range(every, L, every), start=1):
        first_rows = tau - 1  # sums up to and including episode tau - 1
        centre = theta[..., first_rows, None, :]
        more_A = A[..., tau:, :, :] - A[..., first_rows, None, :, :]
        new_b = b[..., tau:, :] - b[..., first_rows, None, :]
        more_b = new_b - np.matvec(more_A, centre)
        # The rows after tau are rows of theta - centre, up to terms that the supremum has too.
        shift = np.vecdot(centre, new_b) - 0.5 * np.vecdot(centre, np.matvec(more_A, centre))
        penalties = [d / (S2 * jump**2) for jump in jumps]
        after = [_log_mixture(more_A, more_b, p)[0] - _half_logdet(more_A, p) for p in penalties]
        gain = logsumexp(np.stack(after), 0) - np.log(len(jumps)) + shift
        here = before[..., first_rows, None] + gain - constant[..., tau:] - np.log(j * (j + 1))
        evidence[..., tau:] = np.logaddexp(evidence[..., tau:], here)
    return MeanDrift(evidence, alpha)


def _log_mixture(A: FloatArray, b: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """b^T (A + penalty I)^-1 b / 2, and the ridge estimate."""
    theta: FloatArray = np.linalg.solve(A + penalty * np.eye(A.shape[-1]), b[..., None])[..., 0].astype(np.float64)
    return 0.5 * np.vecdot(b, theta), theta


def _half_logdet(A: FloatArray, penalty: float) -> FloatArray:
    """log det(A / penalty + I) / 2."""
    return 0.5 * np.linalg.slogdet(A / penalty + np.eye(A.shape[-1]))[1]


@kernel("void(f8[:], f8[:], f8[:], f8[:], f8[:])", "(n),(n),(s),(p)->(s)")
def _add(x, used, before, settings, sums):  # type: ignore[no-untyped-def]
    """Predict each observation by the mean so far, cut it where it is huge, and add it up."""
    count, total, V = before[0], before[1], before[2]
    least, most, guess = settings[0], settings[1], settings[2]
    size = most - least
    for i in range(x.shape[0]):
        if used[i] > 0.0:
            predicted = min((total + guess) / (count + 1.0), most)
            value = min(x[i], predicted + np.sqrt(V + size * size))
            count += 1.0
            total += value
            V += (value - predicted) ** 2
    sums[0], sums[1], sums[2] = count, total, V
