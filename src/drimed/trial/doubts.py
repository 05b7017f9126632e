"""What is asked about before somebody is decided for: values that are unlikely, and plots that nobody declared.

A question at the door only: what was recorded once is never asked about again, and a replay asks nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from drimed.errors import UnconfirmedError, UnknownNameError
from drimed.records import Fault, Path
from drimed.trial import unlikely
from drimed.trial.numbers import block_key
from drimed.trial.parts import Attribute, ContextField
from drimed.trial.plots import Place
from drimed.trial.state import TrialState


def settle(faults: Iterable[Fault], *, confirm: bool) -> None:
    """Go on if there is nothing to ask about, or somebody says that it is right."""
    found = [] if confirm else list(faults)
    if found:
        raise UnconfirmedError(found)


def of_contexts(state: TrialState, contexts: Mapping[str, Mapping[str, Any]], *, new: bool) -> Iterator[Fault]:
    """Of contexts that are sound; `new`: of an episode that begins, so that what the open one has does not count."""
    fields = list(state.problem.fields)
    for user, values in contexts.items():
        known = None if new else state.episode.contexts.get(user)
        for name, value in values.items():
            if known is None or known[fields.index(name)] != value:
                yield from _of_value(user, name, value, state.spec.context[name], ("contexts", user, name))


def of_attributes(state: TrialState, user: str, values: Mapping[str, Any] | None, at: Path) -> Iterator[Fault]:
    """Of the attributes of somebody who joins."""
    for name, value in (values or {}).items():
        declared, path = state.spec.attributes.get(name, Attribute()), (*at, "attributes", name)
        yield from _of_value(user, name, value, declared, path)
        levels = state.numbers.levels.get(name, declared.levels or ())
        if declared.levels and isinstance(value, str) and value not in levels:
            message = str(UnknownNameError("level", value, levels))
            yield Fault(path, f"user {user!r}: {name}: {message}; it becomes a new level if that is right")


def of_plots(state: TrialState, places: Sequence[Place]) -> Iterator[Fault]:
    """Of plots that a user does not have, in a block that it does not have either."""
    for place in places:
        own = state.profile(place.user).definition.block_of() if place.user in state.users else {}
        if not own or place.plot in own or block_key(place.user, str(place.block)) in state.numbers.blocks:
            continue
        message = str(UnknownNameError("plot", str(place.plot), own))
        yield Fault(
            ("plots", place.user, str(place.plot)),
            f"user {place.user!r}: {message}; it becomes a new plot of a new block {place.block!r} if that is right",
        )


def _of_value(user: str, name: str, value: Any, declared: Attribute | ContextField, path: Path) -> Iterator[Fault]:
    if isinstance(value, int | float) and (reason := unlikely.why_known(declared, float(value))):
        yield Fault(path, f"user {user!r}: {name} {value:g} {reason}", severity="unlikely")
