"""The loops of the field model's likelihood, compiled; drimed.learning.field.likelihood says what they compute.

Sums over cells, the elimination of each cluster's own effects, and the pieces of the gradient. Indices: a cell has
columns `cols` of theta and `zcols` of its cluster's effects, each with a slot of the moments T; -1 is no column.
Columns that no cell has are left out: of theta altogether, of a cluster's effects in that cluster. What is left is
numbered anew, and rows and columns of matrices run over metrics last: M column + m.

A cluster's sums stand side by side, [S | B | c], with c by the metric whose outcomes it comes from, and so do those of
theta, [A | b]. While S = U'U is factored, B and c become U'^-1 B and U'^-1 c.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.curvature import add_common, add_local
from drimed.learning.field.residuals import add_squares, second_moments
from drimed.learning.field.sums import (
    add_block,
    add_cross,
    add_outcomes,
    collected,
    collected_in_order,
    deviations,
    eliminated,
    entries,
    forget,
    in_units,
    inside,
    inverses,
    rows_of,
    take,
    tell,
)
from drimed.learning.field.triangles import product, solved, triangulated, turned
from drimed.linear.kernel import kernel

POSTERIOR, GRADIENT, CURVATURE = 0, 1, 2  # what is wanted; the curvature comes with the gradient


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], i8[:], i8[:], f8[:,:],"
    " f8[:,:,:], i8, f8[:], f8[:,:], f8[:,:,:,:], f8[:,:], f8[:,:,:], f8[:,:], f8[:,:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(l),(p),(q),(t),(m,f),(g,m,m),()"
    "->(),(m,p),(m,p,m,p),(m,f),(g,m,m),(m,m),(m,m,f),(m,f,m,f)",
)
def evaluate(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, start, family, zfamily, touched_bound, v, R, want,
    value, theta, covariance, grad_v, grad_R, squares, by_unit, second,
):  # fmt: skip
    L, P, q, M, F = start.shape[0] - 1, family.shape[0], zfamily.shape[0], v.shape[0], v.shape[1]
    W, log_R = inverses(R)
    spot, seen = np.full(P, -1, np.int64), np.empty(P, np.int64)  # of each column of theta; the column of each spot
    D = M * collected(T, cols, start[0], start[L], spot, seen)
    Qm, nm = M * q, min(M * touched_bound.shape[0], D)  # the most of one cluster
    again = 0 if want == POSTERIOR else 1  # clusters are kept, and looked at again for the gradient
    sums = np.empty((again * (L - 1) + 1, Qm, Qm + nm + M))
    touched, own = np.empty((sums.shape[0], nm), np.int64), np.empty((sums.shape[0], q), np.int64)
    counts = np.zeros((sums.shape[0], 2), np.int64)
    place, zplace = np.full(P, -1, np.int64), np.full(q, -1, np.int64)
    A, taken = np.zeros((D, D + M)), np.empty((nm, nm + M))
    room, zroom = np.empty((2, slot.shape[0]), np.int64), np.empty((2, zslot.shape[0]), np.int64)
    observed, log_det = np.zeros(M), 0.0
    squares[:] = 0.0
    for cluster in range(L):
        at = again * cluster
        S, ours, theirs = sums[at], touched[at], own[at]
        nt = collected_in_order(T, cols, start[cluster], start[cluster + 1], place, seen, D // M, ours)
        nz = collected(T, zcols, start[cluster], start[cluster + 1], zplace, theirs)
        counts[at, 0], counts[at, 1] = nt, nz
        Q, n = M * nz, M * nt
        S[:Q, : Q + n + M] = 0.0
        for i in range(start[cluster], start[cluster + 1]):
            if T[i, 0, 0] > 0.0:
                w = W[group[i], pattern[i]]
                log_det += T[i, 0, 0] * log_R[group[i], pattern[i]]
                add_outcomes(T[i], w, observed, squares)
                z = entries(zcols[i], zslot, zplace, M, zroom)
                add_block(T[i], w, entries(cols[i], slot, spot, M, room), A, D)
                add_block(T[i], w, z, S, Q + n)
                add_cross(T[i], w, z, entries(cols[i], slot, place, M, room), S, Q)
        in_units(S, Q, Q + n + M, deviations(v, zfamily, theirs, nz))
        log_det += triangulated(S, Q, Q + n + M, 0.0, 1.0)
        take(S, Q, n, taken, squares)
        forget(place, ours, nt)
        forget(zplace, theirs, nz)
        rows_of(ours, nt, spot, M)
        for t in range(n):
            row, less = A[ours[t]], taken[t]
            for s in range(t, n):
                row[ours[s]] -= less[s]
            for m in range(M):
                row[D + m] -= less[n + m]

    dev, est, V, log = eliminated(A, D, v, family, seen, squares)
    log_det += log
    value[0] = -0.5 * (observed.sum() * np.log(2.0 * np.pi) + log_det + squares.sum())
    if want == POSTERIOR:
        tell(est, V, dev, seen, (v, family), theta, covariance)
        return

    grad_v[:], grad_R[:], by_unit[:], second[:] = 0.0, 0.0, 0.0, 0.0
    for a in range(D):
        f = family[seen[a // M]]
        grad_v[a % M, f] += 0.5 * (est[a] * est[a] + V[a, a] - 1.0)
        for m in range(M):
            by_unit[m, a % M, f] -= 0.5 * est[a] * A[a, D + m]
    single = M == 1 and R.shape[0] == 1
    X, HV, VH, N = np.empty((nm, nm)), np.empty((Qm, nm)), np.empty((nm, Qm)), np.empty((Qm, Qm))
    C, G, mean = np.empty((Qm, Qm)), np.empty((Qm, Qm)), np.empty((L, Qm))
    means, moments, bends = np.empty(nm + Qm), np.empty((nm + Qm, nm + Qm)), np.zeros((M * F, M * F))
    for at in range(L):
        S, ours, theirs, mine = sums[at], touched[at], own[at], mean[at]
        Q, n = M * counts[at, 1], M * counts[at, 0]
        for t in range(n):
            row = ours[t]
            for s in range(n):
                X[t, s] = V[row, ours[s]]
            for a in range(Q):
                S[a, Q + t] *= dev[row]
                for m in range(M):
                    S[a, Q + n + m] -= S[a, Q + t] * A[row, D + m]
        solved(S, Q, S, Q + n, Q + n + M)
        product(S, Q, Q, n, X, n, HV)
        turned(HV, Q, n, VH)
        product(S, Q, Q, n, VH, Q, N)
        inside(S, Q, N, C)
        for a in range(Q):
            f = zfamily[theirs[a // M]]
            mine[a] = 0.0
            for m in range(M):
                mine[a] += S[a, Q + n + m]
            grad_v[a % M, f] += 0.5 * (mine[a] * mine[a] + C[a, a] - 1.0)
            for m in range(M):
                by_unit[m, a % M, f] -= 0.5 * mine[a] * S[a, Q + n + m]
        if not single:
            solved(S, Q, HV, 0, n)
            for t in range(n // M):
                place[seen[ours[M * t] // M]] = t
            for t in range(Q // M):
                zplace[theirs[t]] = t
            zdev = deviations(v, zfamily, theirs, Q // M)
            second_moments((est, X, dev, ours[:n]), (mine, C, zdev), HV, moments, means)
            for i in range(start[at], start[at + 1]):
                if T[i, 0, 0] > 0.0:
                    x, z = entries(cols[i], slot, place, M, room), entries(zcols[i], zslot, zplace, M, zroom)
                    add_squares(T[i], W[group[i], pattern[i]], x, z, n, (means, moments), grad_R[group[i]])
            for t in range(n // M):
                place[seen[ours[M * t] // M]] = -1
            forget(zplace, theirs, Q // M)
        if want >= CURVATURE:
            solved(S, Q, S, Q, Q + n)
            N[:Q, :Q] = 0.0
            inside(S, Q, N, G)
            add_local(C, G, mine, (theirs, zfamily), Q, M, bends)
    if single:  # scaling outcomes is scaling all variances: what is left of it is the residual's share
        grad_R[0, 0, 0] = (0.5 * (squares[0, 0] - observed[0]) - grad_v.sum()) / R[0, 0, 0]
    if want >= CURVATURE:
        add_common(V, est, (family, seen), (zfamily, own), (sums, touched, counts, mean), M, bends)
        for a in range(M * F):
            for h in range(M * F):
                second[a // F, a % F, h // F, h % F] = bends[a, h]
            second[a // F, a % F, a // F, a % F] += grad_v[a // F, a % F]


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], f8[:,:,:], f8[:,:,:,:],"
    " f8[:,:,:], f8[:,:,:,:,:], f8[:,:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(p),(q),(b,m,f),(b,g,m,m)->(b,m,q),(b,m,q,m,p),(b,m,q,m,q)",
)
def own(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, family, zfamily, v, R, shift, gain, noise
):  # fmt: skip
    """One cluster's effects at each node, given theta: drimed.learning.field.likelihood.Own."""
    P, q, M = family.shape[0], zfamily.shape[0], v.shape[1]
    Q, n, everywhere, all_own = M * q, M * P, np.arange(P), np.arange(q)
    S, N, G = np.empty((Q, Q + n + M)), np.empty((Q, Q)), np.empty((Q, Q))
    room, zroom = np.empty((2, slot.shape[0]), np.int64), np.empty((2, zslot.shape[0]), np.int64)
    shift[:] = 0.0
    for b in range(v.shape[0]):
        W, _ = inverses(R[b])
        dev = deviations(v[b], zfamily, all_own, q)
        S[:], N[:] = 0.0, 0.0
        for i in range(T.shape[0]):
            if T[i, 0, 0] > 0.0:
                w = W[group[i], pattern[i]]
                z = entries(zcols[i], zslot, all_own, M, zroom)
                add_block(T[i], w, z, S, Q + n)
                add_cross(T[i], w, z, entries(cols[i], slot, everywhere, M, room), S, Q)
        in_units(S, Q, Q + n + M, dev)
        triangulated(S, Q, Q + n + M, 0.0, 1.0)
        solved(S, Q, S, Q, Q + n + M)
        inside(S, Q, N, G)
        for a in range(Q):
            m, col = a % M, a // M
            for k in range(M):
                shift[b, m, col] += dev[a] * S[a, Q + n + k]
                for h in range(q):
                    noise[b, m, col, k, h] = dev[a] * dev[M * h + k] * G[a, M * h + k]
                for h in range(P):
                    gain[b, m, col, k, h] = dev[a] * S[a, Q + M * h + k]
