"""Many comparisons: several arms are compared with the control, at many users, and some look better by chance.

A likely range is right for one effect, not for all of them at once. So an arm is called likely better (or worse) for a
user only if, besides the user's own range, one of two things holds. It is better for all users together, allowing for
the number of arms: Dunnett's bound for estimates that share a control, one-sided at 5 %. Or it is better for this user
allowing for the number of arms and of users. Shapes: any.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr

from drimed.learning.field.contrasts import Found
from drimed.linear.arrays import BoolArray, FloatArray

ALPHA = 0.05  # the chance that any of them is called better, if none is and the estimates are normal
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
LARGEST = 12.0  # deviations within which a bound is looked for


@cache
def level(arms: int, users: int = 1) -> float:
    """Where one of so many estimates, all against one control, must lie in its own distribution (Dunnett).

    >>> from scipy.special import ndtri
    >>> [round(float(ndtri(level(arms))), 2) for arms in (1, 2, 4, 9)]
    [1.64, 1.92, 2.16, 2.42]
    """

    def excess(bound: float) -> float:
        chance = -np.expm1(arms * log_ndtr(np.sqrt(2) * bound + NODES))  # that any is beyond it, given the control
        return float(WEIGHTS @ chance / WEIGHTS.sum()) - ALPHA / users

    return float(ndtr(brentq(excess, 0.0, LARGEST)))


def side(found: Found, arms: int, users: int = 1) -> FloatArray:
    """1 where it is above 0 allowing for so many arms and users, -1 where it is below, else 0."""
    return np.sign(found.mean) * (np.abs(found.mean) > found.beyond(level(arms, users)))


def stands(own: Found, everybody: Found | None, arms: int, users: int) -> BoolArray:
    """Whether what an effect's own range says stands among all comparisons; everybody's effects broadcast to own."""
    alone = side(own, arms, users) != 0
    return alone if everybody is None else alone | agrees(own.mean, everybody, arms)


def agrees(mean: FloatArray, everybody: Found, arms: int) -> BoolArray:
    """Whether an estimate is on the side of 0 on which all users together are, allowing for so many arms."""
    together = side(everybody, arms)
    return np.asarray((together != 0) & (together == np.sign(mean)))
