"""What one cluster adds to what is common: a user's own coefficients, given theta.

    v_h | theta, data = shift - gain theta + N(0, noise)

from the user's own cells alone, so that a decision costs the same whatever the number of users.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from drimed.learning.field_cells import FACTORS, Cells
from drimed.learning.field_likelihood import Design
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.kernel import kernel


class Own(NamedTuple):
    """A cluster's effects, linear in theta."""

    shift: FloatArray  # (..., M, q)
    gain: FloatArray  # (..., M, q, M, P)
    noise: FloatArray  # (..., M, q, M, q)


def belief(
    design: Design, v: FloatArray, R: FloatArray, X: FloatArray, Z: FloatArray, theta: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of rows X on theta and Z on a cluster's own effects: (..., K, M), (..., K, M, K, M).

    The design holds the cells of one cluster for each member; v, R, theta and covariance have an axis of nodes.
    """
    cells = (a[..., None, *(slice(None),) * core] for a, core in ((design.T, 3), (design.pattern, 1), (design.group, 1)))
    T, pattern, group = cells
    cols, zcols = design.cols[..., None, :, :], design.zcols[..., None, :, :]
    own = Own(*_own(T, pattern, group, cols, design.slot, zcols, design.zslot, design.family, design.zfamily, v, R))
    M = theta.shape[-2]
    through = -np.einsum("...kq,...mqnp->...kmnp", Z, own.gain)  # rows on theta that go by way of the own effects
    for m in range(M):
        through[..., m, m, :] += X
    mean = np.einsum("...kmnp,...np->...km", through, theta) + np.einsum("...kq,...mq->...km", Z, own.shift)
    half = np.einsum("...kmnp,...npor->...kmor", through, covariance)
    cov = np.einsum("...kmor,...ljor->...kmlj", half, through)
    return mean, cov + sandwich(Z, own.noise)


def sandwich(X: FloatArray, covariance: FloatArray) -> FloatArray:
    """X C X' for each pair of metrics: (..., K, P), (..., M, P, M, P) -> (..., K, M, K, M)."""
    half = np.einsum("...kp,...mpnq->...kmnq", X, covariance)
    return np.einsum("...kmnq,...lq->...kmln", half, X)


def of_users(cells: Cells, users: IntArray) -> Cells:
    """The cells of each user, from cells that are sorted by user: (..., N) and users (..., H) -> (..., H, n)."""
    at = FACTORS.index("user")
    label = np.where(cells.n > 0, cells.keys[..., at], np.iinfo(np.intp).max)
    first = (label[..., None, :] < users[..., None]).sum(-1)
    count = (label[..., None, :] == users[..., None]).sum(-1)
    n = max(int(count.max(initial=1)), 1)
    index = np.minimum(first[..., None] + np.arange(n), label.shape[-1] - 1)  # (..., H, n)
    there = np.arange(n) < count[..., None]
    lead = np.indices(cells.batch, sparse=True)
    lead = tuple(a[..., None, None] for a in lead)
    take = (*lead, index)
    return Cells(
        cells.keys[take],
        cells.pattern[take],
        np.where(there, cells.n[take], 0.0),
        cells.mean[take],
        cells.scatter[take],
        n,
    )


@kernel(
    "void(f8[:,:,:], i8[:], i8[:], i8[:,:], i8[:], i8[:,:], i8[:], i8[:], i8[:], f8[:,:], f8[:,:,:],"
    " f8[:,:], f8[:,:,:,:], f8[:,:,:,:])",
    "(n,u,u),(n),(n),(n,e),(e),(n,r),(r),(p),(q),(m,f),(g,m,m)->(m,q),(m,q,m,p),(m,q,m,q)",
)
def _own(T, pattern, group, cols, slot, zcols, zslot, family, zfamily, v, R, shift, gain, noise):  # type: ignore[no-untyped-def]
    N, U, _ = T.shape
    E, r, P, q, M = slot.shape[0], zslot.shape[0], family.shape[0], zfamily.shape[0], v.shape[0]
    Q, first = M * q, U - M
    S, B, c = np.eye(Q), np.zeros((Q, M * P)), np.zeros(Q)
    scale = np.zeros(Q)
    for m in range(M):
        for k in range(q):
            scale[m * q + k] = np.sqrt(v[m, zfamily[k]])
    index = np.zeros(M, np.int64)
    for i in range(N):
        if T[i, 0, 0] <= 0.0:
            continue
        count = 0
        for m in range(M):
            if (pattern[i] >> m) & 1:
                index[count] = m
                count += 1
        part = np.zeros((count, count))
        for a in range(count):
            for h in range(count):
                part[a, h] = R[group[i], index[a], index[h]]
        W = np.linalg.inv(part)
        for a in range(count):
            for h in range(count):
                w, m, k = W[a, h], index[a], index[h]
                for e in range(r):
                    if zcols[i, e] < 0:
                        continue
                    row = m * q + zcols[i, e]
                    ws = w * scale[row]
                    c[row] += ws * T[i, zslot[e], first + k]
                    for o in range(r):
                        if zcols[i, o] >= 0:
                            col = k * q + zcols[i, o]
                            S[row, col] += ws * scale[col] * T[i, zslot[e], zslot[o]]
                    for o in range(E):
                        if cols[i, o] >= 0:
                            B[row, k * P + cols[i, o]] += ws * T[i, zslot[e], slot[o]]
    G = np.linalg.inv(S)
    H = np.dot(G, B)
    s = np.dot(G, c)
    for a in range(Q):
        shift[a // q, a % q] = scale[a] * s[a]
        for h in range(Q):
            noise[a // q, a % q, h // q, h % q] = scale[a] * scale[h] * 0.5 * (G[a, h] + G[h, a])
        for h in range(M * P):
            gain[a // q, a % q, h // P, h % P] = scale[a] * H[a, h]
