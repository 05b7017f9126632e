"""The field model: groups, seasons, blocks, covariates and users with effects of their own, all variances learned.

    y = level + arm + covariates + group + group x arm + season + season x group + block + season x arm + noise

(or, with users as clusters, user + user x arm + user x arm x covariates). What lasts is estimated; what belongs to a
cluster, a season or a user, is eliminated. The belief about an offer is a `Fit` on the mean outcomes of its arms, for
this user in an average season, so every rule and guard takes it as it is.

Shapes: leading `...` is any batch; H offers at a time, K arms, M metrics, F factors, c covariates, P columns of theta
for each metric.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtri

from drimed.errors import InputError, ShapeError
from drimed.learning.field import alike
from drimed.learning.field import average as field_average
from drimed.learning.field import cells as field_cells
from drimed.learning.field import design as field_design
from drimed.learning.field import own as field_own
from drimed.learning.field import tails as field_tails
from drimed.learning.field.average import Averaged
from drimed.learning.field.cells import Cells, Rows
from drimed.learning.field.design import UNKNOWN, Scale
from drimed.learning.field.likelihood import Design, own
from drimed.learning.field.step import step
from drimed.learning.field.structure import Structure
from drimed.learning.field.terms import Layout, Unmet
from drimed.learning.offer import Fit
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.forms import log_determinant

TELLING_DIGITS = 9  # of a mean in standardised units; what lies beyond is round-off


@dataclass(frozen=True, slots=True)
class Belief:
    """Mean outcomes of the arms for each of H offers, in the units of the metrics."""

    mean: FloatArray  # (..., H, K, M)
    covariance: FloatArray  # (..., H, K, M, K, M)
    residual: FloatArray  # (..., H, K, M, M), covariance of one outcome around it, as most plausible
    prior: FloatArray  # (..., H, K, M, K, M), covariance before any data, with variances as they are known now
    freedom: FloatArray  # (..., H), degrees of freedom of the tails of its effects

    def of(self, h: int) -> Belief:
        """The belief about one of the offers."""
        at = self.mean.ndim - 3
        return Belief(*(np.take(getattr(self, f.name), h, at) for f in fields(self)))

    @property
    def table(self) -> FloatArray:
        """The covariance of the table of means, arm by arm: (..., H, K M, K M)."""
        size = self.mean.shape[-2] * self.mean.shape[-1]
        return self.covariance.reshape(*self.mean.shape[:-2], size, size)


def make_rows(
    structure: Structure, keys: IntArray, y: FloatArray, covariates: FloatArray, observed: BoolArray | None = None
) -> Rows:
    """Outcomes y (..., B, M) of decisions with the factors keys (..., B, F), checked."""
    F, M, c = len(structure.factors), structure.metrics, structure.covariates
    if y.shape[-1] != M or covariates.shape[-1] != c or keys.shape[-1] != F:
        raise ShapeError(
            f"expected {F} factors, {M} metrics and {c} covariates, "
            f"got {keys.shape[-1]}, {y.shape[-1]} and {covariates.shape[-1]}"
        )
    there = np.ones(y.shape, bool) if observed is None else np.broadcast_to(observed, y.shape)
    if not (np.isfinite(covariates).all() and np.isfinite(y[there]).all()):
        raise InputError("outcomes and covariates must be finite; leave out a metric that is missing")
    pattern = (there << np.arange(M)).sum(-1).astype(np.intp)
    z = np.broadcast_to(covariates, (*y.shape[:-1], c))
    return Rows(np.broadcast_to(keys, (*y.shape[:-1], F)), pattern, np.concatenate([z, np.where(there, y, 0.0)], -1))


def learn(structure: Structure, cells: Cells, *, integrated: bool, weight: float = 1.0) -> tuple[Cells, Averaged]:
    """Variances and everything else from these outcomes, which are put in order.

    An outcome of the season before counts `weight` times as much as one of this season.
    """
    cells = field_cells.compact(cells, structure.cluster_place)
    scale = field_design.measure(cells, structure.covariates, structure.ranges)
    each = structure.cluster == "user"
    if not cells.used:
        return cells, field_average.before_any_data(
            structure.parameters, structure.common.family, scale, cells.batch, integrated=integrated, each=each
        )
    design = design_of(structure, cells, scale, weight)
    pair = alike.pair(cells, scale, structure.covariates, structure.ranges)
    return cells, field_average.learn(
        structure.parameters, design, scale, cells.batch, integrated=integrated, each=each, pair=pair
    )


def learn_again(structure: Structure, cells: Cells, before: Averaged, weight: float = 1.0) -> tuple[Cells, Averaged]:
    """The same with variances and units as they were."""
    cells = field_cells.compact(cells, structure.cluster_place)
    return cells, field_average.again(structure.parameters, design_of(structure, cells, before.scale, weight), before)


def design_of(structure: Structure, cells: Cells, scale: Scale, weight: float) -> Design:
    """The design of all outcomes, in order, each counting as much as its season says."""
    return field_design.build(
        cells, scale, structure.common, structure.own, noise=structure.noise, weight=_weights(cells, weight)
    )


def stepped(structure: Structure, cells: Cells, learned: Averaged, start: int) -> Averaged:
    """With the cells from number `start` on, single outcomes, one after the other."""
    for at in range(start, cells.used):
        learned = step(learned, cells, at, structure)
    return learned


def belief(structure: Structure, learned: Averaged, cells: Cells, keys: IntArray, covariates: FloatArray) -> Belief:
    """Mean outcomes for offers whose arms have the factors keys (..., H, K, F) and covariates (..., H, K, c)."""
    scale = for_each_offer(learned.scale)
    z = standardised(structure, scale, covariates)
    X, unmet = structure.common.rows(keys, z), structure.common.unmet(keys, z)
    v = learned.variance.mean(-3)[..., None, :, :]  # (..., 1, M, families)
    prior = _prior(structure.common, v, X)
    if structure.cluster == "user":
        mean, cov = _with_own_effects(structure, learned, cells, (keys, z, X))
        prior = prior + _prior(structure.own, v, structure.own.rows(keys, z))
    else:
        mean = np.matmul(X, np.swapaxes(learned.theta[..., None, :, :], -1, -2))
        cov = field_own.sandwich(X, learned.covariance[..., None, :, :, :, :])
    for part in unmet:
        more = _unmet_variance(part, v)
        cov, prior = cov + more, prior + more
    sizes = field_tails.squares(structure.common, X, unmet)
    if structure.cluster == "user":
        sizes = sizes + field_tails.squares(structure.own, structure.own.rows(keys, z))
    freedom = field_tails.freedom(sizes, learned.variance, field_tails.centred_variance(cov))
    R = np.broadcast_to(residual(structure, learned, keys), (*mean.shape, mean.shape[-1]))
    return _in_units(structure, scale, mean, cov, prior, R, freedom)


def residual(structure: Structure, learned: Averaged, keys: IntArray) -> FloatArray:
    """Covariances of single outcomes with keys (..., H, K, F), as most plausible: (..., H, K, M, M).

    H and K are 1 where the noise is common to all.
    """
    R = structure.parameters.residual(learned.mode)[..., None, :, :, :]  # (..., 1, g, M, M)
    if structure.noise.count == 1:
        return R
    group = structure.noise.of(keys)[..., None, None]  # (..., H, K, 1, 1)
    lead = np.broadcast_shapes(R.shape[:-3], group.shape[:-3])
    R = np.broadcast_to(R, (*lead, *R.shape[-3:]))
    return np.take_along_axis(R, np.broadcast_to(group, (*lead, *group.shape[-3:])), -3)


def as_fit(belief: Belief, pulls: FloatArray, round: int, delta: float) -> Fit:
    """The belief as rules and guards take it: theta is the table of means, arm by arm.

    The radius holds at all times at once, in all directions of the table: the method of mixtures, as in
    drimed.learning.field.ranges, for a table that lies where the prior puts all but a share delta of them.
    """
    K, M = belief.mean.shape[-2:]
    batch, size = belief.mean.shape[:-2], K * M
    V_inv = belief.table
    gained = log_determinant(belief.prior.reshape(*batch, size, size), "the prior covariance of the arms' means")
    gained = gained - log_determinant(V_inv, "the posterior covariance of the arms' means")
    squared = 2 * np.log(1 / delta) + np.maximum(gained, 0.0) + chdtri(size, delta)
    theta, radius = belief.mean.reshape(*batch, size), np.sqrt(squared)
    return Fit(theta, V_inv, radius, None, pulls, round, 1.0, freedom=belief.freedom)


def standardised(structure: Structure, scale: Scale, covariates: FloatArray) -> FloatArray:
    """Covariates (..., K, c) in the units that the fit uses."""
    c = structure.covariates
    return np.asarray((covariates - scale.centre[..., None, :c]) / scale.unit[..., None, :c])


def for_each_offer(scale: Scale) -> Scale:
    """A scale with an axis for offers."""
    return replace(
        scale, centre=scale.centre[..., None, :], unit=scale.unit[..., None, :], known=scale.known[..., None]
    )


def _with_own_effects(
    structure: Structure, learned: Averaged, cells: Cells, asked: tuple[IntArray, FloatArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance for users with effects of their own, from their own cells and what is common."""
    keys, z, X = asked
    if learned.each_theta is None or learned.each_covariance is None:
        raise InputError("users have effects of their own only where the model's clusters are users")
    users = np.broadcast_to(keys[..., 0, structure.cluster_place], (*cells.batch, keys.shape[-3]))
    theirs = field_own.of_clusters(cells, structure.cluster_place, users)
    scale = for_each_offer(learned.scale)
    design = field_design.build(theirs, scale, structure.common, structure.own, noise=structure.noise)
    v, R = learned.variance[..., None, :, :, :], learned.residual[..., None, :, :, :, :]  # (..., 1, B, ...)
    Z = structure.own.rows(keys, z)[..., None, :, :]  # (..., H, 1, K, q)
    theta, covariance = learned.each_theta[..., None, :, :, :], learned.each_covariance[..., None, :, :, :, :, :]
    found = field_own.belief(own(design, v, R), X[..., None, :, :], Z, theta, covariance)
    return field_average.mixture(*found, 2)


