"""How much of what is known about a user's effects comes from its own outcomes, and how much from the others'.

Information is the inverse of a variance; without the unit's own outcomes some of it is left. With the variances as they
were learned, the share that is its own is 1 - (variance with all outcomes) / (variance without its own).
Shapes: n units, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from drimed.learning.field import contrasts
from drimed.learning.field.cells import FACTORS, Cells
from drimed.learning.field.contrasts import Known
from drimed.learning.field.model import learn_again
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray

MOST = 60  # units for each of which the model is fitted without its outcomes


@dataclass(frozen=True)
class Pooling:
    """Of units' effects on the reward."""

    own: FloatArray  # (n, K), the share of their information that is its own; NaN where an arm is its control
    outcomes: FloatArray  # (n, K), how many it has under each arm


def of_users(known: Known, offers: Offer) -> Pooling | None:
    """Of each user; None where there are too many.

    Many people, who have effects of their own, are compared with somebody who has the same attributes and no outcomes:
    what is common to all hardly depends on one of them.
    """
    keys, _ = known.asked(offers)
    units, H = keys[:, 0, FACTORS.index("user")], len(offers.control)
    cells = known.evidence.cells.live()
    counts = np.stack([_count(cells, "user", int(unit), known.structure.arms) for unit in units])
    whole = _fitted(known, offers, cells)
    now = contrasts.of_users(whole, offers).deviation[..., 0]
    if H <= MOST:
        lost = []
        for h, unit in enumerate(units):
            one = offers.take([h])
            without = _fitted(known, one, _others(cells, "user", int(unit)))
            lost.append(contrasts.of_users(without, one).deviation[0, :, 0])
        return Pooling(_share(now, np.stack(lost)), counts)
    if known.structure.cluster != "user" or offers.unit is None:
        return None
    stranger = replace(offers, unit=replace(offers.unit, user=np.full(H, -1)))
    return Pooling(_share(now, contrasts.of_users(whole, stranger).deviation[..., 0]), counts)


def of_groups(known: Known, offers: Offer, members: Sequence[Sequence[int]]) -> Pooling | None:
    """Of groups of users together, each all of one site; None where there are too many."""
    if len(members) > MOST:
        return None
    keys, _ = known.asked(offers)
    cells = known.evidence.cells.live()
    whole = _fitted(known, offers, cells)
    shares, counts = [], []
    for some in members:
        group, theirs = int(keys[some[0], 0, FACTORS.index("group")]), offers.take(list(some))
        everybody = np.ones((len(some), known.structure.arms), bool)
        without = _fitted(known, theirs, _others(cells, "group", group))
        now, lost = (contrasts.together(k, theirs, everybody).deviation[:, 0] for k in (whole, without))
        shares.append(_share(now, lost))
        counts.append(_count(cells, "group", group, known.structure.arms))
    return Pooling(np.stack(shares), np.stack(counts))


def _fitted(known: Known, offers: Offer, cells: Cells) -> Known:
    """What these outcomes tell with the variances as they are most plausible."""
    evidence = known.evidence
    one = replace(evidence.learned, nodes=evidence.learned.mode[None])
    cells, learned = learn_again(known.structure, cells, one, known.learner.discount)
    return contrasts.know(known.learner, replace(evidence, cells=cells, learned=learned, stepped=cells.used), offers)


def _others(cells: Cells, factor: str, unit: int) -> Cells:
    return cells.at(np.flatnonzero(cells.keys[:, FACTORS.index(factor)] != unit))


def _share(now: FloatArray, lost: FloatArray) -> FloatArray:
    ratio = (now / np.where(lost > 0, lost, 1.0)) ** 2
    return np.where(lost > 0, np.clip(1 - ratio, 0.0, 1.0), np.nan)


def _count(cells: Cells, factor: str, unit: int, arms: int) -> FloatArray:
    """Outcomes of a unit by arm: (K,)."""
    mine = cells.keys[:, FACTORS.index(factor)] == unit
    return np.asarray(np.bincount(cells.keys[mine, FACTORS.index("arm")], cells.n[mine], arms), np.float64)
