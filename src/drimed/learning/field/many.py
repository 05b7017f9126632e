"""Many comparisons: several arms are compared with the control, at many users, and some look better by chance.

A likely range is right for one effect, not for all of them at once. So an arm is called likely better (or worse) for a
user only if, besides the user's own range, one of two things holds. It is better for all users together, allowing for
the number of arms; or for this user, allowing for the number of arms and of users. Allowing for them means two bounds.

Dunnett's is for estimates that share a control, one-sided at 5 %, at one look at a trial with fixed shares. Where sites
decide season after season, shares follow what was seen: an arm that was lucky is given more, and the control, which
looks too low by then, less. So "no difference" must also have become less plausible, by a factor of as many as there
are comparisons: its density at 0, against that with one outcome of each arm (as in Schwarz's criterion). This bound
grows with what is known, and so does the share of wrong words without it. Where people come, shares stay closer to even
and it is not needed; docs/benchmark.md has both. Shapes: any.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import log_ndtr, ndtr

from drimed.learning.field.contrasts import Found
from drimed.linear.arrays import BoolArray, FloatArray

ALPHA = 0.05  # the chance that any of them is called better, if none is and the estimates are normal
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(101)
LARGEST = 12.0  # deviations within which a bound is looked for


def compared(control: FloatArray, possible: BoolArray | None = None) -> int:
    """How many arms are compared with a control, of users with these controls (..., K), who may get `possible` ones.

    An arm that is the only control of everybody is compared with nothing. Where controls differ it is, for the others;
    and where they are drawn among several arms, each of these has an effect against the draw, and a verdict.

    >>> one, other, drawn = [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]
    >>> [compared(np.array(controls)) for controls in ([one, one], [one, other], [drawn])]
    [2, 3, 3]
    """
    others = control < 1 if possible is None else (control < 1) & possible
    return max(1, int(others.reshape(-1, others.shape[-1]).any(0).sum()))


@cache
def dunnett(arms: int, users: int = 1) -> float:
    """How many deviations from 0 one of so many estimates must be, all against one control.

    >>> [round(dunnett(arms), 2) for arms in (1, 2, 4, 9)]
    [1.64, 1.92, 2.16, 2.42]
    """
    from scipy.optimize import brentq  # here, because it takes a quarter of a second that most commands do not need

    def excess(bound: float) -> float:
        chance = -np.expm1(arms * log_ndtr(np.sqrt(2) * bound + NODES))  # that any is beyond it, given the control
        return float(WEIGHTS @ chance / WEIGHTS.sum()) - ALPHA / users

    return float(brentq(excess, 0.0, LARGEST))


def bound(known: FloatArray, comparisons: int) -> FloatArray:
    """How many deviations from 0 make "no difference" less plausible by a factor of so many comparisons.

    What is known of an effect is how many times as large its variance is by one outcome of each arm alone.

    >>> np.round(bound(np.array([0.0, 10.0, 100.0]), 4), 2).tolist()
    [1.67, 2.27, 2.72]
    """
    return np.sqrt(2 * np.log(comparisons) + np.log1p(known))


def side(found: Found, arms: int, users: int = 1) -> FloatArray:
    """1 where it is above 0 allowing for so many arms and users, -1 where it is below, else 0."""
    there = found.deviation > 0
    known = np.where(there, found.single, 0.0) ** 2 / np.where(there, found.deviation, 1.0) ** 2
    deviations = np.maximum(dunnett(arms, users), bound(known, arms * users))
    return np.sign(found.mean) * (np.abs(found.mean) > found.beyond(ndtr(deviations)))


def stands(own: Found, everybody: Found | None, arms: int, users: int) -> BoolArray:
    """Whether what an effect's own range says stands among all comparisons; everybody's effects broadcast to own."""
    alone = side(own, arms, users) != 0
    return alone if everybody is None else alone | agrees(own.mean, everybody, arms)


def agrees(mean: FloatArray, everybody: Found, arms: int) -> BoolArray:
    """Whether an estimate is on the side of 0 on which all users together are, allowing for so many arms."""
    of_all = side(everybody, arms)
    return np.asarray((of_all != 0) & (of_all == np.sign(mean)))
