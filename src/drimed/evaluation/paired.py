"""Differences between two policies on one log: paired, so that what both share cancels and does not widen the range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.evaluation.estimators import Parts
from drimed.evaluation.intervals import Interval, Moments, Statistics, root_of_variance
from drimed.linear.arrays import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """What one estimator says about a target's value less that of another."""

    target: str
    against: str
    estimator: str
    value: float
    standard_error: float  # NaN where the terms do not vary
    interval: Interval


@final
@dataclass(frozen=True, slots=True)
class Paired:
    """Moments of the parts of two targets together; they merge.

    >>> mine, theirs = Parts(correction=np.array([2.0, 4.0])), Parts(correction=np.array([1.0, 2.0]))
    >>> Paired.of(mine, theirs).value
    1.5
    """

    mine: tuple[bool, bool, bool]
    theirs: tuple[bool, bool, bool]
    moments: Moments  # of the columns of mine, then of theirs

    @classmethod
    def of(cls, mine: Parts, theirs: Parts) -> Paired:
        """From the terms of one piece, of the same decisions."""
        return cls(mine.has, theirs.has, Moments.of([*mine.columns, *theirs.columns]))

    def merge(self, other: Paired) -> Paired:
        """As if both pieces had come at once."""
        return Paired(self.mine, self.theirs, self.moments.merge(other.moments))

    @property
    def value(self) -> float:
        """Mine less theirs."""
        mine, theirs = self._alone()
        return mine.value - theirs.value

    @property
    def standard_error(self) -> float:
        """Of the difference, to first order; NaN where nothing varies."""
        mine, theirs = self._alone()
        slope: FloatArray = np.concatenate([mine.slope, -theirs.slope])
        return root_of_variance(self.moments, slope)

    def _alone(self) -> tuple[Statistics, Statistics]:
        """Each by itself."""
        cut, m = sum(self.mine), self.moments
        first = Moments(m.count, m.mean[:cut], m.scatter[:cut, :cut])
        return Statistics(self.mine, first), Statistics(
            self.theirs, Moments(m.count, m.mean[cut:], m.scatter[cut:, cut:])
        )
