"""How much longer than a normal's the tails of an effect are, because the variances themselves are uncertain.

With certain variances an effect is normal, of some variance v. Over the nodes of the variances (average.py) it is a
mixture of normals: its kurtosis is 3 (1 + c), c the squared coefficient of variation of v, which is that of Student's
distribution with 4 + 2 / c degrees of freedom. At a node v is 1 / (1 / prior variance + what the data told), and what
they told is about the same at all of them.
Shapes: H offers, K arms, M metrics, B nodes, F families, P columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drimed.learning.field.terms import Layout, Unmet
from drimed.linear.arrays import FloatArray

LEAST = 1e-6  # a squared coefficient of variation that makes no difference


def freedom(squares: FloatArray, variance: FloatArray, posterior: FloatArray) -> FloatArray:
    """Degrees of freedom for all effects of an offer together, infinite where the variances do not matter: (..., H).

    An effect's prior variance is `squares` (..., H, K, F) times the families' variances (..., B, M, F), and `posterior`
    (..., H, K, M) what is left of it.
    """
    B, M, F = variance.shape[-3:]
    flat = variance.reshape(*variance.shape[:-3], 1, B * M, F)
    prior = np.matmul(squares, np.swapaxes(flat, -1, -2))
    left = at_each(prior.reshape(*prior.shape[:-1], B, M), posterior)
    first, second = (left.mean(-2) ** 2).sum((-2, -1)), (left**2).mean(-2).sum((-2, -1))
    return student(first, second)


def of_sums(squares: FloatArray, variance: FloatArray, posterior: FloatArray) -> FloatArray:
    """The same for each of n sums over metrics: squares (..., n, M, F), variances (..., B, M, F) -> (..., n)."""
    flat, of_node = (a.reshape(*a.shape[:-2], -1) for a in (squares, variance))
    prior = np.matmul(flat, np.swapaxes(of_node, -1, -2))  # (..., n, B)
    left = at_each(prior[..., None], posterior[..., None])[..., 0]
    return student(left.mean(-1) ** 2, (left**2).mean(-1))


def at_each(prior: FloatArray, posterior: FloatArray) -> FloatArray:
    """What is left of prior variances (..., B, M) at every node, if on average it is (..., M)."""
    mean = prior.mean(-2)
    open_ = (mean > 0) & (posterior > 0)
    told = np.where(open_, 1 / np.where(open_, posterior, 1.0) - 1 / np.where(open_, mean, 1.0), 0.0)
    return np.asarray(prior / (1 + prior * np.maximum(told, 0.0)[..., None, :]))


def student(first: FloatArray, second: FloatArray) -> FloatArray:
    """Degrees of freedom from the squared mean of v and the mean of its square."""
    spread = second / np.where(first > 0, first, 1.0) - 1
    told = (first > 0) & (spread > LEAST)
    return np.where(told, 4 + 2 / np.where(told, spread, 1.0), np.inf)


def squares(layout: Layout, rows: FloatArray, unmet: Sequence[Unmet] = ()) -> FloatArray:
    """By families, what a variance counts in each arm against the mean of all arms: rows (..., K, P) -> (..., K, F)."""
    K = rows.shape[-2]
    found = by_family(layout, _centred(rows) ** 2)
    for part in unmet:
        if part.by_arm:
            size = (part.weight**2).sum(-1)
            found[..., part.family] += (1 - 2 / K) * size + size.sum(-1, keepdims=True) / K**2
        else:
            found[..., part.family] += (_centred(part.weight) ** 2).sum(-1)
    return found


def by_family(layout: Layout, columns: FloatArray) -> FloatArray:
    """The sums of each family's columns: (..., P) -> (..., F)."""
    of_family = layout.family[:, None] == np.arange(len(layout.families))
    return np.matmul(columns, of_family.astype(np.float64))


def centred_variance(covariance: FloatArray) -> FloatArray:
    """The variance of each arm against the mean of all arms: (..., K, M, K, M) -> (..., K, M)."""
    blocks = np.moveaxis(np.diagonal(covariance, axis1=-3, axis2=-1), -1, -3)  # (..., M, K, K)
    mean = blocks.mean(-1)
    own = np.diagonal(blocks, axis1=-2, axis2=-1) - 2 * mean + mean.mean(-1, keepdims=True)
    return np.swapaxes(np.maximum(own, 0.0), -1, -2)


def _centred(rows: FloatArray) -> FloatArray:
    return rows - rows.mean(-2, keepdims=True)
