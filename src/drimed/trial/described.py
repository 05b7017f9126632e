"""What the checks of residuals are told of a trial: what its file says of the model, and what is known of its users.

Shapes: n decisions, c covariates.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np

from drimed.evaluation.residual_checks import DeclaredCovariate, ModelDescription
from drimed.linear.arrays import FloatArray, IntArray
from drimed.trial.gather import Gathered
from drimed.trial.state import TrialState


class Beside(NamedTuple):
    """What is known beside the outcomes: context fields, and attributes of users."""

    names: tuple[str, ...]
    numbers: FloatArray  # (n, c)
    categories: dict[str, list[str]]  # (n,) each


def described(state: TrialState, terms: Collection[str] = ()) -> ModelDescription:
    """Of a trial whose model has these families."""
    spec, known = state.spec, state.problem.covariates
    model = spec.model
    tables = (("attributes", known.attributes), ("context", known.fields))
    return ModelDescription(
        kind=spec.kind,
        terms=frozenset(terms),
        covariates={
            c.name: DeclaredCovariate(f"{table}.{c.name}", frozenset(c.roles.split()))
            for table, covariates in tables
            for c in covariates.values()
        },
        seasons=model.seasons,
        arm_noise=model.noise == "arm" or bool(spec.noise.arms),
        arm_attributes=any(arm.attributes for arm in spec.arms.values()),
        difference=spec.feedback == "difference",
        discount=model.discount < 1,
    )


def beside(seen: Gathered, at: IntArray) -> Beside:
    """What is known of the decisions `at`. A number that nobody gave is the typical one."""
    known = seen.state.problem.covariates
    numbers, categories = dict[str, FloatArray](), dict[str, list[str]]()
    given = [seen.state.profiles[int(s)].definition.attributes or {} for s in seen.slot[at]]
    for c in known.attributes.values():
        if c.levels is None:
            numbers[c.name] = np.array([float(own.get(c.name, c.typical)) for own in given])
        else:
            categories[c.name] = [str(own.get(c.name, "")) for own in given]
    for i, c in enumerate(known.fields.values()):
        if seen.context is None:
            break
        if c.levels is None:
            numbers[c.name] = seen.context[at, i]
        else:
            categories[c.name] = [str(c.recorded(v)) for v in seen.context[at, i]]
    columns = np.stack(list(numbers.values()), 1) if numbers else np.zeros((len(at), 0))
    return Beside(tuple(numbers), columns, categories)
