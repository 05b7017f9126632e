"""Decisions that were taken before: a request that is repeated gets its first answer again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drimed.errors import BatchError, ConflictError
from drimed.records import Decision, Event, Fault, Plots
from drimed.trial import events as kinds
from drimed.trial.covariates import alike, shown
from drimed.trial.numbers import plot_key
from drimed.trial.plots import places
from drimed.trial.queries import context_of, record, stories
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction


def answered(
    tx: Transaction,
    key: str,
    users: Sequence[str] | None,
    plots: Mapping[str, Plots],
    contexts: Mapping[str, Any],
) -> list[Decision]:
    """What this request was answered with before: its own decisions, and those that stood in its episode."""
    found = {_key(e): e for e in tx.ledger.of_request(key) if e.kind == kinds.DECISION}
    if not found:
        return []
    state, stood = tx.state, dict[str, Event]()
    if state.spec.decisions == "one per episode":
        before = min(e.seq for e in found.values()) - 1
        for event in tx.ledger.events(until=before, kinds=(kinds.EPISODE, kinds.DECISION), newest_first=True):
            if event.kind == kinds.EPISODE:
                break
            stood[_key(event)] = event
    whole = stood | found
    names = [u for u in (state.users if users is None else users) if u in state.users]
    keys = [place.key for user in names for place in places(state, user, plots.get(user))]
    keys = [k for k in keys if k in whole] if users is None else keys
    if not set(found) <= set(keys) <= set(whole) or len(names) < len(users or ()):
        raise ConflictError(
            f"request {key!r} was made before, for other users; give each request its own key", ("key",)
        )
    known = {plot_key(d.user, d.plot): d for d in recorded(tx, [int(whole[k].decision or 0) for k in keys])}
    refuse_other_contexts(state, known.values(), contexts)
    return [known[k] for k in keys]


def refuse_other_contexts(state: TrialState, taken: Iterable[Decision], contexts: Mapping[str, Any]) -> None:
    """A context that comes again with its decision is the recorded one: it cannot be corrected afterwards."""
    faults: dict[tuple[str, str], Fault] = {}
    for decision in taken:
        given, recorded = contexts.get(decision.user), decision.context or {}
        if given is None:
            continue
        whole = {**recorded, **given} if isinstance(given, Mapping) else given
        vector = state.problem.covariates.context(whole, ("contexts", decision.user))
        for name, value in ({} if vector is None else context_of(state, vector.tolist())).items():
            if not alike(recorded[name], value):
                was, where = shown(recorded[name]), "" if decision.plot is None else f", plot {decision.plot!r}"
                message = (
                    f"decision {decision.id} for user {decision.user!r}{where} was taken with {name} {was}, "
                    f"and {shown(value)} came now; a context cannot be changed after the decision: "
                    f"give {was} again, or none"
                )
                faults.setdefault((decision.user, name), Fault(("contexts", decision.user, name), message))
    if len(faults) > 1:
        raise BatchError(faults.values())
    for fault in faults.values():
        raise ConflictError(fault.message, fault.path)


def _key(event: Event) -> str:
    return plot_key(str(event.user), event.body.get("plot"))


def recorded(tx: Transaction, numbers: Iterable[int]) -> list[Decision]:
    """Decisions that were taken before, as they stand."""
    return [record(tx.state, story, repeated=True) for story in stories(tx.ledger, tx.state, list(numbers))]
