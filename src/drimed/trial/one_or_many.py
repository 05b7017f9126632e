"""Asking for one user or for several: the arguments of `Trial.ask` as those of many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from drimed.errors import InputError
from drimed.records import Decision
from drimed.trial.asking import Context
from drimed.trial.enrolling import Definition

Contexts = Mapping[str, Context]
Enrolled = Mapping[str, Definition]


def as_many(
    users: str | Sequence[str] | None,
    context: Context | None,
    contexts: Contexts | None,
    attributes: Mapping[str, float | str] | None,
    cohort: str | None,
    enrol: Enrolled | None,
) -> tuple[Sequence[str] | None, Contexts | None, Enrolled | None]:
    """Names, contexts and descriptions by user; what is for one user alone is refused for several, and the reverse."""
    described = attributes is not None or cohort is not None
    if (contexts if isinstance(users, str) else context) is not None:
        raise InputError("give `context` when asking for one user, and `contexts` when asking for several")
    if enrol is not None if isinstance(users, str) else described:
        raise InputError("give `attributes` and `cohort` when asking for one user, and `enrol` when asking for several")
    if not isinstance(users, str):
        return users, contexts, enrol
    own = {users: context} if context is not None else None
    return [users], own, {users: {"attributes": attributes, "cohort": cohort}} if described else None


def refuse_several(user: str, found: Sequence[Decision]) -> None:
    """Who asks for one decision must not get several."""
    if len(found) > 1:
        raise InputError(
            f"user {user!r} has {len(found)} plots: ask([{user!r}]) decides for all, `plots` names one", ("plots",)
        )
