"""Who joins a trial: users that are added, and those who are enrolled when somebody asks for them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from drimed.errors import ConflictError, InputError, SpecError
from drimed.records import Fault, Path
from drimed.trial import allowed, doubts
from drimed.trial import events as kinds
from drimed.trial.events import Draft
from drimed.trial.name_faults import direction_faults, name_faults, tidy_user, user_names
from drimed.trial.names import tidy
from drimed.trial.parts import User
from drimed.trial.sentences import readable
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction

Definition = User | Mapping[str, Any]


def enrol(tx: Transaction, users: Sequence[str], definitions: Mapping[str, Definition]) -> None:
    """Record those of the users who are new, all or none; with closed enrolment nobody is."""
    state = tx.state
    for name in definitions:
        if name not in users:
            raise InputError(f"user {name!r} is described, and nothing is asked for them", ("enrol", name))
    found: list[Fault] = []
    new: dict[str, User] = {}
    for name in users:
        at: Path = ("enrol", name)
        try:
            user = valid(User, tidy_user(definitions.get(name, {})), at)
        except SpecError as error:
            found += error.faults
            continue
        if name in state.users:
            _agrees(state, name, user, at)
        elif state.spec.enrols:
            new[name] = user
    found += [f for name, user in new.items() for f in _faults(state, name, user, ("enrol", name), new)]
    allowed.sound(found)
    tx.append([_draft(state, name, user) for name, user in new.items()])


def doubts_of(state: TrialState, definitions: Mapping[str, Definition]) -> Iterator[Fault]:
    """What to ask about those who are new, once they are found to be sound."""
    for name, definition in definitions.items():
        if name not in state.users:
            given = definition.attributes if isinstance(definition, User) else definition.get("attributes")
            yield from doubts.of_attributes(state, name, given, ("enrol", name))


def lacking(state: TrialState, users: Collection[str]) -> dict[str, int]:
    """How many of these users came without a number that counts: a typical one is taken for them."""
    found: dict[str, int] = {}
    for name, known in state.problem.covariates.attributes.items():
        if known.roles and known.levels is None and not known.needed:
            found[name] = sum(name not in (state.profile(user).definition.attributes or {}) for user in users)
    return {name: count for name, count in found.items() if count}


def add_user(tx: Transaction, name: str, user: Definition, *, confirm: bool = False) -> None:
    """Add a user; unlikely attributes are refused with UnconfirmedError unless `confirm` is set."""
    state, name = tx.state, tidy(name)
    at = ("users", name)
    definition = valid(User, tidy_user(user), at)
    allowed.new_user(state, name)
    allowed.sound(_faults(state, name, definition, at, {}))
    doubts.settle(doubts.of_attributes(state, name, definition.attributes, at), confirm=confirm)
    tx.append([_draft(state, name, definition)])


def valid(kind: Any, value: Any, at: Path) -> Any:
    """A part of a trial; SpecError says which fields are wrong."""
    if isinstance(value, kind):
        return value
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        raise SpecError([Fault((*at, *f.path), f.message) for f in readable(error, kind)]) from None


def _faults(state: TrialState, name: str, user: User, at: Path, others: Mapping[str, User]) -> Iterator[Fault]:
    yield from name_faults(name, ("name",) if at[0] == "users" else at)
    yield from user_names(user, at)
    yield from direction_faults(state.spec, user.preference or {}, (*at, "preference"))
    yield from allowed.user_faults(state, user, at, others.values())


def _draft(state: TrialState, name: str, user: User) -> Draft:
    allowed.not_retired(state, state.problem.profile(name, user, len(state.profiles)))
    return Draft(kinds.USER, {"definition": user.model_dump(mode="json", exclude_none=True)}, user=name)


def _agrees(state: TrialState, name: str, user: User, at: Path) -> None:
    """Somebody who is known may be described again, but not differently."""
    known, spec = state.profile(name).definition, state.spec
    for attribute, value in (user.attributes or {}).items():
        if (before := (known.attributes or {}).get(attribute)) != value:
            raise ConflictError(
                f"user {name!r} joined with {attribute} = {before!r}, and {value!r} is another value; what changes "
                "from decision to decision belongs into the context",
                (*at, "attributes", attribute),
            )
    if user.cohort is not None and user.cohort != known.cohort:
        raise ConflictError(f"user {name!r} is of cohort {known.cohort!r}, not of {user.cohort!r}", (*at, "cohort"))
    holds = spec.resolved(known)
    now: dict[str, Any] = {
        "group": spec.group_of(known),
        "preference": holds.preference,
        "control": holds.control,
        "arms": holds.arms,
    }
    for field, was in now.items():
        given = getattr(user, field)
        if given is not None and given != (tidy(was) if isinstance(was, str) else was):
            fix = f"; change it with `drimed trial {_CHANGED[field]}`" if field in _CHANGED else ""
            raise ConflictError(f"user {name!r} has {field} {was!r}, not {given!r}{fix}", (*at, field))
    for field in ("plots", "blocks"):
        if getattr(user, field) is not None and user.block_of() != known.block_of():
            raise ConflictError(f"user {name!r} has other plots: {', '.join(known.block_of()) or 'none'}", (*at, field))


_CHANGED = {"preference": "prefer", "control": "control"}  # by which command
