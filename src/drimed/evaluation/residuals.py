"""Does the noise model hold? Standardised residuals should have variance one, no skew and normal tails.

A residual is taken one step ahead: from the fit before the outcome, divided by its predictive standard deviation
sqrt(1 + z^T V^-1 z), so that early ones are not too large. Rows are those of a learner with known noise: whitened.
Shapes: leading `...` is any batch; n decisions, M metrics (1 with reward feedback), K arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import chdtrc, ndtr

from drimed.errors import ConfigError, ShapeError
from drimed.learning.fit import Fit
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

FEWEST = 20  # residuals of an arm and metric below which nothing is said about their shape


@final
@dataclass(frozen=True, slots=True)
class ResidualCheck:
    """For each arm and metric; NaN where there are too few residuals."""

    count: IntArray  # (K, M)
    mean: FloatArray  # (K, M), zero if the linear model holds
    variance: FloatArray  # (K, M), realised over claimed: one if the noise is as said
    variance_p: FloatArray  # (K, M), two-sided p-value of that, allowing for the tails that are seen
    skewness: FloatArray  # (K, M)
    kurtosis: FloatArray  # (K, M), in excess of the normal's
    normal_p: FloatArray  # (K, M), Jarque and Bera's test: a hint, not a proof
    level: float

    @property
    def wrong_variance(self) -> BoolArray:
        """Where the noise is certainly not as said, at the level for all cells together: (K, M)."""
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
    if not 0 < level < 1:
        raise ConfigError(f"level must be in (0, 1), got {level}")
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
