"""Noise that is learned from the outcomes themselves: its level per arm, and how it grows with the context.

    Cov[y] = exp(slope (f - centre)) Sigma_a,    f = log(1 + |context|)

Sigma_a, M x M, is shrunk towards the pooled variance of each metric. Where the reward alone is told, each pair of user
and arm counts as an arm, and the reward as the only metric. Kept are sums per (arm, bin of f): counts, and moments
sum u u^T of rows u = (1, y). Squared residuals A u with A = (-Phi theta, I), the regression and its weights follow from
these for any theta, as long as the map Phi(a) of an arm stays the same. A fit re-weights all the past, and converges to
a function of the sums alone; it starts from the last model. A pass regresses, sums the squared residuals of each arm
(with the uncertainty of theta), and takes from these new precisions and a new slope: expectation and conditional
maximisation. Not promised: anything at all times at once, under adaptive sampling, or while Sigma_a itself drifts.
Outcomes whose mean is more than a million times their noise leave no digits for it.
Shapes: leading `...` is any batch; n users, K arms, J bins, M metrics, d features, U = 1 + M.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.models.offer import Offer, Shape
from drimed.numerics.arrays import FloatArray, IntArray, outer, pick
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import NEVER_ZERO, add_matrix, clear, dot, invert, upper_root

BINS = 40
BIN_WIDTH = 0.3  # of log(1 + |c|): the grid covers |c| up to exp(11.7) = 120,000; the last bin is open above
CONVERGED = 1e-8  # relative change of the model in a pass that counts as none
MOST_PASSES = 2000  # the steps contract geometrically: this many mean that something else is wrong
REFERENCE = 6.0  # squared radius that the inflation is computed for: a level of 0.99 has 5.4
MAP_TOLERANCE = 1e-9  # relative: an arm's map that was written down and read back is the same map
GONE = 1e-9  # observations: less than this is round-off of weights that were taken out again
LEAST_VARIANCE = 1e-8  # of a metric, as a share of its mean square: a constant must not weigh infinitely much
LOG_WEIGHT_LIMIT = 12.0  # |log scale| beyond this is extrapolation: no context weighs more than e^12 times another
STEP_LIMIT = 1.0  # of the slope in one pass: the first passes start far from the optimum
GUESS_WEIGHT = 0.5  # observations that the guessed variance counts as, until the data tell noise from signal
PRIOR_EXCESS = 2.0  # nu0 - M: an arm's covariance is pulled to the pooled variances as by a Wishart prior of nu0
PAIR = 0.5  # sum of squares of two outcomes that are 1 apart
ROUND_OFF = 1e-9  # of a sum of products of distances to the ends of a range
SLOPE_PRECISION = 1.0  # rho: the slope is pulled to 0 as by one observation of unit information
IDLE, SETTLED = 200, 1e-3  # passes that do not halve a change below the second number: only round-off moves


@dataclass(frozen=True, slots=True)
class NoiseModel:
    """Sums, and the model that was fitted to them."""

    n: FloatArray  # (..., K, J), observations
    moments: FloatArray  # (..., K, J, U, U), sums of u u^T
    sf: FloatArray  # (..., J), sums of the context feature
    maps: FloatArray  # (..., K, M, d), Phi of the arms seen so far, 0 of the others
    whitening: FloatArray  # (..., K, M, M), upper triangular: W^T W = Sigma_a^-1
    slope: FloatArray  # (...)
    centre: FloatArray  # (...), mean feature at the last fit
    inflation: FloatArray  # (...), of squared radii, for the price of estimated weights
    changes: int  # of the sums so far
    fitted: int  # how many of them are in the fit


def init(shape: Shape, batch: tuple[int, ...], *, guess: float) -> NoiseModel:
    """No data: every arm has the guessed variance."""
    K, M, U = shape.K, shape.M, shape.M + 1
    return NoiseModel(
        n=np.zeros((*batch, K, BINS)),
        moments=np.zeros((*batch, K, BINS, U, U)),
        sf=np.zeros((*batch, BINS)),
        maps=np.zeros((*batch, K, M, shape.d)),
        whitening=np.broadcast_to(np.eye(M) / np.sqrt(guess), (*batch, K, M, M)),
        slope=np.zeros(batch),
        centre=np.zeros(batch),
        inflation=np.ones(batch),
        changes=0,
        fitted=0,
    )


def add(
    model: NoiseModel, offer: Offer, action: IntArray, Z: FloatArray, y: FloatArray, weight: float = 1.0
) -> NoiseModel:
    """Count outcomes y (..., n, M) of arms with the maps Z (..., n, M, d) in, each `weight` times; negative: out."""
    batch = (*model.slope.shape, action.shape[-1])
    feature, arm = context_feature(offer, batch), np.broadcast_to(_group(model, offer, offer.user, action), batch)
    if not (np.isfinite(y).all() and np.isfinite(feature).all()):
        raise InputError("outcomes and contexts must be finite: a NaN could never be taken out of the sums again")
    K, J, U, _ = model.moments.shape[-4:]
    n, moments, sf = model.n.copy(), model.moments.copy(), model.sf.copy()
    u = np.concatenate([np.ones((*batch, 1)), np.broadcast_to(y, (*batch, U - 1))], -1)
    member = np.repeat(np.arange(model.slope.size), batch[-1])
    place = np.minimum(feature // BIN_WIDTH, J - 1).astype(np.intp).ravel()
    cell = member, arm.ravel(), place
    np.add.at(n.reshape(-1, K, J), cell, weight)
    np.add.at(moments.reshape(-1, K, J, U, U), cell, weight * outer(u, u).reshape(-1, U, U))
    np.add.at(sf.reshape(-1, J), (member, place), weight * feature.ravel())
    gone = np.abs(n) < GONE  # observations that were taken out again leave no round-off behind
    n[gone], moments[gone] = 0.0, 0.0
    maps, changes = _with_maps(model, arm, np.broadcast_to(Z, (*batch, *Z.shape[-2:]))), model.changes + 1
    return replace(model, n=n, moments=moments, sf=sf, maps=maps, changes=changes)


def remove(
    model: NoiseModel, offer: Offer, action: IntArray, Z: FloatArray, y: FloatArray, weight: float = 1.0
) -> NoiseModel:
    """Take outcomes out again that were added with this weight, or with the one that has since become it."""
    less = add(model, offer, action, Z, y, -weight)
    if (less.n < 0).any():
        raise InputError("an outcome can be taken out only if it was counted in; this one was not")
    return less


def fade(model: NoiseModel, share: float) -> NoiseModel:
    """The same evidence, all of which counts only so much."""
    n, moments, sf = share * model.n, share * model.moments, share * model.sf
    return replace(model, n=n, moments=moments, sf=sf, changes=model.changes + (model.changes > 0))


def refit(
    model: NoiseModel, *, penalty: float, guess: float, ranges: tuple[tuple[float, float], ...] = ()
) -> tuple[NoiseModel, FloatArray, FloatArray]:
    """The model that further passes do not change, and the V (..., d, d) and b (..., d) that follow from it."""
    pair = binary_pairs(model, ranges)
    whitening = model.whitening.copy()  # replaced in place
    start = model.slope if model.fitted else np.full(model.slope.shape, np.nan)
    sums = model.n, model.moments, model.sf, model.maps
    V, b, slope, centre, meier, scatter, unsettled = _estimate(*sums, pair, start, penalty, guess, whitening)
    if np.max(unsettled, initial=0) > 0:
        raise NumericalError(
            f"the noise model did not settle in {MOST_PASSES} passes, the last moved it by {np.max(unsettled):.2g}; "
            "the sums may have lost their digits"
        )
    slope, centre, inflated = np.asarray(slope), np.asarray(centre), inflation(meier, scatter)
    fitted = replace(model, whitening=whitening, slope=slope, centre=centre, inflation=inflated, fitted=model.changes)
    return fitted, V, b


def binary_pairs(model: NoiseModel, ranges: tuple[tuple[float, float], ...]) -> FloatArray:
    """Sum of squares of one pair of pseudo-outcomes for each arm, of metrics with two values: (..., M).

    Outcomes that are all alike leave no residual, so each arm counts one outcome of either value more, as by Laplace's
    rule. Two values are the ends of a range that no outcome lies between: then sum (y - low) (high - y) is 0.
    """
    if not ranges:
        return np.zeros(model.whitening.shape[-1])
    ends = np.array(ranges)  # (M, 2)
    finite = np.isfinite(ends).all(-1)
    low, high = np.where(finite[:, None], ends, 0.0).T
    sums = model.moments.sum((-4, -3))  # (..., U, U)
    n, y, square = sums[..., :1, 0], sums[..., 1:, 0], np.diagonal(sums, axis1=-2, axis2=-1)[..., 1:]
    between = (low + high) * y - square - low * high * n
    binary = finite & (np.abs(between) <= ROUND_OFF * n * np.maximum(low**2, high**2))
    return np.where(binary, PAIR * (high - low) ** 2, 0.0)


def inflation(meier: FloatArray, scatter: FloatArray) -> FloatArray:
    """The factor by which a squared radius must grow because its weights are estimates: a heuristic, not a theorem.

    Meier (1953) prices them, sum f (1 - f) / nu over the arms, f the share of the evidence that rests on an arm and nu
    its degrees of freedom. Satterthwaite's, the inverse of sum f^2 / nu, widen the normal quantile to Student's.

    >>> float(inflation(np.asarray(0.0), np.asarray(0.0)))
    1.0
    """
    z2 = REFERENCE
    # Squares are products: the power of a single number may differ from that of an array in the last bit.
    student = 1 + (z2 + 1) * scatter / 4 + (5 * z2**2 + 16 * z2 + 3) * (scatter * scatter) / 96
    return np.asarray((1 + 4 * meier) * (student * student))


def whitening(model: NoiseModel, offer: Offer, action: IntArray) -> FloatArray:
    """W with W Sigma W^T = I, for the noise of each decision as it is estimated now: (..., n, M, M)."""
    W = np.broadcast_to(model.whitening[..., None, :, :, :], (*action.shape, *model.whitening.shape[-3:]))
    W = pick(W, np.broadcast_to(_group(model, offer, offer.user, action), action.shape))
    return W * np.exp(-0.5 * _log_scale(model, offer, action.shape))[..., None, None]


def reward_noise(model: NoiseModel, offer: Offer) -> FloatArray:
    """The estimated standard deviation of each arm's reward, for each user: (..., n, K)."""
    batch, K = np.broadcast_shapes((*model.slope.shape, 1), offer.batch), offer.control.shape[-1]
    group = _group(model, offer, np.reshape(offer.user, (-1, 1)), np.arange(K)[None])  # (n or 1, K)
    p = offer.preference if model.n.shape[-2] == K else np.ones(1)
    if p is None:
        raise InputError("learned noise needs the offer's preference")
    root = np.swapaxes(model.whitening[..., group, :, :], -1, -2)  # (..., n or 1, K, M, M)
    p = np.broadcast_to(p, (*batch, root.shape[-1]))[..., None, :, None]
    sigma = np.linalg.norm(np.linalg.solve(root, p)[..., 0], axis=-1)
    return np.asarray(np.exp(0.5 * _log_scale(model, offer, batch))[..., None] * sigma)


