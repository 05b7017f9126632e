"""The posterior of theta at all nodes, compiled; drimed.learning.field.likelihood says what it is.

What drimed.learning.field.kernels.evaluate computes for one set of variances, without what a gradient needs, is
computed here for all nodes at once. Cells and their columns are looked up once for all of them.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.lanes import add_blocks, add_crosses, all_in_units, all_triangulated, subtract, take_all
from drimed.learning.field.sums import (
    collected,
    collected_in_order,
    deviations,
    eliminated,
    entries,
    forget,
    inverses,
    rows_of,
    tell,
)
from drimed.linear.kernel import kernel


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], i8[:], i8[:], f8[:,:,:],"
    " f8[:,:,:,:], f8[:], f8[:,:,:], f8[:,:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(l),(p),(q),(t),(b,m,f),(b,g,m,m)->(b),(b,m,p),(b,m,p,m,p)",
)
def posterior(  # type: ignore[no-untyped-def]
    T, pattern, group, cols, slot, zcols, zslot, start, family, zfamily, touched_bound, v, R, value, theta, covariance
):  # fmt: skip
    L, P, q, B, M = start.shape[0] - 1, family.shape[0], zfamily.shape[0], v.shape[0], v.shape[1]
    spot, seen = np.full(P, -1, np.int64), np.empty(P, np.int64)  # of each column of theta; the column of each spot
    D = M * collected(T, cols, start[0], start[L], spot, seen)
    Qm, nm = M * q, min(M * touched_bound.shape[0], D)  # the most of one cluster
    ours, theirs = np.empty(nm, np.int64), np.empty(q, np.int64)
    place, zplace = np.full(P, -1, np.int64), np.full(q, -1, np.int64)
    room, zroom = np.empty((2, slot.shape[0]), np.int64), np.empty((2, zslot.shape[0]), np.int64)
    W, log_R = np.empty((R.shape[1], 1 << M, M, M, B)), np.empty((R.shape[1], 1 << M, B))
    for b in range(B):
        W[..., b], log_R[..., b] = inverses(R[b])
    S, A, taken = np.empty((Qm, Qm + nm + M, B)), np.zeros((D, D + M, B)), np.empty((nm, nm + M, B))
    dev, observed, log_det, squares = np.empty((Qm, B)), np.zeros(M), np.zeros(B), np.zeros((M, M, B))
    for cluster in range(L):
        nt = collected_in_order(T, cols, start[cluster], start[cluster + 1], place, seen, D // M, ours)
        nz = collected(T, zcols, start[cluster], start[cluster + 1], zplace, theirs)
        Q, n = M * nz, M * nt
        S[:Q, : Q + n + M] = 0.0
        for i in range(start[cluster], start[cluster + 1]):
            if T[i, 0, 0] > 0.0:
                w, logs, outcomes = W[group[i], pattern[i]], log_R[group[i], pattern[i]], T[i, -M:, -M:]
                for m in range(M):
                    if w[m, m, 0] > 0.0:
                        observed[m] += T[i, 0, 0]
                    for k in range(M):
                        for b in range(B):
                            squares[m, k, b] += w[m, k, b] * outcomes[m, k]
                for b in range(B):
                    log_det[b] += T[i, 0, 0] * logs[b]
                z = entries(zcols[i], zslot, zplace, M, zroom)
                add_blocks(T[i], w, entries(cols[i], slot, spot, M, room), A, D)
                add_blocks(T[i], w, z, S, Q + n)
                add_crosses(T[i], w, z, entries(cols[i], slot, place, M, room), S, Q)
        for b in range(B):
            dev[:Q, b] = deviations(v[b], zfamily, theirs, nz)
        all_in_units(S, Q, Q + n + M, dev)
        all_triangulated(S, Q, Q + n + M, log_det)
        take_all(S, Q, n, taken, squares)
        forget(place, ours, nt)
        forget(zplace, theirs, nz)
        rows_of(ours, nt, spot, M)
        subtract(A, D, ours[:n], taken, M)
    for b in range(B):
        left = squares[..., b].copy()
        devs, est, V, log = eliminated(A[..., b].copy(), D, v[b], family, seen, left)
        value[b] = -0.5 * (observed.sum() * np.log(2.0 * np.pi) + (log_det[b] + log) + left.sum())
        tell(est, V, devs, seen, (v[b], family), theta[b], covariance[b])
