"""Terms of the mixed model: families of effects, the columns that decisions touch, and the variance parameters.

A family has one coefficient for each combination of its factors (and covariate, if it is a family of slopes), and one
variance for each metric. Families that contain the cluster factor belong to a cluster and are eliminated; the others
make up theta. Whichever factor has many values is the cluster: seasons or sites in a field, where a user is a member
of its site; users where people come. There, a user without a group gets both a group-level and a user-level random
effect; the group-level one is shared with no other user, so it is eliminated with the user's own. docs/model.md has
the families and their priors.
Shapes: leading `...` is any batch; K arms, M metrics, F factors, P columns for each metric, p parameters.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.mixed.likelihood import Derivatives
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

FACTORS = ("season", "block", "group", "member", "user", "arm", "noise")  # of every model; categories come after them
PAST = "past"  # the factor of arms that were given before the trial and are not offered, where there are any
FIXED = ("block", "arm", "noise", PAST)  # factors without a place for values that were not seen yet
LEVEL = 1e6  # variance of the overall level around the mean outcome, relative to the residual's: as good as flat
# Variance of season x arm relative to the residual's. Public variety trials: 0.16 in 48 years of barley, 0.12 in three
# of maize, 0.03 to 0.35 in two of soybean.
SEASON_ARMS = 0.15
DOSE_ARMS = 0.25  # variance of what arms have beside a smooth response to their dose, relative to arms without doses
MOST_KNOTS = 8  # of a smooth response
BEND = 0.5  # variance of a response's bend over the arms, where that of its straight line is 1
FAR = 3.0  # prior deviations above the centre, from which on a variance is pulled no harder
RESIDUAL_SD = 1.5  # of the log of the residual variance relative to a first guess
CORRELATION_SD = 1.0  # of an off-diagonal entry of the residual's factor, relative to its diagonal
ARM_NOISE_SD = 0.5  # of the log of an arm's noise variance relative to the others

Range = tuple[float, float]


@final
@dataclass(frozen=True, slots=True)
class Family:
    """Effects that share a variance."""

    name: str
    by: tuple[str, ...] = ()  # the factors it varies with
    slopes: tuple[int, ...] | None = None  # the covariates that it multiplies, by number; None: an intercept
    centre: float = 1.0  # centre of the variance's prior, relative to the residual's
    spread: float = 1.0  # deviation of the log of that ratio
    variance: float | None = None  # known, relative to a first guess of the residual's; None: learned


@final
@dataclass(frozen=True, slots=True)
class Terms:
    """Numbers of the covariates and categories with each role."""

    level: tuple[int, ...] = ()  # covariates that shift outcomes of all arms alike
    effects: tuple[int, ...] = ()  # covariates that change the effects of arms
    attributes: tuple[int, ...] = ()  # covariates that describe the arm; of a dose, its straight line
    bends: tuple[int, ...] = ()  # the other columns of doses
    doses: tuple[int, ...] = ()  # all columns of doses
    categories: tuple[int, ...] = ()  # categories that shift outcomes
    category_effects: tuple[int, ...] = ()  # categories that change the effects of arms


def category(i: int) -> str:
    """The factor of a category."""
    return f"category {i}"


def factors_of(categories: int, *, past: bool = False) -> tuple[str, ...]:
    """The factors of a model with so many categories."""
    return (*FACTORS, *(category(i) for i in range(categories)), *([PAST] if past else []))


def past_families(*, field: bool, seasons: bool) -> tuple[Family, ...]:
    """Effects of arms that were given before the trial: with variances of their own, they tell of no other arm."""
    return (
        Family(PAST, (PAST,), spread=1.25),
        *((Family("past x group", (PAST, "group"), centre=0.5),) if field else ()),
        *((Family("season x past", ("season", PAST), centre=SEASON_ARMS),) if field and seasons else ()),
    )


def field_families(terms: Terms, sizes: dict[str, int], *, seasons: bool = True) -> tuple[Family, ...]:
    """Families of sites and seasons; a family without support shrinks to little.

    Users have families of their own where a site has several of them, blocks where there are any.

    >>> [f.name for f in field_families(Terms(), {"member": 1, "block": 1}) if "season" in f.by]
    ['season', 'season x group', 'season x arm']
    """
    nested = sizes["member"] > 1
    user = "group", "member"
    # Causes that change the effects of arms between places share the variance that a single cause would be given.
    causes = 1 + nested + len(terms.effects) + len(terms.category_effects)
    share = 0.5 / (1 + causes)
    return (
        *_common_families(terms, share, slope_spread=1.0),
        *_varying("group", ("group",), share, terms.doses),
        *(_varying("user", user, share, terms.doses) if nested else ()),
        *((Family("season", ("season",)), Family("season x group", ("season", "group"))) if seasons else ()),
        *((Family("block", ("season", *user, "block")),) if sizes["block"] > 1 else ()),
        *(_varying("season", ("season",), SEASON_ARMS, terms.doses)[1:] if seasons else ()),
    )


def people_families(
    terms: Terms, sizes: dict[str, int], *, seasons: bool = True, ungrouped: bool = False
) -> tuple[Family, ...]:
    """Families of many users, each with a level, effects of arms and slopes of these on covariates.

    Where some users are in a group and others in none (`ungrouped`), a single group is enough for groups to differ.
    """
    grouped = sizes["group"] < sizes["user"] and (ungrouped or sizes["group"] > 1)
    return (
        *_common_families(terms, 1.0, slope_spread=1.5),
        *(_varying("group", ("group",), doses=terms.doses) if grouped else ()),
        *((Family("season", ("season",)),) if seasons and sizes["season"] > 1 else ()),
        *_varying("user", ("user",)),
        Family("user x arm x covariate", ("user", "arm"), slopes=terms.effects, centre=0.25),
    )


def _common_families(terms: Terms, slope: float, slope_spread: float) -> tuple[Family, ...]:
    """Families of all users; `slope` is the prior centre of covariate x arm."""
    changing = min(slope, 0.25)
    return (
        Family("level", variance=LEVEL),
        _beside(Family("arm", ("arm",), centre=0.5 if terms.attributes else 1.0, spread=1.25), terms.doses),
        Family("attribute", slopes=terms.attributes, centre=0.5, spread=1.25),
        *([Family("bend", slopes=terms.bends, centre=0.5, spread=1.25)] if terms.bends else []),
        Family("covariate", slopes=terms.level, centre=0.5),
        Family("covariate x arm", ("arm",), slopes=terms.effects, centre=slope, spread=slope_spread),
        *(Family(category(i), (category(i),)) for i in terms.categories),
        *(Family(f"{category(i)} x arm", (category(i), "arm"), centre=changing) for i in terms.category_effects),
    )


def _varying(name: str, by: tuple[str, ...], centre: float = 0.25, doses: tuple[int, ...] = ()) -> tuple[Family, ...]:
    """A level, effects of arms and responses to doses for each combination of factors."""
    effects = Family(f"{name} x arm", (*by, "arm"), centre=centre)
    responses = Family(f"{name} x dose", by, slopes=doses, centre=centre)
    return Family(name, by), _beside(effects, doses), *([responses] if doses else [])


def _beside(effects: Family, doses: tuple[int, ...]) -> Family:
    """Effects of arms where a smooth response has most of them already."""
    return replace(effects, centre=DOSE_ARMS * effects.centre) if doses else effects


def dose_columns(doses: FloatArray, first: FloatArray) -> FloatArray:
    """The straight line and the bends of a smooth response at doses (K,), by those of the first arms: (K, 1 + q).

    A natural cubic spline f = level + slope x + Z u with knots at the first arms' doses, and integral f''^2 = |u|^2 / v
    up to a constant: coefficients u of one variance make it the smoothing spline (Green and Silverman 1994, ch. 2).
    """
    from scipy.interpolate import CubicSpline  # here, because few trials need it

    spread = first.std() or 1.0
    x, own = ((d - first.mean()) / spread for d in (doses, first))
    knots = np.unique(own)
    if len(knots) > MOST_KNOTS:
        knots = np.quantile(knots, np.linspace(0, 1, MOST_KNOTS))
    h, inner = np.diff(knots), np.arange(max(len(knots) - 2, 0))
    Q, R = np.zeros((len(knots), len(inner))), np.diag((h[:-1] + h[1:]) / 3)
    Q[inner, inner], Q[inner + 2, inner] = 1 / h[:-1], 1 / h[1:]
    Q[inner + 1, inner] = -1 / h[:-1] - 1 / h[1:]  # Q' f = R f'' at the inner knots
    R[inner[1:], inner[:-1]] = R[inner[:-1], inner[1:]] = h[1:-1] / 6
    if not len(inner):
        return x[:, None]
    spline = CubicSpline(knots, Q @ np.linalg.solve(Q.T @ Q, np.linalg.cholesky(R)), bc_type="natural")

    def bends(at: FloatArray) -> FloatArray:
        inside = np.clip(at, knots[0], knots[-1])
        return np.asarray(spline(inside) + spline(inside, 1) * (at - inside)[:, None])  # straight beyond the knots

    size = bends(own).var(0).sum()
    return np.column_stack([x, np.sqrt(BEND / size) * bends(x)])


class _Index(NamedTuple):
    """Columns of the families of a layout; f families, E entries of a row."""

    uses: BoolArray  # (F, f), the factors that tell a family's columns apart
    strides: IntArray  # (F, f), how far each factor moves a family's column
    bases: IntArray  # (f,), the first column of each
    entry: IntArray  # (E,), the family of each entry of a row
    offset: IntArray  # (E,), its place among the slots of the family
    by_arm: BoolArray  # (f,)
    by_group: BoolArray  # (f,), those that a user without a group has among the own effects


@final
@dataclass(frozen=True)
class Layout:
    """Families laid out as columns: of theta, or of one cluster's own effects."""

    families: tuple[Family, ...]  # all of the model, in the order of their variances
    factors: tuple[str, ...]
    cluster: str  # the factor that is eliminated
    sizes: tuple[int, ...]  # number of values of each factor that have columns
    reference: int | None  # an arm without effects of its own: the others are measured against it
    own: bool  # columns of a cluster's effects, or of theta
    ungrouped: bool = False  # some clusters have no group: families of groups are in both, by whether there is a group

    @cached_property
    def members(self) -> tuple[int, ...]:
        """The numbers of the families that are laid out here."""
        alone = self.ungrouped and any(self.cluster in f.by for f in self.families)

        def is_here(f: Family) -> bool:
            if self.cluster in f.by:
                return self.own
            return not self.own or (alone and "group" in f.by)

        return tuple(k for k, f in enumerate(self.families) if is_here(f) and f.slopes != ())

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """The number of columns of each of them."""
        sizes = [int(np.prod([self.sizes[i] for i in self.factors_of(k)], dtype=np.intp)) for k in self.members]
        return tuple(size * len(self._slots(k)) for size, k in zip(sizes, self.members, strict=True))

    @cached_property
    def family(self) -> IntArray:
        """The family of each column: (P,)."""
        if not self.members:  # a cluster without effects keeps one column that nothing touches
            return np.zeros(1, np.intp)
        return np.repeat(np.array(self.members, np.intp), self.widths)

    @cached_property
    def slot(self) -> IntArray:
        """The multiplier of the column of each entry of a row: 0 is the constant 1, j the j-th covariate. (E,)"""
        slots = [self._slots(k) for k in self.members]
        return np.concatenate([*slots, np.zeros(0 if slots else 1, np.intp)])

    def factors_of(self, k: int) -> list[int]:
        """The numbers of the factors that tell a family's columns apart: within a cluster, neither it nor its group."""
        by = self.families[k].by
        one = () if not self.own else (self.cluster,) if self.cluster in by else ("group",)
        return [self.factors.index(name) for name in by if name not in one]

    def columns(self, keys: IntArray) -> IntArray:
        """The columns that decisions with these factors touch: (..., F) -> (..., E), -1 where there is none."""
        if not self.members:
            return np.full((*keys.shape[:-1], 1), -1)
        at = self._index
        column = (np.matmul(keys, at.strides) + at.bases)[..., at.entry] + at.offset
        absent = np.asarray(np.matmul((keys < 0) | (keys >= np.array(self.sizes)), at.uses))  # (..., f)
        if self.own and self.ungrouped:  # those of a group are a user's own only where there is no group
            absent |= (keys[..., self.factors.index("group"), None] >= 0) & at.by_group
        if self.reference is not None:
            absent |= (keys[..., self.factors.index("arm"), None] == self.reference) & at.by_arm
        return np.where(absent[..., at.entry], -1, column)

    def rows(self, keys: IntArray, covariates: FloatArray, *, average_season: bool = False) -> FloatArray:
        """Decisions as rows on the columns, in their season or an average one: (..., F), (..., c) -> (..., P)."""
        slots = np.concatenate([np.ones((*covariates.shape[:-1], 1)), covariates], -1)
        cols, values = np.broadcast_arrays(self.columns(keys), slots[..., self.slot])
        wide = np.zeros((*cols.shape[:-1], len(self.family) + 1))
        np.put_along_axis(wide, cols, values, -1)  # column -1 is the one too many
        if average_season:
            wide[..., :-1][..., self._of_seasons] = 0.0
        return wide[..., :-1]

    def by_family(self, columns: FloatArray) -> FloatArray:
        """The sums of each family's columns: (..., P) -> (..., families)."""
        of_family = self.family[:, None] == np.arange(len(self.families))
        return np.matmul(columns, of_family.astype(np.float64))

    def places_in(self, wider: Layout) -> IntArray:
        """The place of each column in a layout of the same families with more values of the factors: (P,)."""
        places, base = [np.zeros(0, np.intp)], 0
        for k, width in zip(wider.members, wider.widths, strict=True):
            at = wider.factors_of(k)
            columns = base + np.arange(width).reshape(*(wider.sizes[i] for i in at), -1)
            places.append(columns[tuple(slice(self.sizes[i]) for i in at)].ravel())
            base += width
        return np.concatenate(places)

    @cached_property
    def _of_seasons(self) -> BoolArray:
        """The columns that vary with the season: (P,)."""
        return np.array(["season" in f.by for f in self.families], bool)[self.family]

    @cached_property
    def _index(self) -> _Index:
        shape = len(self.factors), len(self.members)
        uses, strides = np.zeros(shape, bool), np.zeros(shape, np.intp)
        slots = [len(self._slots(k)) for k in self.members]
        for i, k in enumerate(self.members):
            step = slots[i]
            for factor in reversed(self.factors_of(k)):
                uses[factor, i], strides[factor, i] = True, step
                step *= self.sizes[factor]
        by = [self.families[k].by for k in self.members]
        return _Index(
            uses,
            strides,
            np.cumsum([0, *self.widths[:-1]]),
            np.repeat(np.arange(len(slots)), slots),
            np.concatenate([np.arange(n) for n in slots]) if slots else np.zeros(0, np.intp),
            np.array(["arm" in names for names in by], bool),
            np.array(["group" in names and self.cluster not in names for names in by], bool),
        )

    def _slots(self, k: int) -> IntArray:
        slopes = self.families[k].slopes
        return np.zeros(1, np.intp) if slopes is None else 1 + np.array(slopes, np.intp)


