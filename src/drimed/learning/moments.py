"""Sums of outcomes per cell: everything that a fit of the noise model needs to know about the data.

A cell is (group, bin): e of E subgroups, k of K arms, j of J bins of the context feature. Its moments are
sum u u^T over its observations, the upper triangle row by row, where an observation is the row

    u = (1, y)    while each arm's map Z is fixed ("fixed"): its residual is A u with A = (-Z theta, I)
    u = (x, r)    while features may differ every time, one outcome r at a time: A = (-theta^T, 1)

so that sums of squared residuals, the regression and its weights all follow from the moments, for any theta and any
weights, without going back to the observations. The last few observations are still rows of their own: copying all
sums for each new one would cost more than the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.forms import dot
from drimed.linear.kernel import helper, kernel

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
