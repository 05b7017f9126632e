"""The field model: groups, seasons, blocks, covariates and users with effects of their own, all variances learned.

    y = level + arm + covariates + group + group x arm + season + block + season x arm + noise

(or, with users as clusters, user + user x arm + user x arm x covariates). What lasts is estimated; what belongs to a
cluster, a season or a user, is eliminated. The belief about an offer is a `Fit` on the mean outcomes of its arms, for
this user in an average season, so every rule and guard takes it as it is.

Shapes: leading `...` is any batch; K arms, M metrics, P columns of theta for each metric.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, final

import numpy as np
from scipy.special import chdtri

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.learning.field import average as field_average
from drimed.learning.field import cells as field_cells
from drimed.learning.field import design as field_design
from drimed.learning.field import own as field_own
from drimed.learning.field import step as field_step
from drimed.learning.field.average import Averaged
from drimed.learning.field.cells import FACTORS, Cells, Rows
from drimed.learning.field.design import UNKNOWN, Scale
from drimed.learning.field.likelihood import own
from drimed.learning.field.terms import CLUSTERS, Family, Layout, Sizes, field_families
from drimed.learning.field.variances import Parameters
from drimed.learning.offer import Fit
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

NOISES = ("common", "arm")
TELLING_DIGITS = 9  # of a belief in standardised units; what lies beyond is round-off
MOST_STEPS = 64  # more outcomes than this at a time are faster added up anew


@dataclass(frozen=True, slots=True)
class FieldState:
    """The outcomes, and what was learned from them when the variances were last fitted."""

    cells: Cells
    learned: Averaged | None  # None before the first fit
    fitted: int  # outcomes when the variances were last fitted, of the member that had most
    stepped: int  # how many of the cells are in `learned`; -1: it must be computed again


@dataclass(frozen=True, slots=True)
class Belief:
    """Mean outcomes of the arms for one user, in the units of the metrics."""

    mean: FloatArray  # (..., K, M)
    covariance: FloatArray  # (..., K, M, K, M)
    residual: FloatArray  # (..., K, M, M), covariance of one outcome around it, as most plausible
    prior: FloatArray  # (..., K, M, K, M), covariance before any data, with variances as they are known now


@final
@dataclass(frozen=True, kw_only=True)
class Field:
    """A learner for outcomes that differ between groups, seasons, blocks and users.

    >>> Field(sizes=Sizes(arm=3, group=2)).common.family.tolist()
    [0, 1, 1, 1, 4, 4, 5, 5, 5, 5, 5, 5]
    """

    sizes: Sizes
    metrics: int = 1
    covariates: int = 0
    families: tuple[Family, ...] = field_families()  # name the covariates there that the model should use
    cluster: str = "season"  # what is many and is eliminated: seasons or users
    reference: int | None = None  # an arm that the effects of the others are measured against; None: all alike
    noise: str = "common"  # common: one residual covariance; arm: each arm scales it
    pairs: int = 6  # of draws of the variances that estimates are averaged over; 0: the most plausible variances alone
    growth: float = 1.1  # variances are fitted again when there are this many times as many outcomes
    delta: float = 0.01  # the radius at all times may fail with this probability

    def __post_init__(self) -> None:
        if self.cluster not in CLUSTERS:
            raise ConfigError(f"cluster must be one of {CLUSTERS}, got {self.cluster!r}")
        if self.noise not in NOISES:
            raise ConfigError(f"noise must be one of {NOISES}, got {self.noise!r}")
        if self.pairs < 0:
            raise ConfigError(f"pairs must be at least 0, got {self.pairs}")
        most = max((c for f in self.families for c in f.slopes or ()), default=-1)
        if most >= self.covariates:
            raise ConfigError(f"a family uses covariate {most}; there are {self.covariates}, numbered from 0")
        both = [f.name for f in self.families if {"season", "user"} <= set(f.by)]
        if both:
            raise ConfigError(f"family {both[0]!r} crosses seasons with users; only one of them can be eliminated")

    @cached_property
    def common(self) -> Layout:
        """The columns of theta."""
        return Layout(self.families, self.cluster, self.sizes, self.reference, own=False)

    @cached_property
    def own(self) -> Layout:
        """The columns of a cluster's own effects."""
        return Layout(self.families, self.cluster, self.sizes, self.reference, own=True)

    @cached_property
    def parameters(self) -> Parameters:
        """What is learned besides theta."""
        used = set(self.common.members) | set(self.own.members)
        families = tuple(
            f if k in used or f.variance is not None else replace(f, variance=0.0) for k, f in enumerate(self.families)
        )
        return Parameters(families, self.metrics, self.sizes.arm if self.noise == "arm" else 1)

    @cached_property
    def _shape(self) -> dict[str, Any]:
        return {"covariates": self.covariates, "by_arm": self.noise == "arm"}

    @cached_property
    def _factors(self) -> BoolArray:
        """Which factors the model looks at: the others do not tell cells apart. (5,)"""
        used = {name for f in self.families for name in f.by} | {self.cluster}
        if self.noise == "arm":
            used = used | {"arm"}
        return np.array([name in used for name in FACTORS])

    def init(self, batch: tuple[int, ...] = ()) -> FieldState:
        """No data."""
        return FieldState(field_cells.init(self.covariates + self.metrics, batch), None, 0, 0)

    def rows(
        self, keys: IntArray, y: FloatArray, covariates: FloatArray | None = None, observed: BoolArray | None = None
    ) -> Rows:
        """Outcomes y (..., B, M) of decisions with the factors keys (..., B, 5), checked."""
        keys, y = np.asarray(keys, np.intp), np.asarray(y, np.float64)
        z = np.zeros((*y.shape[:-1], 0)) if covariates is None else np.asarray(covariates, np.float64)
        if y.shape[-1] != self.metrics or z.shape[-1] != self.covariates or keys.shape[-1] != len(FACTORS):
            raise ShapeError(
                f"expected {len(FACTORS)} factors, {self.metrics} metrics and {self.covariates} covariates, "
                f"got {keys.shape[-1]}, {y.shape[-1]} and {z.shape[-1]}"
            )
        there = np.ones(y.shape, bool) if observed is None else np.asarray(observed, bool)
        if not (np.isfinite(z).all() and np.isfinite(y[there]).all()):
            raise InputError("outcomes and covariates must be finite; leave out a metric that is missing")
        most = np.array([getattr(self.sizes, name) for name in FACTORS])
        wrong = ((keys < 0) | (keys >= most)) & self._factors
        wrong[..., FACTORS.index(self.cluster)] = False  # clusters need no columns: any number will do
        if wrong.any():
            name = FACTORS[int(np.argwhere(wrong)[0][-1])]
            raise InputError(f"{name} must be a number from 0 to {getattr(self.sizes, name) - 1}; make `sizes` larger")
        pattern = (there << np.arange(self.metrics)).sum(-1).astype(np.intp)
        values = np.concatenate([np.broadcast_to(z, (*y.shape[:-1], z.shape[-1])), np.where(there, y, 0.0)], -1)
        return Rows(np.where(self._factors, keys, 0), pattern, values)

    def observe(self, state: FieldState, rows: Rows) -> FieldState:
        """Count outcomes in, of any season and in any order."""
        return replace(state, cells=field_cells.add(state.cells, rows))

    def forget(self, state: FieldState, rows: Rows) -> FieldState:
        """Take outcomes out again, as if they had never come."""
        return replace(state, cells=field_cells.remove(state.cells, rows), stepped=-1)

    def settle(self, state: FieldState, *, variances: bool | None = None) -> FieldState:
        """What to decide on: all outcomes so far, with variances fitted again when they are due (or as told)."""
        most, before = int(state.cells.count.max(initial=0)), state.learned
        waiting = state.cells.used - state.stepped
        if before is not None and waiting == 0 and not variances:
            return state
        due = most >= self.growth * state.fitted if variances is None else variances
        # While the noise is unknown there is nothing to keep.
        if before is None or due or not before.scale.known.all():
            cells = field_cells.compact(state.cells, FACTORS.index(self.cluster))
            scale = field_design.measure(cells, self.covariates)
            design = field_design.build(cells, scale, self.common, self.own, **self._shape)
            each = self.cluster == "user"
            learned = field_average.learn(self.parameters, design, scale, cells.batch, pairs=self.pairs, each=each)
            return FieldState(cells, learned, most, cells.used)
        if state.stepped >= 0 and waiting <= MOST_STEPS:
            return self._stepped(state, before)
        cells = field_cells.compact(state.cells, FACTORS.index(self.cluster))
        design = field_design.build(cells, before.scale, self.common, self.own, **self._shape)
        return FieldState(cells, field_average.again(self.parameters, design, before), state.fitted, cells.used)

    def _stepped(self, state: FieldState, learned: Averaged) -> FieldState:
        for at in range(state.stepped, state.cells.used):
            learned = field_step.step(
                learned, state.cells, at, self.parameters, (self.common, self.own), covariates=self.covariates
            )
        return replace(state, learned=learned, stepped=state.cells.used)

    def belief(self, state: FieldState, group: int = 0, covariates: FloatArray | None = None) -> Belief:
        """Mean outcomes of every arm for users of a group, in an average season."""
        learned = self._settled(state)
        z = np.zeros((*learned.batch, 0)) if covariates is None else covariates
        X = self._arm_rows(learned.scale, group, z)  # (..., K, P)
        mean = np.matmul(X, np.swapaxes(learned.theta, -1, -2))  # (..., K, M)
        prior = self._prior(self.common, learned.nodes, X)
        return self._in_units(learned.scale, learned.nodes, mean, field_own.sandwich(X, learned.covariance), prior)

    def own_belief(
        self, state: FieldState, users: IntArray, covariates: FloatArray | None = None, group: int = 0
    ) -> Belief:
        """Mean outcomes of every arm for users (..., H) with effects of their own: (..., H, K, M)."""
        learned = self._settled(state)
        if self.cluster != "user" or learned.each_theta is None or learned.each_covariance is None:
            raise ConfigError("users have effects of their own only where the model's clusters are users")
        users = np.asarray(users, np.intp)
        z = np.zeros((*users.shape, 0)) if covariates is None else covariates
        theirs = field_own.of_clusters(state.cells, "user", users)
        scale = learned.scale
        spread = replace(scale, centre=scale.centre[..., None, :], unit=scale.unit[..., None, :])
        design = field_design.build(theirs, spread, self.common, self.own, **self._shape)
        nodes = learned.nodes[..., None, :, :]  # (..., 1, B, p)
        v, R = self.parameters.variances(nodes), self.parameters.residual(nodes)
        X = self._arm_rows(spread, group, z)[..., None, :, :]  # (..., H, 1, K, P)
        Z = self._own_rows(spread, z)[..., None, :, :]
        theta, cov = learned.each_theta[..., None, :, :, :], learned.each_covariance[..., None, :, :, :, :, :]
        mean, cov = field_own.belief(own(design, v, R), X, Z, theta, cov)
        prior = self._prior(self.common, nodes, X[..., 0, :, :]) + self._prior(self.own, nodes, Z[..., 0, :, :])
        return self._in_units(spread, nodes, *field_average.mixture(mean, cov, 2), prior)

    def fit(self, belief: Belief, round: int = 1, pulls: FloatArray | None = None) -> Fit:
        """The belief as rules and guards take it: theta is the table of means, arm by arm.

        The radius holds at all times at once, in all directions of the table: the method of mixtures, as in
        drimed.learning.field.ranges, for a table that lies where the prior puts all but a share delta of them.
        """
        K, M = belief.mean.shape[-2:]
        batch, size = belief.mean.shape[:-2], K * M
        V_inv = belief.covariance.reshape(*batch, size, size)
        gained = np.linalg.slogdet(belief.prior.reshape(*batch, size, size))[1] - np.linalg.slogdet(V_inv)[1]
        squared = 2 * np.log(1 / self.delta) + np.maximum(gained, 0.0) + chdtri(size, self.delta)
        counts = np.zeros((*batch, K)) if pulls is None else pulls
        return Fit(belief.mean.reshape(*batch, size), V_inv, np.sqrt(squared), None, counts, round, 1.0)

    def _settled(self, state: FieldState) -> Averaged:
        if state.learned is None:
            raise InputError("nothing is fitted yet: call `settle` before a decision")
        return state.learned

    def _arm_rows(self, scale: Scale, group: int, covariates: FloatArray) -> FloatArray:
        keys = self._arm_keys(group)
        return self.common.rows(keys, self._standardised(scale, covariates)[..., None, :])

    def _own_rows(self, scale: Scale, covariates: FloatArray) -> FloatArray:
        return self.own.rows(self._arm_keys(0), self._standardised(scale, covariates)[..., None, :])

    def _arm_keys(self, group: int) -> IntArray:
        keys = np.zeros((self.sizes.arm, len(FACTORS)), np.intp)
        keys[:, FACTORS.index("arm")] = np.arange(self.sizes.arm)
        keys[:, FACTORS.index("group")] = group
        return keys

    def _standardised(self, scale: Scale, covariates: FloatArray) -> FloatArray:
        c = self.covariates
        return np.asarray((covariates - scale.centre[..., :c]) / scale.unit[..., :c])

    def _prior(self, layout: Layout, nodes: FloatArray, rows: FloatArray) -> FloatArray:
        """The prior covariance of rows (..., K, P), averaged over the nodes: (..., K, M, K, M)."""
        v = self.parameters.variances(nodes).mean(-3)[..., layout.family]  # (..., M, P)
        return np.asarray(np.einsum("...kp,...mp,...lp,mn->...kmln", rows, v, rows, np.eye(self.metrics)))

    def _in_units(
        self, scale: Scale, nodes: FloatArray, mean: FloatArray, cov: FloatArray, prior: FloatArray
    ) -> Belief:
        c = self.covariates
        centre, unit = scale.centre[..., c:], scale.unit[..., c:]
        # Arms that the data cannot tell apart must tie exactly, or round-off would choose between them.
        mean, cov = np.round(mean, TELLING_DIGITS), np.round(cov, TELLING_DIGITS)
        mean = centre[..., None, :] + unit[..., None, :] * mean
        units = unit[..., None, :, None, None] * unit[..., None, None, None, :]
        cov, prior = cov * units, prior * units
        if not scale.known.all():
            K, M = mean.shape[-2:]
            blank = np.eye(K * M).reshape(K, M, K, M) * UNKNOWN**2
            known = scale.known.reshape(*scale.known.shape, *(1,) * (cov.ndim - scale.known.ndim)) > 0
            cov, prior = np.where(known, cov, blank), np.where(known, prior, blank)
        R = self.parameters.residual(nodes.mean(-2)) * unit[..., None, :, None] * unit[..., None, None, :]
        return Belief(mean, cov, np.broadcast_to(R, (*mean.shape, mean.shape[-1])), prior)