def _group(model: NoiseModel, offer: Offer, user: int | IntArray, arm: IntArray) -> IntArray:
    """The number of each arm's noise: the arm itself, or where rewards alone are told the user and the arm."""
    groups, K = model.n.shape[-2], offer.control.shape[-1]
    if groups == K:
        return arm
    if (np.asarray(user) * K >= groups).any():
        raise InputError(f"learned noise is kept for {groups // K} users, numbered from 0; got user {np.max(user)}")
    return np.asarray(np.asarray(user) * K + arm)


def context_feature(offer: Offer, batch: tuple[int, ...]) -> FloatArray:
    """f of each member: (...). Without a context it is 0, and all data are in one bin."""
    if offer.context is None:
        return np.zeros(batch)
    return np.broadcast_to(np.log1p(np.sqrt(np.vecdot(offer.context, offer.context))), batch)


def _log_scale(model: NoiseModel, offer: Offer, batch: tuple[int, ...]) -> FloatArray:
    above = context_feature(offer, batch) - model.centre[..., None]
    return np.clip(model.slope[..., None] * above, -LOG_WEIGHT_LIMIT, LOG_WEIGHT_LIMIT)


def _with_maps(model: NoiseModel, arm: IntArray, Z: FloatArray) -> FloatArray:
    """The known maps, and those of these arms with them."""
    at = (*np.indices(arm.shape, sparse=True)[:-1], arm)
    stored = model.maps[at]  # (..., n, M, d)
    if np.array_equal(stored, Z):
        return model.maps
    maps = model.maps.copy()
    maps[at] = np.where(stored.any((-2, -1), keepdims=True), stored, Z)
    off = np.abs(Z - maps[at]).max((-2, -1)) > MAP_TOLERANCE * np.abs(maps[at]).max((-2, -1))
    if off.any():
        raise InputError(
            f"learned noise needs one map Phi(a) per arm, or features that stay the same for each user and arm; number "
            f"{int(arm[off][0])} of these had another one before. Use weighting 'known' or 'none'"
        )
    return maps


