"""Noise that is learned from the outcomes themselves: its level per arm, and how it grows with the context.

    Cov[y] = exp(slope (f - centre)) Sigma_g,    f = log(1 + |context|)

Vector feedback: g is the arm, Sigma_g an M x M covariance that is shrunk towards the pooled variance of each metric.
Reward feedback: g is the pair (user, arm), Sigma_g a variance, shrunk towards its arm's and that towards the pooled
one. Features may then differ every time; with vector feedback the map Phi(a) of an arm must stay what it was.

Kept are sums per (group, bin of f), whose size does not grow with the data. Every refit re-weights all the past with
the present noise model, and replaces V and b; between refits new rows are added with the weights of the last one. An
outcome may come late or be taken out again. One pass per refit starts from the last model, so the model is part of
the state and a snapshot replays; `converge` makes it a function of the sums alone, whatever the order of the data.

Nothing depends on the units of the metrics. Not promised: anything at all times at once, under adaptive sampling, or
while Sigma_g itself drifts. Outcomes whose mean is more than a million times their noise leave no digits for it.
Shapes: leading `...` is any batch; E subgroups (1, or the users), K arms, J bins, m rows of an outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from drimed.errors import InputError, NumericalError
from drimed.models.offer import Offer, Shape
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick, pick_shared
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.quadratic_forms import dot, invert, upper_root

# Sums of outcomes per cell: everything that a fit of the noise model needs to know about the data.

LEAST_VARIANCE = 1e-8  # of a metric, as a share of its mean square: what never varies must not weigh infinitely much

GONE = 1e-9  # observations: less than this is round-off of weights that were taken out again


class Cells(NamedTuple):
    """The evidence of one member: its sums, the rows that are not in them yet, and the counts of both together."""

    n: FloatArray  # (E, K, J), observations in the sums
    moments: FloatArray  # (E, K, J, C)
    recent: FloatArray  # (P, 5 + U), rows (subgroup, arm, bin, feature, weight, u)
    place: IntArray  # (P, 3), the subgroup, arm and bin of those rows
    maps: FloatArray  # (K, m, d), used if fixed
    fixed: bool
    of_group: FloatArray  # (E, K), observations, those of the recent rows among them
    of_arm: FloatArray  # (K,)
    of_bin: FloatArray  # (J,)
    total: float
    f: FloatArray  # (J,), mean feature of a bin, centred
    centre: float
    information: float  # about the slope of the log-variance on f


@kernel(
    "void(f8[:,:,:], f8[:,:,:,:], f8[:], f8[:,:], i8, f8[:,:,:], f8[:,:,:,:], f8[:])",
    "(e,k,j),(e,k,j,c),(j),(p,w),()->(e,k,j),(e,k,j,c),(j)",
)
def absorb(n, moments, sf, recent, waiting, n_new, moments_new, sf_new):  # type: ignore[no-untyped-def]
    """Add the first `waiting` rows (subgroup, arm, bin, feature, weight, u...) to their cells."""
    U = recent.shape[1] - 5
    n_new[:], moments_new[:], sf_new[:] = n, moments, sf
    for i in range(waiting):
        e, k, j = int(recent[i, 0]), int(recent[i, 1]), int(recent[i, 2])
        sign = recent[i, 4]
        n_new[e, k, j] += sign
        sf_new[j] += sign * recent[i, 3]
        c = 0
        for s in range(U):
            for t in range(s, U):
                moments_new[e, k, j, c] += sign * recent[i, 5 + s] * recent[i, 5 + t]
                c += 1
        if abs(n_new[e, k, j]) < GONE:  # what was taken out again leaves no round-off behind
            n_new[e, k, j] = 0.0
            moments_new[e, k, j, :] = 0.0


@helper
def count(
    n: FloatArray, moments: FloatArray, sf: FloatArray, recent: FloatArray, maps: FloatArray, fixed: bool
) -> Cells:
    """The cells with their counts, and the mean feature of each bin."""
    E, K, J = n.shape
    of_group, of_arm, of_bin = np.zeros((E, K)), np.zeros(K), np.zeros(J)
    for e in range(E):
        for k in range(K):
            for j in range(J):
                of_bin[j] += n[e, k, j]
                of_group[e, k] += n[e, k, j]
            of_arm[k] += of_group[e, k]
    sum_f = sf.copy()
    place = np.zeros((recent.shape[0], 3), np.intp)
    for o in range(recent.shape[0]):
        for s in range(3):
            place[o, s] = int(recent[o, s])
        e, k, j, sign = place[o, 0], place[o, 1], place[o, 2], recent[o, 4]
        sum_f[j] += sign * recent[o, 3]
        of_bin[j] += sign
        of_group[e, k] += sign
        of_arm[k] += sign
    total, all_f = 0.0, 0.0
    for j in range(J):
        total += of_bin[j]
        all_f += sum_f[j]
    centre = all_f / total if total > 0.0 else 0.0
    f = np.zeros(J)
    information = 0.0
    for j in range(J):
        if of_bin[j] > 0.0:
            f[j] = sum_f[j] / of_bin[j] - centre
            information += 0.5 * maps.shape[1] * of_bin[j] * f[j] * f[j]
    return Cells(n, moments, recent, place, maps, fixed, of_group, of_arm, of_bin, total, f, centre, information)


@helper
def weigh(cells: Cells, weight: FloatArray, e: int, k: int, S: FloatArray) -> None:
    """The moments of one group into S (C,), each bin by its weight (J,)."""
    U = cells.recent.shape[1] - 5
    S[:] = 0.0
    for j in range(weight.shape[0]):
        if cells.n[e, k, j] != 0.0:
            for c in range(S.shape[0]):
                S[c] += weight[j] * cells.moments[e, k, j, c]
    for o in range(cells.recent.shape[0]):
        if cells.place[o, 0] == e and cells.place[o, 1] == k:
            c = 0
            for s in range(U):
                x = weight[cells.place[o, 2]] * cells.recent[o, 4] * cells.recent[o, 5 + s]
                for t in range(s, U):
                    S[c] += x * cells.recent[o, 5 + t]
                    c += 1


@helper
def quadratic_by_bin(cells: Cells, Q: FloatArray, weight: FloatArray, e: int, k: int, r: FloatArray) -> None:
    """Add to r (J,) the weighted sums of u^T Q u over the observations of one group; Q (C,) is packed."""
    U = cells.recent.shape[1] - 5
    for j in range(weight.shape[0]):
        if cells.n[e, k, j] != 0.0:
            x = 0.0
            for c in range(Q.shape[0]):
                x += cells.moments[e, k, j, c] * Q[c]
            r[j] += weight[j] * max(x, 0.0)
    for o in range(cells.recent.shape[0]):
        if cells.place[o, 0] == e and cells.place[o, 1] == k:
            x, c = 0.0, 0
            for s in range(U):
                for t in range(s, U):
                    x += Q[c] * cells.recent[o, 5 + s] * cells.recent[o, 5 + t]
                    c += 1
            j = cells.place[o, 2]
            r[j] += weight[j] * cells.recent[o, 4] * max(x, 0.0)


@helper
def guessed_variances(cells: Cells, guess: float) -> FloatArray:
    """`guess` times the mean squared length of the features, in each metric's own unit: (m,)."""
    K, m, d = cells.maps.shape
    E, _, J = cells.n.shape
    guessed = np.zeros(m)
    size = 0.0
    for k in range(K):
        if cells.fixed and cells.of_arm[k] > 0.0:
            size += 1.0
            for s in range(m):
                for i in range(d):
                    guessed[s] += cells.maps[k, s, i] * cells.maps[k, s, i]
        elif not cells.fixed:
            size += cells.of_arm[k]
            for e in range(E):
                for j in range(J):
                    if cells.n[e, k, j] != 0.0:
                        c = 0
                        for i in range(d):
                            guessed[0] += cells.moments[e, k, j, c]
                            c += d + 1 - i
    if not cells.fixed:
        for o in range(cells.recent.shape[0]):
            for i in range(d):
                guessed[0] += cells.recent[o, 4] * cells.recent[o, 5 + i] * cells.recent[o, 5 + i]
    for s in range(m):
        guessed[s] = guess * guessed[s] / size if guessed[s] > 0.0 else guess
    return guessed


