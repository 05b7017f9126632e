"""Beliefs about users who have effects of their own, from their own cells and what is common."""

from __future__ import annotations

import numpy as np

from drimed.learning.field_cells import FACTORS, Cells
from drimed.learning.field_likelihood import Own
from drimed.linear.arrays import FloatArray, IntArray


def belief(
    own: Own, X: FloatArray, Z: FloatArray, theta: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of rows X on theta and Z on a user's own effects: (..., K, M), (..., K, M, K, M)."""
    through = -np.einsum("...kq,...mqnp->...kmnp", Z, own.gain)  # rows on theta that go by way of the own effects
    for m in range(theta.shape[-2]):
        through[..., m, m, :] += X
    mean = np.einsum("...kmnp,...np->...km", through, theta) + np.einsum("...kq,...mq->...km", Z, own.shift)
    half = np.einsum("...kmnp,...npor->...kmor", through, covariance)
    return mean, np.einsum("...kmor,...ljor->...kmlj", half, through) + sandwich(Z, own.noise)


def sandwich(X: FloatArray, covariance: FloatArray) -> FloatArray:
    """X C X' for each pair of metrics: (..., K, P), (..., M, P, M, P) -> (..., K, M, K, M)."""
    half = np.einsum("...kp,...mpnq->...kmnq", X, covariance)
    return np.asarray(np.einsum("...kmnq,...lq->...kmln", half, X))


def of_users(cells: Cells, users: IntArray) -> Cells:
    """The cells of each user, from cells that are sorted by user: (..., N) and users (..., H) -> (..., H, n)."""
    at = FACTORS.index("user")
    label = np.where(cells.n > 0, cells.keys[..., at], np.iinfo(np.intp).max)
    first = (label[..., None, :] < users[..., None]).sum(-1)
    count = (label[..., None, :] == users[..., None]).sum(-1)
    n = max(int(count.max(initial=1)), 1)
    index = np.minimum(first[..., None] + np.arange(n), label.shape[-1] - 1)  # (..., H, n)
    there = np.arange(n) < count[..., None]
    take = (*(a[..., None, None] for a in np.indices(cells.batch, sparse=True)), index)
    return Cells(
        cells.keys[take],
        cells.pattern[take],
        np.where(there, cells.n[take], 0.0),
        cells.mean[take],
        cells.scatter[take],
        n,
    )
