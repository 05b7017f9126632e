"""What a model of the field leaves of the outcomes, for the checks.

Shapes: n decisions, M metrics, K arms.
"""

from __future__ import annotations

import numpy as np

from drimed.learning.field.cells import Rows
from drimed.learning.field.contrasts import Known
from drimed.learning.field.model import make_rows
from drimed.learning.field.whitening import evenly, residuals
from drimed.learning.offer import Outcome
from drimed.linear.arrays import FloatArray, IntArray
from drimed.trial.gather import Gathered


def field_residuals(seen: Gathered, known: Known) -> tuple[IntArray, FloatArray]:
    """Decisions with outcomes, or evenly spaced ones of many, and their standardised residuals: (n,), (n, M).

    A control plot comes before the plot beside it, so that what both share is taken out.
    """
    M = known.structure.metrics
    paired = bool(np.isfinite(seen.plot).any())
    told = np.flatnonzero(seen.told)
    at = told[evenly(len(told), M * (2 if paired else 1))]
    decided, beside = outcome_rows(seen, known, at)
    order = [decided] if beside is None else [beside, decided]
    rows = Rows(*(np.concatenate(parts) for parts in zip(*((r.keys, r.pattern, r.values) for r in order), strict=True)))
    return at, residuals(known.learner, known.evidence, rows)[len(rows.pattern) - len(at) :]


def outcome_rows(seen: Gathered, known: Known, at: IntArray) -> tuple[Rows, Rows | None]:
    """The outcomes of decisions, and those of the control plots beside them."""
    structure, reading, problem = known.structure, known.learner._reading, seen.state.problem
    kept: list[list[Rows]] = [[], []]
    places = []
    for episode in np.unique(seen.episode[at]):
        some = at[seen.episode[at] == episode]
        places.append(some)
        contexts = [None if seen.context is None else seen.context[i] for i in some]
        profiles = [seen.state.profiles[int(s)] for s in seen.slot[some]]
        offers = problem.offer(profiles, contexts, [None] * len(some), seen.block[some].tolist())
        control = np.where(np.isfinite(seen.plot[some]), seen.plot[some], 0.0)
        plots = np.isfinite(seen.plot[some])
        outcome = Outcome(
            vector=seen.vector[some] + control,
            observed=seen.observed[some],
            control=control if plots.any() else None,
            control_observed=plots,
        )
        found = reading.told(offers, seen.arm[some], outcome, int(episode) - 1)
        for part, told in enumerate(found):
            kept[part].append(make_rows(structure, told.keys, told.y, told.covariates, told.observed))
    order = np.argsort(np.concatenate(places), kind="stable") if places else np.zeros(0, np.intp)
    return _joined(kept[0], structure.metrics, order), _joined(kept[1], structure.metrics) if kept[1] else None


def _joined(parts: list[Rows], metrics: int, order: IntArray | None = None) -> Rows:
    if not parts:
        return Rows(np.zeros((0, 1), np.intp), np.zeros(0, np.intp), np.zeros((0, metrics)))
    keys, pattern, values = (
        np.concatenate(column) for column in zip(*((r.keys, r.pattern, r.values) for r in parts), strict=True)
    )
    return Rows(keys, pattern, values) if order is None else Rows(keys[order], pattern[order], values[order])
