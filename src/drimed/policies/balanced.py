"""Draws for decisions that are taken together, so that each arm comes about as often as its chances say.

Each decision by itself is drawn as if it were alone: its uniform number is uniform whatever the others are, so that
every arm keeps exactly its probability. Together they lie evenly on the circle (systematic sampling; Madow and Madow
1944): the n numbers are 1 / n apart, and those of one block, in an order of its own, as far from each other as they
can be. Two plots of a block rarely both get the arm that has a small chance, and it is seldom missing altogether:
comparisons are made within blocks, which is where they tell most.

Shapes: n decisions, `...` is any batch of trials.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.errors import ShapeError
from drimed.linear.arrays import FloatArray, IntArray

NEEDED = 2  # uniforms of a decision: where it would lie alone, and its place in the order


def evenly(draws: FloatArray, site: Any, block: Any) -> FloatArray:
    """Uniform numbers of decisions at these sites and blocks, (n,) each: draws (..., n, 2 or more) -> (..., n).

    The first decision's first number turns the circle; the second numbers put the decisions in order.

    >>> draws = np.array([[0.1, 0.4], [0.7, 0.2], [0.3, 0.9], [0.6, 0.8]])
    >>> np.round(evenly(draws, np.array([0, 0, 1, 1]), 0), 2).tolist()
    [0.6, 0.1, 0.85, 0.35]
    """
    if draws.ndim < 2 or draws.shape[-1] < NEEDED:
        raise ShapeError(
            f"decisions that are spread evenly need {NEEDED} uniforms each, (..., n, {NEEDED}); got draws of shape "
            f"{draws.shape}: take policy.draws_needed(shape) of them"
        )
    n = draws.shape[-2]
    order = np.argsort(_wish(draws[..., 1], _places(n, site, block)), axis=-1, kind="stable")
    return np.asarray((draws[..., :1, 0] + _rank(order) / n) % 1.0)


def _wish(key: FloatArray, place: IntArray) -> FloatArray:
    """Where on the circle each decision should be: those of one place apart, the places one after the other: (..., n).

    A place with m decisions has them at 0, 1, ..., m - 1 of m parts, in the order of their keys, and each place a bit
    further on than the one before it, in the order of their smallest keys.
    """
    sizes = np.bincount(place)
    places, start = len(sizes), np.cumsum(sizes) - sizes
    order = np.argsort(place + key, axis=-1, kind="stable")  # by place, then by key
    turn = _rank(order) - start[place]
    least = np.take_along_axis(key, order[..., start], -1)  # (..., places)
    shift = (_rank(np.argsort(least, axis=-1, kind="stable")) + 0.5) / places
    return np.asarray((turn + shift[..., place]) / sizes[place])


def _rank(order: IntArray) -> IntArray:
    """The place of each in an order: the inverse of a permutation, on the last axis."""
    return np.argsort(order, axis=-1, kind="stable")


def _places(n: int, site: Any, block: Any) -> IntArray:
    """A number for each pair of site and block: (n,)."""
    pairs = np.stack([np.broadcast_to(np.asarray(a), n) for a in (site, block)], -1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)
