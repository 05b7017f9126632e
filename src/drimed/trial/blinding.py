"""What is left of a trial for people who must not know the arms, and opening the code.

A blinded person records outcomes. What they get is made here from scratch: every field that is not known to be harmless
is left out. No hash of the log is among it: from one, the arm of a decision could be found by trying all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from drimed.errors import UnknownDecisionError
from drimed.records import Decision, Event, Member, Opening, Status
from drimed.trial import allowed, queries
from drimed.trial import events as kinds
from drimed.trial.events import Draft
from drimed.trial.state import TrialState
from drimed.trial.store import Ledger
from drimed.trial.transaction import Transaction


def blinded(state: TrialState, d: Decision) -> Decision:
    """A decision without its arm and all that tells it; with its code if the trial file shows codes.

    Once the code was opened for all, with its arm; never with probabilities, effects, or what the guard did.
    """
    shows = state.spec.blinding is not None and state.spec.blinding.show_codes
    return Decision(
        id=d.id,
        episode=d.episode,
        user=d.user,
        arm=d.arm if state.opened else "",
        probabilities={},
        propensity=None,
        reason="",
        share=None,
        effects=None,
        context=d.context,
        unavailable=[],
        state_version=0,
        time=d.time,
        actor=d.actor,
        plot=d.plot,
        block=d.block,
        state=d.state,
        outcome=d.outcome,
        control=d.control,
        amendments=d.amendments,
        season=d.season,
        code=d.code if shows or state.opened else None,
    )


def blinded_status(s: Status) -> Status:
    """How far a trial is, and nothing about its arms, its policy, its log or what looks at it have found."""
    return Status(
        name=s.name,
        about=s.about,
        status=s.status,
        episode=s.episode,
        users=s.users,
        arms=[],
        retired=[],
        decisions=s.decisions,
        pending=s.pending,
        partial=s.partial,
        complete=s.complete,
        missing=s.missing,
        amendments=s.amendments,
        policy="",
        created=s.created,
        events=0,
        hash="",
        notes=[],
        model=s.model,
        enrolment=s.enrolment,
        season=s.season,
    )


def blinded_member(m: Member) -> Member:
    """A user without what is wanted for it."""
    return Member(
        name=m.name,
        preference=None,
        control=None,
        arms=None,
        group=m.group,
        cohort=m.cohort,
        attributes=m.attributes,
        blocks=m.blocks,
        plots=m.plots,
    )


def blinded_history(events: Sequence[Event], actor: str) -> list[Event]:
    """What was recorded of a decision's outcome; reasons that others gave may name arms, and are left out."""
    found = []
    for event in events:
        if event.kind in _TOLD:
            shown = _SHOWN if event.actor == actor else _SHOWN[:-1]
            body = {name: event.body[name] for name in shown if name in event.body}
            found.append(replace(event, seq=0, hash="", text=kinds.written(body), request=None))
    return found


_TOLD = (kinds.OUTCOME, kinds.AMENDMENT, kinds.MISSING)
_SHOWN = ("outcome", "was", "late", "missing", "reason")


# Opening the code


def reveal(tx: Transaction, decision: int | None, reason: str) -> Opening:
    """Open the code for one decision, or (None) for all; the log has who did it and why."""
    allowed.need_reason(reason)
    number = None if decision is None else queries.whole(decision)
    if number is not None and not 1 <= number <= tx.state.counts.decisions:
        raise UnknownDecisionError(tx.ledger.name, number)
    allowed.openable(tx.state, number)
    body = {"reason": reason} | ({} if number is None else {"decision": number})
    (event,) = tx.append([Draft(kinds.REVEALED, body)])
    return _opening(tx.ledger, tx.state, event)


def openings(ledger: Ledger, state: TrialState) -> list[Opening]:
    """Every time that the code was opened, in order."""
    found = (next(ledger.events(after=seq - 1, until=seq)) for seq in state.openings)
    return [_opening(ledger, state, event) for event in found]


def _opening(ledger: Ledger, state: TrialState, event: Event) -> Opening:
    made = Opening(event.time, event.actor, event.body["reason"])
    if "decision" not in event.body:
        return replace(made, codes=state.codes or None)
    found = queries.decision(ledger, state, event.body["decision"])
    return replace(made, decision=found.id, arm=found.arm, code=found.code)
