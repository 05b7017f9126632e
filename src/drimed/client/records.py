"""What the service answers, as records. Fields that a newer service adds are left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Effect:
    """An arm's reward against the control's: estimate and interval."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Decision:
    """Which arm a user gets, and why."""

    id: int
    episode: int
    user: str
    arm: str
    probabilities: dict[str, float]
    propensity: float | None
    reason: str
    share: float | None
    effects: dict[str, Effect] | None
    context: dict[str, float] | None
    unavailable: list[str]
    state_version: int
    time: str
    actor: str
    repeated: bool

    @staticmethod
    def of(data: Mapping[str, Any]) -> Decision:
        """From an answer."""
        effects = data["effects"]
        found = None if effects is None else {arm: made(Effect, e) for arm, e in effects.items()}
        return made(Decision, {**data, "effects": found})


@dataclass(frozen=True)
class Told:
    """What became of an outcome."""

    decision: int
    state: str  # recorded, completed, already recorded, amended, missing
    outcome: dict[str, float | None] | None
    control: dict[str, float | None] | None
    waits_for: list[str]


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


@dataclass(frozen=True)
class User:
    """A user as described last."""

    name: str
    preference: dict[str, float] | None
    control: str | dict[str, float] | None
    arms: list[str] | None
    group: str | None


@dataclass(frozen=True)
class Event:
    """Something that was recorded."""

    seq: int
    time: str
    actor: str
    kind: str
    decision: int | None
    user: str | None
    request: str | None
    body: dict[str, Any]
    hash: str


@dataclass(frozen=True)
class Story:
    """A decision with everything that is recorded about it."""

    decision: Decision
    state: str  # awaited, told, missing
    outcome: dict[str, float | None] | None
    control: dict[str, float | None] | None
    reward: float | None
    amendments: int
    events: list[Event]

    @staticmethod
    def of(data: Mapping[str, Any]) -> Story:
        """From an answer."""
        parts = {"decision": Decision.of(data["decision"]), "events": [made(Event, e) for e in data["events"]]}
        return made(Story, {**data, **parts})


@dataclass(frozen=True)
class Verdict:
    """What a replay of the whole log found."""

    ok: bool
    events: int
    decisions: int
    exact: int
    rounded: int
    faults: list[str]
    hash: str


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of many."""

    items: list[T]
    next: str | None  # None: that was all


def made(kind: type[T], data: Mapping[str, Any]) -> T:
    """A record from an answer."""
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]  # every kind here is a dataclass
    return kind(**{name: value for name, value in data.items() if name in names})
