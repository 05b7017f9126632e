"""Beliefs about users who have effects of their own, from their own cells and what is common."""

from __future__ import annotations

import numpy as np

from drimed.learning.field.cells import FACTORS, Cells, init
from drimed.learning.field.likelihood import Own
from drimed.linear.arrays import FloatArray, IntArray


def belief(
    own: Own, X: FloatArray, Z: FloatArray, theta: FloatArray, covariance: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and covariance of rows X on theta and Z on a user's own effects: (..., K, M), (..., K, M, K, M)."""
    rows = through(own, X, Z)
    mean = np.einsum("...kmnp,...np->...km", rows, theta) + np.einsum("...kq,...mq->...km", Z, own.shift)
    half = np.einsum("...kmnp,...npor->...kmor", rows, covariance)
    return mean, np.einsum("...kmor,...ljor->...kmlj", half, rows) + sandwich(Z, own.noise)


def through(own: Own, X: FloatArray, Z: FloatArray) -> FloatArray:
    """Rows on theta, directly and by way of the own effects: (..., K, P), (..., K, q) -> (..., K, M, M, P)."""
    rows = -np.einsum("...kq,...mqnp->...kmnp", Z, own.gain)
    for m in range(rows.shape[-2]):
        rows[..., m, m, :] += X
    return rows


def sandwich(X: FloatArray, covariance: FloatArray) -> FloatArray:
    """X C X' for each pair of metrics: (..., K, P), (..., M, P, M, P) -> (..., K, M, K, M)."""
    half = np.einsum("...kp,...mpnq->...kmnq", X, covariance)
    return np.asarray(np.einsum("...kmnq,...lq->...kmln", half, X))


def of_clusters(cells: Cells, factor: str, clusters: IntArray) -> Cells:
    """The cells of each cluster: (..., N) cells and clusters (..., H) -> (..., H, n)."""
    label = cells.keys[..., FACTORS.index(factor)]
    match = (label[..., None, :] == clusters[..., None]) & (cells.n > 0)[..., None, :]  # (..., H, N)
    count = match.sum(-1)
    n = max(int(count.max(initial=0)), 1)
    index = np.zeros((*match.shape[:-1], n), np.intp)
    found = np.nonzero(match)
    rank = (np.cumsum(match, -1) - 1)[found]
    index[(*found[:-1], rank)] = found[-1]
    there = np.arange(n) < count[..., None]
    if not cells.n.shape[-1]:  # nothing to take from
        return init(cells.mean.shape[-1], clusters.shape, 1)
    take = (*(a[..., None, None] for a in np.indices(cells.batch, sparse=True)), index)
    return Cells(
        cells.keys[take],
        cells.pattern[take],
        np.where(there, cells.n[take], 0.0),
        cells.mean[take],
        cells.scatter[take],
        n,
    )
