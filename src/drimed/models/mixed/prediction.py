"""Beliefs about the mean outcomes of an offer's arms, and the Kalman update of theta by one more outcome.

The belief is a `Fit` on the table of the arms' means, for each user in an average season, so every rule and guard takes
it as it is. Given theta, a cluster's own effects depend on its own cells alone; so an outcome is an observation of
theta,

    y - z . shift = (x - gain' z) . theta + N(0, z' noise z + R)

and costs one step of a Kalman filter, whatever the number of clusters and of outcomes, for any cluster in any order.
With the variances as they were it is exact; theta's posterior is taken as normal where it is a mixture.

With certain variances an effect is normal with some variance v. Over the nodes it is a mixture of normals, of kurtosis
3 (1 + c), c the squared coefficient of variation of v: that of Student's distribution with 4 + 2 / c degrees of
freedom. At a node v is 1 / (1 / prior variance + information of the data), and the information is about the same at all
of them.

Shapes: leading `...` is any batch; n users, K arms, M metrics, F factors, c covariates, P columns of theta and q of a
cluster's effects for each metric, B nodes, f families.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
from scipy.special import chdtri

from drimed.errors import InputError
from drimed.models.mixed import likelihood
from drimed.models.mixed.likelihood import ClusterEffects, cluster_effects, columns_in_use
from drimed.models.mixed.observations import UNKNOWN, Cells, make_design
from drimed.models.mixed.terms import Structure
from drimed.models.mixed.variance_components import IntegratedPosterior, mixture
from drimed.models.offer import Fit
from drimed.numerics.arrays import FloatArray, IntArray, log_determinant
from drimed.numerics.compiled import kernel
from drimed.numerics.quadratic_forms import add_matrix, clear

MOST_AT_ONCE, NUMBERS_AT_ONCE = 256, 4_000_000  # units that are computed at a time, and numbers of an array
TELLING_DIGITS = 9  # of a mean in standardised units; less is round-off
LEAST_SPREAD = 1e-6  # a squared coefficient of variation that makes no difference


@dataclass(frozen=True, slots=True)
class Belief:
    """Mean outcomes of the arms for each user, in the units of the metrics."""

    mean: FloatArray  # (..., n, K, M)
    covariance: FloatArray  # (..., n, K, M, K, M)
    residual: FloatArray  # (..., n, K, M, M), covariance of one outcome around it, as most plausible
    prior: FloatArray  # (..., n, K, M, K, M), covariance before any data, with the variances of now
    freedom: FloatArray  # (..., n), degrees of freedom of the tails of its effects


def belief(
    structure: Structure,
    fitted: IntegratedPosterior,
    cells: Cells,
    keys: IntArray,
    covariates: FloatArray,
    *,
    alike: bool = False,
) -> Belief:
    """Mean outcomes for offers whose arms have the factors keys (..., n, K, F) and covariates (..., n, K, c).

    Of the users themselves or, `alike`, of users like them.
    """
    (n, K), M = keys.shape[-3:-1], structure.metrics
    some = parts_of(n, fitted.variance.shape[-3] * K * M * M * fitted.theta.shape[-1])
    if len(some) > 1 and not cells.batch and structure.cluster != "season":
        parts = [belief(structure, fitted, cells, keys[at], covariates[at], alike=alike) for at in some]
        return Belief(*(np.concatenate([getattr(part, f.name) for part in parts]) for f in fields(Belief)))
    keys = structure.with_unseen(keys)
    scale, family = fitted.scale.expand(), structure.common.family
    z = scale.standardise(covariates)
    rows = structure.common.rows(keys, z, average_season=True)
    X, new = split_columns(rows, columns_of_fit(structure, cells))
    if structure.cluster != "season":
        Z = structure.own.rows(keys, z, average_season=True)
        mean, cov = _with_own_effects(structure, fitted, cells, keys, X, Z, alike=alike)
        rows, more = np.concatenate([rows, Z], -1), np.concatenate([family, structure.own.family])
    else:
        mean = np.matmul(X, np.swapaxes(fitted.theta[..., None, :, :], -1, -2))
        cov, more = sandwich(X, fitted.covariance[..., None, :, :, :, :], X), family
    v = fitted.variance[..., None, :, :, :]  # (..., 1, B, M, f)
    if len(family) > fitted.theta.shape[-1]:
        cov = cov + _prior_covariance(new, v.mean(-3)[..., family])
    family = more
    prior = _prior_covariance(rows, v.mean(-3)[..., family])
    # Each arm against the mean of all arms: its prior variance at each node, and what is left of it.
    squares = (rows - rows.mean(-2, keepdims=True)) ** 2
    squares = np.matmul(squares, (family[:, None] == np.arange(v.shape[-1])).astype(np.float64))  # (..., K, f)
    at_nodes = np.matmul(squares[..., None, None, :, :], v[..., None])[..., 0]  # (..., B, M, K)
    lead, B = at_nodes.shape[:-3], at_nodes.shape[-3]
    at_nodes = np.moveaxis(at_nodes, -3, -1).reshape(*lead, M * K, B)
    freedom = degrees_of_freedom(at_nodes, centred_variance(cov).reshape(*lead, M * K))
    R = np.broadcast_to(residual(structure, fitted, keys), (*mean.shape, mean.shape[-1]))
    centre, unit = (a[..., None, structure.covariates :] for a in (scale.centre, scale.unit))  # (..., 1, 1, M)
    # Arms that the data cannot tell apart must tie exactly, or round-off would choose between them.
    mean = centre + unit * np.round(mean, TELLING_DIGITS)
    units = unit[..., None, None] * unit[..., None, None, :]
    cov, prior = cov * units, prior * units
    if not scale.known.all():
        blank = np.eye(K * M).reshape(K, M, K, M) * UNKNOWN**2
        known = scale.known[..., None, None, None, None] > 0
        cov, prior = np.where(known, cov, blank), np.where(known, prior, blank)
    return Belief(mean, cov, R * unit[..., None] * unit[..., None, :], prior, freedom)


def parts_of(n: int, numbers: int) -> list[slice]:
    """n units in parts that are computed at a time, where arrays have so many numbers for each of them."""
    size = max(1, min(MOST_AT_ONCE, NUMBERS_AT_ONCE // numbers))
    return [slice(first, min(first + size, n)) for first in range(0, n, size)]


def residual(structure: Structure, fitted: IntegratedPosterior, keys: IntArray) -> FloatArray:
    """Most plausible covariances of single outcomes with keys (..., n, K, F): (..., n, K, M, M).

    n and K are 1 where the noise is common to all.
    """
    R = structure.parameters.residual(fitted.mode)[..., None, :, :, :]  # (..., 1, g, M, M)
    if R.shape[-3] == 1:
        return R
    group = structure.noise_group(keys)[..., None, None]  # (..., n, K, 1, 1)
    lead = np.broadcast_shapes(R.shape[:-3], group.shape[:-3])
    R = np.broadcast_to(R, (*lead, *R.shape[-3:]))
    return np.take_along_axis(R, np.broadcast_to(group, (*lead, *group.shape[-3:])), -3)


def as_fit(belief: Belief, pulls: FloatArray, round: int, delta: float) -> Fit:
    """The belief as rules and guards take it: theta is the table of means, arm by arm.

    The radius holds at all times at once, in all directions of the table (method of mixtures), for a table that lies
    where the prior puts all but a share delta of them.
    """
    size = belief.mean.shape[-2] * belief.mean.shape[-1]
    V_inv, prior = (c.reshape(*c.shape[:-4], size, size) for c in (belief.covariance, belief.prior))
    V_inv = 0.5 * (V_inv + np.swapaxes(V_inv, -1, -2))  # round-off is not symmetric
    gained = log_determinant(prior, "the prior covariance of the arms' means")
    gained = gained - log_determinant(V_inv, "the posterior covariance of the arms' means")
    radius = np.sqrt(2 * np.log(1 / delta) + np.maximum(gained, 0.0) + chdtri(size, delta))
    theta = belief.mean.reshape(*belief.mean.shape[:-2], size)
    return Fit(theta, V_inv, radius, None, pulls, round, 1.0, freedom=belief.freedom)


def _with_own_effects(
    structure: Structure,
    fitted: IntegratedPosterior,
    cells: Cells,
    keys: IntArray,
    X: FloatArray,
    Z: FloatArray,
    *,
    alike: bool,
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance for users with effects of their own, from their own cells and theta."""
    users = np.broadcast_to(keys[..., 0, structure.cluster_place], (*cells.batch, keys.shape[-3]))
    columns, effects = effects_of_clusters(structure, fitted, cells, users)
    near, rest = split_columns(Z, columns)
    theta, covariance = at_each_node(fitted)
    B, M, P = theta.shape[-3:]
    lead, t = effects.shift.shape[:-3], effects.shift.shape[-1]
    gain, flat = effects.gain.reshape(*lead, B, M * t, M * P), theta.reshape(*theta.shape[:-3], 1, B, M * P)
    own = effects.shift.reshape(*lead, B, M * t) - np.matvec(gain, flat)
    # Own effects and theta together are a mixture over the nodes: their covariances follow from those at each node.
    half = np.matmul(gain, covariance.reshape(*covariance.shape[:-5], 1, B, M * P, M * P))
    half, gain = (np.moveaxis(a, -3, -2).reshape(*lead, M * t, B, M * P) for a in (half, gain))
    off, moved = (
        np.swapaxes(a - a.mean(-2, keepdims=True), -1, -2) for a in (own, flat)
    )  # (..., M t, B), (..., M P, B)
    crossed = np.matmul(off, np.swapaxes(moved, -1, -2)) / B - half.mean(-2)
    both = (a.reshape(*lead, M * t, B * M * P) for a in (half, gain))
    spread = (np.matmul(next(both), np.swapaxes(next(both), -1, -2)) + np.matmul(off, np.swapaxes(off, -1, -2))) / B
    spread = spread.reshape(*lead, M, t, M, t)
    if not alike:
        spread = spread + effects.noise.mean(-5)
    shared = np.asarray(sandwich(near, crossed.reshape(*lead, M, t, M, P), X))
    within = sandwich(X, fitted.covariance[..., None, :, :, :, :], X) + sandwich(near, spread, near)
    within = within + shared + np.moveaxis(shared, (-4, -3, -2, -1), (-2, -1, -4, -3))
    if not alike:
        within = within + _prior_covariance(rest, fitted.variance.mean(-3)[..., None, :, structure.own.family])
    mean = np.matmul(X, np.swapaxes(fitted.theta[..., None, :, :], -1, -2))
    return mean + np.matmul(near, np.swapaxes(own.mean(-2).reshape(*lead, M, t), -1, -2)), within