@helper
def least_variances(cells: Cells, guessed: FloatArray) -> FloatArray:
    """The smallest variance that each metric may have: (m,)."""
    E, K, J, C = cells.moments.shape
    U = cells.recent.shape[1] - 5
    least = np.zeros(guessed.shape[0])
    for s in range(guessed.shape[0]):
        square = (s + 1) * U - (s + 1) * s // 2 if cells.fixed else C - 1  # its place among the moments
        for e in range(E):
            for k in range(K):
                for j in range(J):
                    least[s] += cells.moments[e, k, j, square]
        for o in range(cells.recent.shape[0]):
            x = cells.recent[o, 6 + s] if cells.fixed else cells.recent[o, 4 + U]
            least[s] += cells.recent[o, 4] * x * x
        least[s] = LEAST_VARIANCE * (guessed[s] + max(least[s], 0.0) / max(cells.total, 1.0))
    return least


@helper
def add_mapped(Z: FloatArray, Om: FloatArray, S: FloatArray, V: FloatArray, b: FloatArray, along: FloatArray) -> None:
    """The rows of a group whose map Z is fixed, u = (1, y)."""
    m, d = Z.shape
    for s in range(m):
        x = dot(Om[s], S[1 : m + 1])
        for i in range(d):
            b[i] += Z[s, i] * x
            along[s, i] = dot(Om[s], Z[:, i])
    for s in range(m):
        for i in range(d):
            for o in range(d):
                V[i, o] += S[0] * Z[s, i] * along[s, o]


