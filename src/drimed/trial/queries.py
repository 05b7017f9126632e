"""The reading side of a trial: its status, decisions, users, and what is still pending.

Command line, HTTP and pages all read here, so they show the same. Everything is taken from a ledger and the state at
the same moment (`Trial.reading`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drimed.errors import InputError, UnknownDecisionError
from drimed.policies.guards.base import reason_text
from drimed.records import MISSING, PENDING, Decision, Event, Interval, Member, Page, Status
from drimed.trial import events as kinds
from drimed.trial.look_history import scope_label
from drimed.trial.policy import notes
from drimed.trial.seasons import UNNAMED
from drimed.trial.spec import LARGEST
from drimed.trial.state import TrialState
from drimed.trial.store import AMENDED as AMENDED
from drimed.trial.store import OPEN as OPEN
from drimed.trial.store import SEARCHES as SEARCHES
from drimed.trial.store import DecisionRow, Ledger
from drimed.trial.store import Search as Search

PAGE = 25
AT_ONCE = 1000  # decisions that are fetched together


@dataclass(frozen=True)
class Story:
    """A decision and what is known of its outcome."""

    event: Event
    outcome: dict[str, Any] | None  # {"metrics": ..., "control": ...}; None: nothing is there, or any more
    given_up: bool  # the outcome was marked as missing, and nothing more came after that
    amendments: int
    state: str  # pending, partial, complete or missing

    @staticmethod
    def of(state: TrialState, events: Sequence[Event]) -> Story:
        """From all events about a decision, up to what this state knows."""
        outcome, given_up, amendments = None, False, 0
        for event in events:
            if event.seq > state.seq:
                break
            if event.kind in (kinds.OUTCOME, kinds.AMENDMENT):
                told, given_up = event.body["outcome"], event.body.get("missing", False)
                outcome = told if any(told.values()) else None  # all of it may have been taken back
                amendments += event.kind == kinds.AMENDMENT
            given_up = given_up or event.kind == kinds.MISSING
        return Story(events[0], outcome, given_up, amendments, state.state_of(outcome, missing=given_up))

    @property
    def decision(self) -> int:
        """Its number."""
        return int(self.event.decision or 0)

    @property
    def missing(self) -> bool:
        """Whether the rest of its outcome will not come."""
        return self.state == MISSING


def stories(ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None) -> Iterator[Story]:
    """Decisions with their outcomes as this state knows them, in order: some, or (None) all."""
    wanted = range(1, state.counts.decisions + 1) if numbers is None else sorted(numbers)
    for first in range(0, len(wanted), AT_ONCE):
        for events in ledger.of_decisions(wanted[first : first + AT_ONCE]).values():
            yield Story.of(state, events)


def record(state: TrialState, story: Story, *, repeated: bool = False) -> Decision:
    """A decision as everybody gets it."""
    event, body = story.event, story.event.body
    arms = state.problem.arms
    effects = None
    if body["estimate"] is not None:
        triples = zip(arms, body["estimate"], body["half"], strict=False)
        effects = {arm: Interval(e, e - h, e + h) for arm, e, h in triples if h <= LARGEST}
    outcome = story.outcome
    return Decision(
        id=story.decision,
        episode=body["episode"],
        user=str(event.user),
        arm=body["arm"],
        probabilities=dict(zip(arms, body["probabilities"], strict=False)),
        propensity=body["propensity"],
        reason=reason_text(body["reason"], body["share"]),
        share=body["share"],
        effects=effects,
        context=None if body["context"] is None else context_of(state, body["context"]),
        unavailable=body["unavailable"],
        state_version=body["state"],
        time=event.time,
        actor=event.actor,
        season=state.seasons.get(body["episode"], UNNAMED).name,
        plot=body.get("plot"),
        block=body.get("block"),
        repeated=repeated,
        state=story.state,
        outcome=None if outcome is None else outcome["metrics"],
        control=None if outcome is None else outcome["control"],
        reward=None if outcome is None else state.reward(state.profiles[body["profile"]], outcome),
        amendments=story.amendments,
        code=state.codes.get(body["arm"]),
    )


def context_of(state: TrialState, values: Sequence[float]) -> dict[str, float | str]:
    """A recorded context, as it was given."""
    fields = state.problem.covariates.fields.values()
    return {field.name: field.recorded(value) for field, value in zip(fields, values, strict=True)}


def status(state: TrialState) -> Status:
    """The trial at a glance."""
    spec, counts = state.spec, state.counts
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
        notes=notes(spec, state.problem.shape.d, users=len(state.users)),
        model=spec.kind,
        enrolment="open" if spec.enrols else "closed",
        season=state.seasons.get(state.episode.number, UNNAMED).name,
        looks=state.looked.count,
        rules_met=list(state.looked.met),
        floor_ended=[scope_label(*who.split(":", 1)) for who in state.looked.ended],
        halted=state.looked.halted,
    )


def decision(ledger: Ledger, state: TrialState, number: int) -> Decision:
    """One decision with its outcome."""
    return record(state, Story.of(state, history(ledger, state, number)))


def history(ledger: Ledger, state: TrialState, number: int) -> list[Event]:
    """All events about a decision, its own first."""
    number = whole(number)
    found = ledger.of_decisions([number])
    if number not in found:
        raise UnknownDecisionError(ledger.name, number)
    return [e for e in found[number] if e.seq <= state.seq]


def whole(decision: object) -> int:
    """A decision's number."""
    if isinstance(decision, bool) or not isinstance(decision, int | np.integer):
        given = (
            f"a whole decision; give decision.id ({decision.id})" if isinstance(decision, Decision) else repr(decision)
        )
        raise InputError(f"a decision is known by its number, got {given}", ("decision",))
    return int(decision)


