"""Blinding: what people see who must not know the arms, and opening the code.

A blinded person records outcomes, or asks too. Every field that they get is named here, and all others are left out. No
hash of the log is among them: from one, the arm of a decision could be found by trying all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

from drimed.errors import ConflictError, HaltedError, InputError, UnknownDecisionError, UnknownNameError
from drimed.records import OTHER, AskRequest, Decision, Event, Member, Opening, Status
from drimed.trial import events as kinds
from drimed.trial import queries
from drimed.trial.events import Draft, Revealed, to_json
from drimed.trial.spec import tidy
from drimed.trial.state import TrialState, decision_number
from drimed.trial.store import Ledger
from drimed.trial.transaction import Transaction

# Fields that blinded people see. Never probabilities, effects, or what the guard did.
DECISION_FIELDS = (
    "id", "episode", "user", "context", "time", "actor", "plot", "block", "state", "outcome", "control", "amendments",
    "season", "repeated",
)  # fmt: skip
ENROL_FIELDS = ("attributes", "cohort", "group", "plots", "blocks")  # of a new user; others could leave one arm only
STATUS_FIELDS = (
    "name", "about", "status", "episode", "users", "decisions", "pending", "partial", "complete", "missing",
    "amendments", "created", "model", "enrolment", "season",
)  # fmt: skip
MEMBER_FIELDS = ("name", "group", "cohort", "attributes", "blocks", "plots")
OUTCOME_FIELDS = ("outcome", "missing")
EMPTY: dict[str, Any] = {"str": "", "int": 0, "list[str]": [], "dict[str, float]": {}, "bool": False}

T = TypeVar("T", Decision, Status, Member)


def blinded_decision(state: TrialState, d: Decision) -> Decision:
    """A decision without all that tells its arm, until that was opened for all; with its code if these are shown."""
    shown = _only(d, DECISION_FIELDS)
    return replace(shown, arm=d.arm if state.opened else "", code=d.code if sees_codes(state) or state.opened else None)


def blinded_status(s: Status) -> Status:
    """The progress of a trial, without its arms, its policy, its log or the results of its looks."""
    return _only(s, STATUS_FIELDS)


def blinded_member(m: Member) -> Member:
    return _only(m, MEMBER_FIELDS)


def blinded_history(events: Sequence[Event], actor: str) -> list[Event]:
    """The recorded outcomes of a decision, without reasons that others gave, which may name arms."""
    shown = []
    for event in events:
        if event.kind in (kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING, kinds.GIVEN):
            own = ["reason", "package"] if event.actor == actor else []
            names = (*OUTCOME_FIELDS, *own, *(["was"] if event.kind != kinds.GIVEN else []))
            body = {name: event.body[name] for name in names if name in event.body}
            shown.append(replace(event, seq=0, hash="", text=to_json(body), request=None))
    return shown


def _only(record: T, names: Sequence[str]) -> T:
    """A record with these fields, and all others empty."""
    values: dict[str, Any] = {f.name: EMPTY.get(str(f.type)) for f in fields(record)}
    return type(record)(**values | {name: getattr(record, name) for name in names})


@contextmanager
def asking_as(state: TrialState, request: AskRequest, *, blinded: bool) -> Iterator[None]:
    """Let a person ask; the blinded may choose nothing that could leave one arm only, and no refusal names an arm."""
    if not blinded:
        yield
        return
    name = state.spec.name
    chosen = next((field for user in request.enrol.values() for field in user if field not in ENROL_FIELDS), None)
    if request.unavailable or chosen is not None:
        text = f"{chosen or 'unavailable'} may tell the arm: it is for those who see the arms"
        raise InputError(text, ("enrol" if chosen else "unavailable",))
    if state.status != "running":
        raise ConflictError(f"trial {name!r} is {state.status} and decides nothing")
    try:
        yield
    except HaltedError:  # whose text says which arm was found to be better or worse
        raise HaltedError(f"trial {name!r} decides nothing more for now") from None


def sees_codes(state: TrialState) -> bool:
    """Whether blinded people see the code of each decision."""
    part = state.spec.blinding
    return part is not None and (part.codes == "decision" or part.show_codes)


def arm_given(ledger: Ledger, state: TrialState, told: str, *, blinded: bool) -> tuple[str, str | None]:
    """The arm that was given, or OTHER, and the code of its package if that was told; the blinded may name no arm."""
    told, blinded, arm = tidy(told), blinded and not state.opened, None
    if told in state.spec.arms and not blinded:
        return told, None
    if told == OTHER and OTHER not in state.spec.arms:
        return OTHER, None
    if state.spec.blinding is not None and (sees_codes(state) or not blinded):
        arm = next((arm for arm, code in state.codes.items() if code == told), None)
        number = told.rpartition("-")[2]
        n = int(number) if number.isdecimal() and len(number) < 10 else 0
        if 0 < n <= state.counts.decisions and state.code_of(n, "") == told:
            arm = queries.decision(ledger, state, n).arm
    if arm is not None:
        return arm, told
    if blinded:
        raise InputError(f"given must be the code of a package or {OTHER!r}, got {told!r}", ("given",))
    raise UnknownNameError("arm", told, [*state.problem.arms, OTHER], ("given",))


def reveal(tx: Transaction, decision: int | None, reason: str) -> Opening:
    """Open the code for one decision, or (None) for all; the log has who did it and why."""
    number = None if decision is None else decision_number(decision)
    if number is not None and not 1 <= number <= tx.state.counts.decisions:
        raise UnknownDecisionError(tx.ledger.name, number)
    (event,) = tx.append([Draft(Revealed(reason, number))])
    return queries.opening(tx.ledger, tx.state, event)