@helper
def add_featured(om: float, S: FloatArray, V: FloatArray, b: FloatArray) -> None:
    """The rows of a group whose features are their own, u = (x, r)."""
    c = 0
    for i in range(b.shape[0]):
        for o in range(i, b.shape[0]):
            V[i, o] += om * S[c]
            if o != i:
                V[o, i] += om * S[c]
            c += 1
        b[i] += om * S[c]
        c += 1


@helper
def mapped_mean(Z: FloatArray, theta: FloatArray, mu: FloatArray) -> None:
    for s in range(Z.shape[0]):
        mu[s] = dot(Z[s], theta)


@helper
def mapped_uncertainty(Z: FloatArray, V_inv: FloatArray, unsure: FloatArray, along: FloatArray) -> None:
    m, d = Z.shape
    for s in range(m):
        for i in range(d):
            along[s, i] = dot(Z[s], V_inv[:, i])
    for s in range(m):
        for t in range(s, m):
            unsure[s, t] = unsure[t, s] = dot(along[s], Z[t])


@helper
def mapped_residuals(mu: FloatArray, unsure: FloatArray, S: FloatArray, R: FloatArray) -> None:
    m = mu.shape[0]
    c = m + 1
    for s in range(m):
        for t in range(s, m):
            x = S[c] - mu[s] * S[1 + t] - S[1 + s] * mu[t]
            R[s, t] = R[t, s] = x + S[0] * (mu[s] * mu[t] + unsure[s, t])
            c += 1


@helper
def featured_residual(theta: FloatArray, V_inv: FloatArray, S: FloatArray) -> float:
    x, c = 0.0, 0
    for i in range(theta.shape[0]):
        for o in range(i, theta.shape[0]):
            x += (1.0 if o == i else 2.0) * S[c] * (theta[i] * theta[o] + V_inv[i, o])
            c += 1
        x -= 2.0 * S[c] * theta[i]
        c += 1
    return x + S[c]


@helper
def mapped_form(Om: FloatArray, mu: FloatArray, unsure: FloatArray, Q: FloatArray) -> None:
    """Q with u^T Q u the expected squared residual of u = (1, y), packed."""
    m = mu.shape[0]
    Q[0] = 0.0
    c = m + 1
    for s in range(m):
        Q[1 + s] = 0.0
        for t in range(m):
            Q[0] += Om[s, t] * (mu[s] * mu[t] + unsure[s, t])
            Q[1 + s] -= 2.0 * Om[s, t] * mu[t]
        for t in range(s, m):
            Q[c] = (1.0 if t == s else 2.0) * Om[s, t]
            c += 1


