"""An estimator's value and standard error from mergeable sums of its parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.evaluation.estimators import Parts
from drimed.evaluation.moments import Moments
from drimed.linear.arrays import FloatArray


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """The moments of (base, correction, normaliser), whichever of them an estimator has.

    >>> whole = Statistics.of(Parts(correction=np.array([2.0, 4.0]), normaliser=np.array([1.0, 2.0])))
    >>> whole.value
    2.0
    """

    has: tuple[bool, bool, bool]
    moments: Moments

    @classmethod
    def of(cls, parts: Parts) -> Statistics:
        """From the terms of one piece."""
        columns = (parts.base, parts.correction, parts.normaliser)
        return cls(
            (parts.base is not None, parts.correction is not None, parts.normaliser is not None),
            Moments.of([column for column in columns if column is not None]),
        )

    def merge(self, other: Statistics) -> Statistics:
        """As if both pieces had come at once."""
        return Statistics(self.has, self.moments.merge(other.moments))

    @property
    def count(self) -> int:
        """How many decisions."""
        return self.moments.count

    @property
    def value(self) -> float:
        """mean(base) + mean(correction) / mean(normaliser); NaN where the weights sum to nothing."""
        base, correction, normaliser = self._means()
        return float(base + correction / normaliser) if normaliser else np.nan

    @property
    def standard_error(self) -> float:
        """Of the value, to first order (the delta method): decisions count as independent given the past."""
        base, correction, normaliser = self._means()
        del base
        if self.count < 2 or not normaliser:
            return np.nan
        slope = np.array([1.0, 1 / normaliser, -correction / normaliser**2])[np.array(self.has)]
        variance = float(slope @ self.moments.covariance @ slope)
        return float(np.sqrt(max(variance, 0.0) / self.count))

    def _means(self) -> FloatArray:
        means = np.array([0.0, 0.0, 1.0])
        means[np.array(self.has)] = self.moments.mean
        return means
