"""The array types used everywhere, and the few operations on batches that NumPy does not spell out.

Shapes: leading `...` is any batch. Contractions go through gufuncs (matvec, vecdot, matmul), which treat
each member of a batch alone: the result of a member does not depend on its neighbours, to the last bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]


def pick(array: NDArray[Any], index: IntArray) -> NDArray[Any]:
    """array[..., index, *rest] for an index per member of the batch: (..., K, *rest), (...) -> (..., *rest).

    >>> pick(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([1, 0]))
    array([2., 3.])
    """
    if index.ndim == 0:
        return np.asarray(array[int(index)])
    if array.shape[: index.ndim] != index.shape:
        array = np.broadcast_to(array, index.shape + array.shape[index.ndim :])
    if index.ndim == 1:
        return array[np.arange(index.shape[0]), index]
    return array[(*np.indices(index.shape, sparse=True), index)]


def pick_shared(array: NDArray[Any], index: IntArray, core: int) -> NDArray[Any]:
    """`pick` from an array with `core` axes per member (K among them), which a whole batch may share.

    >>> pick_shared(np.array([1.0, 2.0]), np.array([1, 0, 1]), 1)
    array([2., 1., 2.])
    """
    if array.ndim - core != index.ndim:
        array = np.broadcast_to(array, index.shape + array.shape[array.ndim - core :])
    return pick(array, index)


def outer(u: FloatArray, v: FloatArray) -> FloatArray:
    """u v^T: (..., d), (..., d) -> (..., d, d)."""
    return u[..., :, None] * v[..., None, :]