@kernel(
    "void(f8[:,:], f8[:,:,:,:], f8[:], f8[:,:,:], f8[:], f8, f8, f8, f8[:,:,:],"
    " f8[:,:], f8[:], f8[:], f8[:], f8[:], f8[:], f8[:])",
    "(k,j),(k,j,u,u),(j),(k,m,d),(m),(),(),(),(k,m,m)->(d,d),(d),(),(),(),(),()",
    in_place=("whitening",),
)
def _estimate(  # type: ignore[no-untyped-def]
    n, moments, sf, maps, pair, start, penalty, guess, whitening, V, b, slope, centre, meier, scatter, unsettled
):  # fmt: skip
    """Passes from (whitening, start) until no parameter moves, relative to the largest of its arm; then V and b.

    `pair` is added to each arm's squared residuals. A `start` of NaN is that of the guessed variances. `unsettled` is
    how far the last pass moved, or 0. `meier` and `scatter` are the terms of Meier and Satterthwaite.
    """
    (K, J), (M, d) = n.shape, maps.shape[1:]
    of_arm, of_bin, total, information = np.zeros(K), np.zeros(J), 0.0, 0.0
    centre[0] = 0.0
    for j in range(J):
        for k in range(K):
            of_arm[k] += n[k, j]
            of_bin[j] += n[k, j]
        total += of_bin[j]
        centre[0] += sf[j]
    if total > 0.0:
        centre[0] /= total
    f = np.zeros(J)  # mean feature of a bin, centred
    for j in range(J):
        if of_bin[j] > 0.0:
            f[j] = sf[j] / of_bin[j] - centre[0]
            information += 0.5 * M * of_bin[j] * f[j] * f[j]
    guessed, least = variance_bounds(moments, maps, of_arm, guess)

    slope[0] = 0.0 if np.isnan(start) else start
    Om = np.zeros((K, M, M))
    for k in range(K):
        for s in range(M):
            if np.isnan(start):
                Om[k, s, s] = 1.0 / guessed[s]
            else:
                for t in range(M):
                    Om[k, s, t] = dot(whitening[k, :, s], whitening[k, :, t])
    weight, S, V_inv, theta = np.zeros(J), np.zeros((K, M + 1, M + 1)), np.zeros((d, d)), np.zeros(d)
    R, of_cell, r, doubt = np.zeros((K, M, M)), np.zeros((K, J, M, M)), np.zeros(J), np.zeros((K, M, M))
    new, pooled = np.zeros((M, M)), np.zeros(M)
    done, idle, moved, smallest = 0, 0, np.inf, np.inf
    while True:
        for j in range(J):
            weight[j] = np.exp(-min(max(slope[0] * f[j], -LOG_WEIGHT_LIMIT), LOG_WEIGHT_LIMIT))
        regress(n, moments, maps, weight, Om, penalty, S, V, b)
        invert(V, V_inv)
        for i in range(d):
            theta[i] = dot(V_inv[i], b)
        for k in range(K):
            covariance_of_mean(maps[k], V_inv, doubt[k])
        if moved < 0.5 * smallest:
            smallest, idle = moved, 0
        else:
            idle += 1
        if done >= MOST_PASSES or moved <= CONVERGED or (idle >= IDLE and moved <= SETTLED):
            break

        for s in range(M):
            pooled[s] = 0.0
        for k in range(K):
            clear(R[k], M, M)
            for j in range(J):
                if n[k, j] != 0.0:
                    expected_squares(moments[k, j], maps[k], theta, doubt[k], of_cell[k, j])
                    add_matrix(R[k], weight[j], of_cell[k, j])
            for s in range(M):
                if of_arm[k] > 0.0:
                    R[k, s, s] = max(R[k, s, s], of_arm[k] * least[s]) + pair[s]
                pooled[s] += R[k, s, s]
        trust = GUESS_WEIGHT * d / (d + M * total)  # of the guess: with more rows than features, it must go
        for s in range(M):
            pooled[s] = (pooled[s] + trust * guessed[s]) / (total + trust)

        moved = 0.0
        for k in range(K):
            for s in range(M):
                R[k, s, s] += pooled[s]
            invert(R[k], new)
            change, largest = 0.0, NEVER_ZERO
            for s in range(M):
                for t in range(M):
                    value = (of_arm[k] + PRIOR_EXCESS - 1.0) * new[s, t]  # nu0 + N - M - 1
                    change = max(change, abs(value - Om[k, s, t]))
                    largest = max(largest, abs(value))
                    Om[k, s, t] = value
            moved = max(moved, change / largest)

        # A step of Fisher scoring for log-linear variances, with the level profiled out.
        whole = 0.0
        for j in range(J):
            r[j] = 0.0
            for k in range(K):
                if n[k, j] != 0.0:
                    r[j] += weight[j] * max(sum_of_products(Om[k], of_cell[k, j]), 0.0)
            whole += r[j]
        score = -SLOPE_PRECISION * slope[0]
        if whole > 0.0:
            for j in range(J):
                score += 0.5 * M * (r[j] * total / whole - of_bin[j]) * f[j]
        step = min(max(score / (information + SLOPE_PRECISION), -STEP_LIMIT), STEP_LIMIT)
        slope[0] += step
        moved = max(moved, abs(step))
        done += 1

    meier[0], scatter[0], unsettled[0] = 0.0, 0.0, moved if done >= MOST_PASSES else 0.0
    for k in range(K):
        upper_root(Om[k], whitening[k])
        share = S[k, 0, 0] * sum_of_products(Om[k], doubt[k]) / d  # of the regression that rests on this arm's weights
        freedom = of_arm[k] + PRIOR_EXCESS + 1.0  # of an arm's mean, Student distributed with nu0 + N - M + 1
        meier[0] += share * (1.0 - share) / freedom
        scatter[0] += share * share / freedom


