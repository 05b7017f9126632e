"""What a trial learns besides its arms, in the words of those who run it."""

from __future__ import annotations

from collections.abc import Iterator

from drimed.formatting import listed, number, short
from drimed.trial.parts import Model
from drimed.trial.spec import TrialSpec
from drimed.trial.state import TrialState

ROLES = {"level": "the outcomes of all arms", "effects": "the effects of arms", "noise": "how much outcomes scatter"}


def learned(state: TrialState) -> list[str]:
    """One sentence for each thing that may differ."""
    kind = state.spec.kind
    if kind == "paper":
        return ["Each arm has one mean outcome, the same for all users and in all seasons (the paper's model)."]
    model = state.spec.model
    said = list(_field(state, model) if kind == "field" else _people(state, model))
    said.append("How much of each there is, is learned from the data; what is not there shrinks to nothing.")
    said.append("All arms scatter alike." if model.noise == "common" else "Each arm scatters by an amount of its own.")
    if model.discount < 1:
        said.append(f"Older outcomes count less: {number(model.discount)} times as much with each season that passes.")
    return said


def joining(spec: TrialSpec) -> str:
    """Who takes part."""
    if not spec.enrols:
        return "Enrolment is closed: users are in the trial file, or added by hand."
    cohorts = f" Cohorts with defaults of their own: {', '.join(spec.cohorts)}." if spec.cohorts else ""
    return f"Enrolment is open: asking for somebody new enrols them.{cohorts}"


def covariates(state: TrialState) -> list[dict[str, str]]:
    """What is known about users and before decisions, and what it may change, for a table."""
    spec, known = state.spec, state.problem.covariates
    rows = []
    for source, those in (("user", known.attributes), ("context", known.fields)):
        for name, c in those.items():
            declared = (spec.attributes if source == "user" else spec.context).get(name)
            levels = c.levels if source == "context" or c.levels is None else tuple(state.numbers.levels.get(name, ()))
            rows.append(
                {
                    "name": name,
                    "source": "of the user" if source == "user" else "before each decision",
                    "unit": "" if declared is None else declared.unit,
                    "values": f"{short(c.typical)} is typical, ± {short(c.spread)}"
                    if levels is None
                    else ", ".join(levels) or "levels as they come",
                    "affects": ", ".join(ROLES[role] for role in c.roles.split()) or "nothing: it is only recorded",
                }
            )
    return rows


def _field(state: TrialState, model: Model) -> Iterator[str]:
    grouped = any(key.startswith("group/") for key in state.numbers.groups)
    site = "group of users" if grouped else "user"
    yield f"Each {site} has a level of its own, and effects of the arms of its own, around what all have in common."
    if grouped and len(state.users) > len(state.numbers.groups):
        yield "Users of one group differ in the same two ways."
    if model.seasons:
        yield (
            "Outcomes shift from season to season, everywhere at once and at each place by itself, and an arm may do "
            "better in one season than in another. What is reported and promised is about the average season."
        )
    else:
        yield "Seasons are taken to be alike: nothing shifts from one to the next."
    if state.numbers.blocks or any(user.blocks for user in state.spec.users.values()):
        yield "Blocks shift the outcomes of their plots, in each season anew."


def _people(state: TrialState, model: Model) -> Iterator[str]:
    yield (
        "Each person has a level of their own, and effects of the arms of their own, around what all have in common. "
        "Somebody new begins with what all have in common."
    )
    if 1 < state.numbers.places < len(state.users):
        yield "Groups, such as sites or clinics, differ in the same two ways."
    if model.seasons:
        yield "Outcomes of all may shift from season to season."
    known = state.problem.covariates
    numbers = [c.name for c in known.counted[0] if "effects" in c.roles]  # categories do the same to everybody
    if changing := [name for name in numbers if name in known.fields]:
        named = f"{listed(changing)} {'change' if len(changing) > 1 else 'changes'}"
        yield f"How {named} an arm's effect may differ from person to person."
    if lasting := [name for name in numbers if name in known.attributes]:
        # A person has one value of it: a slope of their own is one more effect of their own, times that value.
        are = "are" if len(lasting) > 1 else "is"
        yield f"People whose {listed(lasting)} {are} unusual may respond to the arms less like everybody else."
    if model.centred:
        yield "Nothing of a course that a person's outcomes take by themselves is taken for an effect (action-centred)."