def _prior(layout: Layout, v: FloatArray, rows: FloatArray) -> FloatArray:
    """The prior covariance of rows (..., K, P), averaged over the nodes: (..., K, M, K, M)."""
    by_metric = np.matmul(
        rows[..., None, :, :] * v[..., layout.family][..., :, None, :], np.swapaxes(rows, -1, -2)[..., None, :, :]
    )
    return _of_metrics(by_metric)


def _unmet_variance(part: Unmet, v: FloatArray) -> FloatArray:
    """What effects that nobody has seen add to the covariance: (..., K, M, K, M)."""
    square = np.matmul(part.weight, np.swapaxes(part.weight, -1, -2))  # (..., K, K)
    if part.by_arm:
        square = square * np.eye(square.shape[-1])
    return _of_metrics(v[..., part.family][..., None, None] * square[..., None, :, :])


def _of_metrics(blocks: FloatArray) -> FloatArray:
    """One (K, K) block for each metric as a covariance of the table: (..., M, K, K) -> (..., K, M, K, M)."""
    M, K = blocks.shape[-3], blocks.shape[-1]
    found = np.zeros((*blocks.shape[:-3], K, M, K, M))
    for m in range(M):
        found[..., :, m, :, m] = blocks[..., m, :, :]
    return found


def _in_units(
    structure: Structure, scale: Scale, mean: FloatArray, cov: FloatArray, prior: FloatArray, R: FloatArray,
    freedom: FloatArray,
) -> Belief:  # fmt: skip
    c = structure.covariates
    centre, unit = scale.centre[..., c:], scale.unit[..., c:]
    # Arms that the data cannot tell apart must tie exactly, or round-off would choose between them.
    mean = centre[..., None, :] + unit[..., None, :] * np.round(mean, TELLING_DIGITS)
    units = unit[..., None, :, None, None] * unit[..., None, None, None, :]
    cov, prior = cov * units, prior * units
    if not scale.known.all():
        K, M = mean.shape[-2:]
        blank = np.eye(K * M).reshape(K, M, K, M) * UNKNOWN**2
        known = scale.known[..., None, None, None, None] > 0
        cov, prior = np.where(known, cov, blank), np.where(known, prior, blank)
    return Belief(mean, cov, R * unit[..., None, :, None] * unit[..., None, None, :], prior, freedom)


def _weights(cells: Cells, weight: float) -> FloatArray | None:
    """How much the outcomes of each cell count: (..., N)."""
    if weight == 1.0:
        return None
    season = cells.keys[..., 0]
    newest = np.where(cells.n > 0, season, 0).max(-1, keepdims=True)
    return np.asarray(weight ** (newest - season).astype(np.float64))
