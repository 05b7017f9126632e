"""A decision with its outcome, from the events about it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from drimed.records import MISSING, Decision, Event, Interval
from drimed.trial import events as kinds
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger

AT_ONCE = 1000  # decisions that are fetched together


@dataclass(frozen=True)
class Story:
    """A decision and what is known of its outcome."""

    event: Event
    outcome: dict[str, Any] | None  # {"metrics": ..., "control": ...}
    given_up: bool  # the outcome was marked as missing, and nothing came after that
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
                outcome, given_up = event.body["outcome"], False
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
    arms, fields = state.problem.arms, state.problem.fields
    effects = None
    if body["estimate"] is not None:
        triples = zip(arms, body["estimate"], body["half"], strict=False)
        effects = {arm: Interval(e, e - h, e + h) for arm, e, h in triples}
    outcome = story.outcome
    return Decision(
        id=story.decision,
        episode=body["episode"],
        user=str(event.user),
        arm=body["arm"],
        probabilities=dict(zip(arms, body["probabilities"], strict=False)),
        propensity=body["propensity"],
        reason=body["reason"],
        share=body["share"],
        effects=effects,
        context=None if body["context"] is None else dict(zip(fields, body["context"], strict=True)),
        unavailable=body["unavailable"],
        state_version=body["state"],
        time=event.time,
        actor=event.actor,
        repeated=repeated,
        state=story.state,
        outcome=None if outcome is None else outcome["metrics"],
        control=None if outcome is None else outcome["control"],
        reward=None if outcome is None else state.reward(state.profiles[body["profile"]], outcome),
        amendments=story.amendments,
    )