@final
@dataclass(frozen=True)
class Structure:
    """Columns and parameters of the model for the groups, users, blocks and levels that were seen so far."""

    families: tuple[Family, ...]
    factors: tuple[str, ...]
    # Of the factors; all but FIXED ones have a place more than values were seen, for a value that was not.
    sizes: tuple[int, ...]
    cluster: str  # the factor with many values that is eliminated: seasons, groups or users
    covariates: int
    metrics: int
    noise_groups: tuple[int, int]  # residual covariances by arm (1: common to all), and by part of the contexts
    ranges: tuple[Range, ...]  # of the metrics, infinite where one has none
    spreads: tuple[float, ...] = ()  # declared deviations of their noise, 0 where there is none; (): of no metric
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    ungrouped: bool = False  # some users are in a group, and others in none
    unscaled: tuple[int, ...] = ()  # covariates that are not standardised

    def __post_init__(self) -> None:
        if len(self.ranges) != self.metrics:
            raise ConfigError(f"ranges must have two ends for each of {self.metrics} metrics, got {len(self.ranges)}")

    @cached_property
    def arms(self) -> int:
        return self.sizes[FACTORS.index("arm")]

    @cached_property
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
        """The variance parameters; families without columns have variance 0."""
        used = set(self.common.members) | set(self.own.members)
        families = tuple(
            f if k in used or f.variance is not None else replace(f, variance=0.0) for k, f in enumerate(self.families)
        )
        return Parameters(families, self.metrics, self.noise_groups[0] * self.noise_groups[1])

    def noise_group(self, keys: IntArray) -> IntArray:
        """The number of the residual covariance of decisions with these factors: (..., F) -> (...)."""
        arms, parts = self.noise_groups
        arm = keys[..., FACTORS.index("arm")] % arms  # -1, one of the past, is the last
        return np.asarray(arm * parts + (keys[..., FACTORS.index("noise")] if parts > 1 else 0))

    def with_unseen(self, keys: IntArray) -> IntArray:
        """Factors of predictions (..., F), with values that were not seen yet in their common place."""
        sizes = np.array(self.sizes)
        unseen = ((keys < 0) | (keys >= sizes)) & np.array([name not in FIXED for name in self.factors])
        if self.ungrouped:  # group-level effects of users in no group are among their own
            unseen[..., FACTORS.index("group")] &= keys[..., FACTORS.index("group")] >= 0
        unseen[..., self.cluster_place] = False
        return np.where(unseen, sizes - 1, keys)

    def _layout(self, *, own: bool) -> Layout:
        return Layout(self.families, self.factors, self.cluster, self.sizes, self.reference, own, self.ungrouped)


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
    def standardised(self) -> FloatArray:
        """Matrix from parameters to prior deviations: (p, p). A log variance is against its metric's residual's."""
        M, k = self.metrics, len(self.learned)
        sds = [(M, RESIDUAL_SD), (M * (M - 1) // 2, CORRELATION_SD), (self._scales, ARM_NOISE_SD)]
        against = np.eye(self.size)
        against[np.arange(M * k), M * k + np.arange(M * k) // max(k, 1)] = -1.0
        ratios = [self.families[i].spread for i in self.learned] * M
        return against / np.concatenate([ratios, *(np.full(n, sd) for n, sd in sds)])[:, None]

    def log_prior(self, x: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Minus the log prior, its gradient and its curvature: (..., p) -> (...), (..., p), (..., p, p).

        Normal, but variances above FAR deviations have an exponential tail: where outcomes hardly scatter and arms
        differ all the same, the residual variance would draw theirs down with it, whatever the data say.
        """
        z = np.matvec(self.standardised, x - self.centre)
        ratio = np.arange(self.size) < self.metrics * len(self.learned)
        near = np.minimum(z, np.where(ratio, FAR, np.inf))
        bent = (near == z)[..., :, None] * self.standardised
        return np.vecdot(near, z - 0.5 * near), np.vecmat(near, self.standardised), self.standardised.T @ bent

    @cached_property
    def size(self) -> int:
        M = self.metrics
        return M * len(self.learned) + M + M * (M - 1) // 2 + self._scales

    @cached_property
    def uncertain(self) -> int:
        """The number of them, from the front, that are integrated over: all variances, not the residual's shape."""
        return self.metrics * len(self.learned) + self.metrics

    @cached_property
    def _below(self) -> tuple[IntArray, IntArray]:
        row, column = np.tril_indices(self.metrics, -1)
        return row, column

    @cached_property
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
        root, s = self._factors(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))[..., None, :, :]
        return R * s[..., :, None] * s[..., None, :]

    def gradient(self, x: FloatArray, derivatives: Derivatives) -> FloatArray:
        """Of the log likelihood, with respect to the vector: (..., p)."""
        first = derivatives.grad_v[..., self.learned].reshape(*x.shape[:-1], -1)
        root, s = self._factors(x)
        R = np.matmul(root, np.swapaxes(root, -1, -2))
        by_R = (derivatives.grad_R * s[..., :, None] * s[..., None, :]).sum(-3)
        by_root = 2 * np.matmul(by_R, root)  # (..., M, M)
        log_sd = (by_root * root).sum(-1)  # a row of the factor is proportional to its diagonal
        below = self._below
        off = by_root[..., *below] * np.diagonal(root, axis1=-2, axis2=-1)[..., below[0]]
        parts = [first, 0.5 * log_sd, off]
        if self._scales:
            scaled = R[..., None, :, :] * s[..., :, None] * s[..., None, :]
            parts.append((derivatives.grad_R * scaled).sum(-1).reshape(*x.shape[:-1], -1))
        return np.concatenate(parts, -1)

    def curvature(self, derivatives: Derivatives) -> FloatArray:
        """Second derivatives of the log likelihood, given the residual's shape: (..., k, k).

        To measure a metric in a larger unit is to scale all its variances. So the residual's derivative is that of the
        unit less those of the families.
        """
        M, S = self.metrics, derivatives.second
        lead, learned = S.shape[:-4], self.metrics * len(self.learned)
        first = S[..., self.learned, :, :][..., self.learned].reshape(*lead, learned, learned)
        side = (np.moveaxis(derivatives.by_unit, -3, -1) - S.sum(-1))[..., self.learned, :].reshape(*lead, learned, M)
        units, squares = derivatives.by_unit.sum(-1), derivatives.squares
        residual = S.sum((-3, -1)) - units - np.swapaxes(units, -1, -2)
        residual -= 0.25 * (squares + np.eye(M) * squares.sum(-1)[..., None])
        return np.block([[first, side], [np.swapaxes(side, -1, -2), residual]])

    def _factors(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The residual's lower triangular factor and the noise groups' scales: (..., M, M) and (..., g, M)."""
        M, at = self.metrics, self.metrics * len(self.learned)
        sd = np.exp(0.5 * x[..., at : at + M])
        root = np.zeros((*x.shape[:-1], M, M))
        root[..., np.arange(M), np.arange(M)] = sd
        below = self._below
        root[..., *below] = x[..., at + M : at + M + len(below[0])] * sd[..., below[0]]
        if not self._scales:
            return root, np.ones((*x.shape[:-1], 1, M))
        return root, np.exp(0.5 * x[..., -self._scales :]).reshape(*x.shape[:-1], self.groups, M)
