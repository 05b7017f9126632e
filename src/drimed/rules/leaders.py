"""Several leaders: where arms tie for the lead, each of them leads in turn.

Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from drimed.learning.offer import Fit
from drimed.linear import forms
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick
from drimed.rules.rule import SAME, shared, tied


def behind_leaders(
    fit: Fit, x: FloatArray, mask: BoolArray | None
) -> Iterator[tuple[FloatArray, IntArray, FloatArray, FloatArray]]:
    """Each leader's share (..., 1) of the lead, and what `Fit.behind_leader` says of it: x (..., K, d).

    A leader is its row's first, second and so on of those that tie; rows with fewer have shares of 0 after the last.
    """
    first, gap, distance = fit.behind_leader(x, mask)
    near = gap <= SAME * np.sqrt(distance)  # no data can tell them apart
    lead = tied(fit.mean(x), mask) | (near if mask is None else near & mask)
    most = int(lead.sum(-1).max(initial=1))
    if most == 1:
        yield np.ones((*first.shape, 1)), first, gap, distance
        return
    share, gap = shared(lead), np.where(lead, 0.0, gap)
    order = np.argsort(~lead, axis=-1, kind="stable")  # those that tie come first
    there = forms.entries(x)  # often few: then each of many leaders costs little
    for nth in range(most):
        leader = order[..., nth]
        yield pick(share, leader)[..., None], leader, gap, forms.distances(x, there, leader, fit.V_inv)