def decisions(ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None) -> Iterator[Decision]:
    """Decisions with their outcomes, in order: some, or (None) all; those that do not exist are left out."""
    return (record(state, story) for story in stories(ledger, state, numbers))


def users(state: TrialState, *, limit: int, after: str | None = None) -> Page[Member]:
    """Some users as described last, in the order in which they joined."""
    page = page_of(list(state.users), limit, after)
    return Page([_member(state, name) for name in page.items], page.next)


def user_names(state: TrialState, *, limit: int, after: str | None = None) -> Page[str]:
    """The names of some users."""
    return page_of(list(state.users), limit, after)


def page_of(names: list[str], limit: int, after: str | None) -> Page[str]:
    """Some names; `after` is the `next` of the page before."""
    if after is not None and after not in names:
        raise InputError(f"nothing follows {after!r}; begin again without `after`", ("after",))
    start = 0 if after is None else names.index(after) + 1
    page = names[start : start + limit]
    return Page(page, page[-1] if len(names) > start + limit else None)


def _member(state: TrialState, name: str) -> Member:
    user = state.profile(name).definition
    return Member(
        name,
        user.preference,
        user.control,
        user.arms,
        user.group,
        user.cohort,
        user.attributes,
        user.blocks,
        user.plots,
    )


# Searching


@dataclass(frozen=True)
class Found:
    """A page of decisions, newest first."""

    decisions: list[Decision]
    before: int | None  # older decisions follow before this one; None: that was all


def search(ledger: Ledger, state: TrialState, wanted: Search, *, before: int | None = None, limit: int = PAGE) -> Found:
    """Decisions before number `before`, newest first."""
    rows = ledger.decision_rows(wanted, before=before, limit=limit + 1)
    numbers = [row.decision for row in rows[:limit]]
    page = [record(state, story) for story in stories(ledger, state, numbers)][::-1]
    return Found(page, numbers[-1] if len(rows) > limit else None)


def pending(ledger: Ledger) -> dict[int, str]:
    """Decisions whose outcome is not complete and may still come, in order: decision -> pending or partial."""
    rows = ledger.decision_rows(Search(state=OPEN))
    return {row.decision: row.state for row in reversed(rows)}


def decision_row(state: TrialState, event: Event, story: Story | None) -> DecisionRow | None:
    """The row of the table of decisions after an event; None for an event that is about no decision."""
    if event.kind == kinds.DECISION:
        body = event.body
        place = str(event.user), body.get("plot"), body.get("block"), body["arm"]
        return DecisionRow(int(event.decision or 0), event.seq, *place, PENDING)
    if story is None:
        return None
    row = decision_row(state, story.event, None)
    assert row is not None
    after = Story.of(state, [story.event, event])
    outcome = story.outcome if event.kind == kinds.MISSING else after.outcome
    new = state.state_of(outcome, missing=after.given_up)
    return replace(row, state=new, amended=story.amendments + after.amendments > 0)
