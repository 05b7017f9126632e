"""The fit of the noise model to the sums per cell: alternate between the regression and its weights.

A pass regresses at the present weights, sums the squared residuals of each group (with what the estimate of theta took
out of them), and takes from these new precisions of the groups and a new slope of the log-variance on the context
feature: expectation and conditional maximisation. Packed moments and their two kinds of rows: drimed.learning.moments.

Shapes: one member; E subgroups, K arms, J bins, m rows of an outcome, d features, C packed moments.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drimed.learning.moments import (
    Cells,
    add_featured,
    add_mapped,
    count,
    featured_form,
    featured_residual,
    guessed_variances,
    least_variances,
    mapped_form,
    mapped_mean,
    mapped_residuals,
    mapped_uncertainty,
    quadratic_by_bin,
    weigh,
)
from drimed.linear.arrays import FloatArray
from drimed.linear.forms import dot, invert, upper_root
from drimed.linear.kernel import helper, kernel

LOG_WEIGHT_LIMIT = 12.0  # |log scale| beyond this is extrapolation: no context weighs more than e^12 times another
STEP_LIMIT = 1.0  # of the slope in one pass: the first passes start far from the optimum
GUESS_WEIGHT = 0.5  # observations that the guessed variance counts as, until the data tell noise from signal
PRIOR_EXCESS = 2.0  # nu0 - m: an arm's covariance is pulled to the pooled variances as by a Wishart prior of nu0
CELL_PULL = 4.0  # kappa: a user's level is pulled to its arm's, and that to the pooled one, as by so many outcomes
SLOPE_PRECISION = 1.0  # rho: the slope is pulled to 0 as by one observation of unit information
IDLE, SETTLED = 200, 1e-3  # passes that do not halve a change below the second number: round-off is all that moves


class Model(NamedTuple):
    """What a pass works on, in place."""

    Om: FloatArray  # (E, K, m, m), precisions
    weight: FloatArray  # (J,), of a bin
    S: FloatArray  # (E, K, C), weighted moments of a group
    V: FloatArray  # (d, d)
    b: FloatArray  # (d,)
    V_inv: FloatArray  # (d, d)
    theta: FloatArray  # (d,)
    unsure: FloatArray  # (E, K, m, m), Z V^-1 Z^T
    R: FloatArray  # (E, K, m, m), squared residuals of a group, with what the estimate of theta took out of them


@kernel(
    "void(f8[:,:,:], f8[:,:,:,:], f8[:], f8[:,:], f8[:,:,:], f8[:], f8[:,:,:,:], f8[:,:], f8[:], f8[:])",
    "(e,k,j),(e,k,j,c),(j),(p,w),(k,m,d),(q),(e,k,m,m)->(d,d),(d),(q)",
    in_place=("whitening",),
)
def estimate(n, moments, sf, recent, maps, settings, whitening, V, b, found):  # type: ignore[no-untyped-def]
    """Passes from (whitening, slope), which are replaced by the new ones; then V and b.

    `settings` are the slope (NaN: start from the guessed variances), the ridge penalty, the guess, the most passes, the
    tolerance, and whether each arm's map is fixed. Stops when no parameter moves by more than the tolerance, relative
    to the largest of its group. `found` are the slope, the mean feature, the terms of Meier and Satterthwaite, the
    number of passes, and how far the last one moved.
    """
    slope, penalty, guess, passes, tolerance = settings[0], settings[1], settings[2], settings[3], settings[4]
    cells = count(n, moments, sf, recent, maps, settings[5] != 0.0)
    guessed = guessed_variances(cells, guess)
    least = least_variances(cells, guessed)
    model = _start(cells, whitening, guessed, np.isnan(slope), V, b)
    w = 0.0 if np.isnan(slope) else slope
    done, idle = 0, 0
    moved, smallest = np.inf, np.inf
    while True:
        _regress(cells, model, w, penalty)
        if moved < 0.5 * smallest:
            smallest, idle = moved, 0
        else:
            idle += 1
        if done >= passes or moved <= tolerance or (idle >= IDLE and moved <= SETTLED):
            break
        pooled = _residuals(cells, model, guessed, least)
        moved = _precisions(cells, model, pooled)
        step = _slope_step(cells, _by_bin(cells, model), w)
        w += step
        moved = max(moved, abs(step))
        done += 1
    for e in range(n.shape[0]):
        for k in range(n.shape[1]):
            upper_root(model.Om[e, k], whitening[e, k])
    meier, scatter = _rests_on_weights(cells, model)
    found[0], found[1], found[2], found[3], found[4], found[5] = w, cells.centre, meier, scatter, done, moved


@helper
def _start(
    cells: Cells, whitening: FloatArray, guessed: FloatArray, fresh: bool, V: FloatArray, b: FloatArray
) -> Model:
    """The precisions of the last fit, or of the guess."""
    E, K, J, C = cells.moments.shape
    m, d = cells.maps.shape[1], cells.maps.shape[2]
    Om = np.zeros((E, K, m, m))
    for e in range(E):
        for k in range(K):
            for s in range(m):
                if fresh:
                    Om[e, k, s, s] = 1.0 / guessed[s]
                    continue
                for t in range(m):
                    for i in range(m):
                        Om[e, k, s, t] += whitening[e, k, i, s] * whitening[e, k, i, t]
    weight, S, V_inv, theta = np.zeros(J), np.zeros((E, K, C)), np.zeros((d, d)), np.zeros(d)
    return Model(Om, weight, S, V, b, V_inv, theta, np.zeros((E, K, m, m)), np.zeros((E, K, m, m)))


@helper
def _regress(cells: Cells, model: Model, w: float, penalty: float) -> None:
    """The regression at the present weights."""
    E, K = cells.of_group.shape
    d, V, b = model.theta.shape[0], model.V, model.b
    along = np.zeros(cells.maps.shape[1:])
    for j in range(model.weight.shape[0]):
        model.weight[j] = np.exp(-min(max(w * cells.f[j], -LOG_WEIGHT_LIMIT), LOG_WEIGHT_LIMIT))
    b[:], V[:] = 0.0, 0.0
    for i in range(d):
        V[i, i] = penalty
    for e in range(E):
        for k in range(K):
            if cells.of_group[e, k] == 0.0:
                continue
            weigh(cells, model.weight, e, k, model.S[e, k])
            if cells.fixed:
                add_mapped(cells.maps[k], model.Om[e, k], model.S[e, k], V, b, along)
            else:
                add_featured(model.Om[e, k, 0, 0], model.S[e, k], V, b)
    for i in range(d):
        for o in range(i):
            V[i, o] = V[o, i] = 0.5 * (V[i, o] + V[o, i])
    invert(V, model.V_inv)
    for i in range(d):
        model.theta[i] = dot(model.V_inv[i], b)


@helper
def _residuals(cells: Cells, model: Model, guessed: FloatArray, least: FloatArray) -> FloatArray:
    """Squared residuals of each group; returns the pooled variance of each metric: (m,)."""
    E, K = cells.of_group.shape
    m, d = cells.maps.shape[1], cells.maps.shape[2]
    mu, along, pooled = np.zeros(m), np.zeros((m, d)), np.zeros(m)
    for e in range(E):
        for k in range(K):
            if cells.of_group[e, k] == 0.0:  # R is zero
                continue
            R = model.R[e, k]
            if cells.fixed:
                mapped_mean(cells.maps[k], model.theta, mu)
                mapped_uncertainty(cells.maps[k], model.V_inv, model.unsure[e, k], along)
                mapped_residuals(mu, model.unsure[e, k], model.S[e, k], R)
            else:
                R[0, 0] = featured_residual(model.theta, model.V_inv, model.S[e, k])
            for s in range(m):
                R[s, s] = max(R[s, s], cells.of_group[e, k] * least[s])
                pooled[s] += R[s, s]
    trust = GUESS_WEIGHT * d / (d + m * cells.total)  # of the guess: with more rows than features, it must go
    for s in range(m):
        pooled[s] = (pooled[s] + trust * guessed[s]) / (cells.total + trust)
    return pooled


@helper
def _precisions(cells: Cells, model: Model, pooled: FloatArray) -> float:
    """New precisions, shrunk towards the pooled variances; returns the largest relative change."""
    E, K = cells.of_group.shape
    m = pooled.shape[0]
    A, new = np.zeros((m, m)), np.zeros((m, m))
    moved = 0.0
    for k in range(K):
        level = CELL_PULL * pooled[0]  # of the arm, for reward feedback
        for e in range(E):
            level += model.R[e, k, 0, 0]
        level /= CELL_PULL + cells.of_arm[k]
        for e in range(E):
            N = cells.of_group[e, k]
            if cells.fixed:
                A[:] = model.R[e, k]
                for s in range(m):
                    A[s, s] += pooled[s]
                invert(A, new)
                new *= N + PRIOR_EXCESS - 1.0  # nu0 + N - m - 1
            else:
                new[0, 0] = (CELL_PULL + N) / (CELL_PULL * level + model.R[e, k, 0, 0])
            most, change = 0.0, 0.0
            for s in range(m):
                for t in range(m):
                    most = max(most, abs(new[s, t]))
                    change = max(change, abs(new[s, t] - model.Om[e, k, s, t]))
                    model.Om[e, k, s, t] = new[s, t]
            moved = max(moved, change / most)
    return moved


@helper
def _by_bin(cells: Cells, model: Model) -> FloatArray:
    """The share of each bin in the squared residuals: (J,)."""
    E, K = cells.of_group.shape
    r, Q, mu = np.zeros(cells.f.shape[0]), np.zeros(model.S.shape[2]), np.zeros(cells.maps.shape[1])
    for k in range(K):
        for e in range(E):
            if cells.of_group[e, k] == 0.0:
                continue
            if cells.fixed:
                mapped_mean(cells.maps[k], model.theta, mu)
                mapped_form(model.Om[e, k], mu, model.unsure[e, k], Q)
            else:
                featured_form(model.Om[e, k, 0, 0], model.theta, model.V_inv, Q)
            quadratic_by_bin(cells, Q, model.weight, e, k, r)
    return r


@helper
def _slope_step(cells: Cells, r: FloatArray, w: float) -> float:
    """A step of Fisher scoring for log-linear variances, with the level profiled out."""
    m = cells.maps.shape[1]
    all_r = r.sum()
    score = -SLOPE_PRECISION * w
    if all_r > 0.0:
        for j in range(r.shape[0]):
            score += 0.5 * m * (r[j] * cells.total / all_r - cells.of_bin[j]) * cells.f[j]
    step = score / (cells.information + SLOPE_PRECISION)
    return min(max(step, -STEP_LIMIT), STEP_LIMIT)


@helper
def _rests_on_weights(cells: Cells, model: Model) -> tuple[float, float]:
    """How much of the regression rests on estimated weights: the terms of Meier and of Satterthwaite."""
    E, K = cells.of_group.shape
    m, d = cells.maps.shape[1], cells.maps.shape[2]
    meier, scatter = 0.0, 0.0
    for e in range(E):
        for k in range(K):
            if cells.of_group[e, k] == 0.0:
                continue
            S, Om, Z = model.S[e, k], model.Om[e, k], cells.maps[k]
            share = 0.0
            if cells.fixed:
                for s in range(m):
                    for t in range(m):
                        x = 0.0
                        for i in range(d):
                            for o in range(d):
                                x += Z[s, i] * model.V_inv[i, o] * Z[t, o]
                        share += S[0] * Om[s, t] * x
            else:
                c = 0
                for i in range(d):
                    for o in range(i, d):
                        share += (1.0 if o == i else 2.0) * Om[0, 0] * S[c] * model.V_inv[i, o]
                        c += 1
                    c += 1
            share /= d
            # With this prior a group's mean is Student distributed, with nu0 + N - m + 1 degrees of freedom.
            freedom = cells.of_group[e, k] + (PRIOR_EXCESS + 1.0 if cells.fixed else CELL_PULL)
            meier += share * (1.0 - share) / freedom
            scatter += share * share / freedom
    return meier, scatter


@kernel("void(f8[:], f8[:])", "(q)->()")
def log_size(context, feature):  # type: ignore[no-untyped-def]
    """log(1 + |c|), the coordinates taken in their order."""
    feature[0] = np.log1p(np.sqrt(dot(context, context)))


@kernel("void(f8[:,:,:], f8[:], f8, f8[:])", "(k,m,m),(m),()->(k)")
def reward_noise(whitening, preference, log_scale, sigma):  # type: ignore[no-untyped-def]
    """sqrt(p^T (W_k^T W_k)^-1 p exp(log_scale)), by forward substitution: W_k is upper triangular."""
    K, m = whitening.shape[0], whitening.shape[1]
    y = np.zeros(m)
    for k in range(K):
        total = 0.0
        for s in range(m):
            x = preference[s]
            for i in range(s):
                x -= whitening[k, i, s] * y[i]
            y[s] = x / whitening[k, s, s]
            total += y[s] * y[s]
        sigma[k] = np.sqrt(total * np.exp(log_scale))
