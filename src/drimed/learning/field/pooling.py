"""How much of what is known about a user's effects comes from its own outcomes, and how much from the others'.

Information is the inverse of a variance; without the unit's own outcomes some of it is left. With the variances as they
were learned, the share that is its own is 1 - (variance with all outcomes) / (variance without its own).
Shapes: n units, H users, K arms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from drimed.learning.field import cells as field_cells
from drimed.learning.field import contrasts
from drimed.learning.field import design as field_design
from drimed.learning.field.cells import FACTORS, Cells
from drimed.learning.field.contrasts import Known, effect_rows, some_of, worth
from drimed.learning.field.likelihood import evaluate
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray

MOST = 60  # units for each of which the model is fitted without its outcomes


@dataclass(frozen=True)
class Pooling:
    """Of a unit's effects on the reward."""

    own: FloatArray  # (n, K), the share of their information that is its own; NaN where an arm is its control
    outcomes: FloatArray  # (n, K), how many it has under each arm


def pooling(known: Known, offers: Offer, factor: str, members: Sequence[Sequence[int]]) -> Pooling | None:
    """Of units, the values of a factor ("group" or "user") that these users have; None where there are too many."""
    keys, _ = known.learner._asked(known.evidence, offers, together=True)
    place = FACTORS.index(factor)
    units = [int(keys[some[0], 0, place]) for some in members]
    counts = np.stack([_count(known.evidence.cells, place, unit, known.structure.arms) for unit in units])
    if known.structure.cluster == factor:
        return Pooling(_of_people(known, offers), counts)
    if len(units) > MOST or known.structure.cluster == "user":
        return None
    cells = field_cells.compact(known.evidence.cells, known.structure.cluster_place)
    whole = _covariance(known, cells)
    shares = []
    for unit, some in zip(units, members, strict=True):
        without = _covariance(known, cells.at(np.flatnonzero(cells.keys[:, place] != unit)))
        theirs = some_of(offers, list(some))
        p = np.ones((len(some), 1)) if theirs.preference is None else theirs.preference
        rows = worth(known, effect_rows(known, theirs), p[:, None, :])[:, :, 0].mean(0)  # (K, M, P)
        shares.append(_share(*(replace(known, covariance=C).of(rows).deviation for C in (whole, without))))
    return Pooling(np.stack(shares), counts)


def _of_people(known: Known, offers: Offer) -> FloatArray:
    """Of users whose effects are not in theta: against somebody of whom nothing was observed."""
    if offers.unit is None:
        return np.full((len(offers.control), known.structure.arms), np.nan)
    stranger = replace(offers, unit=replace(offers.unit, user=np.full(len(offers.control), -1)))
    return _share(*(contrasts.of_users(known, o).deviation[..., 0] for o in (offers, stranger)))


def _share(whole: FloatArray, without: FloatArray) -> FloatArray:
    ratio = (whole / np.where(without > 0, without, 1.0)) ** 2
    return np.where(without > 0, np.clip(1 - ratio, 0.0, 1.0), np.nan)


def _covariance(known: Known, cells: Cells) -> FloatArray:
    """Of theta given these outcomes and the variances as they are most plausible: (M, P, M, P)."""
    structure, learned = known.structure, known.evidence.learned
    x = learned.nodes.mean(-2)
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    season = cells.keys[:, FACTORS.index("season")]
    weight = known.learner.discount ** (season.max(initial=0) - season).astype(float)
    design = field_design.build(cells, known.scale, known.layout, structure.own, noise=structure.noise, weight=weight)
    return evaluate(design, v, R, gradient=False).covariance


def _count(cells: Cells, place: int, unit: int, arms: int) -> FloatArray:
    """Outcomes of a unit by arm: (K,)."""
    own = cells.live()
    mine = own.keys[:, place] == unit
    return np.bincount(own.keys[mine, FACTORS.index("arm")], own.n[mine], arms)[:arms]