@helper
def featured_form(om: float, theta: FloatArray, V_inv: FloatArray, Q: FloatArray) -> None:
    """The same for u = (x, r)."""
    c = 0
    for i in range(theta.shape[0]):
        for o in range(i, theta.shape[0]):
            Q[c] = (1.0 if o == i else 2.0) * om * (theta[i] * theta[o] + V_inv[i, o])
            c += 1
        Q[c] = -2.0 * om * theta[i]
        c += 1
    Q[c] = om


# The fit of the noise model to the sums per cell: alternate between the regression and its weights.

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


BINS = 40
BIN_WIDTH = 0.3  # of log(1 + |c|): the grid covers |c| up to exp(11.7) = 120,000; the last bin is open above
EVERY_TIME = 200  # so many observations are refitted one by one,
GROWTH = 1.02  # and then whenever there are 2 % more of them
FEWEST_RECENT = 16  # rows that wait before the sums are touched; more where the sums are large
CONVERGED = 1e-8  # relative change of the model in a pass that counts as none
MOST_PASSES = 2000  # the steps contract geometrically: this many mean that something else is wrong
REFERENCE = 6.0  # squared radius that the inflation is computed for: a level of 0.99 has 5.4
MAP_TOLERANCE = 1e-9  # relative: an arm's map that was written down and read back is the same map


