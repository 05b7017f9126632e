"""What is wrong with a trial file's model, attributes, context fields, cohorts and plots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields

from drimed.learning.learner import Learner
from drimed.records import Fault, Path
from drimed.trial.covariates import Covariates
from drimed.trial.parts import PAPER, Attribute, ContextField, Model, User
from drimed.trial.spec import TrialSpec

# What the regression of the paper's model can be told; learners of the field find it out.
_OF_THE_PAPER = {f.name for f in fields(Learner)} - {"delta"}


def model_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What the model of this trial does not know, and covariates that are declared wrongly."""
    if spec.kind == "paper":
        yield from _beyond_the_paper(spec)
    else:
        yield from _of_the_paper(spec)
    for name, attribute in spec.attributes.items():
        yield from _covariate_faults(attribute, ("attributes", name))
    for name, field in spec.context.items():
        yield from _covariate_faults(field, ("context", name))
    covariates = Covariates(spec)
    for name, user in spec.users.items() if spec.kind != "paper" else ():
        yield from covariates.faults(user.attributes or {}, ("users", name, "attributes"))


def place_faults(user: User, at: Path) -> Iterator[Fault]:
    """What is wrong with a user's blocks and plots."""
    if user.blocks is not None and user.plots is not None:
        yield Fault((*at, "plots"), "give blocks with their plots, or plots, not both")
    where = "plots" if user.blocks is None else "blocks"
    named = [("", user.plots)] if user.blocks is None else list(user.blocks.items())
    if (user.plots is not None or user.blocks is not None) and not all(plots for _, plots in named):
        yield Fault((*at, where), "must name at least one plot, in each block")
    seen: set[str] = set()
    for block, plots in named:
        for plot in plots or ():
            if plot in seen:
                path = (*at, where, block) if block else (*at, where)
                yield Fault(path, f"plot {plot!r} comes twice: each plot of a user needs a name of its own, such as A1")
            seen.add(plot)


def _of_the_paper(spec: TrialSpec) -> Iterator[Fault]:
    """What only the paper's model knows."""
    model = spec.model
    if spec.noise.kind == "known":
        yield Fault(("noise", "kind"), f"this model learns the noise; for noise that is known {PAPER}")
    for name, arm in spec.arms.items():
        if arm.map is not None:
            yield Fault(("arms", name, "map"), f"this model has no maps: describe the arms by attributes, or {PAPER}")
    for setting in spec.policy.settings:
        if setting == "discount":
            yield Fault(("policy", setting), "belongs to the model: give it under [model]")
        elif setting in _OF_THE_PAPER:
            yield Fault(("policy", setting), f"this model finds it out by itself: leave it out, or {PAPER}")
    if model.balanced and spec.has_exact_rule:
        yield Fault(
            ("model", "balanced"),
            "an exact stopping rule needs decisions that are drawn one by one: leave it out, or use "
            'evidence = "propensities"',
        )


def _beyond_the_paper(spec: TrialSpec) -> Iterator[Fault]:
    """What the paper's model, one mean for each arm, has no place for."""
    model, usual = spec.model, Model()
    other = 'the paper\'s model has no place for it: leave it out, or write kind = "field" or "people"'
    for name in ("seasons", "noise", "discount", "balanced"):
        if getattr(model, name) != getattr(usual, name):
            hint = "give it under [policy]" if name == "discount" else other
            yield Fault(("model", name), hint)
    for name in spec.attributes:
        yield Fault(("attributes", name), other)
    for name, user in spec.users.items():
        if user.attributes:
            yield Fault(("users", name, "attributes"), other)
    for name, field in spec.context.items():
        if field.levels is not None:
            yield Fault(("context", name, "levels"), other)
        if field.affects is not None and field.affects != ["noise"]:
            yield Fault(("context", name, "affects"), f'must be ["noise"] in the paper\'s model, got {field.affects}')


def _covariate_faults(declared: Attribute | ContextField, at: Path) -> Iterator[Fault]:
    if declared.levels is not None:
        for name in ("typical", "spread"):
            if name in declared.model_fields_set:
                yield Fault((*at, name), "belongs to a number; a category has levels only")
        if isinstance(declared, ContextField) and not declared.levels:
            yield Fault((*at, "levels"), "must not be empty: a context has one of these levels")
        if _twice(declared.levels):
            yield Fault((*at, "levels"), "must differ from each other")
        if declared.affects is not None and "noise" in declared.affects:
            yield Fault((*at, "affects"), "a category affects the level and the effects, not the noise")
    if declared.affects is not None and _twice(declared.affects):
        yield Fault((*at, "affects"), "must name each at most once")


def _twice(names: Iterable[str]) -> bool:
    names = list(names)
    return len(set(names)) < len(names)
