"""A trial's model as a line of R, for those who want to fit it to an export themselves.

lme4 takes the arms' common effects as fixed and plugs the variances in, so its numbers are close to ours, not equal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from drimed.trial.state import TrialState

_PLAIN = re.compile(r"[A-Za-z][A-Za-z0-9._]*")


def line(state: TrialState, metric: str) -> str | None:
    """R code that fits the model to one metric of an export; None: it has no such form."""
    spec = state.spec
    if spec.kind == "paper" or spec.feedback == "difference":
        return None
    right = " + ".join(["action", *_covariates(state), *_varying(state)])
    return f"lme4::lmer({_name(f'metric_{metric}')} ~ {right}, data = {_data(spec.control)})"


def _data(control: object) -> str:
    """The export; effects are against the control, where there is one, not against the first of the alphabet."""
    read = "read.csv(FILE, check.names = FALSE)"
    if not isinstance(control, str):
        return read
    return f"transform({read}, action = relevel(factor(action), {json.dumps(control, ensure_ascii=False)}))"


def _covariates(state: TrialState) -> Iterator[str]:
    for name, roles in _named(state):
        if "level" in roles:
            yield name
        if "effects" in roles:
            yield f"action:{name}"


def _varying(state: TrialState) -> Iterator[str]:
    """What has a level and effects of its own, and what a season shares."""
    users, groups = len(state.users), state.numbers.places
    seasons = state.spec.model is not None and state.spec.model.seasons
    field = state.spec.kind == "field"
    for factor, there in (("group", field or 1 < groups < users), ("user", not field or users > groups)):
        if there:
            yield f"(1 | {factor}) + (1 | {factor}:action)"
    if seasons:
        yield "(1 | episode)"
    if seasons and field:
        yield "(1 | episode:group) + (1 | episode:action)"
    if field and state.numbers.blocks:
        yield "(1 | episode:user:block)"
    if not field:
        yield from (f"(0 + {name} | user:action)" for name, roles in _named(state, numbers=True) if "effects" in roles)


def _named(state: TrialState, *, numbers: bool = False) -> Iterator[tuple[str, list[str]]]:
    """The columns of attributes and context fields, with what each affects."""
    covariates = state.problem.covariates
    for prefix, those in (("attribute", covariates.attributes), ("context", covariates.fields)):
        for name, covariate in those.items():
            if not numbers or covariate.levels is None:
                yield _name(f"{prefix}_{name}"), covariate.roles.split()


def _name(column: str) -> str:
    return column if _PLAIN.fullmatch(column) else f"`{column}`"
