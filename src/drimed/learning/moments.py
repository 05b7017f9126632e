"""Kernels of the learned noise: sums of outcomes per cell, and one fit of the noise model to them.

A cell is (group, bin): e of E subgroups, k of K arms, j of J bins of the context feature. Its moments are
sum u u^T over its observations, the upper triangle row by row, where an observation is the row

    u = (1, y)    while each arm's map Z is fixed ("fixed"): its residual is A u with A = (-Z theta, I)
    u = (x, r)    while features may differ every time, one outcome r at a time: A = (-theta^T, 1)

so that sums of squared residuals, the regression and its weights all follow from the moments, for any theta and any
weights, without going back to the observations. The last few observations are still rows of their own: copying all
sums for each new one would cost more than the fit.
"""

from __future__ import annotations

import numpy as np

from drimed.linear.arrays import FloatArray
from drimed.linear.kernel import kernel

LOG_WEIGHT_LIMIT = 12.0  # |log scale| beyond this is extrapolation: no context weighs more than e^12 times another
STEP_LIMIT = 1.0  # of the slope in one pass: the first passes start far from the optimum
GUESS_WEIGHT = 0.5  # observations that the guessed variance counts as, until the data tell noise from signal
PRIOR_EXCESS = 2.0  # nu0 - m: an arm's covariance is pulled to the pooled variances as by a Wishart prior of nu0
CELL_PULL = 4.0  # kappa: a user's level is pulled to its arm's, and that to the pooled one, as by so many outcomes
SLOPE_PRECISION = 1.0  # rho: the slope is pulled to 0 as by one observation of unit information
LEAST_VARIANCE = 1e-8  # of a metric, as a share of its mean square: what never varies must not weigh infinitely much
IDLE, SETTLED = 200, 1e-3  # passes that do not halve a change below the second number: round-off is all that moves
PIVOT = 1e-12  # a pivot below this share of its diagonal is round-off: keeps estimated covariances invertible


@kernel(
    "void(f8[:,:,:], f8[:,:,:,:], f8[:], f8[:,:], i8, f8[:,:,:], f8[:,:,:,:], f8[:])",
    "(e,k,j),(e,k,j,c),(j),(p,w),()->(e,k,j),(e,k,j,c),(j)",
)
def absorb(n, moments, sf, recent, waiting, n_new, moments_new, sf_new):  # type: ignore[no-untyped-def]
    """Add the first `waiting` rows (subgroup, arm, bin, feature, sign, u...) to their cells."""
    E, K, J = n.shape
    C, U = moments.shape[3], recent.shape[1] - 5
    for j in range(J):
        sf_new[j] = sf[j]
        for e in range(E):
            for k in range(K):
                n_new[e, k, j] = n[e, k, j]
    for e in range(E):
        for k in range(K):
            for j in range(J):
                for c in range(C):
                    moments_new[e, k, j, c] = moments[e, k, j, c]
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
        if n_new[e, k, j] == 0.0:  # what was taken out again leaves no round-off behind
            for c in range(C):
                moments_new[e, k, j, c] = 0.0


