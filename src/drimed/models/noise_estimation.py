"""Noise that is learned from the outcomes themselves: its level per arm, and how it grows with the context.

    Cov[y] = exp(slope (f - centre)) Sigma_g,    f = log(1 + |context|)

Vector feedback: g is the arm, Sigma_g an M x M covariance that is shrunk towards the pooled variance of each metric.
Reward feedback: g is the pair (user, arm), Sigma_g a variance, shrunk towards its arm's and that towards the pooled
one. Features may then differ every time; with vector feedback the map Phi(a) of an arm must stay the same ("fixed").

Kept are sums per (group, bin of f), whose size does not grow with the data: counts, and moments sum u u^T of rows

    u = (1, y)    fixed: the residual of an outcome is A u with A = (-Z theta, I)
    u = (x, r)    else, one outcome r at a time: A = (-theta^T, 1)

so that squared residuals, the regression and its weights follow from them for any theta and any weights. A refit
re-weights all the past with the present noise model, and replaces V and b; between refits new rows are added with the
weights of the last one. An outcome may come late or be taken out again. One pass per refit starts from the last model,
so the model is part of the state; run until it converges it is a function of the sums alone, whatever the order.

A pass regresses at the present weights, sums the squared residuals of each group (with the uncertainty of theta), and
takes from these new precisions of the groups and a new slope of the log-variance on the context feature: expectation
and conditional maximisation.

Nothing depends on the units of the metrics. Not promised: anything at all times at once, under adaptive sampling, or
while Sigma_g itself drifts. Outcomes whose mean is more than a million times their noise leave no digits for it.
Shapes: leading `...` is any batch; E subgroups (1, or the users), K arms, J bins, m rows of an outcome, d features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.models.offer import Offer, Shape
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick, pick_shared
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import NEVER_ZERO, clear, dot, invert, upper_root

BINS = 40
BIN_WIDTH = 0.3  # of log(1 + |c|): the grid covers |c| up to exp(11.7) = 120,000; the last bin is open above
EVERY_TIME = 200  # so many observations are refitted one by one,
GROWTH = 1.02  # and then whenever there are 2 % more of them
FEWEST_RECENT = 16  # rows that wait before the sums are touched; more where the sums are large
CONVERGED = 1e-8  # relative change of the model in a pass that counts as none
MOST_PASSES = 2000  # the steps contract geometrically: this many mean that something else is wrong
REFERENCE = 6.0  # squared radius that the inflation is computed for: a level of 0.99 has 5.4
MAP_TOLERANCE = 1e-9  # relative: an arm's map that was written down and read back is the same map
GONE = 1e-9  # observations: less than this is round-off of weights that were taken out again
LEAST_VARIANCE = 1e-8  # of a metric, as a share of its mean square: a constant must not weigh infinitely much
LOG_WEIGHT_LIMIT = 12.0  # |log scale| beyond this is extrapolation: no context weighs more than e^12 times another
STEP_LIMIT = 1.0  # of the slope in one pass: the first passes start far from the optimum
GUESS_WEIGHT = 0.5  # observations that the guessed variance counts as, until the data tell noise from signal
PRIOR_EXCESS = 2.0  # nu0 - m: an arm's covariance is pulled to the pooled variances as by a Wishart prior of nu0
PAIR = 0.5  # sum of squares of two outcomes that are 1 apart
ROUND_OFF = 1e-9  # of a sum of products of distances to the ends of a range
CELL_PULL = 4.0  # kappa: a user's level is pulled to its arm's, and that to the pooled one, as by so many outcomes
SLOPE_PRECISION = 1.0  # rho: the slope is pulled to 0 as by one observation of unit information
IDLE, SETTLED = 200, 1e-3  # passes that do not halve a change below the second number: only round-off moves


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Sums, and the model that was fitted to them."""

    n: FloatArray  # (..., E, K, J), observations
    moments: FloatArray  # (..., E, K, J, U, U), sums of u u^T
    sf: FloatArray  # (..., J), sums of the context feature
    maps: FloatArray | None  # (..., K, M, d), Phi of the arms seen so far; None for reward feedback
    mapped: BoolArray | None  # (..., K), which arms those are
    whitening: FloatArray  # (..., E, K, m, m), upper triangular: W^T W = Sigma_g^-1
    slope: FloatArray  # (...)
    centre: FloatArray  # (...), mean feature at the last refit
    inflation: FloatArray  # (...), of squared radii, for the price of estimated weights
    recent: FloatArray  # (..., P, 5 + U), rows (subgroup, arm, bin, feature, weight, u) not in the sums yet
    waiting: int  # how many of them are in use
    seen: int  # observations, of each member of the batch
    refitted: int  # how many there were at the last refit