def at_each_node(fitted: IntegratedPosterior) -> tuple[FloatArray, FloatArray]:
    """Theta and its covariance at each node: (..., B, M, P) and (..., B, M, P, M, P)."""
    if fitted.each_theta is None or fitted.each_covariance is None:
        raise InputError("units have effects of their own only where they are the model's clusters")
    return fitted.each_theta, fitted.each_covariance


def effects_of_clusters(
    structure: Structure, fitted: IntegratedPosterior, cells: Cells, clusters: IntArray
) -> tuple[IntArray, ClusterEffects]:
    """The own effects of clusters (..., n) at each node, given theta: their columns (..., n, t), and (..., n, B, ...).

    Columns that a cluster has no outcome of follow their prior, and are left out but for some that make up the number.
    """
    theirs = cells.of_clusters(structure.cluster_place, clusters)
    design = make_design(structure, theirs, fitted.scale.expand())
    columns, design = design.with_own_columns()
    v, R = fitted.variance[..., None, :, :, :], fitted.residual[..., None, :, :, :, :]
    effects = cluster_effects(design, v, R)
    return columns, effects._replace(gain=effects.gain[..., columns_of_fit(structure, cells)])


def columns_of_fit(structure: Structure, cells: Cells) -> IntArray:
    """The columns of the common layout that theta has when these cells are in it."""
    P = len(structure.common.family)
    few = P <= likelihood.MANY_COLUMNS
    return columns_in_use(P) if few else columns_in_use(P, structure.common.columns(cells.keys), cells.n)