@kernel(
    "void(f8[:,:,:], f8[:,:,:,:], f8[:], f8[:,:], i8, f8[:,:,:], i8, i8, f8[:,:,:,:], f8, f8, f8, i8, f8, "
    "f8[:,:,:,:], f8[:], f8[:], f8[:,:], f8[:], f8[:], f8[:], i8[:])",
    "(e,k,j),(e,k,j,c),(j),(p,w),(),(k,m,d),(),(),(e,k,m,m),(),(),(),(),()->(e,k,m,m),(),(),(d,d),(d),(),(),()",
)
def estimate(  # type: ignore[no-untyped-def]
    n, moments, sf, recent, waiting, maps, fixed, fresh, whitening, slope, penalty, guess, passes, tolerance,
    whitening_new, slope_new, centre, V, b, meier, scatter, passes_done,
):  # fmt: skip
    """Up to `passes` steps of expectation and conditional maximisation from (whitening, slope), then V and b.

    Stops when no parameter moves by more than `tolerance`, relative to the largest of its group. A `fresh` start takes
    the guessed variances instead: `guess` times the squared length of the features, in each metric's own unit.
    """
    E, K, J = n.shape
    m, d, C = maps.shape[1], maps.shape[2], moments.shape[3]
    U = m + 1 if fixed else d + 1
    f = np.zeros(J)  # mean feature of a bin, centred
    n_bin = np.zeros(J)
    n_cell = np.zeros((E, K))
    n_arm = np.zeros(K)
    total, sum_f = 0.0, 0.0
    for e in range(E):
        for k in range(K):
            for j in range(J):
                n_bin[j] += n[e, k, j]
                n_cell[e, k] += n[e, k, j]
            n_arm[k] += n_cell[e, k]
    sum_bin = sf.copy()
    row_e = np.zeros(waiting, np.intp)
    row_k = np.zeros(waiting, np.intp)
    row_j = np.zeros(waiting, np.intp)
    for i in range(waiting):
        e, k, j = int(recent[i, 0]), int(recent[i, 1]), int(recent[i, 2])
        row_e[i], row_k[i], row_j[i] = e, k, j
        sum_bin[j] += recent[i, 4] * recent[i, 3]
        n_bin[j] += recent[i, 4]
        n_cell[e, k] += recent[i, 4]
        n_arm[k] += recent[i, 4]
    for j in range(J):
        total += n_bin[j]
        sum_f += sum_bin[j]
    centre[0] = sum_f / total if total > 0.0 else 0.0
    information = 0.0
    for j in range(J):
        if n_bin[j] > 0.0:
            f[j] = sum_bin[j] / n_bin[j] - centre[0]
            information += 0.5 * m * n_bin[j] * f[j] * f[j]

    guessed = np.zeros(m)
    size = 0.0
    for k in range(K):
        if fixed and n_arm[k] > 0.0:
            size += 1.0
            for s in range(m):
                for i in range(d):
                    guessed[s] += maps[k, s, i] * maps[k, s, i]
        elif not fixed:
            size += n_arm[k]
            for e in range(E):
                for j in range(J):
                    if n[e, k, j] != 0.0:
                        c = 0
                        for i in range(d):
                            guessed[0] += moments[e, k, j, c]
                            c += d + 1 - i
    if not fixed:
        for o in range(waiting):
            for i in range(d):
                guessed[0] += recent[o, 4] * recent[o, 5 + i] * recent[o, 5 + i]
    for s in range(m):
        guessed[s] = guess * guessed[s] / size if guessed[s] > 0.0 else guess

    least = np.zeros(m)
    for s in range(m):
        square = (s + 1) * U - (s + 1) * s // 2 if fixed else C - 1  # its place among the moments
        for e in range(E):
            for k in range(K):
                for j in range(J):
                    least[s] += moments[e, k, j, square]
        for o in range(waiting):
            x = recent[o, 6 + s] if fixed else recent[o, 4 + U]
            least[s] += recent[o, 4] * x * x
        least[s] = LEAST_VARIANCE * (guessed[s] + max(least[s], 0.0) / max(total, 1.0))

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
    w = 0.0 if fresh else slope
    trust = GUESS_WEIGHT * d / (d + m * total)  # of the guess: once there are more rows than features, it must go
    weight = np.zeros(J)
    S = np.zeros((E, K, C))  # weighted moments of a group
    R = np.zeros((E, K, m, m))  # its sum of squared residuals, with what the estimate of theta took out of it
    unsure = np.zeros((E, K, m, m))  # Z V^-1 Z^T
    V_inv = np.zeros((d, d))
    theta = np.zeros(d)
    mu = np.zeros(m)
    along = np.zeros((m, d))
    pooled = np.zeros(m)
    A = np.zeros((m, m))
    A_inv = np.zeros((m, m))
    Q = np.zeros(C)
    r_bin = np.zeros(J)

    def invert(matrix: FloatArray, inverse: FloatArray) -> None:
        """Of a symmetric positive definite matrix, by its Cholesky factor."""
        size = matrix.shape[0]
        L = np.zeros((size, size))
        for p in range(size):
            pivot = matrix[p, p]
            for q in range(p):
                pivot -= L[p, q] * L[p, q]
            L[p, p] = np.sqrt(max(pivot, PIVOT * matrix[p, p]))
            for q in range(p + 1, size):
                x = matrix[q, p]
                for o in range(p):
                    x -= L[q, o] * L[p, o]
                L[q, p] = x / L[p, p]
        B = np.zeros((size, size))  # L^-1
        for p in range(size):
            B[p, p] = 1.0 / L[p, p]
            for q in range(p + 1, size):
                x = 0.0
                for o in range(p, q):
                    x -= L[q, o] * B[o, p]
                B[q, p] = x / L[q, q]
        for p in range(size):
            for q in range(size):
                x = 0.0
                for o in range(max(p, q), size):
                    x += B[o, p] * B[o, q]
                inverse[p, q] = x

    done, idle = 0, 0
    moved, smallest = np.inf, np.inf
    while True:
        # The regression at the present weights.
        for j in range(J):
            weight[j] = np.exp(-min(max(w * f[j], -LOG_WEIGHT_LIMIT), LOG_WEIGHT_LIMIT))
        for i in range(d):
            b[i] = 0.0
            for o in range(d):
                V[i, o] = penalty if o == i else 0.0
        for e in range(E):
            for k in range(K):
                if n_cell[e, k] == 0.0:
                    continue
                for c in range(C):
                    S[e, k, c] = 0.0
                for j in range(J):
                    if n[e, k, j] != 0.0:
                        for c in range(C):
                            S[e, k, c] += weight[j] * moments[e, k, j, c]
                for o in range(waiting):
                    if row_e[o] == e and row_k[o] == k:
                        c = 0
                        for s in range(U):
                            x = weight[row_j[o]] * recent[o, 4] * recent[o, 5 + s]
                            for t in range(s, U):
                                S[e, k, c] += x * recent[o, 5 + t]
                                c += 1
                if fixed:
                    for s in range(m):
                        x = 0.0
                        for t in range(m):
                            x += Om[e, k, s, t] * S[e, k, 1 + t]
                        for i in range(d):
                            b[i] += maps[k, s, i] * x
                            along[s, i] = 0.0
                            for t in range(m):
                                along[s, i] += Om[e, k, s, t] * maps[k, t, i]
                    for s in range(m):
                        for i in range(d):
                            for o in range(d):
                                V[i, o] += S[e, k, 0] * maps[k, s, i] * along[s, o]
                else:
                    c = 0
                    for i in range(d):
                        for o in range(i, d):
                            x = Om[e, k, 0, 0] * S[e, k, c]
                            V[i, o] += x
                            if o != i:
                                V[o, i] += x
                            c += 1
                        b[i] += Om[e, k, 0, 0] * S[e, k, c]
                        c += 1
        for i in range(d):
            for o in range(i):
                V[i, o] = 0.5 * (V[i, o] + V[o, i])
                V[o, i] = V[i, o]
        invert(V, V_inv)
        for i in range(d):
            theta[i] = 0.0
            for o in range(d):
                theta[i] += V_inv[i, o] * b[o]
        if moved < 0.5 * smallest:
            smallest, idle = moved, 0
        else:
            idle += 1
        if done >= passes or moved <= tolerance or (idle >= IDLE and moved <= SETTLED):
            break

        # Residuals of each group, and the pooled variance of each metric.
        for s in range(m):
            pooled[s] = 0.0
        for e in range(E):
            for k in range(K):
                if n_cell[e, k] == 0.0:  # R is zero
                    continue
                if fixed:
                    for s in range(m):
                        mu[s] = 0.0
                        for i in range(d):
                            mu[s] += maps[k, s, i] * theta[i]
                            along[s, i] = 0.0
                            for o in range(d):
                                along[s, i] += maps[k, s, o] * V_inv[o, i]
                    c = U
                    for s in range(m):
                        for t in range(s, m):
                            x = 0.0
                            for i in range(d):
                                x += along[s, i] * maps[k, t, i]
                            unsure[e, k, s, t] = x
                            unsure[e, k, t, s] = x
                            x = S[e, k, c] - mu[s] * S[e, k, 1 + t] - S[e, k, 1 + s] * mu[t]
                            x += S[e, k, 0] * (mu[s] * mu[t] + unsure[e, k, s, t])
                            R[e, k, s, t] = x
                            R[e, k, t, s] = x
                            c += 1
                else:
                    x = 0.0
                    c = 0
                    for i in range(d):
                        for o in range(i, d):
                            twice = 1.0 if o == i else 2.0
                            x += twice * S[e, k, c] * (theta[i] * theta[o] + V_inv[i, o])
                            c += 1
                        x -= 2.0 * S[e, k, c] * theta[i]
                        c += 1
                    R[e, k, 0, 0] = x + S[e, k, c]
                for s in range(m):
                    R[e, k, s, s] = max(R[e, k, s, s], n_cell[e, k] * least[s])
                    pooled[s] += R[e, k, s, s]
        for s in range(m):
            pooled[s] = (pooled[s] + trust * guessed[s]) / (total + trust)

        # Precisions, shrunk towards the pooled variances; then the share of each bin in the squared residuals.
        moved = 0.0
        for j in range(J):
            r_bin[j] = 0.0
        for k in range(K):
            level = CELL_PULL * pooled[0]  # of the arm, for reward feedback
            for e in range(E):
                level += R[e, k, 0, 0]
            level /= CELL_PULL + n_arm[k]
            for e in range(E):
                if fixed:
                    for s in range(m):
                        for t in range(m):
                            A[s, t] = R[e, k, s, t]
                        A[s, s] += pooled[s]
                    invert(A, A_inv)
                    for s in range(m):
                        for t in range(m):
                            A_inv[s, t] *= n_cell[e, k] + PRIOR_EXCESS - 1.0  # nu0 + N - m - 1
                else:
                    A_inv[0, 0] = (CELL_PULL + n_cell[e, k]) / (CELL_PULL * level + R[e, k, 0, 0])
                most, change = 0.0, 0.0
                for s in range(m):
                    for t in range(m):
                        most = max(most, abs(A_inv[s, t]))
                        change = max(change, abs(A_inv[s, t] - Om[e, k, s, t]))
                        Om[e, k, s, t] = A_inv[s, t]
                moved = max(moved, change / most)
                if n_cell[e, k] == 0.0:
                    continue
                if fixed:
                    for s in range(m):
                        mu[s] = 0.0
                        for i in range(d):
                            mu[s] += maps[k, s, i] * theta[i]
                    Q[0] = 0.0
                    c = U
                    for s in range(m):
                        Q[1 + s] = 0.0
                        for t in range(m):
                            Q[0] += Om[e, k, s, t] * (mu[s] * mu[t] + unsure[e, k, s, t])
                            Q[1 + s] -= 2.0 * Om[e, k, s, t] * mu[t]
                        for t in range(s, m):
                            Q[c] = (1.0 if t == s else 2.0) * Om[e, k, s, t]
                            c += 1
                else:
                    c = 0
                    for i in range(d):
                        for o in range(i, d):
                            twice = 1.0 if o == i else 2.0
                            Q[c] = twice * Om[e, k, 0, 0] * (theta[i] * theta[o] + V_inv[i, o])
                            c += 1
                        Q[c] = -2.0 * Om[e, k, 0, 0] * theta[i]
                        c += 1
                    Q[c] = Om[e, k, 0, 0]
                for j in range(J):
                    if n[e, k, j] != 0.0:
                        x = 0.0
                        for c in range(C):
                            x += moments[e, k, j, c] * Q[c]
                        r_bin[j] += weight[j] * max(x, 0.0)
                for o in range(waiting):
                    if row_e[o] == e and row_k[o] == k:
                        x = 0.0
                        c = 0
                        for s in range(U):
                            for t in range(s, U):
                                x += Q[c] * recent[o, 5 + s] * recent[o, 5 + t]
                                c += 1
                        r_bin[row_j[o]] += weight[row_j[o]] * recent[o, 4] * max(x, 0.0)

        # The slope: a step of Fisher scoring for log-linear variances, with the level profiled out.
        all_r = 0.0
        for j in range(J):
            all_r += r_bin[j]
        score = -SLOPE_PRECISION * w
        for j in range(J):
            if all_r > 0.0:
                score += 0.5 * m * (r_bin[j] * total / all_r - n_bin[j]) * f[j]
        step = score / (information + SLOPE_PRECISION)
        step = min(max(step, -STEP_LIMIT), STEP_LIMIT)
        w += step
        moved = max(moved, abs(step))
        done += 1

    # How much of the regression rests on estimated weights.
    meier[0] = 0.0
    scatter[0] = 0.0
    for e in range(E):
        for k in range(K):
            for s in range(m):  # the upper root: whitening^T whitening = Om
                for t in range(m):
                    whitening_new[e, k, s, t] = 0.0
            for s in range(m):
                x = Om[e, k, s, s]
                for i in range(s):
                    x -= whitening_new[e, k, i, s] * whitening_new[e, k, i, s]
                root = np.sqrt(max(x, PIVOT * Om[e, k, s, s]))
                whitening_new[e, k, s, s] = root
                for t in range(s + 1, m):
                    x = Om[e, k, s, t]
                    for i in range(s):
                        x -= whitening_new[e, k, i, s] * whitening_new[e, k, i, t]
                    whitening_new[e, k, s, t] = x / root
            if n_cell[e, k] == 0.0:
                continue
            share = 0.0
            if fixed:
                for s in range(m):
                    for t in range(m):
                        x = 0.0
                        for i in range(d):
                            for o in range(d):
                                x += maps[k, s, i] * V_inv[i, o] * maps[k, t, o]
                        share += S[e, k, 0] * Om[e, k, s, t] * x
            else:
                c = 0
                for i in range(d):
                    for o in range(i, d):
                        share += (1.0 if o == i else 2.0) * Om[e, k, 0, 0] * S[e, k, c] * V_inv[i, o]
                        c += 1
                    c += 1
            share /= d
            # With this prior a group's mean is Student distributed, with nu0 + N - m + 1 degrees of freedom.
            freedom = n_cell[e, k] + (PRIOR_EXCESS + 1.0 if fixed else CELL_PULL)
            meier[0] += share * (1.0 - share) / freedom
            scatter[0] += share * share / freedom
    slope_new[0] = w
    passes_done[0] = done


@kernel("void(f8[:], f8[:])", "(q)->()")
def log_size(context, feature):  # type: ignore[no-untyped-def]
    """log(1 + |c|), the coordinates taken in their order."""
    total = 0.0
    for i in range(context.shape[0]):
        total += context[i] * context[i]
    feature[0] = np.log1p(np.sqrt(total))


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
