"""The marginal likelihood of a mixed model, its gradient and the posterior of what lasts, from sums over cells.

    y_m = x . theta_m + z . v_{l,m} + e_m,   theta ~ N(0, diag),  v_l ~ N(0, diag),  Cov[e] = R_g

Rows come in clusters l (seasons, or users) whose own effects v_l are eliminated exactly, one cluster at a time: given
theta, clusters are independent. What is left is a regression on theta alone. With A, B, S, b, c the sums of x x', z x',
z z', x y and z y, weighted by the inverse of R,

    A - sum_l B_l' G_l B_l,   b - sum_l B_l' G_l c_l,   G_l = (S_l + Omega^-1)^-1

Everything is computed in units of the prior deviations, so a family of variance zero is no special case. The gradient
is Fisher's identity: d log L / d log v_k = 1/2 sum over the family of (E[u^2] / v_k - 1) given the data.

A cell is a set of observations with the same columns; its moments are sums of u u' over u = (1, covariates, y), so an
entry of x is a column and a slot of u. Shapes: N cells, U slots, E entries of x, r entries of z, L clusters,
P columns of theta and q of a cluster's effects for each metric, M metrics, F families, g noise groups.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import kernel

VALUE_ONLY, GRADIENT = 0, 1


class Design(NamedTuple):
    """Cells as the kernel takes them, sorted by cluster; cells with count 0 are skipped."""

    T: FloatArray  # (..., N, U, U), moments
    pattern: IntArray  # (..., N), bit m is set where metric m was observed
    group: IntArray  # (..., N), noise group
    cols: IntArray  # (..., N, E), column of theta, or -1
    slot: IntArray  # (E,)
    zcols: IntArray  # (..., N, r), column of the cluster's effects, or -1
    zslot: IntArray  # (r,)
    start: IntArray  # (..., L + 1), first cell of each cluster
    family: IntArray  # (P,)
    zfamily: IntArray  # (q,)
    touched: IntArray  # (t,), a dummy whose length bounds the columns of theta that one cluster has


class Evaluation(NamedTuple):
    """What one set of variances says about the data."""

    value: FloatArray  # (...), log marginal likelihood
    grad_v: FloatArray  # (..., M, F), with respect to log variances
    grad_R: FloatArray  # (..., g, M, M), with respect to R
    theta: FloatArray  # (..., M, P), posterior mean
    covariance: FloatArray  # (..., M, P, M, P)


def evaluate(design: Design, v: FloatArray, R: FloatArray, *, gradient: bool = True) -> Evaluation:
    """The likelihood at variances v (..., M, F) and residual covariances R (..., g, M, M)."""
    return Evaluation(*_evaluate(*design, v, R, GRADIENT if gradient else VALUE_ONLY))


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], i8[:], i8[:], f8[:,:],"
    " f8[:,:,:], i8, f8[:], f8[:,:], f8[:,:,:], f8[:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(l),(p),(q),(t),(m,f),(g,m,m),()->(),(m,f),(g,m,m),(m,p),(m,p,m,p)",
)
def _evaluate(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, start, family, zfamily, touched_bound, v, R, want,
    value, grad_v, grad_R, theta, covariance,
):  # fmt: skip
    N, U, _ = T.shape
    E, r, L, P, q = slot.shape[0], zslot.shape[0], start.shape[0] - 1, family.shape[0], zfamily.shape[0]
    M, groups = v.shape[0], R.shape[0]
    D, Q, first, most = M * P, M * q, U - M, touched_bound.shape[0]

    # The inverse of R restricted to what was observed, for every noise group and pattern.
    W = np.zeros((groups, 1 << M, M, M))
    log_R = np.zeros((groups, 1 << M))
    known = np.zeros((groups, 1 << M), np.bool_)
    index = np.zeros(M, np.int64)
    for i in range(N):
        g, o = group[i], pattern[i]
        if T[i, 0, 0] <= 0.0 or known[g, o]:
            continue
        k = 0
        for m in range(M):
            if (o >> m) & 1:
                index[k] = m
                k += 1
        part = np.zeros((k, k))
        for a in range(k):
            for c in range(k):
                part[a, c] = R[g, index[a], index[c]]
        root = np.linalg.cholesky(part)
        inverse = np.linalg.inv(part)
        for a in range(k):
            log_R[g, o] += 2.0 * np.log(root[a, a])
            for c in range(k):
                W[g, o, index[a], index[c]] = 0.5 * (inverse[a, c] + inverse[c, a])
        known[g, o] = True

    A = np.zeros((D, D))
    b = np.zeros(D)
    scale = np.zeros(D)
    for m in range(M):
        for c in range(P):
            scale[m * P + c] = np.sqrt(v[m, family[c]])
    zscale = np.zeros(Q)
    for m in range(M):
        for c in range(q):
            zscale[m * q + c] = np.sqrt(v[m, zfamily[c]])

    touched = np.zeros((L, most), np.int64)  # columns of theta (of one metric) that a cluster has
    counts = np.zeros(L, np.int64)
    place = np.full(P, -1, np.int64)
    G_all = np.zeros((L, Q, Q))
    H_all = np.zeros((L, Q, M * most))
    g_all = np.zeros((L, Q))
    squares, log_det, seen = 0.0, 0.0, 0.0

    for cluster in range(L):
        nt = 0
        for i in range(start[cluster], start[cluster + 1]):
            if T[i, 0, 0] <= 0.0:
                continue
            for e in range(E):
                col = cols[i, e]
                if col >= 0 and place[col] < 0:
                    place[col] = nt
                    touched[cluster, nt] = col
                    nt += 1
        counts[cluster] = nt
        S = np.zeros((Q, Q))
        B = np.zeros((Q, M * nt))
        c_own = np.zeros(Q)
        for i in range(start[cluster], start[cluster + 1]):
            n = T[i, 0, 0]
            if n <= 0.0:
                continue
            g, o = group[i], pattern[i]
            log_det += n * log_R[g, o]
            for m in range(M):
                if (o >> m) & 1:
                    seen += n
                for k in range(M):
                    w = W[g, o, m, k]
                    if w == 0.0:
                        continue
                    squares += w * T[i, first + m, first + k]
                    for e in range(E):
                        ce = cols[i, e]
                        if ce < 0:
                            continue
                        row = m * P + ce
                        b[row] += w * T[i, slot[e], first + k]
                        for h in range(E):
                            if cols[i, h] >= 0:
                                A[row, k * P + cols[i, h]] += w * T[i, slot[e], slot[h]]
                    for e in range(r):
                        ze = zcols[i, e]
                        if ze < 0:
                            continue
                        row = m * q + ze
                        c_own[row] += w * T[i, zslot[e], first + k]
                        for h in range(r):
                            if zcols[i, h] >= 0:
                                S[row, k * q + zcols[i, h]] += w * T[i, zslot[e], zslot[h]]
                        for h in range(E):
                            if cols[i, h] >= 0:
                                B[row, k * nt + place[cols[i, h]]] += w * T[i, zslot[e], slot[h]]
        for a in range(Q):
            c_own[a] *= zscale[a]
            for h in range(M * nt):
                B[a, h] *= zscale[a]
            for h in range(Q):
                S[a, h] *= zscale[a] * zscale[h]
            S[a, a] += 1.0
        if Q > 0:
            root = np.linalg.cholesky(S)
            for a in range(Q):
                log_det += 2.0 * np.log(root[a, a])
            G = np.linalg.inv(S)
            H = np.dot(G, B)
            own = np.dot(G, c_own)
            BH = np.dot(B.T, H)
            for m in range(M):
                for t in range(nt):
                    row = m * P + touched[cluster, t]
                    for a in range(Q):
                        b[row] -= B[a, m * nt + t] * own[a]
                    for k in range(M):
                        for s in range(nt):
                            A[row, k * P + touched[cluster, s]] -= BH[m * nt + t, k * nt + s]
            for a in range(Q):
                squares -= c_own[a] * own[a]
                g_all[cluster, a] = own[a]
                for h in range(Q):
                    G_all[cluster, a, h] = 0.5 * (G[a, h] + G[h, a])
                for h in range(M * nt):
                    H_all[cluster, a, h] = H[a, h]
        for t in range(nt):
            place[touched[cluster, t]] = -1

    V = np.zeros((D, D))
    for a in range(D):
        for h in range(D):
            V[a, h] = 0.5 * (A[a, h] + A[h, a]) * scale[a] * scale[h]
        V[a, a] += 1.0
        b[a] *= scale[a]
    root = np.linalg.cholesky(V)
    for a in range(D):
        log_det += 2.0 * np.log(root[a, a])
    Vi = np.linalg.inv(V)
    est = np.dot(Vi, b)
    for a in range(D):
        squares -= b[a] * est[a]
    value[0] = -0.5 * (seen * np.log(2.0 * np.pi) + log_det + squares)
    C = np.zeros((D, D))
    for a in range(D):
        for h in range(D):
            C[a, h] = 0.5 * (Vi[a, h] + Vi[h, a]) * scale[a] * scale[h]
            covariance[a // P, a % P, h // P, h % P] = C[a, h]
        theta[a // P, a % P] = est[a] * scale[a]

    grad_v[:] = 0.0
    grad_R[:] = 0.0
    if want == 0:
        return
    for m in range(M):
        for c in range(P):
            a = m * P + c
            grad_v[m, family[c]] += 0.5 * (est[a] * est[a] + Vi[a, a] - 1.0)

    coefficient = np.zeros((M, U))
    for cluster in range(L):
        nt = counts[cluster]
        mean = g_all[cluster].copy()
        K = np.zeros((Q, M * nt))
        cov = G_all[cluster].copy()
        if Q > 0:
            H = np.ascontiguousarray(H_all[cluster][:, : M * nt])
            C_here = np.zeros((M * nt, M * nt))
            there = np.zeros(M * nt)
            for m in range(M):
                for t in range(nt):
                    row = m * P + touched[cluster, t]
                    there[m * nt + t] = est[row] * scale[row]
                    for k in range(M):
                        for s in range(nt):
                            C_here[m * nt + t, k * nt + s] = C[row, k * P + touched[cluster, s]]
            K = np.dot(H, C_here)
            mean -= np.dot(H, there)
            cov += np.dot(K, H.T)
            for m in range(M):
                for c in range(q):
                    a = m * q + c
                    grad_v[m, zfamily[c]] += 0.5 * (mean[a] * mean[a] + cov[a, a] - 1.0)
        for t in range(nt):
            place[touched[cluster, t]] = t
        for i in range(start[cluster], start[cluster + 1]):
            n = T[i, 0, 0]
            if n <= 0.0:
                continue
            coefficient[:] = 0.0
            for m in range(M):
                for e in range(E):
                    if cols[i, e] >= 0:
                        coefficient[m, slot[e]] -= theta[m, cols[i, e]]
                for e in range(r):
                    if zcols[i, e] >= 0:
                        a = m * q + zcols[i, e]
                        coefficient[m, zslot[e]] -= zscale[a] * mean[a]
                coefficient[m, first + m] = 1.0
            expected = np.zeros((M, M))  # E[sum e e'] given the data
            for m in range(M):
                for k in range(M):
                    total = 0.0
                    for s in range(U):
                        if coefficient[m, s] != 0.0:
                            for t in range(U):
                                total += coefficient[m, s] * T[i, s, t] * coefficient[k, t]
                    for e in range(E):
                        ce = cols[i, e]
                        if ce < 0:
                            continue
                        for h in range(E):
                            if cols[i, h] >= 0:
                                total += T[i, slot[e], slot[h]] * C[m * P + ce, k * P + cols[i, h]]
                        for h in range(r):
                            if zcols[i, h] >= 0:
                                a = k * q + zcols[i, h]
                                total -= T[i, slot[e], zslot[h]] * zscale[a] * K[a, m * nt + place[ce]]
                    for e in range(r):
                        if zcols[i, e] < 0:
                            continue
                        a = m * q + zcols[i, e]
                        for h in range(E):
                            if cols[i, h] >= 0:
                                both = zscale[a] * T[i, zslot[e], slot[h]]
                                total -= both * K[a, k * nt + place[cols[i, h]]]
                        for h in range(r):
                            if zcols[i, h] >= 0:
                                j = k * q + zcols[i, h]
                                total += T[i, zslot[e], zslot[h]] * zscale[a] * zscale[j] * cov[a, j]
                    expected[m, k] = total
            g, o = group[i], pattern[i]
            for m in range(M):
                for k in range(M):
                    total = -n * W[g, o, m, k]
                    for s in range(M):
                        for t in range(M):
                            total += W[g, o, m, s] * expected[s, t] * W[g, o, t, k]
                    grad_R[g, m, k] += 0.5 * total
        for t in range(nt):
            place[touched[cluster, t]] = -1