def split_columns(Z: FloatArray, columns: IntArray) -> tuple[FloatArray, FloatArray]:
    """Some columns (..., t) of rows (..., K, q), and the rows without them: (..., K, t) and (..., K, q)."""
    columns = np.broadcast_to(columns[..., None, :], (*Z.shape[:-1], columns.shape[-1]))
    rest = Z.copy()
    np.put_along_axis(rest, columns, 0.0, -1)
    return np.take_along_axis(Z, columns, -1), rest


def rows_on_theta(effects: ClusterEffects, X: FloatArray, Z: FloatArray) -> FloatArray:
    """Rows on theta, directly and through the own effects: (..., K, P), (..., K, t) -> (..., K, M, M P)."""
    M, t = effects.shift.shape[-2:]
    through = np.matmul(
        Z[..., None, :, :], effects.gain.reshape(*effects.gain.shape[:-4], M, t, -1)
    )  # (..., M, K, M P)
    rows = -np.swapaxes(through, -2, -3)
    P = X.shape[-1]
    for m in range(M):
        rows[..., m, m * P : (m + 1) * P] += X
    return rows


@kernel("void(f8[:,:], f8[:,:,:,:], f8[:,:], f8[:,:,:,:])", "(k,p),(m,p,m,q),(k,q)->(k,m,k,m)")
def sandwich(X, covariance, Y, out):  # type: ignore[no-untyped-def]
    """X C Y' for each pair of metrics: (..., K, P), (..., M, P, M, Q), (..., K, Q) -> (..., K, M, K, M)."""
    (K, P), (M, Q) = X.shape, covariance.shape[2:]
    at, count, half = np.empty((K, Q), np.int64), np.zeros(K, np.int64), np.empty((M, Q))
    for k in range(K):  # few columns of many are not zero
        for q in range(Q):
            if Y[k, q] != 0.0:
                at[k, count[k]] = q
                count[k] += 1
    for k in range(K):
        for m in range(M):
            clear(half, M, Q)
            for p in range(P):
                if X[k, p] != 0.0:
                    add_matrix(half, X[k, p], covariance[m, p])
            for h in range(K):
                for n in range(M):
                    total = 0.0
                    for i in range(count[h]):
                        total += half[n, at[h, i]] * Y[h, at[h, i]]
                    out[k, m, h, n] = total


