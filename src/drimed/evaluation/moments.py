"""Count, means and scatter of a few columns, which merge: the statistics of two pieces give those of the whole.

Source: Chan, Golub and LeVeque (1983). Deviations are taken from each piece's own mean, so nothing cancels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from drimed.errors import ShapeError
from drimed.linear.arrays import FloatArray, outer


@final
@dataclass(frozen=True, slots=True)
class Moments:
    """Of c columns over `count` rows.

    >>> both = Moments.of([np.array([1.0, 2.0])]).merge(Moments.of([np.array([6.0])]))
    >>> both.count, both.mean.tolist(), both.scatter.tolist()
    (3, [3.0], [[14.0]])
    """

    count: int
    mean: FloatArray  # (c,)
    scatter: FloatArray  # (c, c), sum of products of deviations

    @classmethod
    def of(cls, columns: Sequence[FloatArray]) -> Moments:
        """The moments of columns of one length."""
        c, n = len(columns), len(columns[0])
        if n == 0:
            return cls(0, np.zeros(c), np.zeros((c, c)))
        mean = np.array([column.mean() for column in columns])
        deviations = [column - m for column, m in zip(columns, mean, strict=True)]
        scatter = np.empty((c, c))
        for i in range(c):
            for j in range(i + 1):
                scatter[i, j] = scatter[j, i] = _dot(deviations[i], deviations[j])
        return cls(n, mean, scatter)

    def merge(self, other: Moments) -> Moments:
        """The moments of both sets of rows together."""
        if self.mean.shape != other.mean.shape:
            raise ShapeError(f"moments of {len(self.mean)} and {len(other.mean)} columns do not merge")
        if self.count == 0 or other.count == 0:
            return other if self.count == 0 else self
        n = self.count + other.count
        step = other.mean - self.mean
        mean = self.mean + step * (other.count / n)
        scatter = self.scatter + other.scatter + outer(step, step) * (self.count * other.count / n)
        return Moments(n, mean, scatter)

    @property
    def covariance(self) -> FloatArray:
        """Of one row, unbiased: (c, c). Zero while there is only one row."""
        return self.scatter / max(self.count - 1, 1)


def _dot(u: FloatArray, v: FloatArray) -> float:
    return float(np.einsum("i,i->", u, v))  # unlike np.dot it starts no threads, which cost more than they gain here