@dataclass(frozen=True, slots=True)
class Noise:
    """Sums, and the model that was fitted to them."""

    n: FloatArray  # (..., E, K, J), observations
    moments: FloatArray  # (..., E, K, J, C), packed sums of u u^T (drimed.models.noise_estimation)
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

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading axes."""
        return self.slope.shape


@dataclass(frozen=True, slots=True)
class Rows:
    """One observation as the regression sees it, before any weight."""

    subgroup: int | IntArray  # (...), the user, or 0
    arm: IntArray  # (...)
    feature: FloatArray  # (...), of the context
    Z: FloatArray  # (..., m, d)
    y: FloatArray  # (..., m)


def init(shape: Shape, batch: tuple[int, ...], *, feedback: str, guess: float) -> Noise:
    """No data: every group has the guessed variance."""
    fixed = feedback == "vector"
    E, m, U = (1, shape.M, shape.M + 1) if fixed else (shape.H, 1, shape.d + 1)
    K, C = shape.K, U * (U + 1) // 2
    # A new row copies the P rows that wait, and one in P copies the sums: this balances the two.
    P = max(FEWEST_RECENT, math.isqrt(E * K * BINS * (C + 1) // (5 + U)))
    return Noise(
        n=np.zeros((*batch, E, K, BINS)),
        moments=np.zeros((*batch, E, K, BINS, C)),
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


def rows(noise: Noise, offer: Offer, action: IntArray, Z: FloatArray, y: FloatArray) -> Rows:
    """The evidence of playing `action`, checked: Z (..., m, d) and y (..., m) are on their own scale."""
    feature = context_feature(offer, action.shape)
    if not (np.isfinite(y).all() and np.isfinite(feature).all()):
        raise InputError(
            "outcomes and contexts must be finite: a NaN or infinity could never be taken out of the sums again"
        )
    subgroup = 0 if noise.maps is not None else _checked_user(noise, offer.user)
    return Rows(subgroup, action, feature, Z, np.asarray(y))


def of_user(rows: Rows, h: int) -> Rows:
    """The rows of one user, where those of a whole episode have the users as last batch axis."""
    subgroup = rows.subgroup if isinstance(rows.subgroup, int) else rows.subgroup[..., h]
    return Rows(subgroup, rows.arm[..., h], rows.feature[..., h], rows.Z[..., h, :, :], rows.y[..., h, :])


def add(noise: Noise, rows: Rows, weight: float = 1.0) -> Noise:
    """Count an observation in, which weighs `weight` times one of this episode; a negative weight counts it out."""
    maps, mapped = _with_map(noise, rows)
    recent = noise.recent.copy()
    row = recent[..., noise.waiting, :]
    row[..., 0] = rows.subgroup
    row[..., 1] = rows.arm
    row[..., 2] = np.minimum(rows.feature // BIN_WIDTH, BINS - 1)
    row[..., 3] = rows.feature
    row[..., 4] = weight
    if maps is not None:
        row[..., 5] = 1.0
        row[..., 6:] = rows.y
    else:
        row[..., 5:-1] = rows.Z[..., 0, :]
        row[..., -1] = rows.y[..., 0]
    added = Noise(
        noise.n,
        noise.moments,
        noise.sf,
        maps,
        mapped,
        noise.whitening,
        noise.slope,
        noise.centre,
        noise.inflation,
        recent,
        noise.waiting + 1,
        noise.seen + (1 if weight > 0 else -1),
        noise.refitted,
    )
    return absorb_learned(added) if added.waiting == recent.shape[-2] else added


def remove(noise: Noise, rows: Rows, weight: float = 1.0) -> Noise:
    """Take an observation out again that was added with this weight, or with the one that has since become it."""
    less = absorb_learned(add(noise, rows, -weight))
    if (less.n < 0).any():
        raise InputError("an outcome can be taken out only if it was counted in; this one was not")
    return less


def absorb_learned(noise: Noise) -> Noise:
    """The same evidence with all of it in the sums."""
    if noise.waiting == 0:
        return noise
    n, sums, sf = absorb(noise.n, noise.moments, noise.sf, noise.recent, noise.waiting)
    return replace(noise, n=n, moments=sums, sf=sf, recent=np.zeros_like(noise.recent), waiting=0)


def fade(noise: Noise, share: float) -> Noise:
    """The same evidence, all of which counts only so much."""
    noise = absorb_learned(noise)
    return replace(noise, n=share * noise.n, moments=share * noise.moments, sf=share * noise.sf)


def squares(noise: Noise) -> FloatArray:
    """Of each cell, the sums of squares of what it is made of: (..., E, K, J, U)."""
    U = noise.recent.shape[-1] - 5
    at = [s * U - s * (s - 1) // 2 for s in range(U)]  # the diagonal of a packed upper triangle
    return noise.moments[..., at]


def is_due(noise: Noise) -> bool:
    """Whether the model should be fitted again now."""
    return noise.seen <= EVERY_TIME or noise.seen >= GROWTH * noise.refitted


def refit(
    noise: Noise, d: int, *, penalty: float, guess: float, passes: int = 1, tolerance: float = 0.0
) -> tuple[Noise, FloatArray, FloatArray]:
    """The model after some passes from the present one, and the V (..., d, d) and b (..., d) that follow from it."""
    fixed = noise.maps is not None
    maps = np.zeros((noise.n.shape[-2], 1, d)) if noise.maps is None else noise.maps
    settings = np.empty((*noise.batch, 6))
    settings[..., 0] = np.nan if noise.refitted == 0 else noise.slope
    settings[..., 1:] = penalty, guess, passes, tolerance, fixed
    whitening = noise.whitening.copy()  # replaced in place
    recent = noise.recent[..., : noise.waiting, :]
    V, b, found = estimate(noise.n, noise.moments, noise.sf, recent, maps, settings, whitening)
    if tolerance > 0 and np.max(found[..., 4], initial=0) >= passes:
        raise NumericalError(
            f"the noise model did not settle in {passes} passes, the last moved it by {np.max(found[..., 5]):.2g}; "
            "the sums may have lost their digits"
        )
    fitted = replace(
        noise,
        whitening=whitening,
        slope=found[..., 0].copy(),
        centre=found[..., 1].copy(),
        inflation=inflation(found[..., 2], found[..., 3]),
        refitted=noise.seen,
    )
    return fitted, V, b


def converge(noise: Noise, d: int, *, penalty: float, guess: float) -> tuple[Noise, FloatArray, FloatArray]:
    """The model that further passes do not change: it depends on the sums alone, not on the order of the data."""
    return refit(noise, d, penalty=penalty, guess=guess, passes=MOST_PASSES, tolerance=CONVERGED)


def inflation(meier: FloatArray, scatter: FloatArray, squared_radius: float = REFERENCE) -> FloatArray:
    """By how much a squared radius must grow because its weights are estimates: 1 when they are known.

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


