"""What is wrong with names that enter a trial: twins, names that clash with columns of sheets, what cannot be seen.

Only what is new is checked: a trial that exists keeps its names. The same holds for weights that reward what the file
calls worse.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from drimed.records import Fault, Path
from drimed.trial.codes import code_faults
from drimed.trial.columns import CODE, PARTS, RESERVED
from drimed.trial.names import folded, hidden, tidy
from drimed.trial.parts import Name, User
from drimed.trial.sentences import NAME_RULE
from drimed.trial.spec import TrialSpec

PREFIXES = tuple(f"{part}." for part in PARTS)
_PROSE = ("about", "unit")  # fields that hold no names
_NAME: TypeAdapter[str] = TypeAdapter(Name)


def tidied(data: Any, at: Path = ()) -> tuple[Any, list[Fault]]:
    """Plain data with every name in its one form, and the names that have become equal by that."""
    if isinstance(data, str):
        return tidy(data), []
    if isinstance(data, list | tuple):
        pairs = [tidied(value, (*at, i)) for i, value in enumerate(data)]
        return type(data)(value for value, _ in pairs), [fault for _, faults in pairs for fault in faults]
    if not isinstance(data, Mapping):
        return data, []
    found: dict[Any, Any] = {}
    faults: list[Fault] = []
    for key, value in data.items():
        name = tidy(key) if isinstance(key, str) else key
        if name in found:
            faults.append(Fault((*at, name), f"is the same name as another one here: both are {name!r}"))
        found[name], more = (value, []) if key in _PROSE else tidied(value, (*at, name))
        faults += more
    return found, faults


def tidy_user(definition: User | Mapping[str, Any]) -> Any:
    """The description of somebody who joins, with every name in its one form."""
    return definition if isinstance(definition, User) else tidied(definition)[0]


def first_faults(spec: TrialSpec) -> Iterator[Fault]:
    """What is wrong with the names of a trial that is about to be created, and with its weights."""
    yield from _column_faults(spec)
    for part, names in (("arms", spec.arms), ("users", spec.users), ("cohorts", spec.cohorts)):
        for name in names:
            yield from _seen(name, (part, name))
    for part, declared in (("context", spec.context), ("attributes", spec.attributes)):
        for name, field in declared.items():
            for i, level in enumerate(field.levels or ()):
                yield from _seen(level, (part, name, "levels", i))
    for name, cohort in spec.cohorts.items():
        yield from _seen(cohort.group or "", ("cohorts", name, "group"))
        yield from direction_faults(spec, cohort.preference or {}, ("cohorts", name, "preference"))
    for name, user in spec.users.items():
        yield from user_names(user, ("users", name))
        yield from direction_faults(spec, user.preference or {}, ("users", name, "preference"))
    yield from direction_faults(spec, spec.preference or {}, ("preference",))
    yield from code_faults(spec)


def name_faults(name: str, at: Path) -> Iterator[Fault]:
    """What is wrong with the name of a user, an arm or a plot that is added later."""
    try:
        _NAME.validate_python(name)
    except ValidationError:
        yield Fault(at, f"{NAME_RULE}, got {name!r}")
        return
    yield from _seen(name, at)


def user_names(user: User, at: Path) -> Iterator[Fault]:
    """What is wrong with the names in a user's description."""
    yield from _seen(user.group or "", (*at, "group"))
    for name, value in (user.attributes or {}).items():
        if isinstance(value, str):
            yield from _seen(value, (*at, "attributes", name))
    where = "plots" if user.blocks is None else "blocks"
    for plot, block in user.block_of().items():
        for name in (plot, block or ""):
            yield from _seen(name, (*at, where))


def direction_faults(spec: TrialSpec, preference: Mapping[str, float], at: Path) -> Iterator[Fault]:
    """Weights that reward what the file says is worse: the trial would seek harm."""
    for name, weight in preference.items():
        metric = spec.metrics.get(name)
        if metric is None or "better" not in metric.model_fields_set:
            continue
        if (metric.better == "lower" and weight > 0) or (metric.better == "higher" and weight < 0):
            other = "higher" if metric.better == "lower" else "lower"
            yield Fault(
                (*at, name),
                f"[metrics.{name}] says that {metric.better} is better, and a weight of {weight:g} seeks the opposite: "
                f'write {-weight:g}, or better = "{other}"',
            )


def _column_faults(spec: TrialSpec) -> Iterator[Fault]:
    """Metrics, context fields and attributes are columns of one sheet: each has a name of its own."""
    users = (name for user in spec.users.values() for name in user.attributes or ())
    attributes = dict.fromkeys([*spec.attributes, *users])
    seen: dict[str, tuple[str, str]] = {}
    for part, names in (("metrics", spec.metrics), ("context", spec.context), ("attributes", attributes)):
        for name in names:
            at = _place(spec, part, name)
            yield from _seen(name, at)
            key = folded(name)
            coded = key == CODE and spec.blinding is not None
            if key in RESERVED or key.startswith(PREFIXES) or coded:
                yield Fault(at, f"{name!r} is what sheets call a column of their own: choose another name")
            elif key in seen:
                other = ".".join(seen[key])
                yield Fault(at, f"{name!r} and {other} would be one column of a sheet: choose another name")
            seen.setdefault(key, (part, name))


def _place(spec: TrialSpec, part: str, name: str) -> Path:
    """Where a name is first given."""
    if part != "attributes" or name in spec.attributes:
        return (part, name)
    first = next(user for user, given in spec.users.items() if name in (given.attributes or {}))
    return ("users", first, "attributes", name)


def _seen(name: str, at: Path) -> Iterator[Fault]:
    if (character := hidden(name)) is not None:
        yield Fault(
            at, f"has a character that cannot be seen or acts on others ({character}): write {name!r} without it"
        )
