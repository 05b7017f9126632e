"""The field model: groups, seasons, blocks, covariates and users with effects of their own, all variances learned.

    y = level + arm + covariates + group + group x arm + season + season x group + block + season x arm + noise

(or, with users as clusters, user + user x arm + user x arm x covariates). What lasts is estimated; what belongs to a
cluster, a season or a user, is eliminated. The belief about an offer is a `Fit` on the mean outcomes of its arms, for
this user in an average season, so every rule and guard takes it as it is.

Shapes: leading `...` is any batch; H offers at a time, K arms, M metrics, F factors, c covariates, P columns of theta
for each metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtri

from drimed.errors import InputError, ShapeError
from drimed.models.mixed import cells as field_cells
from drimed.models.mixed import observations as field_design
from drimed.models.mixed import variance_components as field_average
from drimed.models.mixed.cells import Cells, Rows, init
from drimed.models.mixed.likelihood import Design, Own, own
from drimed.models.mixed.observations import UNKNOWN, Scale
from drimed.models.mixed.terms import Layout, Structure, Unmet
from drimed.models.mixed.variance_components import Averaged, mixture
from drimed.models.offer import Fit
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.numerics.quadratic_forms import log_determinant

# How much longer than a normal's the tails of an effect are, because the variances themselves are uncertain.

LEAST = 1e-6  # a squared coefficient of variation that makes no difference


def freedom_tails(squares: FloatArray, variance: FloatArray, posterior: FloatArray) -> FloatArray:
    """Degrees of freedom for all effects of an offer together, infinite where the variances do not matter: (..., H).

    An effect's prior variance is `squares` (..., H, K, F) times the families' variances (..., B, M, F), and `posterior`
    (..., H, K, M) what is left of it.
    """
    B, M, F = variance.shape[-3:]
    flat = variance.reshape(*variance.shape[:-3], 1, B * M, F)
    prior = np.matmul(squares, np.swapaxes(flat, -1, -2))
    left = at_each(prior.reshape(*prior.shape[:-1], B, M), posterior)
    first, second = (left.mean(-2) ** 2).sum((-2, -1)), (left**2).mean(-2).sum((-2, -1))
    return student(first, second)


def of_sums(squares: FloatArray, variance: FloatArray, posterior: FloatArray) -> FloatArray:
    """The same for each of n sums over metrics: squares (..., n, M, F), variances (..., B, M, F) -> (..., n)."""
    flat, of_node = (a.reshape(*a.shape[:-2], -1) for a in (squares, variance))
    prior = np.matmul(flat, np.swapaxes(of_node, -1, -2))  # (..., n, B)
    left = at_each(prior[..., None], posterior[..., None])[..., 0]
    return student(left.mean(-1) ** 2, (left**2).mean(-1))


def at_each(prior: FloatArray, posterior: FloatArray) -> FloatArray:
    """What is left of prior variances (..., B, M) at every node, if on average it is (..., M)."""
    mean = prior.mean(-2)
    open_ = (mean > 0) & (posterior > 0)
    told = np.where(open_, 1 / np.where(open_, posterior, 1.0) - 1 / np.where(open_, mean, 1.0), 0.0)
    return np.asarray(prior / (1 + prior * np.maximum(told, 0.0)[..., None, :]))


def student(first: FloatArray, second: FloatArray) -> FloatArray:
    """Degrees of freedom from the squared mean of v and the mean of its square."""
    spread = second / np.where(first > 0, first, 1.0) - 1
    told = (first > 0) & (spread > LEAST)
    return np.where(told, 4 + 2 / np.where(told, spread, 1.0), np.inf)


def squares(layout: Layout, rows: FloatArray, unmet: Sequence[Unmet] = ()) -> FloatArray:
    """By families, what a variance counts in each arm against the mean of all arms: rows (..., K, P) -> (..., K, F)."""
    K = rows.shape[-2]
    found = by_family(layout, _centred(rows) ** 2)
    for part in unmet:
        if part.by_arm:
            size = (part.weight**2).sum(-1)
            found[..., part.family] += (1 - 2 / K) * size + size.sum(-1, keepdims=True) / K**2
        else:
            found[..., part.family] += (_centred(part.weight) ** 2).sum(-1)
    return found


def by_family(layout: Layout, columns: FloatArray) -> FloatArray:
    """The sums of each family's columns: (..., P) -> (..., F)."""
    of_family = layout.family[:, None] == np.arange(len(layout.families))
    return np.matmul(columns, of_family.astype(np.float64))


