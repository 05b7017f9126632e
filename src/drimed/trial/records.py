"""What callers get back: decisions, outcomes and the state of a trial, as plain records."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from drimed.trial.events import Event


@dataclass(frozen=True)
class Effect:
    """An arm's reward against the control's, for one user: estimate and interval at the trial's confidence."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Given:
    """A decision, exactly as it is recorded."""

    id: int
    episode: int
    user: str
    arm: str
    probabilities: dict[str, float]
    propensity: float | None  # None: the policy's own draw has no closed form
    reason: str
    share: float | None  # how much of the rule's own wish the guard left in it
    effects: dict[str, Effect] | None
    context: dict[str, float] | None
    unavailable: list[str]
    state_version: int
    time: str
    actor: str
    repeated: bool = False  # it had been given out before, and was given again

    @staticmethod
    def of(event: Event, arms: list[str], fields: list[str], *, repeated: bool = False) -> Given:
        """The record of a decision's event."""
        body = event.body
        effects = None
        if body["estimate"] is not None:
            triples = zip(arms, body["estimate"], body["half"], strict=False)
            effects = {arm: Effect(e, e - h, e + h) for arm, e, h in triples}
        return Given(
            id=int(event.decision or 0),
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
        )

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Told:
    """What became of an outcome."""

    decision: int
    state: str  # recorded, completed, already recorded, amended, missing
    outcome: dict[str, float | None] | None  # all that is known of it now
    control: dict[str, float | None] | None  # of the control plot, where differences are learned from
    waits_for: list[str]  # metrics without which the policy does not learn from it yet

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Status:
    """A trial at a glance."""

    name: str
    about: str
    status: str  # running, paused, stopped
    episode: int
    users: int
    arms: list[str]
    retired: list[str]
    decisions: int
    answered: int
    awaited: int
    missing: int
    amended: int
    policy: str
    created: str
    events: int
    hash: str
    notes: list[str]

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Row:
    """A decision with what came of it: a line of an export."""

    given: Given
    state: str  # awaited, told, missing
    outcome: dict[str, float | None]
    control: dict[str, float | None] | None
    reward: float | None
    amendments: int