@kernel("void(f8[:,:], f8[:,:], f8[:,:,:,:])", "(k,p),(m,p)->(k,m,k,m)")
def _prior_covariance(rows, variance, out):  # type: ignore[no-untyped-def]
    """Of rows (..., K, P) whose columns have these variances (..., M, P): (..., K, M, K, M)."""
    (K, P), M = rows.shape, variance.shape[0]
    for k in range(K):
        for m in range(M):
            for h in range(K):
                for n in range(M):
                    out[k, m, h, n] = 0.0
        for p in range(P):
            if rows[k, p] != 0.0:
                for h in range(K):
                    for m in range(M):
                        out[k, m, h, m] += rows[k, p] * variance[m, p] * rows[h, p]


# Kalman update


def kalman_update(fitted: IntegratedPosterior, cells: Cells, at: int, structure: Structure) -> IntegratedPosterior:
    """Add cell number `at`, a single outcome; those before it are already in."""
    key, pattern, values = cells.keys[..., at, :], cells.pattern[..., at], cells.mean[..., at, :]
    each = fitted.each_theta is not None
    v, R = fitted.variance, fitted.residual  # (..., B, ...)
    if not each:
        mode = fitted.mode[..., None, :]
        v, R = structure.parameters.variances(mode), structure.parameters.residual(mode)
    cluster = key[..., structure.cluster_place, None]
    columns, of_one = effects_of_clusters(structure, replace(fitted, variance=v, residual=R), cells.live(at), cluster)
    columns, effects = columns[..., 0, :], ClusterEffects(*(np.take(a, 0, len(fitted.batch)) for a in of_one))
    standard = (values - fitted.scale.centre) / fitted.scale.unit
    z, y = standard[..., : structure.covariates], standard[..., None, structure.covariates :]
    X, Z = (layout.rows(key, z)[..., None, None, :] for layout in (structure.common, structure.own))  # for each node
    near, rest = split_columns(Z, columns[..., None, :])
    G = rows_on_theta(effects, X[..., columns_of_fit(structure, cells.live(at))], near)[
        ..., 0, :, :
    ]  # (..., B, M, M P)
    offset = np.matmul(near, np.swapaxes(effects.shift, -1, -2))[..., 0, :]
    group = structure.noise_group(key)[..., None, None, None, None]
    own_R = np.take_along_axis(R, np.broadcast_to(group, (*R.shape[:-3], 1, *R.shape[-2:])), -3)[..., 0, :, :]
    unseen = _prior_covariance(rest, v[..., structure.own.family])
    noise = (sandwich(near, effects.noise, near) + unseen)[..., 0, :, 0, :] + own_R
    observed = ((pattern[..., None] >> np.arange(structure.metrics)) & 1)[..., None, :].astype(np.float64)
    before = at_each_node(fitted) if each else (fitted.theta[..., None, :, :], fitted.covariance[..., None, :, :, :, :])
    after = _condition(*before, G, y - offset, noise, observed)
    theta, covariance = mixture(*after, 2)
    each_theta, each_covariance = after if each else (None, None)
    return replace(fitted, theta=theta, covariance=covariance, each_theta=each_theta, each_covariance=each_covariance)


