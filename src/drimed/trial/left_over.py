"""What a model leaves of a trial's outcomes, and whether it is wrong by that: the promise rests on what is left.

Shapes: n decisions, M metrics.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from drimed.evaluation.residual_checks import Check, Residuals, check_residuals
from drimed.learning.field.contrasts import Known
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.trial.described import beside, described
from drimed.trial.field_residuals import field_residuals
from drimed.trial.gather import Gathered
from drimed.trial.model_ranges import known, offers_now

ALPHA = 0.01  # false-alarm rate: the probability that a trial without drift ever raises an alarm


def wrong_because(left: Collection[Check]) -> str | None:
    """The clearest sign that ranges and promise rest on something false; None: there is no such sign."""
    return next((c.found for c in left if c.alarm and c.serious), None)


def model_is_wrong(seen: Gathered) -> str | None:
    """The same for a trial with a model of the field or of people, from all that was told so far."""
    found = known(seen.state, offers_now(seen.state)) if seen.state.users else None
    return None if found is None else wrong_because(left_by(seen, found))


def left_by(seen: Gathered, model: Known) -> tuple[Check, ...]:
    """What a model of the field or of people leaves."""
    terms = [f.name for f in model.structure.families]
    return residual_findings(seen, *field_residuals(seen, model), terms=terms)


def residual_findings(
    seen: Gathered,
    at: IntArray,
    values: FloatArray,
    *,
    design: FloatArray | None = None,
    fitted: FloatArray | None = None,
    terms: Collection[str] = (),
) -> tuple[Check, ...]:
    """What standardised residuals (len(at), M) of the decisions `at` show; NaN: none for this metric.

    They are independent and standard normal if the model is right, once a design is taken out where one is given.
    `terms` are the families that the model has ("season", "group", "group x arm", ...): the advice depends on them.
    """
    values = np.where(_fixed(seen, at), np.nan, values)
    people = [seen.state.profiles[int(s)] for s in seen.slot[at]]
    grouped, told = any(p.group is not None for p in people), beside(seen, at)
    residuals = Residuals(
        values=np.where(seen.observed[at], values, np.nan),
        metrics=tuple(seen.state.problem.metrics),
        arm=seen.arm[at],
        user=[p.user for p in people],
        group=[p.group or p.user for p in people] if grouped else None,
        season=seen.episode[at],
        order=seen.number[at],
        covariates=told.numbers,
        names=told.names,
        categories=told.categories,
        design=design,
        fitted=fitted,
        outcomes=seen.vector[at],
        decision=seen.number[at],
    )
    return check_residuals(residuals, model=described(seen.state, terms), alpha=ALPHA)


def _fixed(seen: Gathered, at: IntArray) -> BoolArray:
    """Metrics that have one value under each arm, such as a fixed cost: what is left of them is round-off. (M,)"""
    arm, fixed = seen.arm[at], np.full(seen.vector.shape[1], len(at) > 0)
    for k in np.unique(arm):
        y, there = seen.vector[at][arm == k], seen.observed[at][arm == k]
        fixed &= np.where(there, y, -np.inf).max(0) <= np.where(there, y, np.inf).min(0)
    return fixed
