"""In how many seasons arms were seen: one season alone cannot tell an arm from what that season did to it.

Where a season has effects on single arms (season x arm), all that one season says of an arm rests on how much such
effects are believed to vary. So an arm is called better or worse only where it and its control were seen in
`records.ENOUGH_SEASONS` seasons. What a season does to an arm is common to all sites: seasons count over the whole
trial, whoever is asked about. Shapes: leading `...` is any batch; H users, K arms, M metrics, "on" the reward and then
each metric: 1 + M.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.learning.field.cells import FACTORS, Cells
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, IntArray
from drimed.records import ENOUGH_SEASONS

SEASON, ARM = FACTORS.index("season"), FACTORS.index("arm")
MANY = np.iinfo(np.intp).max  # seasons of what does not count


def seasons_of_both(
    learner: Field, evidence: FieldEvidence, offers: Offer, before: int | None = None
) -> IntArray | None:
    """Seasons with outcomes of each arm, or of the user's control if these are fewer: (..., H, K, 1 + M).

    None where no season has effects on single arms. For the reward, the metric that was seen in fewest counts. Only
    seasons `before` this one, from 0, count, or (None) all.
    """
    structure = learner.structure(evidence)
    if not any({"season", "arm"} <= set(f.by) for f in structure.families):
        return None
    K = offers.control.shape[-1]
    seen = seasons(evidence.cells, K, structure.metrics, before)[..., None, :, :]  # (..., 1, K, M)
    control = np.where(offers.control[..., None] > 0, seen, MANY).min(-2, keepdims=True)  # (..., H, 1, M)
    both = np.minimum(seen, control)
    p = np.ones(1) if offers.preference is None else offers.preference[..., None, :]
    return np.concatenate([np.where(p != 0, both, MANY).min(-1, keepdims=True), both], -1)


def is_confirmed(learner: object, evidence: Any, offers: Offer) -> BoolArray:
    """Whether something may be said of each arm on the reward of each user: (..., H, K), or () where of all."""
    found = seasons_of_both(learner, evidence, offers) if isinstance(learner, Field) else None
    return np.asarray(True if found is None else found[..., 0] >= ENOUGH_SEASONS)


def seasons(cells: Cells, arms: int, metrics: int, before: int | None = None) -> IntArray:
    """In how many seasons each metric of each arm was observed: (..., K, M)."""
    own = cells.live()
    season, arm = own.keys[..., SEASON], own.keys[..., ARM]  # (..., N)
    observed = (own.pattern[..., None] >> np.arange(metrics)) & 1  # (..., N, M)
    *member, cell, metric = np.nonzero((own.n[..., None] > 0) & (observed > 0))
    there = np.zeros((*cells.batch, 1 + int(season.max(initial=0)), arms, metrics), bool)
    at = (*member, cell)
    there[(*member, season[at], arm[at], metric)] = True
    return np.asarray(there[..., :before, :, :].sum(-3), np.intp)
