"""Blinding: what people see who must not know the arms, and opening the code.

A blinded person records outcomes. Every field that they get is named here, and all others are left out. No hash of the
log is among them: from one, the arm of a decision could be found by trying all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any, TypeVar

from drimed.errors import UnknownDecisionError
from drimed.records import Decision, Event, Member, Opening, Status
from drimed.trial import events as kinds
from drimed.trial import queries
from drimed.trial.events import Draft, Revealed, to_json
from drimed.trial.state import TrialState, decision_number
from drimed.trial.transaction import Transaction

# Fields that blinded people see. Never probabilities, effects, or what the guard did.
DECISION_FIELDS = (
    "id", "episode", "user", "context", "time", "actor", "plot", "block", "state", "outcome", "control", "amendments",
    "season",
)  # fmt: skip
STATUS_FIELDS = (
    "name", "about", "status", "episode", "users", "decisions", "pending", "partial", "complete", "missing",
    "amendments", "created", "model", "enrolment", "season",
)  # fmt: skip
MEMBER_FIELDS = ("name", "group", "cohort", "attributes", "blocks", "plots")
OUTCOME_FIELDS = ("outcome", "was", "missing")
EMPTY: dict[str, Any] = {"str": "", "int": 0, "list[str]": [], "dict[str, float]": {}, "bool": False}

T = TypeVar("T", Decision, Status, Member)


def blinded_decision(state: TrialState, d: Decision) -> Decision:
    """A decision without its arm and all that tells it; with its code if the trial file shows codes.

    Once the code was opened for all, with its arm.
    """
    shows = state.spec.blinding is not None and state.spec.blinding.show_codes
    shown = _only(d, DECISION_FIELDS)
    return replace(shown, arm=d.arm if state.opened else "", code=d.code if shows or state.opened else None)


def blinded_status(s: Status) -> Status:
    """The progress of a trial, without its arms, its policy, its log or the results of its looks."""
    return _only(s, STATUS_FIELDS)


def blinded_member(m: Member) -> Member:
    """A user without its preference, control and arms."""
    return _only(m, MEMBER_FIELDS)


def blinded_history(events: Sequence[Event], actor: str) -> list[Event]:
    """The recorded outcomes of a decision; reasons that others gave may name arms, and are left out."""
    shown = []
    for event in events:
        if event.kind in (kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING):
            names = (*OUTCOME_FIELDS, *(["reason"] if event.actor == actor else []))
            body = {name: event.body[name] for name in names if name in event.body}
            shown.append(replace(event, seq=0, hash="", text=to_json(body), request=None))
    return shown


def _only(record: T, names: Sequence[str]) -> T:
    """A record with these fields, and all others empty."""
    values: dict[str, Any] = {f.name: EMPTY.get(str(f.type)) for f in fields(record)}
    return type(record)(**values | {name: getattr(record, name) for name in names})


# Opening the code


def reveal(tx: Transaction, decision: int | None, reason: str) -> Opening:
    """Open the code for one decision, or (None) for all; the log has who did it and why."""
    number = None if decision is None else decision_number(decision)
    if number is not None and not 1 <= number <= tx.state.counts.decisions:
        raise UnknownDecisionError(tx.ledger.name, number)
    (event,) = tx.append([Draft(Revealed(reason, number))])
    return queries.opening(tx.ledger, tx.state, event)