@helper
def variance_bounds(
    moments: FloatArray, maps: FloatArray, of_arm: FloatArray, guess: float
) -> tuple[FloatArray, FloatArray]:
    """`guess` times the mean squared length of the features, and the least variance, of each metric: (M,) twice."""
    K, M, _ = maps.shape
    guessed, least, squares, arms, total = np.zeros(M), np.zeros(M), np.zeros(M), 0, of_arm.sum()
    for k in range(K):
        arms += of_arm[k] > 0.0
        for s in range(M):
            if of_arm[k] > 0.0:
                guessed[s] += dot(maps[k, s], maps[k, s])
            for j in range(moments.shape[1]):
                squares[s] += moments[k, j, 1 + s, 1 + s]
    for s in range(M):
        guessed[s] = guess * guessed[s] / arms if guessed[s] > 0.0 else guess
        least[s] = LEAST_VARIANCE * (guessed[s] + max(squares[s], 0.0) / max(total, 1.0))
    return guessed, least


@helper
def regress(
    n: FloatArray,
    moments: FloatArray,
    maps: FloatArray,
    weight: FloatArray,
    Om: FloatArray,
    penalty: float,
    S: FloatArray,
    V: FloatArray,
    b: FloatArray,
) -> None:
    """The weighted moments S of each arm, and V and b at the present weights."""
    K, M, d = maps.shape
    clear(V, d, d)
    for i in range(d):
        V[i, i], b[i] = penalty, 0.0
    for k in range(K):
        clear(S[k], M + 1, M + 1)
        for j in range(n.shape[1]):
            if n[k, j] != 0.0:
                add_matrix(S[k], weight[j], moments[k, j])
        for s in range(M):
            for t in range(M):
                for i in range(d):
                    if maps[k, s, i] != 0.0:  # often few
                        by = Om[k, s, t] * maps[k, s, i]
                        b[i] += by * S[k, 1 + t, 0]
                        for o in range(i, d):
                            V[i, o] += by * S[k, 0, 0] * maps[k, t, o]
    for i in range(d):
        for o in range(i):
            V[i, o] = V[o, i]


