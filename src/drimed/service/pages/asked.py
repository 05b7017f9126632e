"""What the form for asking says: who is asked for, and what is known about them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drimed.errors import BatchError, InputError, UnknownNameError
from drimed.records import Fault
from drimed.service.pages.route import Visit, whole
from drimed.trial import asking, plots, queries, roster
from drimed.trial.names import tidy
from drimed.trial.state import TrialState
from drimed.trial.tables.cells import TYPED

About = dict[str, dict[str, Any]]  # user -> what is known


@dataclass(frozen=True)
class Typed:
    """What a form says, as the trial takes it."""

    users: list[str]
    contexts: About
    enrol: About
    plots: dict[str, Any]


def typed(visit: Visit, state: TrialState) -> Typed:
    """Users, and their contexts (`c:<place>:<field>`). Users that have their decisions already need no context."""
    asked = Typed([], {}, {}, {})
    faults: list[Fault] = []
    begins = state.episode.number == 0 or whole(visit.field("episode")) == state.episode.number + 1
    for at, chosen in _chosen(visit):
        name = asking.known_name(state, chosen)
        asked.users.append(name)
        if name not in state.users and not (at == "one" and state.spec.enrols):
            faults.append(Fault(("users", name), str(UnknownNameError("user", name, state.users))))
            continue
        if at == "one":
            faults += _described(visit, state, name, asked)
        texts = {field: visit.field(f"c:{at}:{field}") for field in state.problem.fields}
        decided = not begins and name in state.users and _decided(state, name, asked.plots.get(name))
        if not decided or any(texts.values()):
            found, wrong = _values(state, name, "contexts", texts)
            # What the form showed of the season is nobody's word about a decision that was taken with another context.
            if found and not (decided and found == _opened_with(state, name)):
                asked.contexts[name] = found
            faults += wrong
            missing = [field for field, text in texts.items() if not text]
            faults += [Fault(("contexts", name, f), f"user {name!r} needs a value for {f}") for f in missing]
    if faults:
        raise BatchError(faults)
    if not asked.users:
        raise InputError("choose at least one user")
    return asked


def _described(visit: Visit, state: TrialState, name: str, asked: Typed) -> list[Fault]:
    """Attributes (`a:<name>`), cohort, group and plot of the one that is typed; what is left empty is left out."""
    texts = {a: visit.field(f"a:{a}") for a in state.problem.covariates.attributes}
    attributes, faults = _values(state, name, "enrol", {a: text for a, text in texts.items() if text})
    about: dict[str, Any] = {"attributes": attributes} if attributes else {}
    words = ("cohort",) if name in state.users else ("cohort", "group")
    if about := about | {word: visit.field(word) for word in words if visit.field(word)}:
        asked.enrol[name] = about
    group = visit.field("group")
    if group and name in state.users and group != state.profile(name).group:
        there = state.profile(name).group
        faults.append(
            Fault(("enrol", name, "group"), f"user {name!r} joined in {f'group {there}' if there else 'no group'}")
        )
    plot, block = visit.field("plot"), visit.field("block")
    if plot:
        asked.plots[name] = {block: [plot]} if block else [plot]
    elif block:
        faults.append(Fault(("plots", name), f"user {name!r}: a block needs a plot"))
    return faults


def _values(state: TrialState, name: str, part: str, texts: Mapping[str, str]) -> tuple[dict[str, Any], list[Fault]]:
    """Texts as values, and what is wrong with them; empty ones are left out."""
    found: dict[str, Any] = {}
    faults = []
    for field, text in texts.items():
        try:
            if text:
                found[field] = roster.value(state, field, text, TYPED)
        except InputError as error:
            path = ("contexts", name, field) if part == "contexts" else ("enrol", name, "attributes", field)
            faults.append(Fault(path, f"user {name!r}: {error}"))
    return found, faults


def _decided(state: TrialState, name: str, wanted: Any) -> bool:
    return all(place.key in state.episode.asked for place in plots.places(state, name, wanted))


def _opened_with(state: TrialState, name: str) -> dict[str, Any] | None:
    there = state.episode.contexts.get(name)
    return None if there is None else queries.context_of(state, there)


def place(visit: Visit, fault: Fault) -> str:
    """The input that a fault belongs to."""
    what, name, field, last = (*map(str, fault.path), "", "", "", "")[:4]
    if what in ("season", "date"):
        return what
    at = next((at for at, chosen in _chosen(visit) if name in (chosen, tidy(chosen))), None)
    if at is None:
        return ""
    if what == "contexts" and field:
        return f"c:{at}:{field}"
    if at != "one":
        return f"user:{at}"
    if what == "plots":
        return "plot"
    if what == "enrol" and field == "attributes":
        return f"a:{last}" if last else ""
    return field if what == "enrol" and field in ("cohort", "group") else "one"


def _chosen(visit: Visit) -> list[tuple[str, str]]:
    """Users that were ticked (`user` is `<place>:<name>`) or typed (`one`), with the place of each in the form."""
    typed = [f"one:{visit.field('one')}"] if visit.field("one") else []
    pairs = [str(value).partition(":")[::2] for value in [*visit.form.getlist("user"), *typed]]
    return [(at, name.strip()) for at, name in pairs if name.strip()]