def centred_variance(covariance: FloatArray) -> FloatArray:
    """The variance of each arm against the mean of all arms: (..., K, M, K, M) -> (..., K, M)."""
    blocks = np.moveaxis(np.diagonal(covariance, axis1=-3, axis2=-1), -1, -3)  # (..., M, K, K)
    mean = blocks.mean(-1)
    own = np.diagonal(blocks, axis1=-2, axis2=-1) - 2 * mean + mean.mean(-1, keepdims=True)
    return np.swapaxes(np.maximum(own, 0.0), -1, -2)


def _centred(rows: FloatArray) -> FloatArray:
    return rows - rows.mean(-2, keepdims=True)


# Beliefs about users who have effects of their own, from their own cells and what is common.


def belief(
    own: Own, X: FloatArray, Z: FloatArray, theta: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of rows X on theta and Z on a user's own effects: (..., K, M), (..., K, M, K, M)."""
    rows = through(own, X, Z)
    mean = np.einsum("...kmnp,...np->...km", rows, theta) + np.einsum("...kq,...mq->...km", Z, own.shift)
    half = np.einsum("...kmnp,...npor->...kmor", rows, covariance)
    return mean, np.einsum("...kmor,...ljor->...kmlj", half, rows) + sandwich(Z, own.noise)


def through(own: Own, X: FloatArray, Z: FloatArray) -> FloatArray:
    """Rows on theta, directly and by way of the own effects: (..., K, P), (..., K, q) -> (..., K, M, M, P)."""
    rows = -np.einsum("...kq,...mqnp->...kmnp", Z, own.gain)
    for m in range(rows.shape[-2]):
        rows[..., m, m, :] += X
    return rows


def sandwich(X: FloatArray, covariance: FloatArray) -> FloatArray:
    """X C X' for each pair of metrics: (..., K, P), (..., M, P, M, P) -> (..., K, M, K, M)."""
    M, P = covariance.shape[-2:]
    lead = covariance.shape[:-4]
    half = np.matmul(X[..., None, :, :], covariance.reshape(*lead, M, P, M * P))  # (..., M, K, M P)
    half = half.reshape(*half.shape[:-1], M, P)
    whole = np.matmul(half, np.swapaxes(X, -1, -2)[..., None, None, :, :])  # (..., M, K, M, K)
    return np.moveaxis(whole, (-4, -3, -2, -1), (-3, -4, -1, -2))


def of_clusters(cells: Cells, place: int, clusters: IntArray) -> Cells:
    """The cells of each cluster, by factor number `place`: (..., N) cells and clusters (..., H) -> (..., H, n)."""
    cells = cells.live()
    label = cells.keys[..., place]
    if not cells.batch and clusters.size < label.size:  # most cells are not theirs
        theirs = np.flatnonzero(np.isin(label, clusters) if clusters.size > 1 else label == clusters.ravel()[0])
        cells, label = cells.at(theirs), label[theirs]
    match = (label[..., None, :] == clusters[..., None]) & (cells.n > 0)[..., None, :]  # (..., H, N)
    found = np.nonzero(match)
    count = match.sum(-1)
    n = max(int(count.max(initial=0)), 1)
    if not len(found[0]):  # nothing to take
        return init(cells.mean.shape[-1], clusters.shape, 1, cells.keys.shape[-1])
    index = np.zeros((*match.shape[:-1], n), np.intp)
    before = np.cumsum(count.ravel()) - count.ravel()  # of each cluster's first among all that were found
    owner = np.ravel_multi_index(found[:-1], match.shape[:-1])
    index.reshape(-1, n)[owner, np.arange(len(owner)) - before[owner]] = found[-1]
    there = np.arange(n) < count[..., None]
    take = (*(a[..., None, None] for a in np.indices(cells.batch, sparse=True)), index)
    return Cells(
        cells.keys[take],
        cells.pattern[take],
        np.where(there, cells.n[take], 0.0),
        cells.mean[take],
        cells.scatter[take],
        n,
    )


# One more outcome between two fits: what is common is updated in place of being fitted again.


def step(learned: Averaged, cells: Cells, at: int, structure: Structure) -> Averaged:
    """Add cell number `at`, a single outcome; those before it are already in."""
    common, theirs, parameters = structure.common, structure.own, structure.parameters
    covariates, noise_groups = structure.covariates, structure.noise
    key, pattern, values = cells.keys[..., at, :], cells.pattern[..., at], cells.mean[..., at, :]
    place = structure.cluster_place
    before = _squeezed(of_clusters(cells.live(at), place, key[..., place][..., None]))
    design = field_design.build(before, learned.scale, common, theirs, noise=noise_groups)
    each, spread = learned.each_theta, learned.each_covariance
    v, R = learned.variance, learned.residual  # (..., B, ...)
    if each is None:
        mode = learned.mode[..., None, :]
        v, R = parameters.variances(mode), parameters.residual(mode)
    effects = own(design, v, R)
    standard = (values - learned.scale.centre) / learned.scale.unit
    z, y = standard[..., :covariates], standard[..., None, covariates:]
    X, Z = common.rows(key, z)[..., None, None, :], theirs.rows(key, z)[..., None, None, :]  # one row, for each node
    G = through(effects, X, Z)[..., 0, :, :, :]  # (..., B, M, M, P)
    offset = np.einsum("...kq,...mq->...km", Z, effects.shift)[..., 0, :]
    noise = sandwich(Z, effects.noise)[..., 0, :, 0, :] + _of_group(R, noise_groups.of(key))
    there = ((pattern[..., None] >> np.arange(parameters.metrics)) & 1)[..., None, :].astype(np.float64)
    if each is None or spread is None:
        theta, covariance = _conditioned(
            learned.theta[..., None, :, :], learned.covariance[..., None, :, :, :, :], G, y - offset, noise, there
        )
        return replace(learned, theta=theta[..., 0, :, :], covariance=covariance[..., 0, :, :, :, :])
    each, spread = _conditioned(each, spread, G, y - offset, noise, there)
    theta, covariance = mixture(each, spread, 2)
    return replace(learned, theta=theta, covariance=covariance, each_theta=each, each_covariance=spread)


def _conditioned(
    theta: FloatArray, covariance: FloatArray, G: FloatArray, y: FloatArray, noise: FloatArray, there: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """theta and its covariance after y = G theta + N(0, noise), where a metric is there."""
    M, P = theta.shape[-2:]
    lead = theta.shape[:-2]
    C = covariance.reshape(*lead, M * P, M * P)
    rows = (G * there[..., None, None]).reshape(*lead, M, M * P)
    both = there[..., :, None] * there[..., None, :]
    CG = np.matmul(C, np.swapaxes(rows, -1, -2))  # (..., D, M)
    S = np.matmul(rows, CG) + np.where(both > 0, noise, np.eye(M))
    flat = theta.reshape(*lead, M * P)
    surprise = (y - np.matvec(rows, flat)) * there
    gain = np.swapaxes(np.linalg.solve(S, np.swapaxes(CG, -1, -2)), -1, -2)
    C = C - np.matmul(gain, np.swapaxes(CG, -1, -2))
    C = 0.5 * (C + np.swapaxes(C, -1, -2))
    return (flat + np.matvec(gain, surprise)).reshape(theta.shape), C.reshape(covariance.shape)


def _of_group(R: FloatArray, group: IntArray) -> FloatArray:
    """R (..., B, g, M, M) of each member's noise group: (..., B, M, M)."""
    index = group.reshape(*group.shape, 1, 1, 1, 1)
    return np.take_along_axis(R, np.broadcast_to(index, (*R.shape[:-3], 1, 1, 1)), -3)[..., 0, :, :]


def _squeezed(cells: Cells) -> Cells:
    """Without the axis of clusters, of which there is one."""
    return Cells(
        cells.keys[..., 0, :, :],
        cells.pattern[..., 0, :],
        cells.n[..., 0, :],
        cells.mean[..., 0, :, :],
        cells.scatter[..., 0, :, :, :],
        cells.used,
    )


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
    pair = field_design.pair(cells, scale, structure.covariates, structure.ranges)
    return cells, field_average.learn_average(
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


def belief_model(
    structure: Structure, learned: Averaged, cells: Cells, keys: IntArray, covariates: FloatArray
) -> Belief:
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
        cov = sandwich(X, learned.covariance[..., None, :, :, :, :])
    for part in unmet:
        more = _unmet_variance(part, v)
        cov, prior = cov + more, prior + more
    sizes = squares(structure.common, X, unmet)
    if structure.cluster == "user":
        sizes = sizes + squares(structure.own, structure.own.rows(keys, z))
    freedom = freedom_tails(sizes, learned.variance, centred_variance(cov))
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
    drimed.models.mixed.effects, for a table that lies where the prior puts all but a share delta of them.
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
    theirs = of_clusters(cells, structure.cluster_place, users)
    scale = for_each_offer(learned.scale)
    design = field_design.build(theirs, scale, structure.common, structure.own, noise=structure.noise)
    v, R = learned.variance[..., None, :, :, :], learned.residual[..., None, :, :, :, :]  # (..., 1, B, ...)
    Z = structure.own.rows(keys, z)[..., None, :, :]  # (..., H, 1, K, q)
    theta, covariance = learned.each_theta[..., None, :, :, :], learned.each_covariance[..., None, :, :, :, :, :]
    found = belief(own(design, v, R), X[..., None, :, :], Z, theta, covariance)
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