@helper
def covariance_of_mean(Z: FloatArray, V_inv: FloatArray, out: FloatArray) -> None:
    """Z V^-1 Z^T: (M, M)."""
    M, d = Z.shape
    clear(out, M, M)
    for s in range(M):
        for t in range(M):
            for i in range(d):
                if Z[s, i] != 0.0:  # often few
                    out[s, t] += Z[s, i] * dot(V_inv[i], Z[t])


@helper
def expected_squares(S: FloatArray, Z: FloatArray, theta: FloatArray, doubt: FloatArray, out: FloatArray) -> None:
    """A S A^T, and the uncertainty of theta: expected squared residuals of rows with moments S: (M, M)."""
    for s in range(Z.shape[0]):
        for t in range(Z.shape[0]):
            one, other = dot(Z[s], theta), dot(Z[t], theta)
            crossed = S[1 + s, 1 + t] - other * S[1 + s, 0] - one * (S[0, 1 + t] - other * S[0, 0])
            out[s, t] = S[0, 0] * doubt[s, t] + crossed


@helper
def sum_of_products(X: FloatArray, Y: FloatArray) -> float:
    total = 0.0
    for s in range(X.shape[0]):
        for t in range(X.shape[1]):
            total += X[s, t] * Y[s, t]
    return total