def whitened(noise: Noise, rows: Rows) -> tuple[FloatArray, FloatArray]:
    """Z and y divided by the noise as it is estimated now."""
    W = whitening(noise, rows)
    return np.matmul(W, rows.Z), np.matvec(W, rows.y)


def whitening(noise: Noise, rows: Rows) -> FloatArray:
    """W with W Sigma W^T = I, for the noise of each observation as it is estimated now: (..., m, m)."""
    W = _at(noise.whitening, rows.subgroup, rows.arm)
    log_scale = _log_scale(noise.slope, noise.centre, rows.feature)
    return W * np.exp(-0.5 * log_scale)[..., None, None]


def reward_noise_learned(noise: Noise, offer: Offer) -> FloatArray:
    """The estimated standard deviation of each arm's reward: (..., K).

    An offer with more batch axes than the state, such as all users of an episode, has them behind the state's own.
    """
    extra = (None,) * (offer.features.ndim - 2 - noise.slope.ndim)
    slope, centre = noise.slope[(..., *extra)], noise.centre[(..., *extra)]
    batch = np.broadcast_shapes(slope.shape, offer.features.shape[:-2])
    log_scale = _log_scale(slope, centre, context_feature(offer, batch))
    if noise.maps is not None:
        if offer.preference is None:
            raise InputError("learned noise with vector feedback needs the offer's preference")
        whitening = noise.whitening[..., *extra, 0, :, :, :]
        return reward_noise(whitening, offer.preference, log_scale)
    user = _checked_user(noise, offer.user)
    if isinstance(user, int):
        mine = noise.whitening[..., *extra, user, :, 0, 0]
    else:
        roots = noise.whitening[..., *extra, :, :, 0, 0]  # (..., E, K)
        mine = pick(np.broadcast_to(roots, (*batch, *roots.shape[-2:])), np.broadcast_to(user, batch))
    return np.exp(0.5 * log_scale)[..., None] / mine


def context_feature(offer: Offer, batch: tuple[int, ...]) -> FloatArray:
    """f of each member: (...). Without a context it is 0, and all data are in one bin."""
    if offer.context is None:
        return np.zeros(batch)
    return np.broadcast_to(log_size(offer.context), batch)


def _log_scale(slope: FloatArray, centre: FloatArray, feature: FloatArray) -> FloatArray:
    return np.clip(slope * (feature - centre), -LOG_WEIGHT_LIMIT, LOG_WEIGHT_LIMIT)


def _at(array: FloatArray, subgroup: int | IntArray, arm: IntArray) -> FloatArray:
    """array[..., subgroup, arm, *rest]: (..., E, K, m, m) -> (..., m, m)."""
    if isinstance(subgroup, int):
        return pick_shared(array[..., subgroup, :, :, :], arm, 3)
    E, K = array.shape[-4:-2]
    cells = array.reshape(*array.shape[:-4], E * K, *array.shape[-2:])
    return pick(cells, subgroup * K + arm)


def _checked_user(noise: Noise, user: int | IntArray) -> int | IntArray:
    E = noise.n.shape[-3]
    if np.ndim(user) == 0:
        user = int(user)
        ok, came = 0 <= user < E, user
    else:
        ok, came = bool(((user >= 0) & (user < E)).all()), int(np.max(user))
    if not ok:
        raise InputError(f"learned noise is kept for {E} users, numbered from 0; got user {came}")
    return user


def _with_map(noise: Noise, rows: Rows) -> tuple[FloatArray | None, BoolArray | None]:
    """The known maps, and this arm's with them."""
    maps, mapped = noise.maps, noise.mapped
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
