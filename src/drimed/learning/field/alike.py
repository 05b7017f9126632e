"""Outcomes that are alike: how little they say about how much a metric may vary.

Yes or no: while everybody survives, the outcomes leave no residual, and no arm seems able to differ. But a share of n
outcomes that are all alike is known to about 1 / n only. So where a metric has taken two values, or one, its residual
counts one pair of outcomes more, one of either kind: a variance of about (their distance)^2 / (2 n) while all are
alike, as Laplace's and Jeffreys's rules have it, and next to nothing once both are common. A metric that never varied
may be two-valued if its value is an end of its range; of others the second value is as far as `measure` assumes.
Shapes: leading `...` is any batch; N cells, M metrics.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.cells import Cells
from drimed.learning.field.design import Range, Scale, sd_if_constant, seen
from drimed.linear.arrays import FloatArray

PAIR = 0.5  # sum of squares of two outcomes that are 1 apart
ROUND_OFF = 1e-9


def pair(cells: Cells, scale: Scale, covariates: int, ranges: tuple[Range, ...]) -> FloatArray:
    """The sum of squares of one pair of either kind, in the metrics' units: (..., M); 0 where a metric has more values.

    `ranges` has the ends of each metric's range, infinite where it has none.
    """
    there = seen(cells, covariates)[..., covariates:] > 0
    mean = cells.mean[..., covariates:]
    squares = np.diagonal(cells.scatter, axis1=-2, axis2=-1)[..., covariates:]
    low, high = np.where(there, mean, np.inf).min(-2), np.where(there, mean, -np.inf).max(-2)
    some = there.any(-2)
    low, high = np.where(some, low, 0.0), np.where(some, high, 0.0)
    apart = high - low
    n = cells.n[..., None]
    two = n * (mean - low[..., None, :]) * (high[..., None, :] - mean)  # the scatter that two values would have
    few = (~there | (np.abs(squares - two) <= ROUND_OFF * n * apart[..., None, :] ** 2)).all(-2)
    few &= (n * there).sum(-2) > 2  # any two outcomes have two values
    level = np.maximum(np.abs(low), np.abs(high))
    constant = (apart <= ROUND_OFF * level) & (~there | (squares <= n * (ROUND_OFF * level[..., None, :]) ** 2)).all(-2)
    first, last = (np.array([ends[i] for ends in ranges]) for i in (0, 1))
    at_an_end = (np.abs(low - first) <= ROUND_OFF * level) | (np.abs(low - last) <= ROUND_OFF * level)
    unseen = np.where(at_an_end, last - first, sd_if_constant(ranges, level))
    distance = np.where(constant, unseen, np.where(few, apart, 0.0))
    unit = scale.unit[..., covariates:]
    return np.asarray(PAIR * (distance / unit) ** 2)
