"""Offers that are alike: users with the same wishes and arms are decided for once, and drawn for one by one.

Shapes: n users, K arms.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from drimed.guards.guard import Draw
from drimed.learning.offer import Floor, Offer, Seen
from drimed.linear.arrays import FloatArray, IntArray
from drimed.linear.pmf import sample

# What rules and guards without a memory look at, and how many axes one user's has.
_SEEN = {
    "features": 2,
    "control": 1,
    "sigma": 1,
    "maps": 3,
    "whitening": 3,
    "scale": 0,
    "preference": 1,
    "available": 1,
}
WORTH = 2  # times as many users as different offers, from where on it pays


def distinct(offers: Offer) -> tuple[Offer, IntArray] | None:
    """One of each kind, and the place among them of each offer (n,); None where most of them differ."""
    n = offers.features.shape[0] if offers.features.ndim == _SEEN["features"] + 1 else 1
    floor = offers.floor
    own: dict[str, FloatArray] = {}
    for name, axes in _SEEN.items():
        array = getattr(offers, name)
        if array is not None and array.ndim == axes + 1 and array.shape[0] == n > 1:
            own[name] = array
    limits = {} if floor is None else {"control": np.asarray(floor.control), "arms": np.asarray(floor.arms)}
    flat = [np.ascontiguousarray(array).reshape(n, -1) for array in (*own.values(), *limits.values()) if array.ndim]
    kinds: dict[bytes, int] = {}
    place = np.array([kinds.setdefault(b"".join(part[h].tobytes() for part in flat), len(kinds)) for h in range(n)])
    if len(kinds) * WORTH > n:
        return None
    first = np.unique(place, return_index=True)[1]
    kept: dict[str, Any] = {name: array[first] for name, array in own.items()}
    if floor is not None:
        kept["floor"] = Floor(**{name: array[first] if array.ndim else array for name, array in limits.items()})
    return replace(offers, **kept, user=np.zeros(1, np.intp), unit=None, context=None), place


def drawn(kinds: Draw, place: IntArray, draws: FloatArray, seen: Seen) -> Draw:
    """An arm of its own for each user, by the probabilities of its kind: draws (n, ...)."""
    p = kinds.probabilities[place]
    return Draw(
        sample(p, draws[..., 0]),
        p,
        kinds.reason_code[place],
        kinds.exact,
        None if kinds.share is None else kinds.share[place],
        None if kinds.certified is None else kinds.certified[place],
        seen,
    )
