"""Are the logged propensities true, and is the noise as claimed?

`calibration` compares realised choices with the probabilities that were logged for them.

If arm a had probability p_t(a), the sum of 1{A_t = a} - p_t(a) is a martingale whose variance is known, whatever the
policy; over many decisions it is near normal. A propensity that is wrong shows as an arm that was played too often.

The near-normal test needs some plays of every arm to be right, and holds for one look. The other one bets: before each
decision it tilts the logged probabilities towards arms that were played more often than they said, and multiplies its
stake by tilted over logged probability of what was played. If the propensities are true, the stake is a martingale
from 1, and reaches 1 / alpha with a chance of at most alpha, at any size and however often one looks.

`residual_check`: standardised residuals should have variance one, no skew and normal tails. A residual is taken one
step ahead: from the fit before the outcome, divided by its predictive standard deviation sqrt(1 + z^T V^-1 z), so that
early ones are not too large. Rows are those of a learner with known noise: whitened. Shapes: leading `...` is any
batch; n decisions, M metrics (1 with reward feedback), K arms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import chdtrc, ndtr

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.log import Log
from drimed.learning.offer import Fit
from drimed.linear import checks, pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

PRIOR_PLAYS = 5.0  # of each arm, at its logged rate: before there is evidence, bets are small
FEWEST = 20  # residuals of an arm and metric below which nothing is said about their shape
RANK = 1e-9  # eigenvalues of the covariance below this share of the largest are the sums that are always zero


@final
@dataclass(frozen=True, slots=True)
class Calibration:
    """By arm, and by size of the probability."""

    arms: tuple[str, ...]
    expected: FloatArray  # (K,), sum of probabilities
    realised: FloatArray  # (K,), how often it was played
    z: FloatArray  # (K,), the difference in standard deviations
    p_value: float  # of all arms together, for a large log that is tested once; small: the propensities are wrong
    anytime_p: float  # the same by betting: at any size, however often one looks
    edges: FloatArray  # (B + 1,), bins of probability
    bin_count: FloatArray  # (B,), pairs of decision and arm in each
    bin_expected: FloatArray  # (B,), mean probability
    bin_realised: FloatArray  # (B,), share that was played
    bin_p: FloatArray  # (B,), p-value of the difference; NaN in an empty bin


def calibration(log: Log, *, bins: int = 10) -> Calibration:
    """Compare; needs the probabilities of all arms.

    >>> from drimed.evaluation.log import make_log
    >>> log = make_log(action=[0, 1] * 50, reward=[0.0] * 100, probabilities=[[0.5, 0.5]] * 100)
    >>> calibration(log).p_value
    1.0
    """
    return calibration_of([log], bins=bins)


def calibration_of(logs: Iterable[Log], *, bins: int = 10) -> Calibration:
    """The same of a log that comes in pieces, in the order of its decisions."""
    if bins < 1:
        raise ConfigError(f"bins must be at least 1, got {bins}")
    edges, arms = np.linspace(0, 1, bins + 1), tuple[str, ...]()
    expected = realised = off = np.zeros(0)  # (K,)
    product = np.zeros((0, 0))  # (K, K), p^T p
    binned = np.zeros((4, bins))  # of pairs: how many, their probabilities, their plays, their variances
    stake, best = 0.0, 0.0  # logarithms
    for log in logs:
        if log.probabilities is None:
            raise InputError(
                "calibration needs the probabilities of all arms; `inverse_check` does with that of the arm played"
            )
        if not arms:
            arms, K = log.arms, log.K
            expected, realised, off, product = np.zeros(K), np.zeros(K), np.zeros(K), np.zeros((K, K))
        p, played = log.probabilities, pmf.one_hot(log.action, log.K)
        stakes = stake + _bets(p, played, expected, realised)
        stake, best = float(stakes[-1]) if len(stakes) else stake, max(best, stakes.max(initial=0.0))
        off = off + (played - p).sum(0)
        product = product + p.T @ p
        expected, realised = expected + p.sum(0), realised + played.sum(0)
        # Most chances of many arms are in the first bin: only the others are sorted into theirs.
        high = p[p >= edges[1]] if bins > 1 else p[:0].ravel()
        at = np.searchsorted(edges[1:-1], high, side="right")  # what np.digitize returns
        # Arms of one decision exclude each other; leaving that out makes the variance of a bin larger, the test milder.
        pairs, chances, noise = (np.bincount(at, w, bins) for w in (None, high, high * (1 - high)))
        rest = np.array([p.size, p.sum(), p.sum() - np.vecdot(p, p).sum()]) - [pairs.sum(), chances.sum(), noise.sum()]
        pairs[0], chances[0], noise[0] = rest
        own = np.searchsorted(edges[1:-1], pick(p, log.action), side="right")
        binned += [pairs, chances, np.bincount(own, minlength=bins), noise]
    count, sums, plays, spread = binned
    some = np.where(count > 0, count, 1.0)
    bin_z = np.where(spread > 0, (plays - sums) / np.sqrt(np.where(spread > 0, spread, 1.0)), 0.0)
    z, overall = _by_arm(off, np.diag(expected) - product)
    return Calibration(
        arms=arms,
        expected=expected,
        realised=realised,
        z=z,
        p_value=overall,
        anytime_p=float(np.exp(-best)),
        edges=edges,
        bin_count=count,
        bin_expected=sums / some,
        bin_realised=plays / some,
        bin_p=np.where(count > 0, 2 * ndtr(-np.abs(bin_z)), np.nan),
    )


def _by_arm(off: FloatArray, covariance: FloatArray) -> tuple[FloatArray, float]:
    """How far each arm's plays are off, in standard deviations, and the p-value of all together."""
    variance = np.diag(covariance)
    z = np.where(variance > 0, off / np.sqrt(np.where(variance > 0, variance, 1.0)), 0.0)
    values, vectors = np.linalg.eigh(covariance)
    free = values > RANK * max(float(values[-1]), 1.0)
    statistic = float((((vectors.T @ off)[free]) ** 2 / values[free]).sum())
    return z, float(chdtrc(int(free.sum()), statistic)) if free.any() else 1.0