@dataclass(frozen=True, slots=True)
class Rows:
    """Observations before any weight."""

    subgroup: IntArray  # (...), the user, or 0
    arm: IntArray  # (...)
    feature: FloatArray  # (...), of the context
    Z: FloatArray  # (..., m, d)
    y: FloatArray  # (..., m)


def init(shape: Shape, batch: tuple[int, ...], *, feedback: str, guess: float) -> NoiseModel:
    """No data: every group has the guessed variance."""
    fixed = feedback == "vector"
    E, m, U = (1, shape.M, shape.M + 1) if fixed else (shape.H, 1, shape.d + 1)
    K = shape.K
    # A new row copies the P rows that wait, and one in P copies the sums: this balances the two.
    P = max(FEWEST_RECENT, math.isqrt(E * K * BINS * (U * U + 1) // (5 + U)))
    return NoiseModel(
        n=np.zeros((*batch, E, K, BINS)),
        moments=np.zeros((*batch, E, K, BINS, U, U)),
        sf=np.zeros((*batch, BINS)),
        maps=np.zeros((*batch, K, m, shape.d)) if fixed else None,
        mapped=np.zeros((*batch, K), bool) if fixed else None,
        whitening=np.broadcast_to(np.eye(m) / np.sqrt(guess), (*batch, E, K, m, m)),
        slope=np.zeros(batch),
        centre=np.zeros(batch),
        inflation=np.ones(batch),
        recent=np.zeros((*batch, P, 5 + U)),
        waiting=0,
        seen=0,
        refitted=0,
    )


def rows(model: NoiseModel, offer: Offer, action: IntArray, Z: FloatArray, y: FloatArray) -> Rows:
    """The observations of all users, checked: Z (..., n, m, d) and y (..., n, m) are on their own scale."""
    feature = context_feature(offer, action.shape)
    if not (np.isfinite(y).all() and np.isfinite(feature).all()):
        raise InputError(
            "outcomes and contexts must be finite: a NaN or infinity could never be taken out of the sums again"
        )
    user = np.zeros(1, np.intp) if model.maps is not None else _checked_user(model, offer.user)
    return Rows(np.broadcast_to(user, action.shape), action, feature, Z, np.asarray(y))


def of_user(rows: Rows, h: int) -> Rows:
    """The observation of one user."""
    return Rows(rows.subgroup[..., h], rows.arm[..., h], rows.feature[..., h], rows.Z[..., h, :, :], rows.y[..., h, :])


def add(model: NoiseModel, rows: Rows, weight: float = 1.0) -> NoiseModel:
    """Count an observation in, which weighs `weight` times one of this episode; a negative weight counts it out."""
    maps, mapped = _with_map(model, rows)
    recent = model.recent.copy()
    row = recent[..., model.waiting, :]
    row[..., 0] = rows.subgroup
    row[..., 1] = rows.arm
    row[..., 2] = np.minimum(rows.feature // BIN_WIDTH, BINS - 1)
    row[..., 3] = rows.feature
    row[..., 4] = weight
    if maps is not None:
        row[..., 5], row[..., 6:] = 1.0, rows.y
    else:
        row[..., 5:-1], row[..., -1] = rows.Z[..., 0, :], rows.y[..., 0]
    seen = model.seen + (1 if weight > 0 else -1)
    added = replace(model, maps=maps, mapped=mapped, recent=recent, waiting=model.waiting + 1, seen=seen)
    return absorb(added) if added.waiting == recent.shape[-2] else added


def remove(model: NoiseModel, rows: Rows, weight: float = 1.0) -> NoiseModel:
    """Take an observation out again that was added with this weight, or with the one that has since become it."""
    less = absorb(add(model, rows, -weight))
    if (less.n < 0).any():
        raise InputError("an outcome can be taken out only if it was counted in; this one was not")
    return less


def absorb(model: NoiseModel) -> NoiseModel:
    """The same evidence with all of it in the sums."""
    if model.waiting == 0:
        return model
    E, K, J, U, _ = model.moments.shape[-5:]
    n, moments, sf = model.n.copy(), model.moments.copy(), model.sf.copy()
    rows = model.recent[..., : model.waiting, :].reshape(-1, model.waiting, 5 + U)
    member = np.repeat(np.arange(len(rows)), model.waiting)
    flat = rows.reshape(-1, 5 + U)
    subgroup, arm, place = (flat[:, i].astype(np.intp) for i in range(3))
    cell, weight, u = (member, subgroup, arm, place), flat[:, 4], flat[:, 5:]
    np.add.at(n.reshape(-1, E, K, J), cell, weight)
    np.add.at(moments.reshape(-1, E, K, J, U, U), cell, weight[:, None, None] * u[:, :, None] * u[:, None, :])
    np.add.at(sf.reshape(-1, J), (member, place), weight * flat[:, 3])
    gone = np.abs(n) < GONE  # observations that were taken out again leave no round-off behind
    n[gone], moments[gone] = 0.0, 0.0
    return replace(model, n=n, moments=moments, sf=sf, recent=np.zeros_like(model.recent), waiting=0)


def fade(model: NoiseModel, share: float) -> NoiseModel:
    """The same evidence, all of which counts only so much."""
    model = absorb(model)
    return replace(model, n=share * model.n, moments=share * model.moments, sf=share * model.sf)


def squares(model: NoiseModel) -> FloatArray:
    """The sums of squares of each cell's rows: (..., E, K, J, U)."""
    return np.diagonal(model.moments, axis1=-2, axis2=-1)


def is_due(model: NoiseModel) -> bool:
    """Whether the model should be fitted again now."""
    return model.seen <= EVERY_TIME or model.seen >= GROWTH * model.refitted


def refit(
    model: NoiseModel,
    d: int,
    *,
    penalty: float,
    guess: float,
    ranges: tuple[tuple[float, float], ...] = (),
    passes: int | None = 1,
) -> tuple[NoiseModel, FloatArray, FloatArray]:
    """The model after some passes from the present one, and the V (..., d, d) and b (..., d) that follow from it.

    Without a number of `passes`, the model that further ones do not change.
    """
    model = absorb(model)
    pair = binary_pairs(model, ranges)
    most, tolerance = (MOST_PASSES, CONVERGED) if passes is None else (passes, 0.0)
    maps = np.zeros((model.n.shape[-2], 1, d)) if model.maps is None else model.maps
    settings = np.empty((*model.slope.shape, 6))
    settings[..., 0] = np.nan if model.refitted == 0 else model.slope
    settings[..., 1:] = penalty, guess, most, tolerance, model.maps is not None
    whitening = model.whitening.copy()  # replaced in place
    V, b, found = _estimate(model.n, model.moments, model.sf, maps, pair, settings, whitening)
    if passes is None and np.max(found[..., 4], initial=0) >= most:
        raise NumericalError(
            f"the noise model did not settle in {most} passes, the last moved it by {np.max(found[..., 5]):.2g}; "
            "the sums may have lost their digits"
        )
    slope, centre, meier, scatter = (found[..., i].copy() for i in range(4))
    fitted = replace(
        model, whitening=whitening, slope=slope, centre=centre, inflation=inflation(meier, scatter), refitted=model.seen
    )
    return fitted, V, b


def binary_pairs(model: NoiseModel, ranges: tuple[tuple[float, float], ...]) -> FloatArray:
    """Sum of squares of one pair of pseudo-outcomes for each arm, of metrics with two values: (..., m).

    Outcomes of an arm that are all alike leave no residual, but a share of n outcomes is known to about 1 / n only. So
    each arm counts one pair more, one outcome of either value, as by Laplace's rule: next to nothing once both values
    are common. Two values are the ends of a range that no outcome lies between: then sum (y - low) (high - y) is 0.
    """
    if model.maps is None or not ranges:
        return np.zeros(model.whitening.shape[-1])
    ends = np.array(ranges)  # (M, 2)
    finite = np.isfinite(ends).all(-1)
    low, high = np.where(finite[:, None], ends, 0.0).T
    sums = model.moments.sum((-5, -4, -3))  # (..., U, U)
    n, y, square = sums[..., :1, 0], sums[..., 1:, 0], np.diagonal(sums, axis1=-2, axis2=-1)[..., 1:]
    between = (low + high) * y - square - low * high * n
    binary = finite & (np.abs(between) <= ROUND_OFF * n * np.maximum(low**2, high**2))
    return np.where(binary, PAIR * (high - low) ** 2, 0.0)


def inflation(meier: FloatArray, scatter: FloatArray, squared_radius: float = REFERENCE) -> FloatArray:
    """The factor by which a squared radius must grow because its weights are estimates: 1 when they are known.

    Meier (1953) prices estimated weights, sum f (1 - f) / nu over the groups, f the share of the evidence that rests
    on a group and nu its degrees of freedom. Satterthwaite's degrees of freedom, the inverse of sum f^2 / nu, widen
    the normal quantile to Student's (Cornish and Fisher's expansion). A heuristic here, not a theorem.

    >>> float(inflation(np.asarray(0.0), np.asarray(0.0)))
    1.0
    """
    z2 = squared_radius
    # Squares are products: the power of a single number may differ from that of an array in the last bit.
    student = 1 + (z2 + 1) * scatter / 4 + (5 * z2**2 + 16 * z2 + 3) * (scatter * scatter) / 96
    return np.asarray((1 + 4 * meier) * (student * student))


def whitened(model: NoiseModel, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Z and y divided by the noise as it is estimated now."""
    W = whitening(model, rows)
    return np.matmul(W, rows.Z), np.matvec(W, rows.y)


def whitening(model: NoiseModel, rows: Rows) -> FloatArray:
    """W with W Sigma W^T = I, for the noise of each observation as it is estimated now: (..., m, m)."""
    E, K = model.whitening.shape[-4:-2]
    cells = model.whitening.reshape(*model.whitening.shape[:-4], E * K, *model.whitening.shape[-2:])
    log_scale = _log_scale(model.slope, model.centre, rows.feature)
    return pick_shared(cells, rows.subgroup * K + rows.arm, 3) * np.exp(-0.5 * log_scale)[..., None, None]


def reward_noise(model: NoiseModel, offer: Offer) -> FloatArray:
    """The estimated standard deviation of each arm's reward, for each user: (..., n, K)."""
    slope, centre = model.slope[..., None], model.centre[..., None]
    batch = np.broadcast_shapes(slope.shape, offer.batch)
    log_scale = _log_scale(slope, centre, context_feature(offer, batch))
    if model.maps is not None:
        if offer.preference is None:
            raise InputError("learned noise with vector feedback needs the offer's preference")
        root = np.swapaxes(model.whitening[..., None, 0, :, :, :], -1, -2)  # (..., K, m, m)
        p = np.broadcast_to(offer.preference, (*batch, root.shape[-1]))[..., None, :, None]
        sigma = np.linalg.norm(np.linalg.solve(root, p)[..., 0], axis=-1)
    else:
        roots = model.whitening[..., None, :, :, 0, 0]  # (..., E, K)
        user = np.broadcast_to(_checked_user(model, offer.user), batch)
        sigma = 1 / pick(np.broadcast_to(roots, (*batch, *roots.shape[-2:])), user)
    return np.asarray(np.exp(0.5 * log_scale)[..., None] * sigma)


def context_feature(offer: Offer, batch: tuple[int, ...]) -> FloatArray:
    """f of each member: (...). Without a context it is 0, and all data are in one bin."""
    if offer.context is None:
        return np.zeros(batch)
    return np.broadcast_to(np.log1p(np.sqrt(np.vecdot(offer.context, offer.context))), batch)


def _log_scale(slope: FloatArray, centre: FloatArray, feature: FloatArray) -> FloatArray:
    return np.clip(slope * (feature - centre), -LOG_WEIGHT_LIMIT, LOG_WEIGHT_LIMIT)


def _checked_user(model: NoiseModel, user: int | IntArray) -> IntArray:
    E, numbers = model.n.shape[-3], np.atleast_1d(user)
    if ((numbers < 0) | (numbers >= E)).any():
        raise InputError(f"learned noise is kept for {E} users, numbered from 0; got user {int(numbers.max())}")
    return numbers


def _with_map(model: NoiseModel, rows: Rows) -> tuple[FloatArray | None, BoolArray | None]:
    """The known maps, and this arm's with them."""
    maps, mapped = model.maps, model.mapped
    if maps is None or mapped is None:
        return None, None
    known, stored = pick(mapped, rows.arm), pick(maps, rows.arm)
    if not known.all():
        new = (rows.arm[..., None] == np.arange(mapped.shape[-1])) & ~mapped
        maps = np.where(new[..., None, None], rows.Z[..., None, :, :], maps)
        mapped = mapped | new
        stored = np.where(known[..., None, None], stored, rows.Z)
    if not np.array_equal(stored, rows.Z):
        off = np.abs(rows.Z - stored).max((-2, -1)) > MAP_TOLERANCE * np.abs(stored).max((-2, -1))
        if off.any():
            arm = int(np.broadcast_to(rows.arm, off.shape)[off].flat[0])
            raise InputError(
                f"learned noise with vector feedback needs one map Phi(a) per arm; arm {arm} had another one "
                "before. Use feedback 'reward', which lets features change, or weighting 'known'"
            )
    return maps, mapped


@kernel(
    "void(f8[:,:,:], f8[:,:,:,:,:], f8[:], f8[:,:,:], f8[:], f8[:], f8[:,:,:,:], f8[:,:], f8[:], f8[:])",
    "(e,k,j),(e,k,j,u,u),(j),(k,m,d),(m),(q),(e,k,m,m)->(d,d),(d),(q)",
    in_place=("whitening",),
)
def _estimate(n, moments, sf, maps, pair, settings, whitening, V, b, found):  # type: ignore[no-untyped-def]
    """Passes from (whitening, slope), which are replaced by the new ones; then V and b.

    `pair` is added to each group's squared residuals. `settings` are the slope (NaN: start from the guessed variances),
    the ridge penalty, the guess, the most passes, the tolerance, and whether each arm's map is fixed. Stops when no
    parameter moves by more than the tolerance, relative to the largest of its group. `found` are the slope, the mean
    feature, the terms of Meier and Satterthwaite, the number of passes, and how far the last one moved.
    """
    E, K, J = n.shape
    m, d, U = maps.shape[1], maps.shape[2], moments.shape[3]
    penalty, guess, passes, tolerance, fixed = settings[1], settings[2], settings[3], settings[4], settings[5] != 0.0
    of_group, of_arm, of_bin = np.zeros((E, K)), np.zeros(K), np.zeros(J)
    for e in range(E):
        for k in range(K):
            for j in range(J):
                of_group[e, k] += n[e, k, j]
                of_bin[j] += n[e, k, j]
            of_arm[k] += of_group[e, k]
    total, centre, information = 0.0, 0.0, 0.0
    for j in range(J):
        total += of_bin[j]
        centre += sf[j]
    if total > 0.0:
        centre /= total
    f = np.zeros(J)  # mean feature of a bin, centred
    for j in range(J):
        if of_bin[j] > 0.0:
            f[j] = sf[j] / of_bin[j] - centre
            information += 0.5 * m * of_bin[j] * f[j] * f[j]
    guessed, least = variance_bounds(moments, maps, of_arm, guess, fixed)

    slope, Om = 0.0 if np.isnan(settings[0]) else settings[0], np.zeros((E, K, m, m))
    for e in range(E):
        for k in range(K):
            for s in range(m):
                if np.isnan(settings[0]):
                    Om[e, k, s, s] = 1.0 / guessed[s]
                else:
                    for t in range(m):
                        Om[e, k, s, t] = dot(whitening[e, k, :, s], whitening[e, k, :, t])
    weight, S, V_inv, theta = np.zeros(J), np.zeros((E, K, U, U)), np.zeros((d, d)), np.zeros(d)
    R, of_cell, r = np.zeros((E, K, m, m)), np.zeros((E, K, J, m, m)), np.zeros(J)
    A, doubt, new, pooled = np.zeros((m, U)), np.zeros((m, m)), np.zeros((m, m)), np.zeros(m)
    done, idle, moved, smallest = 0, 0, np.inf, np.inf
    while True:
        for j in range(J):
            weight[j] = np.exp(-min(max(slope * f[j], -LOG_WEIGHT_LIMIT), LOG_WEIGHT_LIMIT))
        regress(n, moments, maps, of_group, weight, Om, penalty, fixed, S, V, b)
        invert(V, V_inv)
        for i in range(d):
            theta[i] = dot(V_inv[i], b)
        if moved < 0.5 * smallest:
            smallest, idle = moved, 0
        else:
            idle += 1
        if done >= passes or moved <= tolerance or (idle >= IDLE and moved <= SETTLED):
            break

        for s in range(m):
            pooled[s] = 0.0
        for e in range(E):
            for k in range(K):
                clear(R[e, k], m, m)
                if of_group[e, k] == 0.0:
                    continue
                residual_form(maps[k], theta, fixed, A)
                for j in range(J):
                    if n[e, k, j] != 0.0:
                        expected_squares(A, moments[e, k, j], maps[k], V_inv, fixed, doubt, of_cell[e, k, j])
                        add_matrix(R[e, k], weight[j], of_cell[e, k, j])
                for s in range(m):
                    R[e, k, s, s] = max(R[e, k, s, s], of_group[e, k] * least[s]) + pair[s]
                    pooled[s] += R[e, k, s, s]
        trust = GUESS_WEIGHT * d / (d + m * total)  # of the guess: with more rows than features, it must go
        for s in range(m):
            pooled[s] = (pooled[s] + trust * guessed[s]) / (total + trust)

        moved = 0.0
        for k in range(K):
            level = CELL_PULL * pooled[0]  # of the arm, for reward feedback
            for e in range(E):
                level += R[e, k, 0, 0]
            level /= CELL_PULL + of_arm[k]
            for e in range(E):
                if fixed:
                    for s in range(m):
                        R[e, k, s, s] += pooled[s]
                    invert(R[e, k], new)
                    factor = of_group[e, k] + PRIOR_EXCESS - 1.0  # nu0 + N - m - 1
                else:
                    new[0, 0] = 1.0 / (CELL_PULL * level + R[e, k, 0, 0])
                    factor = CELL_PULL + of_group[e, k]
                change, largest = 0.0, NEVER_ZERO
                for s in range(m):
                    for t in range(m):
                        value = factor * new[s, t]
                        change = max(change, abs(value - Om[e, k, s, t]))
                        largest = max(largest, abs(value))
                        Om[e, k, s, t] = value
                moved = max(moved, change / largest)

        # A step of Fisher scoring for log-linear variances, with the level profiled out.
        whole = 0.0
        for j in range(J):
            r[j] = 0.0
            for e in range(E):
                for k in range(K):
                    if n[e, k, j] != 0.0:
                        r[j] += weight[j] * max(sum_of_products(Om[e, k], of_cell[e, k, j]), 0.0)
            whole += r[j]
        score = -SLOPE_PRECISION * slope
        if whole > 0.0:
            for j in range(J):
                score += 0.5 * m * (r[j] * total / whole - of_bin[j]) * f[j]
        step = min(max(score / (information + SLOPE_PRECISION), -STEP_LIMIT), STEP_LIMIT)
        slope += step
        moved = max(moved, abs(step))
        done += 1

    meier, scatter = 0.0, 0.0
    for e in range(E):
        for k in range(K):
            upper_root(Om[e, k], whitening[e, k])
            if of_group[e, k] != 0.0:
                uncertainty(S[e, k], maps[k], V_inv, fixed, doubt)
                share = sum_of_products(Om[e, k], doubt) / d  # of the regression that rests on this group's weights
                # With this prior a group's mean is Student distributed, with nu0 + N - m + 1 degrees of freedom.
                freedom = of_group[e, k] + (PRIOR_EXCESS + 1.0 if fixed else CELL_PULL)
                meier += share * (1.0 - share) / freedom
                scatter += share * share / freedom
    found[0], found[1], found[2], found[3], found[4], found[5] = slope, centre, meier, scatter, done, moved


@helper
def variance_bounds(
    moments: FloatArray, maps: FloatArray, of_arm: FloatArray, guess: float, fixed: bool
) -> tuple[FloatArray, FloatArray]:
    """`guess` times the mean squared length of the features, and the least variance, of each metric: (m,) twice."""
    E, K, J, U, _ = moments.shape
    m, d = maps.shape[1], maps.shape[2]
    guessed, least, squares, size, total = np.zeros(m), np.zeros(m), np.zeros(U), 0.0, 0.0
    for k in range(K):
        total += of_arm[k]
        if of_arm[k] > 0.0:
            size += 1.0 if fixed else of_arm[k]
            for s in range(m if fixed else 0):
                guessed[s] += dot(maps[k, s], maps[k, s])
        for e in range(E):
            for j in range(J):
                for u in range(U):
                    squares[u] += moments[e, k, j, u, u]
    for i in range(0 if fixed else d):
        guessed[0] += squares[i]
    for s in range(m):
        guessed[s] = guess * guessed[s] / size if guessed[s] > 0.0 else guess
        square = squares[1 + s] if fixed else squares[d]
        least[s] = LEAST_VARIANCE * (guessed[s] + max(square, 0.0) / max(total, 1.0))
    return guessed, least


@helper
def regress(
    n: FloatArray,
    moments: FloatArray,
    maps: FloatArray,
    of_group: FloatArray,
    weight: FloatArray,
    Om: FloatArray,
    penalty: float,
    fixed: bool,
    S: FloatArray,
    V: FloatArray,
    b: FloatArray,
) -> None:
    """The weighted moments S of each group, and V and b at the present weights."""
    E, K, J = n.shape
    m, d, U = maps.shape[1], maps.shape[2], S.shape[2]
    clear(V, d, d)
    for i in range(d):
        V[i, i], b[i] = penalty, 0.0
    for e in range(E):
        for k in range(K):
            if of_group[e, k] == 0.0:
                continue
            clear(S[e, k], U, U)
            for j in range(J):
                if n[e, k, j] != 0.0:
                    add_matrix(S[e, k], weight[j], moments[e, k, j])
            for s in range(m):
                for t in range(m):
                    om = Om[e, k, s, t]
                    for i in range(d):
                        if fixed:
                            b[i] += om * maps[k, s, i] * S[e, k, 1 + t, 0]
                        else:
                            b[i] += om * S[e, k, i, d]
                        for o in range(i, d):
                            pair = S[e, k, 0, 0] * maps[k, s, i] * maps[k, t, o] if fixed else S[e, k, i, o]
                            V[i, o] += om * pair
    for i in range(d):
        for o in range(i):
            V[i, o] = V[o, i]


@helper
def residual_form(Z: FloatArray, theta: FloatArray, fixed: bool, A: FloatArray) -> None:
    """A with A u the residual of a row u: (m, U)."""
    m, d = Z.shape
    clear(A, m, A.shape[1])
    for s in range(m):
        if fixed:
            A[s, 0], A[s, 1 + s] = -dot(Z[s], theta), 1.0
        else:
            A[s, d] = 1.0
            for i in range(d):
                A[s, i] = -theta[i]


@helper
def expected_squares(
    A: FloatArray, S: FloatArray, Z: FloatArray, V_inv: FloatArray, fixed: bool, doubt: FloatArray, out: FloatArray
) -> None:
    """A S A^T, and the uncertainty of theta: expected squared residuals of rows with moments S: (m, m)."""
    m, U = A.shape
    uncertainty(S, Z, V_inv, fixed, doubt)
    for s in range(m):
        for t in range(m):
            total = doubt[s, t]
            for u in range(U):
                if A[s, u] != 0.0:
                    total += A[s, u] * dot(S[u], A[t])
            out[s, t] = total


@helper
def uncertainty(S: FloatArray, Z: FloatArray, V_inv: FloatArray, fixed: bool, out: FloatArray) -> None:
    """The sum over rows with moments S of the covariance of their estimated means: (m, m)."""
    m, d = Z.shape
    clear(out, m, m)
    for s in range(m):
        for t in range(m):
            for i in range(d):
                for o in range(d):
                    pair = S[0, 0] * Z[s, i] * Z[t, o] if fixed else S[i, o]
                    out[s, t] += pair * V_inv[i, o]


@helper
def add_matrix(X: FloatArray, share: float, Y: FloatArray) -> None:
    """X += share Y."""
    for s in range(X.shape[0]):
        for t in range(X.shape[1]):
            X[s, t] += share * Y[s, t]


@helper
def sum_of_products(X: FloatArray, Y: FloatArray) -> float:
    """Of the entries of two matrices."""
    total = 0.0
    for s in range(X.shape[0]):
        for t in range(X.shape[1]):
            total += X[s, t] * Y[s, t]
    return total
