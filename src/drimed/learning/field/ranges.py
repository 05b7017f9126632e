"""Ranges for one contrast that hold at all times at once.

Under psi, the ratio of its prior to its posterior density is a martingale when the other coefficients follow their
prior (the method of mixtures), so with probability 1 - alpha at no time does it exceed 1 / alpha:

    (psi - m)^2 / v <= 2 log(1 / alpha) + log(v0 / v) + (psi - m0)^2 / v0

with m0, v0 and m, v the prior and posterior mean and variance. It holds on average over the prior of the other
coefficients and for known variances, not for the worst case.
"""

from __future__ import annotations

import numpy as np

from drimed.errors import ConfigError
from drimed.linear.arrays import FloatArray


def anytime(
    mean: FloatArray,
    variance: FloatArray,
    prior_variance: FloatArray,
    alpha: float,
    prior_mean: FloatArray | float = 0.0,
) -> tuple[FloatArray, FloatArray]:
    """The ends of the range, of any shape; everything is possible where the data say nothing yet.

    >>> low, high = anytime(np.array(0.0), np.array(1.0), np.array(150.0), 0.05)
    >>> round(float(high / 1.96), 2)
    1.7
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha must be in (0, 1), got {alpha}")
    gained = 1 / variance - 1 / prior_variance
    told = gained > 0
    gained = np.where(told, gained, 1.0)
    # The quadratic in psi, about its vertex: the posterior mean of psi under a flat prior.
    centre = (mean / variance - prior_mean / prior_variance) / gained
    apart = (mean - prior_mean) ** 2 / (variance * prior_variance * gained)
    room = 2 * np.log(1 / alpha) + np.log(prior_variance / variance) + apart
    half = np.sqrt(np.maximum(room, 0.0) / gained)
    half = np.where(told, half, np.inf)
    return np.where(told, centre - half, -np.inf), np.where(told, centre + half, np.inf)
