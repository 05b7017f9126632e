"""The loops of the field model's likelihood, compiled; drimed.learning.field.likelihood says what they compute.

Sums over cells, the elimination of each cluster's own effects, and the pieces of the gradient. Indices: a cell has
columns `cols` of theta and `zcols` of its cluster's effects, each with a slot of the moments T; -1 is no column. Rows
and columns of matrices run over metrics first: m P + column.
"""

from __future__ import annotations

import numpy as np

from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import helper, kernel

Columns = tuple[IntArray, IntArray]  # of a cell, and their slots
Three = tuple[FloatArray, FloatArray, FloatArray]


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], i8[:], i8[:], f8[:,:],"
    " f8[:,:,:], i8, f8[:], f8[:,:], f8[:,:,:], f8[:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(l),(p),(q),(t),(m,f),(g,m,m),()->(),(m,f),(g,m,m),(m,p),(m,p,m,p)",
)
def evaluate(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, start, family, zfamily, touched_bound, v, R, want,
    value, grad_v, grad_R, theta, covariance,
):  # fmt: skip
    L, P, q, M = start.shape[0] - 1, family.shape[0], zfamily.shape[0], v.shape[0]
    D, Q, most = M * P, M * q, touched_bound.shape[0]
    W, log_R = inverses(R)
    scale, zscale = deviations(v, family), deviations(v, zfamily)
    A, b = np.zeros((D, D)), np.zeros(D)
    touched, counts = np.zeros((L, most), np.int64), np.zeros(L, np.int64)  # columns of theta that a cluster has
    place = np.full(P, -1, np.int64)  # of each column among them
    G, H, g = np.zeros((L, Q, Q)), np.zeros((L, Q, M * most)), np.zeros((L, Q))
    S, B, c = np.zeros((Q, Q)), np.zeros((Q, M * most)), np.zeros(Q)
    total = np.zeros(3)  # squares, log determinants, observations
    for at in range(L):
        nt = 0
        for i in range(start[at], start[at + 1]):
            for e in range(slot.shape[0]):
                col = cols[i, e]
                if T[i, 0, 0] > 0.0 and col >= 0 and place[col] < 0:
                    place[col], touched[at, nt] = nt, col
                    nt += 1
        counts[at] = nt
        S[:], B[:], c[:] = 0.0, 0.0, 0.0
        for i in range(start[at], start[at + 1]):
            if T[i, 0, 0] > 0.0:
                total[1] += T[i, 0, 0] * log_R[group[i], pattern[i]]
                w = W[group[i], pattern[i]]
                add_common(T[i], w, cols[i], slot, P, A, b, total)
                add_own(T[i], w, (cols[i], slot), (zcols[i], zslot), place, nt, zscale, (S, B, c))
        eliminate((S, B, c), touched[at], nt, P, (A, b), (G[at], H[at], g[at]), total)
        for t in range(nt):
            place[touched[at, t]] = -1

    for a in range(D):
        b[a] *= scale[a]
        for h in range(D):
            A[a, h] *= scale[a] * scale[h]
        A[a, a] += 1.0
    V_inv = np.zeros((D, D))
    total[1] += inverted(A, V_inv)
    est = product(V_inv, b.reshape(D, 1), 1)[:, 0]
    for a in range(D):
        total[0] -= b[a] * est[a]
    value[0] = -0.5 * (total[2] * np.log(2.0 * np.pi) + total[1] + total[0])
    grad_v[:], grad_R[:] = 0.0, 0.0
    for a in range(D):
        grad_v[a // P, family[a % P]] += 0.5 * want * (est[a] * est[a] + V_inv[a, a] - 1.0)
        theta[a // P, a % P] = est[a] * scale[a]
        for h in range(D):
            covariance[a // P, a % P, h // P, h % P] = V_inv[a, h] * scale[a] * scale[h]
    if want == 0:
        return
    K = np.zeros((Q, M * most))  # minus the covariance of the cluster's effects with theta
    for at in range(L):
        nt = counts[at]
        mean, cov = posterior(G[at], H[at], g[at], touched[at], nt, theta, covariance, K)
        for a in range(Q):
            grad_v[a // q, zfamily[a % q]] += 0.5 * (mean[a] * mean[a] + cov[a, a] - 1.0)
        for t in range(nt):
            place[touched[at, t]] = t
        for i in range(start[at], start[at + 1]):
            if T[i, 0, 0] > 0.0:
                squares = residual_squares(T[i], cols[i], slot, theta, covariance)
                add_own_squares(
                    T[i], (cols[i], slot), (zcols[i], zslot), place, nt, zscale, theta, (mean, cov, K), squares
                )
                w = W[group[i], pattern[i]]
                grad_R[group[i]] += 0.5 * (product(product(w, squares, M), w, M) - T[i, 0, 0] * w)
        for t in range(nt):
            place[touched[at, t]] = -1


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], f8[:,:], f8[:,:,:],"
    " f8[:,:], f8[:,:,:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(p),(q),(m,f),(g,m,m)->(m,q),(m,q,m,p),(m,q,m,q)",
)
def own(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, family, zfamily, v, R, shift, gain, noise
):  # fmt: skip
    """One cluster's effects, given theta: drimed.learning.field.likelihood.Own."""
    P, q, M = family.shape[0], zfamily.shape[0], v.shape[0]
    Q = M * q
    W, _ = inverses(R)
    zscale = deviations(v, zfamily)
    everywhere = np.arange(P)
    S, B, c, G = np.eye(Q), np.zeros((Q, M * P)), np.zeros(Q), np.zeros((Q, Q))
    for i in range(T.shape[0]):
        if T[i, 0, 0] > 0.0:
            w = W[group[i], pattern[i]]
            add_own(T[i], w, (cols[i], slot), (zcols[i], zslot), everywhere, P, zscale, (S, B, c))
    inverted(S, G)
    H = product(G, B, M * P)
    g = product(G, c.reshape(Q, 1), 1)[:, 0]
    for a in range(Q):
        shift[a // q, a % q] = zscale[a] * g[a]
        for h in range(Q):
            noise[a // q, a % q, h // q, h % q] = zscale[a] * zscale[h] * G[a, h]
        for h in range(M * P):
            gain[a // q, a % q, h // P, h % P] = zscale[a] * H[a, h]


@helper
def inverses(R: FloatArray) -> tuple[FloatArray, FloatArray]:
    """R^-1 restricted to what was observed, and log det, for each noise group and pattern: (g, 2^M, M, M), (g, 2^M)."""
    groups, M = R.shape[0], R.shape[1]
    W, log_det = np.zeros((groups, 1 << M, M, M)), np.zeros((groups, 1 << M))
    index = np.zeros(M, np.int64)
    for pattern in range(1, 1 << M):
        n = 0
        for m in range(M):
            if (pattern >> m) & 1:
                index[n] = m
                n += 1
        observed, inverse = np.zeros((n, n)), np.zeros((n, n))
        for g in range(groups):
            for a in range(n):
                for h in range(n):
                    observed[a, h] = R[g, index[a], index[h]]
            log_det[g, pattern] = inverted(observed, inverse)
            for a in range(n):
                for h in range(n):
                    W[g, pattern, index[a], index[h]] = inverse[a, h]
    return W, log_det


@helper
def deviations(v: FloatArray, family: IntArray) -> FloatArray:
    """The prior deviation of each column, metric by metric: (M P)."""
    M, P = v.shape[0], family.shape[0]
    scale = np.zeros(M * P)
    for m in range(M):
        for c in range(P):
            scale[m * P + c] = np.sqrt(v[m, family[c]])
    return scale


@helper
def inverted(A: FloatArray, inverse: FloatArray) -> float:
    """The inverse of a positive definite matrix, written to `inverse`, and its log determinant.

    Gauss-Jordan without pivots, in rows that the compiler vectorises: for sizes up to some hundreds a library call
    costs more than the work, and its threads get in each other's way.
    """
    n = A.shape[0]
    log_det = 0.0
    for a in range(n):
        for h in range(n):
            inverse[a, h] = A[a, h]
    for k in range(n):
        pivot = inverse[k, k]
        if not pivot > 0.0:
            return np.nan
        log_det += np.log(pivot)
        inverse[k, k] = 1.0
        for h in range(n):
            inverse[k, h] /= pivot
        for a in range(n):
            if a != k:
                share = inverse[a, k]
                inverse[a, k] = 0.0
                if share != 0.0:
                    for h in range(n):
                        inverse[a, h] -= share * inverse[k, h]
    for a in range(n):
        for h in range(a):
            inverse[a, h] = 0.5 * (inverse[a, h] + inverse[h, a])
            inverse[h, a] = inverse[a, h]
    return log_det


@helper
def product(A: FloatArray, B: FloatArray, columns: int) -> FloatArray:
    """A B, of the first columns of B; zeros of A cost nothing."""
    found = np.zeros((A.shape[0], columns))
    for a in range(A.shape[0]):
        for k in range(A.shape[1]):
            share = A[a, k]
            if share != 0.0:
                for h in range(columns):
                    found[a, h] += share * B[k, h]
    return found


@helper
def add_common(
    T: FloatArray,
    W: FloatArray,
    cols: IntArray,
    slot: IntArray,
    P: int,
    A: FloatArray,
    b: FloatArray,
    total: FloatArray,
) -> None:
    """Add a cell to x x' and x y, to the sum of squares and to the number of observations."""
    E, M = slot.shape[0], W.shape[0]
    first = T.shape[0] - M
    for m in range(M):
        if W[m, m] > 0.0:
            total[2] += T[0, 0]
        for k in range(M):
            w = W[m, k]
            if w == 0.0:
                continue
            total[0] += w * T[first + m, first + k]
            for e in range(E):
                if cols[e] < 0:
                    continue
                row = m * P + cols[e]
                b[row] += w * T[slot[e], first + k]
                for h in range(E):
                    if cols[h] >= 0:
                        A[row, k * P + cols[h]] += w * T[slot[e], slot[h]]


@helper
def add_own(
    T: FloatArray, W: FloatArray, x: Columns, z: Columns, place: IntArray, nt: int, zscale: FloatArray, sums: Three
) -> None:
    """Add a cell to z z', z x' and z y of its cluster, in units of the prior deviations of z's columns."""
    (cols, slot), (zcols, zslot), (S, B, c) = x, z, sums
    E, r, M = slot.shape[0], zslot.shape[0], W.shape[0]
    first, q = T.shape[0] - M, S.shape[0] // M
    for m in range(M):
        for k in range(M):
            if W[m, k] == 0.0:
                continue
            for e in range(r):
                if zcols[e] < 0:
                    continue
                row = m * q + zcols[e]
                w = W[m, k] * zscale[row]
                c[row] += w * T[zslot[e], first + k]
                for h in range(r):
                    if zcols[h] >= 0:
                        col = k * q + zcols[h]
                        S[row, col] += w * zscale[col] * T[zslot[e], zslot[h]]
                for h in range(E):
                    if cols[h] >= 0:
                        B[row, k * nt + place[cols[h]]] += w * T[zslot[e], slot[h]]


@helper
def eliminate(
    sums: Three,
    touched: IntArray,
    nt: int,
    P: int,
    common: tuple[FloatArray, FloatArray],
    kept: Three,
    total: FloatArray,
) -> None:
    """Take a cluster's own effects out of the sums; G, H = G B and g = G c are kept for the gradient."""
    (S, B, c), (A, b), (G, H, g) = sums, common, kept
    Q, n = S.shape[0], A.shape[0] // P * nt
    for a in range(Q):
        S[a, a] += 1.0
    total[1] += inverted(S, G)
    H[:, :n] = product(G, B, n)
    for a in range(Q):
        for h in range(Q):
            g[a] += G[a, h] * c[h]
        total[0] -= c[a] * g[a]
    taken = product(B[:, :n].T, H, n)
    for t in range(n):
        row = (t // nt) * P + touched[t % nt]
        for a in range(Q):
            b[row] -= B[a, t] * g[a]
        for k in range(n // nt):
            for s in range(nt):
                A[row, k * P + touched[s]] -= taken[t, k * nt + s]


@helper
def posterior(
    G: FloatArray,
    H: FloatArray,
    g: FloatArray,
    touched: IntArray,
    nt: int,
    theta: FloatArray,
    covariance: FloatArray,
    K: FloatArray,
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of a cluster's effects given all data, in prior deviations; K = H Cov[theta]."""
    Q, M = G.shape[0], theta.shape[0]
    n = M * nt
    here, mean = np.zeros((n, n)), g.copy()
    for t in range(n):
        m, col = t // nt, touched[t % nt]
        for a in range(Q):
            mean[a] -= H[a, t] * theta[m, col]
        for k in range(M):
            for s in range(nt):
                here[t, k * nt + s] = covariance[m, col, k, touched[s]]
    K[:, :n] = product(H[:, :n], here, n)
    cov, turned = G.copy(), np.zeros((n, Q))
    for t in range(n):
        for h in range(Q):
            turned[t, h] = H[h, t]
    for a in range(Q):
        for t in range(n):
            share = K[a, t]
            for h in range(Q):  # a row at a time: the compiler vectorises it
                cov[a, h] += share * turned[t, h]
    return mean, cov


@helper
def residual_squares(
    T: FloatArray, cols: IntArray, slot: IntArray, theta: FloatArray, covariance: FloatArray
) -> FloatArray:
    """E[sum e e'] of a cell given all data, as far as theta alone is concerned: (M, M)."""
    E, U, M = slot.shape[0], T.shape[0], theta.shape[0]
    first = U - M
    squares = np.zeros((M, M))
    for m in range(M):
        for k in range(M):
            s = T[first + m, first + k]
            for e in range(E):
                if cols[e] < 0:
                    continue
                s -= theta[m, cols[e]] * T[slot[e], first + k] + theta[k, cols[e]] * T[slot[e], first + m]
                for h in range(E):
                    if cols[h] >= 0:
                        both = theta[m, cols[e]] * theta[k, cols[h]] + covariance[m, cols[e], k, cols[h]]
                        s += T[slot[e], slot[h]] * both
            squares[m, k] = s
    return squares


@helper
def add_own_squares(
    T: FloatArray,
    x: Columns,
    z: Columns,
    place: IntArray,
    nt: int,
    zscale: FloatArray,
    theta: FloatArray,
    own: Three,
    squares: FloatArray,
) -> None:
    """The rest of E[sum e e']: what the cluster's own effects, and their covariance with theta, add."""
    (cols, slot), (zcols, zslot), (mean, cov, K) = x, z, own
    E, r, M = slot.shape[0], zslot.shape[0], theta.shape[0]
    first, q = T.shape[0] - M, mean.shape[0] // M
    for m in range(M):
        for k in range(M):
            s = 0.0
            for e in range(r):
                if zcols[e] < 0:
                    continue
                a, o = m * q + zcols[e], k * q + zcols[e]
                s -= zscale[a] * mean[a] * T[zslot[e], first + k] + zscale[o] * mean[o] * T[zslot[e], first + m]
                for h in range(r):
                    if zcols[h] >= 0:
                        j = k * q + zcols[h]
                        s += T[zslot[e], zslot[h]] * zscale[a] * zscale[j] * (mean[a] * mean[j] + cov[a, j])
                for h in range(E):
                    if cols[h] >= 0:
                        t = place[cols[h]]
                        first_half = zscale[a] * (mean[a] * theta[k, cols[h]] - K[a, k * nt + t])
                        other_half = zscale[o] * (mean[o] * theta[m, cols[h]] - K[o, m * nt + t])
                        s += T[zslot[e], slot[h]] * (first_half + other_half)
            squares[m, k] += s
