"""The terms of a field model: families of effects, and which columns of the regression a decision touches.

A family has one coefficient for each combination of its factors (and covariate, if it is a family of slopes), and one
variance for each metric. Families that contain the cluster factor belong to a cluster and are eliminated; the others
last and make up theta.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.field.cells import FACTORS
from drimed.linear.arrays import FloatArray, IntArray

CLUSTERS = ("season", "user")
LEVEL = 1e6  # variance of the overall level around the mean outcome, relative to the residual's: as good as flat


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Effects that share a variance."""

    name: str
    by: tuple[str, ...] = ()  # the factors it varies with
    slopes: tuple[int, ...] | None = None  # the covariates that it multiplies, by number; None: it stands alone
    centre: float = 1.0  # centre of the variance's prior, relative to the residual's
    spread: float = 1.0  # deviation of the log of that ratio
    variance: float | None = None  # known, relative to a first guess of the residual's; None: learned

    def __post_init__(self) -> None:
        unknown = [f for f in self.by if f not in FACTORS]
        if unknown:
            raise ConfigError(f"family {self.name!r}: factors are {FACTORS}, got {unknown[0]!r}")


@final
@dataclass(frozen=True, slots=True)
class Sizes:
    """How many values each factor has so far; larger numbers leave room for new ones."""

    season: int = 1
    block: int = 1
    group: int = 1
    user: int = 1
    arm: int = 1


@final
@dataclass(frozen=True)
class Layout:
    """Families laid out as columns: of theta, or of one cluster's own effects."""

    families: tuple[Family, ...]  # all of the model, in the order of their variances
    cluster: str  # the factor that is eliminated
    sizes: Sizes
    reference: int | None  # an arm without effects of its own: the others are measured against it
    own: bool  # columns of a cluster's effects, or of theta

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The numbers of the families that are laid out here."""
        return tuple(k for k, f in enumerate(self.families) if (self.cluster in f.by) == self.own and f.slopes != ())

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """How many columns each of them has."""
        return tuple(self._combinations(k) * self._slots(k) for k in self.members)

    @cached_property
    def family(self) -> IntArray:
        """The family of each column: (P,)."""
        if not self.members:  # a cluster without effects keeps one column that nothing touches
            return np.zeros(1, np.intp)
        return np.repeat(np.array(self.members, np.intp), self.widths)

    @cached_property
    def slot(self) -> IntArray:
        """For each entry of a row, what multiplies its column: 0 is the constant 1, j the j-th covariate. (E,)"""
        slots = [self._slots_of(k) for k in self.members]
        return np.concatenate([*slots, np.zeros(0 if slots else 1, np.intp)])

    def columns(self, keys: IntArray) -> IntArray:
        """The columns that decisions with these factors touch: (..., 5) -> (..., E), -1 where an arm has none."""
        found, base = [], 0
        for k, width in zip(self.members, self.widths, strict=True):
            f = self.families[k]
            at = np.zeros(keys.shape[:-1], np.intp)
            for name in self._factors(k):
                at = at * getattr(self.sizes, name) + keys[..., FACTORS.index(name)]
            at = base + self._slots(k) * at[..., None] + np.arange(self._slots(k))
            if self.reference is not None and "arm" in f.by:
                at = np.where(keys[..., FACTORS.index("arm"), None] == self.reference, -1, at)
            found.append(at)
            base += width
        return np.concatenate(found, -1) if found else np.full((*keys.shape[:-1], 1), -1)

    def rows(self, keys: IntArray, covariates: FloatArray) -> FloatArray:
        """Decisions as rows on the columns: (..., 5), (..., c) -> (..., P)."""
        cols = self.columns(keys)
        ones = np.ones((*covariates.shape[:-1], 1))
        values = np.concatenate([ones, covariates], -1)[..., self.slot]
        wide = np.zeros((*np.broadcast_shapes(cols.shape[:-1], values.shape[:-1]), len(self.family) + 1))
        cols, values = np.broadcast_arrays(cols, values)
        np.put_along_axis(wide, cols, values, -1)  # column -1 is the one too many
        return wide[..., :-1]

    def _factors(self, k: int) -> tuple[str, ...]:
        return tuple(name for name in self.families[k].by if name != self.cluster)

    def _combinations(self, k: int) -> int:
        return int(np.prod([getattr(self.sizes, name) for name in self._factors(k)], dtype=np.intp))

    def _slots(self, k: int) -> int:
        return len(self._slots_of(k))

    def _slots_of(self, k: int) -> IntArray:
        slopes = self.families[k].slopes
        return np.zeros(1, np.intp) if slopes is None else 1 + np.array(slopes, np.intp)


def field_families(mean: Sequence[int] = (), effects: Sequence[int] = ()) -> tuple[Family, ...]:
    """Sites and seasons; covariates that shift the mean, and those that change the effects of arms.

    Every variance is learned, and a family without support shrinks to little.

    >>> [f.name for f in field_families() if "season" in f.by]
    ['season', 'block', 'season x arm']
    """
    return (
        *_common_families(mean, effects),
        Family("group", ("group",)),
        Family("group x arm", ("group", "arm"), centre=0.25),
        Family("season", ("season",)),
        Family("block", ("season", "block")),
        Family("season x arm", ("season", "arm"), centre=0.25),
    )


def people_families(mean: Sequence[int] = (), effects: Sequence[int] = ()) -> tuple[Family, ...]:
    """Many users, each with a level, effects of arms, and effects of arms that change with covariates, of their own."""
    return (
        *_common_families(mean, effects),
        Family("user", ("user",)),
        Family("user x arm", ("user", "arm"), centre=0.25),
        Family("user x arm x covariate", ("user", "arm"), slopes=tuple(effects), centre=0.25),
    )


def _common_families(mean: Sequence[int], effects: Sequence[int]) -> tuple[Family, ...]:
    return (
        Family("level", variance=LEVEL),
        Family("arm", ("arm",), centre=0.5, spread=1.25),
        Family("covariate", slopes=tuple(mean), centre=0.5),
        Family("covariate x arm", ("arm",), slopes=tuple(effects), spread=1.5),
    )
