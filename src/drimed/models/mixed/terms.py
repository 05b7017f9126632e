"""The terms of a field model: families of effects, and which columns of the regression a decision touches.

A family has one coefficient for each combination of its factors (and covariate, if it is a family of slopes), and one
variance for each metric. Families that contain the cluster factor belong to a cluster and are eliminated; the others
last and make up theta.

Somebody in no group differs from what is common by as much as a group does and a person does besides: to belong nowhere
makes nobody more typical. What a group would have is then nobody else's, so it is eliminated with the person's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.mixed.cells import FACTORS
from drimed.models.mixed.likelihood import Slopes
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

LEVEL = 1e6  # variance of the overall level around the mean outcome, relative to the residual's: as good as flat

# What a season does to an arm, relative to the residual's variance. Public variety trials: 0.16 in 48 years of barley,
# 0.12 in three of maize, 0.03 to 0.35 in two of soybean.
SEASON_ARMS = 0.15


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


class Unmet(NamedTuple):
    """Effects of a family that rows have but no column is for: nothing was observed of them yet."""

    family: int
    by_arm: bool  # each arm has its own, or all arms of an offer share it
    weight: FloatArray  # (..., K, s), what multiplies them, for each slot of the family; 0 where there is a column


@final
@dataclass(frozen=True)
class Layout:
    """Families laid out as columns: of theta, or of one cluster's own effects."""

    families: tuple[Family, ...]  # all of the model, in the order of their variances
    factors: tuple[str, ...]
    cluster: str  # the factor that is eliminated
    sizes: tuple[int, ...]  # how many values of each factor have columns
    reference: int | None  # an arm without effects of its own: the others are measured against it
    own: bool  # columns of a cluster's effects, or of theta
    alone: bool = False  # some clusters are in no group: families of groups are in both, by whether there is a group

    def __post_init__(self) -> None:
        for f in self.families:
            unknown = [name for name in f.by if name not in self.factors]
            if unknown:
                raise ConfigError(f"family {f.name!r}: factors are {self.factors}, got {unknown[0]!r}")

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The numbers of the families that are laid out here."""
        return tuple(k for k, f in enumerate(self.families) if self._is_here(f) and f.slopes != ())

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """How many columns each of them has."""
        return tuple(self._combinations(k) * len(self._slots(k)) for k in self.members)

    @cached_property
    def family(self) -> IntArray:
        """The family of each column: (P,)."""
        if not self.members:  # a cluster without effects keeps one column that nothing touches
            return np.zeros(1, np.intp)
        return np.repeat(np.array(self.members, np.intp), self.widths)

    @cached_property
    def slot(self) -> IntArray:
        """For each entry of a row, what multiplies its column: 0 is the constant 1, j the j-th covariate. (E,)"""
        slots = [self._slots(k) for k in self.members]
        return np.concatenate([*slots, np.zeros(0 if slots else 1, np.intp)])

    def columns(self, keys: IntArray) -> IntArray:
        """The columns that decisions with these factors touch: (..., F) -> (..., E), -1 where there is none."""
        if not self.members:
            return np.full((*keys.shape[:-1], 1), -1)
        strides, bases, entry, offset = self._places
        at = (np.matmul(keys, strides) + bases)[..., entry] + offset
        absent = self._outside(keys)
        if self.reference is not None:
            is_reference = keys[..., self.factors.index("arm")] == self.reference
            absent = absent | (is_reference[..., None] & self._by_arm)
        return np.where(absent[..., entry], -1, at)

    def rows(self, keys: IntArray, covariates: FloatArray) -> FloatArray:
        """Decisions as rows on the columns: (..., F), (..., c) -> (..., P)."""
        cols, values = self.columns(keys), self._values(covariates)[..., self.slot]
        wide = np.zeros((*np.broadcast_shapes(cols.shape[:-1], values.shape[:-1]), len(self.family) + 1))
        cols, values = np.broadcast_arrays(cols, values)
        np.put_along_axis(wide, cols, values, -1)  # column -1 is the one too many
        return wide[..., :-1]

    def unmet(self, keys: IntArray, covariates: FloatArray) -> list[Unmet]:
        """What the arms of an offer, the last axis but one, have no columns for yet."""
        outside = self._outside(keys)
        if self.alone:  # what a group would have is among the own effects
            outside = outside & ~(self._in_none(keys)[..., None] & self._by_group)
        if not outside.any():
            return []
        if self.reference is not None:
            is_reference = keys[..., self.factors.index("arm")] == self.reference
            outside = outside & ~(is_reference[..., None] & self._by_arm)
        values = self._values(covariates)
        return [
            Unmet(k, bool(self._by_arm[i]), values[..., self._slots(k)] * outside[..., i, None])
            for i, k in enumerate(self.members)
            if outside[..., i].any()
        ]

    def _outside(self, keys: IntArray) -> BoolArray:
        """Whether each family has no column for a decision: (..., F) -> (..., families)."""
        beyond = (keys < 0) | (keys >= np.array(self.sizes))
        outside = np.asarray(np.matmul(beyond, self._uses))
        if self.own and self.alone:
            outside |= ~self._in_none(keys)[..., None] & self._by_group
        return outside

    def _in_none(self, keys: IntArray) -> BoolArray:
        """Whether decisions are for somebody in no group: (..., F) -> (...)."""
        return np.asarray(keys[..., self.factors.index("group")] < 0)

    def _is_here(self, family: Family) -> bool:
        if self.cluster in family.by:
            return self.own
        return not self.own or (self.alone and "group" in family.by)

    def _apart(self, k: int) -> list[int]:
        """The numbers of the factors that tell a family's columns apart: within a cluster, neither it nor its group."""
        by = self.families[k].by
        one = () if not self.own else (self.cluster,) if self.cluster in by else ("group",)
        return [self.factors.index(name) for name in by if name not in one]

    @cached_property
    def _uses(self) -> BoolArray:
        """Which factors tell a family's columns apart: (F, families)."""
        uses = np.zeros((len(self.factors), len(self.members)), bool)
        for i, k in enumerate(self.members):
            uses[self._apart(k), i] = True
        return uses

    @cached_property
    def _by_arm(self) -> BoolArray:
        return np.array(["arm" in self.families[k].by for k in self.members], bool)

    @cached_property
    def _by_group(self) -> BoolArray:
        """Families that somebody in no group has among the own effects."""
        by = [self.families[k].by for k in self.members]
        return np.array(["group" in names and self.cluster not in names for names in by], bool)

    @cached_property
    def _places(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """How far each factor moves a family's column (F, families), where the family begins, and for each entry of a
        row its family and its place among the family's slots.
        """
        strides = np.zeros((len(self.factors), len(self.members)), np.intp)
        slots = [len(self._slots(k)) for k in self.members]
        for i, k in enumerate(self.members):
            step = slots[i]
            for factor in reversed(self._apart(k)):
                strides[factor, i] = step
                step *= self.sizes[factor]
        bases = np.cumsum([0, *self.widths[:-1]])
        return strides, bases, np.repeat(np.arange(len(slots)), slots), np.concatenate([np.arange(n) for n in slots])

    def _combinations(self, k: int) -> int:
        return int(np.prod([self.sizes[i] for i in self._apart(k)], dtype=np.intp))

    def _slots(self, k: int) -> IntArray:
        slopes = self.families[k].slopes
        return np.zeros(1, np.intp) if slopes is None else 1 + np.array(slopes, np.intp)

    @staticmethod
    def _values(covariates: FloatArray) -> FloatArray:
        return np.concatenate([np.ones((*covariates.shape[:-1], 1)), covariates], -1)


@dataclass(frozen=True, slots=True)
class NoiseGroups:
    """Which outcomes share a residual covariance: those of an arm, of a part of the contexts, or all."""

    metrics: int
    arms: int = 1  # more than one: each arm has its own
    parts: int = 1  # more than one: contexts scale the noise

    @property
    def count(self) -> int:
        """g."""
        return self.arms * self.parts

    def of(self, keys: IntArray) -> IntArray:
        """The group of decisions with these factors: (..., F) -> (...)."""
        arm = keys[..., FACTORS.index("arm")] if self.arms > 1 else 0
        part = keys[..., FACTORS.index("noise")] if self.parts > 1 else 0
        return np.asarray(arm * self.parts + part + np.zeros(keys.shape[:-1], np.intp))


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """What a model has besides levels and arms, by the numbers of covariates and categories."""

    level: tuple[int, ...] = ()  # covariates that shift outcomes of all arms alike
    effects: tuple[int, ...] = ()  # covariates that change the effects of arms
    attributes: tuple[int, ...] = ()  # covariates that describe the arm
    categories: tuple[int, ...] = ()  # categories that shift outcomes
    category_effects: tuple[int, ...] = ()  # categories that change the effects of arms


def category(i: int) -> str:
    """The factor of a category."""
    return f"category {i}"


def factors_of(categories: int) -> tuple[str, ...]:
    """The factors of a model with so many categories."""
    return (*FACTORS, *(category(i) for i in range(categories)))


def field_families(terms: Terms, sizes: dict[str, int], *, seasons: bool = True) -> tuple[Family, ...]:
    """Sites and seasons. Every variance is learned, and a family without support shrinks to little.

    Users stand for themselves where a site has several of them, blocks where there are any.

    >>> [f.name for f in field_families(Terms(), {"user": 3, "group": 3, "block": 1}) if "season" in f.by]
    ['season', 'season x group', 'season x arm']
    """
    nested = sizes["user"] > sizes["group"]
    # What changes the effects of arms between places shares what a single cause would be given.
    causes = 1 + nested + len(terms.effects) + len(terms.category_effects)
    share = 0.5 / (1 + causes)
    return (
        *_common(terms, share, slope_spread=1.0),
        *_varying("group", share),
        *(_varying("user", share) if nested else ()),
        *((Family("season", ("season",)), Family("season x group", ("season", "group"))) if seasons else ()),
        *((Family("block", ("season", "block")),) if sizes["block"] > 1 else ()),
        *((Family("season x arm", ("season", "arm"), centre=SEASON_ARMS),) if seasons else ()),
    )


def people_families(
    terms: Terms, sizes: dict[str, int], *, seasons: bool = True, alone: bool = False
) -> tuple[Family, ...]:
    """Many users, each with a level, effects of arms, and effects of arms that change with covariates, of their own.

    Where some are in a group and others `alone`, a single group is enough for groups to differ.
    """
    grouped = sizes["group"] < sizes["user"] and (alone or sizes["group"] > 1)
    return (
        *_common(terms, 1.0, slope_spread=1.5),
        *(_varying("group") if grouped else ()),
        *((Family("season", ("season",)),) if seasons and sizes["season"] > 1 else ()),
        *_varying("user"),
        Family("user x arm x covariate", ("user", "arm"), slopes=terms.effects, centre=0.25),
    )


def _common(terms: Terms, slope: float, slope_spread: float) -> tuple[Family, ...]:
    """`slope` is the centre of what a covariate does to the effects of arms."""
    return (
        Family("level", variance=LEVEL),
        Family("arm", ("arm",), centre=0.5 if terms.attributes else 1.0, spread=1.25),
        Family("attribute", slopes=terms.attributes, centre=0.5, spread=1.25),
        Family("covariate", slopes=terms.level, centre=0.5),
        Family("covariate x arm", ("arm",), slopes=terms.effects, centre=slope, spread=slope_spread),
        *(Family(category(i), (category(i),)) for i in terms.categories),
        *(
            Family(f"{category(i)} x arm", (category(i), "arm"), centre=min(slope, 0.25))
            for i in terms.category_effects
        ),
    )


def _varying(factor: str, centre: float = 0.25) -> tuple[Family, ...]:
    """A level, and effects of arms, of each one's own."""
    return Family(factor, (factor,)), Family(f"{factor} x arm", (factor, "arm"), centre=centre)


# The columns and parameters of a field model for the groups, users, blocks and levels that were seen so far.

CLUSTERS = ("season", "user")
RESIDUAL_SD = 1.5  # of the log of the residual variance relative to a first guess
CORRELATION_SD = 1.0  # of an off-diagonal entry of the residual's factor, relative to its diagonal
ARM_NOISE_SD = 0.5  # of the log of an arm's noise variance relative to the others


@final
@dataclass(frozen=True)
class Structure:
    """How outcomes become columns; everything a fit needs besides the data."""

    families: tuple[Family, ...]
    factors: tuple[str, ...]
    sizes: tuple[int, ...]  # of the factors
    cluster: str  # what is many and is eliminated: seasons or users
    covariates: int
    noise: NoiseGroups
    ranges: tuple[tuple[float, float], ...]  # of the metrics, infinite where one has none
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    alone: bool = False  # some users are in a group, and others in none

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise ConfigError(f"cluster must be one of {CLUSTERS}, got {self.cluster!r}")
        most = max((c for f in self.families for c in f.slopes or ()), default=-1)
        if most >= self.covariates:
            raise ConfigError(f"a family uses covariate {most}; there are {self.covariates}, numbered from 0")
        if len(self.ranges) != self.metrics:
            raise ConfigError(
                f"ranges must have two ends for each of {self.metrics} metrics, got {len(self.ranges)} pairs"
            )
        both = [f.name for f in self.families if {"season", "user"} <= set(f.by)]
        if both:
            raise ConfigError(f"family {both[0]!r} crosses seasons with users; only one of them can be eliminated")

    @property
    def metrics(self) -> int:
        """M."""
        return self.noise.metrics

    @property
    def arms(self) -> int:
        """K."""
        return self.sizes[FACTORS.index("arm")]

    @property
    def cluster_place(self) -> int:
        """The number of the cluster's factor."""
        return self.factors.index(self.cluster)

    @cached_property
    def common(self) -> Layout:
        """The columns of theta."""
        return self._layout(own=False)

    @cached_property
    def own(self) -> Layout:
        """The columns of a cluster's own effects."""
        return self._layout(own=True)

    @cached_property
    def parameters(self) -> Parameters:
        """What is learned besides theta."""
        used = set(self.common.members) | set(self.own.members)
        families = tuple(
            f if k in used or f.variance is not None else replace(f, variance=0.0) for k, f in enumerate(self.families)
        )
        return Parameters(families, self.metrics, self.noise.count)

    def _layout(self, *, own: bool) -> Layout:
        return Layout(self.families, self.factors, self.cluster, self.sizes, self.reference, own, self.alone)


@final
@dataclass(frozen=True)
class Parameters:
    """Variances as a vector of unbounded numbers: log variances by metric and family, then the residual's factor."""

    families: tuple[Family, ...]
    metrics: int
    groups: int  # noise groups: one, or one for each arm

    @cached_property
    def learned(self) -> list[int]:
        """The numbers of the families whose variance is learned."""
        return [k for k, f in enumerate(self.families) if f.variance is None]

    @cached_property
    def centre(self) -> FloatArray:
        """Of the prior: (p,)."""
        logs = [np.log(self.families[k].centre) for k in self.learned] * self.metrics
        return np.concatenate([logs, np.zeros(self.size - len(logs))])

    @cached_property
    def precision(self) -> FloatArray:
        """Of the prior: (p, p). A log variance is judged against the residual's of the same metric."""
        M, k = self.metrics, len(self.learned)
        sds = [(M, RESIDUAL_SD), (M * (M - 1) // 2, CORRELATION_SD), (self._scales, ARM_NOISE_SD)]
        against = np.eye(self.size)
        against[np.arange(M * k), M * k + np.arange(M * k) // max(k, 1)] = -1.0
        ratios = [self.families[i].spread ** -2.0 for i in self.learned] * M
        weights = np.concatenate([ratios, *(np.full(n, sd**-2.0) for n, sd in sds)])
        return np.asarray(against.T @ (weights[:, None] * against))

    @property
    def size(self) -> int:
        """p."""
        M = self.metrics
        return M * len(self.learned) + M + M * (M - 1) // 2 + self._scales

    @property
    def uncertain(self) -> int:
        """How many of them, from the front, are averaged over: all variances, not the residual's shape."""
        return self.metrics * len(self.learned) + self.metrics

    @cached_property
    def _below(self) -> tuple[IntArray, IntArray]:
        row, column = np.tril_indices(self.metrics, -1)
        return row, column

    @property
    def _scales(self) -> int:
        return self.groups * self.metrics if self.groups > 1 else 0

    def variances(self, x: FloatArray) -> FloatArray:
        """(..., p) -> (..., M, F)."""
        M, k = self.metrics, len(self.learned)
        v = np.empty((*x.shape[:-1], M, len(self.families)))
        for number, f in enumerate(self.families):
            v[..., number] = 0.0 if f.variance is None else f.variance
        v[..., self.learned] = np.exp(x[..., : M * k].reshape(*x.shape[:-1], M, k))
        return v

    def residual(self, x: FloatArray) -> FloatArray:
        """(..., p) -> (..., g, M, M)."""
        root = self._root(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))[..., None, :, :]
        s = self._arm_scales(x)
        return R * s[..., :, None] * s[..., None, :]

    def gradient(self, x: FloatArray, found: Slopes) -> FloatArray:
        """Of the log likelihood, with respect to the vector: (..., p)."""
        first = found.grad_v[..., self.learned].reshape(*x.shape[:-1], -1)
        root, s = self._root(x), self._arm_scales(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))
        by_R = (found.grad_R * s[..., :, None] * s[..., None, :]).sum(-3)
        by_root = 2 * np.matmul(by_R, root)  # (..., M, M)
        log_sd = (by_root * root).sum(-1)  # a row of the factor is proportional to its diagonal
        below = self._below
        off = by_root[..., *below] * np.diagonal(root, axis1=-2, axis2=-1)[..., below[0]]
        parts = [first, 0.5 * log_sd, off]
        if self._scales:
            scaled = R[..., None, :, :] * s[..., :, None] * s[..., None, :]
            parts.append((found.grad_R * scaled).sum(-1).reshape(*x.shape[:-1], -1))
        return np.concatenate(parts, -1)

    def curvature(self, found: Slopes) -> FloatArray:
        """Second derivatives of the log likelihood, given the residual's shape: (..., k, k).

        To measure a metric in a larger unit is to scale all its variances. So the residual's derivative is that of the
        unit less those of the families.
        """
        M, S = self.metrics, found.second
        lead, learned = S.shape[:-4], self.metrics * len(self.learned)
        first = S[..., self.learned, :, :][..., self.learned].reshape(*lead, learned, learned)
        side = (np.moveaxis(found.by_unit, -3, -1) - S.sum(-1))[..., self.learned, :].reshape(*lead, learned, M)
        units, squares = found.by_unit.sum(-1), found.squares
        residual = S.sum((-3, -1)) - units - np.swapaxes(units, -1, -2)
        residual -= 0.25 * (squares + np.eye(M) * squares.sum(-1)[..., None])
        return np.block([[first, side], [np.swapaxes(side, -1, -2), residual]])

    def _root(self, x: FloatArray) -> FloatArray:
        M, at = self.metrics, self.metrics * len(self.learned)
        sd = np.exp(0.5 * x[..., at : at + M])
        root = np.zeros((*x.shape[:-1], M, M))
        root[..., np.arange(M), np.arange(M)] = sd
        below = self._below
        root[..., *below] = x[..., at + M : at + M + len(below[0])] * sd[..., below[0]]
        return root

    def _arm_scales(self, x: FloatArray) -> FloatArray:
        if not self._scales:
            return np.ones((*x.shape[:-1], 1, self.metrics))
        return np.exp(0.5 * x[..., -self._scales :]).reshape(*x.shape[:-1], self.groups, self.metrics)
