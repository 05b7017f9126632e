"""Quantiles of Student's distribution at a variance of one: what a normal's are where its variance is uncertain too."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtri, stdtrit

from drimed.linear.arrays import FloatArray


def quantile(level: FloatArray | float, freedom: FloatArray | float) -> FloatArray | float:
    """Where the distribution with so many degrees of freedom, more than 2, reaches a level; infinite: the normal's.

    >>> quantile(0.99, float("inf")), np.round(quantile(0.99, np.array([5.0, 50.0, np.inf])), 3).tolist()
    (2.3263478740408408, [2.606, 2.355, 2.326])
    """
    if not isinstance(freedom, np.ndarray) and isinstance(level, float):
        return normal(level) if freedom == np.inf else float(quantile(level, np.asarray(freedom)))
    finite = np.isfinite(freedom)
    nu = np.where(finite, freedom, 3.0)
    without_tails = normal(level) if isinstance(level, float) else ndtri(level)
    return np.where(finite, shrunk(nu) * stdtrit(nu, level), without_tails)


def shrunk(freedom: FloatArray | float) -> FloatArray | float:
    """What a Student's variable with so many degrees of freedom is multiplied with to have a variance of one."""
    return np.sqrt(1 - 2 / freedom)


@cache
def normal(level: float) -> float:
    """The quantile of the normal distribution."""
    return float(ndtri(level))
