"""Beliefs about users who have effects of their own, from their own cells and what is common."""

from __future__ import annotations

import numpy as np

from drimed.learning.field.cells import Cells, init
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
    M, P = covariance.shape[-2:]
    lead = covariance.shape[:-4]
    half = np.matmul(X[..., None, :, :], covariance.reshape(*lead, M, P, M * P))  # (..., M, K, M P)
    half = half.reshape(*half.shape[:-1], M, P)
    whole = np.matmul(half, np.swapaxes(X, -1, -2)[..., None, None, :, :])  # (..., M, K, M, K)
    return np.moveaxis(whole, (-4, -3, -2, -1), (-3, -4, -1, -2))


def of_clusters(cells: Cells, place: int, clusters: IntArray) -> Cells:
    """The cells of each cluster, by factor number `place`: (..., N) cells and clusters (..., H) -> (..., H, n)."""
    cells = cells.live()
    label = cells.keys[..., place]
    if not cells.batch and clusters.size < label.size:  # most cells are not theirs
        theirs = np.flatnonzero(np.isin(label, clusters) if clusters.size > 1 else label == clusters.ravel()[0])
        cells, label = cells.at(theirs), label[theirs]
    match = (label[..., None, :] == clusters[..., None]) & (cells.n > 0)[..., None, :]  # (..., H, N)
    found = np.nonzero(match)
    count = match.sum(-1)
    n = max(int(count.max(initial=0)), 1)
    if not len(found[0]):  # nothing to take
        return init(cells.mean.shape[-1], clusters.shape, 1, cells.keys.shape[-1])
    index = np.zeros((*match.shape[:-1], n), np.intp)
    before = np.cumsum(count.ravel()) - count.ravel()  # of each cluster's first among all that were found
    owner = np.ravel_multi_index(found[:-1], match.shape[:-1])
    index.reshape(-1, n)[owner, np.arange(len(owner)) - before[owner]] = found[-1]
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
