"""An estimator's value from sums that merge, and intervals: normal, bootstrap, and one that holds at all times.

* normal: decisions count as independent given the past, and there are enough of them for the central limit theorem.
* bootstrap: the same assumptions, without the symmetry; Poisson weights, so that it streams and merges.
* anytime: the target's average value over the decisions so far, whatever changes along the log. Rewards within a known
  range, right propensities, a fixed target. Nothing else: no limit, no bound on the weights, and the log may be looked
  at, and stopped, at any time. Waudby-Smith et al. (2024), with the boundary of drimed.evaluation.running.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import final

import numpy as np
from scipy.special import ndtri, pdtr

from drimed import streams
from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.estimators import Parts
from drimed.evaluation.running import Lower
from drimed.linear import checks
from drimed.linear.arrays import FloatArray, outer

_POISSON = pdtr(np.arange(12), 1.0)  # a draw of 12 or more has probability 1e-9
NO_VARIANCE = 1e-13  # relative to the squared size of the terms: what sums in double precision leave of a variance of 0
_ROWS = 4096  # of the bootstrap at a time: bounded memory for any number of resamples


@final
@dataclass(frozen=True, slots=True)
class Moments:
    """Count, means and scatter of c columns, which merge.

    Chan, Golub and LeVeque (1983). Deviations are taken from each piece's own mean, so nothing cancels.

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
                # Unlike np.dot, einsum starts no threads, which cost more than they gain here.
                scatter[i, j] = scatter[j, i] = float(np.einsum("i,i->", deviations[i], deviations[j]))
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


@final
@dataclass(frozen=True, slots=True)
class Statistics:
    """An estimator's value and standard error, from the moments of whichever parts it has.

    >>> whole = Statistics.of(Parts(correction=np.array([2.0, 4.0]), normaliser=np.array([1.0, 2.0])))
    >>> whole.value
    2.0
    """

    has: tuple[bool, bool, bool]
    moments: Moments

    @classmethod
    def of(cls, parts: Parts) -> Statistics:
        """From the terms of one piece."""
        return cls(parts.has, Moments.of(parts.columns))

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
        """Of the value, to first order (the delta method): decisions count as independent given the past.

        NaN where all decisions that count say the same: how sure the value is cannot be known from them.
        """
        return root_of_variance(self.moments, self.slope)

    @property
    def slope(self) -> FloatArray:
        """How the value moves with the mean of each part; NaN where the weights sum to nothing."""
        _, correction, normaliser = self._means()
        n = normaliser or np.nan
        return np.array([1.0, 1 / n, -correction / n**2])[np.array(self.has)]

    def _means(self) -> FloatArray:
        means = np.array([0.0, 0.0, 1.0])
        means[np.array(self.has)] = self.moments.mean
        return means


def root_of_variance(moments: Moments, slope: FloatArray) -> float:
    """The standard error of a value that moves by `slope` with the means; NaN where it does not vary."""
    if moments.count < 2 or not np.isfinite(slope).all():
        return np.nan
    covariance = moments.covariance
    variance = float(slope @ covariance @ slope)
    size = float(slope**2 @ (covariance.diagonal() + moments.mean**2))
    return float(np.sqrt(variance / moments.count)) if variance > NO_VARIANCE * size else np.nan


@final
@dataclass(frozen=True, slots=True)
class Interval:
    """From low to high, at a confidence level, by a method."""

    low: float
    high: float
    level: float
    method: str


def normal(value: float, standard_error: float, level: float) -> Interval:
    """value -+ z times its standard error.

    >>> round(normal(0.0, 1.0, 0.95).high, 2)
    1.96
    """
    checks.share("level", level)
    half = float(ndtri((1 + level) / 2)) * standard_error
    return Interval(value - half, value + half, level, "normal")


@final
@dataclass(frozen=True, slots=True)
class Anytime:
    """The anytime interval of IPS so far; it goes on with the next decisions, in their order."""

    level: float
    least: float
    most: float
    below: Lower  # of weighted rewards above the least
    above: Lower  # of weighted rewards below the most

    @classmethod
    def start(cls, reward_range: tuple[float, float], level: float) -> Anytime:
        """Before any decision: the value may be anything in the range."""
        least, most = reward_range
        if not least < most:
            raise ConfigError(f"the reward range must be from low to high, got {least} to {most}")
        checks.share("level", level)
        half = Lower.start(alpha=(1 - level) / 2)
        return cls(level, least, most, half, half)

    def extend(self, weight: FloatArray, reward: FloatArray) -> Anytime:
        """After these decisions too."""
        if not len(reward):
            return self
        if not (self.least <= reward.min() and reward.max() <= self.most):
            raise InputError(
                f"rewards must be within {self.least} to {self.most}, got {float(reward.min())} to "
                f"{float(reward.max())}: the anytime interval is about that range"
            )
        share = (reward - self.least) / (self.most - self.least)
        return replace(self, below=self.below.extend(weight * share), above=self.above.extend(weight * (1 - share)))

    def interval(self) -> Interval:
        """Where the average value of the decisions so far is."""
        size = self.most - self.least
        low, high = float(self.below.bound()), 1 - float(self.above.bound())
        return Interval(self.least + size * low, self.least + size * high, self.level, "anytime")


@final
@dataclass(frozen=True, slots=True)
class Bootstrap:
    """Sums of one estimator's parts in B resamples of the decisions; they merge."""

    sums: FloatArray  # (B, 3), of base, correction and normaliser
    counts: FloatArray  # (B,)

    @classmethod
    def of(cls, parts: Parts, *, start: int, resamples: int, seed: int = 0) -> Bootstrap:
        """From the terms of decisions start, start + 1, ...: each counts a Poisson number of times."""
        if resamples < 2:
            raise ConfigError(f"a bootstrap needs at least 2 resamples, got {resamples}")
        given = next(c for c in (parts.base, parts.correction) if c is not None)
        terms = ((parts.base, 0.0), (parts.correction, 0.0), (parts.normaliser, 1.0))
        columns = np.stack([np.full_like(given, none) if c is None else c for c, none in terms], axis=-1)  # (n, 3)
        sums, counts = np.zeros((resamples, 3)), np.zeros(resamples)
        for at in range(0, len(given), _ROWS):
            rows = columns[at : at + _ROWS]
            u = streams.uniforms(seed, "bootstrap", start + at, len(rows), resamples)
            times = np.searchsorted(_POISSON, u).astype(np.float64)  # (rows, B)
            sums += times.T @ rows
            counts += times.sum(0)
        return cls(sums, counts)

    def merge(self, other: Bootstrap) -> Bootstrap:
        """As if both pieces had come at once."""
        return Bootstrap(self.sums + other.sums, self.counts + other.counts)

    def interval(self, level: float) -> Interval:
        """The percentile interval."""
        base, correction, normaliser = self.sums.T
        with np.errstate(invalid="ignore", divide="ignore"):
            values = base / self.counts + correction / normaliser
        if not np.isfinite(values).all():
            return Interval(np.nan, np.nan, level, "bootstrap")
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        if (high - low) ** 2 <= NO_VARIANCE * max(low**2, high**2):
            return Interval(np.nan, np.nan, level, "bootstrap")
        return Interval(float(low), float(high), level, "bootstrap")