def _bets(p: FloatArray, played: FloatArray, expected: FloatArray, realised: FloatArray) -> FloatArray:
    """The logarithm of the stake after each decision, betting on what was expected and realised before: (n,)."""
    before = realised + np.cumsum(played, axis=0) - played, expected + np.cumsum(p, axis=0) - p
    tilt = (before[0] + PRIOR_PLAYS) / (before[1] + PRIOR_PLAYS)
    chosen, average = np.vecdot(tilt, played), np.vecdot(tilt, p)
    return np.asarray(np.cumsum(np.log(chosen / average)))


def inverse_check(log: Log) -> tuple[float, float]:
    """Where only the propensity of the arm played is known: the mean of 1 / propensity, and its p-value.

    Its expectation is the number of arms, if each of them always had some chance; the p-value is against that.

    >>> from drimed.evaluation.log import make_log
    >>> inverse_check(make_log(action=[0, 1] * 50, reward=[0.0] * 100, propensity=[0.5] * 100))
    (2.0, 1.0)
    """
    if np.isnan(log.propensity).any():
        raise InputError("some propensities are unknown (NaN): there is nothing to compare choices with")
    inverse = 1 / log.propensity
    mean = float(inverse.mean())
    error = float(inverse.std()) / np.sqrt(len(inverse))
    if error == 0:
        return mean, 1.0 if np.isclose(mean, log.K) else 0.0
    return mean, float(2 * ndtr(-abs(mean - log.K) / error))


@final
@dataclass(frozen=True, slots=True)
class ResidualCheck:
    """For each arm and metric; NaN where there are too few residuals."""

    count: IntArray  # (K, M)
    mean: FloatArray  # (K, M), zero if the linear model holds
    variance: FloatArray  # (K, M), realised over claimed: one if the noise is as claimed
    variance_p: FloatArray  # (K, M), two-sided p-value of that, allowing for the tails that are seen
    skewness: FloatArray  # (K, M)
    kurtosis: FloatArray  # (K, M), in excess of the normal's
    normal_p: FloatArray  # (K, M), Jarque and Bera's test: a hint, not a proof
    level: float

    @property
    def wrong_variance(self) -> BoolArray:
        """Where the noise is certainly not as claimed, at the level for all cells together: (K, M)."""
        return self._below(self.variance_p)

    @property
    def not_normal(self) -> BoolArray:
        """Where the noise is certainly not normal; bounds need sub-Gaussian noise, not normal noise: (K, M)."""
        return self._below(self.normal_p)

    def _below(self, p: FloatArray) -> BoolArray:
        cells = max(int(np.isfinite(p).sum()), 1)
        return np.nan_to_num(p, nan=1.0) < (1 - self.level) / cells


def standardised(fit: Fit, Z: Any, w: Any) -> FloatArray:
    """(w - <z, theta_hat>) / sqrt(1 + z^T V^-1 z) of rows Z (..., m, d), w (..., m) that the fit has not seen."""
    z = checks.shaped("Z", checks.finite("Z", Z), (-1, fit.theta.shape[-1]))
    return (checks.finite("w", w) - fit.mean(z)) / np.sqrt(1 + fit.leverage(z))


def residual_check(residuals: Any, arm: Any, K: int, *, level: float = 0.95) -> ResidualCheck:
    """Check residuals (n, M) of decisions that played `arm` (n,).

    >>> rng = np.random.default_rng(1)
    >>> loud = residual_check(2 * rng.standard_normal((500, 1)), np.zeros(500, int), 1)
    >>> loud.wrong_variance.tolist(), loud.not_normal.tolist()
    ([[True]], [[False]])
    """
    checks.share("level", level)
    e = checks.shaped("residuals", checks.finite("residuals", residuals), (-1, -1))
    a: IntArray = np.asarray(arm, np.intp)
    if e.ndim != 2 or a.shape != e.shape[:1]:
        raise ShapeError(f"residuals must be (n, M) and arm (n,), got {e.shape} and {a.shape}")
    M = e.shape[1]
    count = np.zeros((K, M), np.intp)
    table = np.full((6, K, M), np.nan)
    for k in range(K):
        mine = e[a == k]
        count[k] = len(mine)
        if len(mine) >= FEWEST:
            table[:, k] = _moments(mine)
    mean, variance, variance_p, skewness, kurtosis, normal_p = table
    return ResidualCheck(count, mean, variance, variance_p, skewness, kurtosis, normal_p, level)


def _moments(e: FloatArray) -> FloatArray:
    """mean, variance about zero, its p-value, skewness, excess kurtosis, Jarque-Bera p-value: (n, M) -> (6, M)."""
    n = len(e)
    variance = (e**2).mean(0)
    off = e - e.mean(0)
    spread = np.maximum((off**2).mean(0), np.finfo(np.float64).tiny)
    skew = (off**3).mean(0) / spread**1.5
    excess = (off**4).mean(0) / spread**2 - 3
    # Var(e^2) is 2 + excess for unit variance: heavy tails alone should not look like a wrong scale.
    error = variance * np.sqrt((2 + np.maximum(excess, 0.0)) / n)
    p = 2 * ndtr(-np.abs(variance - 1) / error)
    bera = n / 6 * (skew**2 + excess**2 / 4)
    return np.stack([e.mean(0), variance, p, skew, excess, chdtrc(2, bera)])
