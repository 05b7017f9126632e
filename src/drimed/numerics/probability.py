"""Probability mass functions over arms, with exact sampling from one uniform draw, and quantiles of Student's t.

Shapes: (..., K). A mask is True where an arm may be used; None means every arm.
"""

from __future__ import annotations

import numpy as np
from scipy.special import stdtrit

from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.numerics.compiled import kernel


def one_hot(index: IntArray, K: int) -> FloatArray:
    """All mass on one arm: (...) -> (..., K)."""
    return (index[..., None] == np.arange(K)).astype(np.float64)


def uniform(shape: tuple[int, ...], mask: BoolArray | None = None) -> FloatArray:
    """Equal mass on the allowed arms."""
    if mask is None:
        return np.full(shape, 1.0 / shape[-1])
    allowed = mask if mask.shape == shape else np.broadcast_to(mask, shape)
    return allowed / allowed.sum(-1, keepdims=True)


def best(values: FloatArray, mask: BoolArray | None = None) -> IntArray:
    """The allowed arm of largest value; ties go to the lowest index."""
    return (values if mask is None else np.where(mask, values, -np.inf)).argmax(-1)


def student_quantile(level: FloatArray | float, freedom: FloatArray | float) -> FloatArray | float:
    """Quantile of Student's distribution of variance one, with more than 2 degrees of freedom; infinite: normal."""
    return np.sqrt(1 - 2 / np.asarray(freedom)) * stdtrit(freedom, level)


@kernel("void(f8[:], f8[:], f8[:])", "(k),(k)->(k)")
def weighted(q, log_weight, p):  # type: ignore[no-untyped-def]
    """q times exp(log_weight), normalised; computed so that large negative weights do not underflow to 0/0."""
    top, total = -np.inf, 0.0
    for k in range(q.shape[0]):
        if q[k] > 0.0:
            top = max(top, log_weight[k])
    for k in range(q.shape[0]):
        p[k] = q[k] * np.exp(log_weight[k] - top) if q[k] > 0.0 else 0.0
        total += p[k]
    for k in range(q.shape[0]):
        p[k] /= total


@kernel("void(f8[:], f8, i8[:])", "(k),()->()")
def sample(p, u, arm):  # type: ignore[no-untyped-def]
    """The arm whose interval of the cumulative sum contains u in [0, 1): (..., K), (...) -> (...).

    An arm of probability zero is never returned, except the first one where no arm has a chance.
    """
    total, arm[0] = 0.0, 0
    for k in range(p.shape[0]):
        total += p[k]
    cumulative = 0.0
    for k in range(p.shape[0]):
        cumulative += p[k]
        if p[k] > 0.0:
            arm[0] = k  # the last possible arm, should round-off leave u * total at the very end
            if u * total < cumulative:
                return
