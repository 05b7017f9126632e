"""Read a trial: its status, decisions, users and pending outcomes.

Command line, HTTP and pages all read here. Everything is taken from a ledger and the state at the same moment
(`Trial.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from drimed.errors import InputError, UnknownDecisionError
from drimed.policies.guards.base import reason_text
from drimed.records import Alarm, Decision, Event, Interval, Member, Page, Status
from drimed.trial.events import Decided, body_of
from drimed.trial.look_history import scope_label
from drimed.trial.seasons import UNNAMED
from drimed.trial.spec import LARGEST
from drimed.trial.state import RecordedDecision, TrialState, decision_number
from drimed.trial.store import OPEN, Ledger, Search
from drimed.trial.validation import notes

PAGE = 25
AT_ONCE = 1000  # decisions that are fetched together


def recorded_decisions(
    ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None
) -> Iterator[RecordedDecision]:
    """Decisions with their outcomes as this state knows them, in order: some, or (None) all."""
    wanted = range(1, state.counts.decisions + 1) if numbers is None else sorted(numbers)
    for first in range(0, len(wanted), AT_ONCE):
        for events in ledger.of_decisions(wanted[first : first + AT_ONCE]).values():
            yield RecordedDecision.of(state, events)


def record(state: TrialState, recorded: RecordedDecision, *, repeated: bool = False) -> Decision:
    """A decision as callers get it."""
    event, outcome, arms = recorded.event, recorded.outcome, state.problem.arms
    body = body_of(event, Decided)
    effects = None
    if body.estimate is not None and body.half is not None:
        triples = zip(arms, body.estimate, body.half, strict=False)
        effects = {arm: Interval(e, e - h, e + h) for arm, e, h in triples if h <= LARGEST}
    return Decision(
        id=event.decision or 0,
        episode=body.episode,
        user=str(event.user),
        arm=body.arm,
        probabilities=dict(zip(arms, body.probabilities, strict=False)),
        propensity=body.propensity,
        reason=reason_text(body.reason, body.share),
        share=body.share,
        effects=effects,
        context=None if body.context is None else state.context_of(body.context),
        unavailable=body.unavailable,
        state_version=body.state,
        time=event.time,
        actor=event.actor,
        season=state.seasons.get(body.episode, UNNAMED).name,
        plot=body.plot,
        block=body.block,
        repeated=repeated,
        state=recorded.state,
        outcome=None if outcome is None else outcome["metrics"],
        control=None if outcome is None else outcome["control"],
        reward=None if outcome is None else state.reward(state.profiles[body.profile], outcome),
        amendments=recorded.amendments,
        code=None if state.spec.blinding is None else state.codes.get(body.arm),
    )


def status(state: TrialState) -> Status:
    """A trial at a glance."""
    spec, counts, looked = state.spec, state.counts, state.looked
    return Status(
        name=spec.name,
        about=spec.about,
        status=state.status,
        episode=state.episode.number,
        users=len(state.users),
        arms=state.problem.arms,
        retired=list(state.retired),
        decisions=counts.decisions,
        pending=counts.pending,
        partial=counts.partial,
        complete=counts.complete,
        missing=counts.missing,
        amendments=counts.amendments,
        policy=spec.policy.name,
        created=state.created.time,
        events=state.seq,
        hash=state.hash,
        notes=notes(spec, len(state.users), policy=state.policy),
        model=spec.kind,
        enrolment="open" if spec.enrols else "closed",
        season=state.seasons.get(state.episode.number, UNNAMED).name,
        looks=looked.count,
        rules_met=list(looked.met),
        floor_ended=[scope_label(*who.split(":", 1)) for who in looked.ended],
        halted=looked.halted,
        failures=counts.failures,
    )


def alarms(state: TrialState) -> list[Alarm]:
    """Alarms that follow from the state alone."""
    if not state.counts.failures:
        return []
    what = (
        f"the model could not be computed {state.counts.failures} times: the control was given, or an outcome ignored"
    )
    return [Alarm(what, None, "look for extreme values among the outcomes, and report this as a fault of drimed")]


def decision(ledger: Ledger, state: TrialState, number: int) -> Decision:
    """One decision with its outcome."""
    return record(state, RecordedDecision.of(state, history(ledger, state, number)))


def history(ledger: Ledger, state: TrialState, number: int) -> list[Event]:
    """All events about a decision, its own first."""
    number = decision_number(number)
    events = ledger.of_decisions([number])
    if number not in events:
        raise UnknownDecisionError(ledger.name, number)
    return [e for e in events[number] if e.seq <= state.seq]


def decisions(ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None) -> Iterator[Decision]:
    """Decisions with their outcomes, in order: some, or (None) all; unknown ones are left out."""
    return (record(state, one) for one in recorded_decisions(ledger, state, numbers))


@dataclass(frozen=True)
class Found:
    """A page of decisions, newest first."""

    decisions: list[Decision]
    before: int | None  # older decisions follow before this one; None: that was all


def search(ledger: Ledger, state: TrialState, wanted: Search, *, before: int | None = None, limit: int = PAGE) -> Found:
    """Decisions before number `before`, newest first."""
    rows = ledger.decision_rows(wanted, before=before, limit=limit + 1)
    numbers = [row.decision for row in rows[:limit]]
    page = list(decisions(ledger, state, numbers))[::-1]
    return Found(page, numbers[-1] if len(rows) > limit else None)


def pending(ledger: Ledger) -> dict[int, str]:
    """Decisions whose outcome is not complete and may still come, in order: decision -> pending or partial."""
    rows = ledger.decision_rows(Search(state=OPEN))
    return {row.decision: row.state for row in reversed(rows)}


def users(state: TrialState, *, limit: int, after: str | None = None) -> Page[Member]:
    """Some users as described last, in the order in which they joined."""
    page = page_of(list(state.users), limit, after)
    fields = ("preference", "control", "arms", "group", "cohort", "attributes", "blocks", "plots")
    members = ((name, state.profile(name).definition) for name in page.items)
    return Page([Member(name, *(getattr(user, f) for f in fields)) for name, user in members], page.next)


def page_of(names: list[str], limit: int, after: str | None) -> Page[str]:
    """Some names; `after` is the `next` of the page before."""
    if after is not None and after not in names:
        raise InputError(f"nothing follows {after!r}; begin again without `after`", ("after",))
    start = 0 if after is None else names.index(after) + 1
    page = names[start : start + limit]
    return Page(page, page[-1] if len(names) > start + limit else None)