def _condition(
    theta: FloatArray, covariance: FloatArray, G: FloatArray, y: FloatArray, noise: FloatArray, observed: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Theta and its covariance after y = G theta + N(0, noise), of the metrics that were observed."""
    M, P = theta.shape[-2:]
    lead = theta.shape[:-2]
    C, flat = covariance.reshape(*lead, M * P, M * P), theta.reshape(*lead, M * P)
    rows = G * observed[..., None]
    both = observed[..., :, None] * observed[..., None, :]
    CG = np.matmul(C, np.swapaxes(rows, -1, -2))  # (..., M P, M)
    S = np.matmul(rows, CG) + np.where(both > 0, noise, np.eye(M))
    gain = np.swapaxes(np.linalg.solve(S, np.swapaxes(CG, -1, -2)), -1, -2)
    C = C - np.matmul(gain, np.swapaxes(CG, -1, -2))
    C = 0.5 * (C + np.swapaxes(C, -1, -2))
    innovation = (y - np.matvec(rows, flat)) * observed
    return (flat + np.matvec(gain, innovation)).reshape(theta.shape), C.reshape(covariance.shape)


# Tails


def degrees_of_freedom(prior: FloatArray, posterior: FloatArray) -> FloatArray:
    """Of e effects together, infinite where the variances do not matter: (...).

    `prior` (..., e, B) has their prior variances at each node, and `posterior` (..., e) is left of them.
    """
    mean = prior.mean(-1)
    positive = (mean > 0) & (posterior > 0)
    information = np.where(positive, 1 / np.where(positive, posterior, 1.0) - 1 / np.where(positive, mean, 1.0), 0.0)
    left = prior / (1 + prior * np.maximum(information, 0.0)[..., None])
    first, second = (left.mean(-1) ** 2).sum(-1), (left**2).mean(-1).sum(-1)
    spread = second / np.where(first > 0, first, 1.0) - 1
    matters = (first > 0) & (spread > LEAST_SPREAD)
    return np.where(matters, 4 + 2 / np.where(matters, spread, 1.0), np.inf)


def centred_variance(covariance: FloatArray) -> FloatArray:
    """The variance of each arm against the mean of all arms: (..., K, M, K, M) -> (..., M, K)."""
    blocks = np.moveaxis(np.diagonal(covariance, axis1=-3, axis2=-1), -1, -3)  # (..., M, K, K)
    mean = blocks.mean(-1)
    own = np.diagonal(blocks, axis1=-2, axis2=-1) - 2 * mean + mean.mean(-1, keepdims=True)
    return np.maximum(own, 0.0)
