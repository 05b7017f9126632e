"""Events of a trial's log: one frozen dataclass a kind, in an append-only chain.

Every event carries the hash of the one before it. Changing, removing or reordering one breaks the chain at that place;
cutting off the end contradicts the head that the store keeps beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError, with_config
from typing_extensions import TypedDict

from drimed.errors import ConflictError, InputError
from drimed.records import Event

START = ""  # the hash that the first event of a trial is chained to
_WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)

CREATED, HISTORY, EPISODE, DECISION = "created", "history", "episode", "decision"
OUTCOME, AMENDMENT, MISSING, GIVEN = "outcome", "amendment", "missing", "given"
USER, PREFERENCE, CONTROL, ARM, RETIRED = "user", "preference", "control", "arm", "retired"
PAUSED, RESUMED, STOPPED, REVEALED = "paused", "resumed", "stopped", "revealed"
LOOK, FORECAST, RULES, SNAPSHOT = "look", "forecast", "rules", "snapshot"

Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]
Values = dict[str, dict[str, float] | None]  # an outcome: {"metrics": ..., "control": ...}


BODIES: dict[str, type[EventBody]] = {}  # kind -> its class
_ADAPTERS: dict[type[EventBody], TypeAdapter[Any]] = {}
B = TypeVar("B", bound="EventBody")


@dataclass(frozen=True)
class EventBody:
    """Base of all kinds: an optional field that has its default is left out of the log."""

    kind: ClassVar[str]
    has_user: ClassVar[bool]
    has_decision: ClassVar[bool]
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    def __init_subclass__(cls, *, kind: str = "", user: bool = False, decision: bool = False) -> None:
        if kind:  # none: a base
            cls.kind, cls.has_user, cls.has_decision = kind, user, decision
            BODIES[kind] = cls

    def to_json(self) -> dict[str, Any]:
        """As it is recorded."""
        defaults = _defaults(type(self))  # type: ignore[arg-type]  # mypy takes the class for one of its values
        return {name: value for name, default in defaults if (value := getattr(self, name)) != default}


@cache
def _defaults(kind: type[EventBody]) -> tuple[tuple[str, Any], ...]:
    """Its fields, each with its default, or with what equals no value."""
    return tuple((f.name, f.default) for f in fields(kind))


@with_config(ConfigDict(strict=True, extra="forbid"))
class Rehearsed(TypedDict):
    """Results of the rehearsal that was shown before a trial was created."""

    hash: Text
    scenario: Text
    seasons: Count
    trials: Count
    control: Share  # of the last season's decisions
    power: Share | None


@with_config(ConfigDict(strict=True, extra="forbid"))
class Calibration(TypedDict):
    """Bounds of calibrated stopping rules, and the rehearsals that they come from."""

    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # of the rehearsals and the bounds
    trials: Count  # rehearsed in each scenario
    thresholds: dict[str, Annotated[float, Field(gt=0, allow_inf_nan=False)]]  # by rule: deviations at the last look
    worst: dict[str, Text]  # by rule: the scenario that needs so many


@dataclass(frozen=True)
class Created(EventBody, kind=CREATED):
    """The first event: the trial file and the seed of all draws."""

    spec: dict[str, Any]
    seed: int
    numpy: Text  # version
    drimed: Text  # version
    rehearsal: Rehearsed | None = None
    calibration: Calibration | None = None


@with_config(ConfigDict(strict=True, extra="forbid"))
class PastUnit(TypedDict):
    """A unit of the history; one without a name is some user of its group."""

    name: str
    group: str | None
    attributes: dict[str, float | str]


@dataclass(frozen=True)
class HistoryRead(EventBody, kind=HISTORY):
    """Outcomes from before the trial, as columns; seasons, units and arms of rows are numbers in their lists."""

    file: Text
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]  # SHA-256 of the file
    seasons: list[str]  # in order
    units: list[PastUnit]
    arms: list[str]
    season: list[int]
    unit: list[int]
    arm: list[int]
    metrics: dict[str, list[float | None]]
    contexts: dict[str, list[float | None]]  # a level by its number


@dataclass(frozen=True)
class EpisodeOpened(EventBody, kind=EPISODE):
    """The next episode, with contexts of its users."""

    episode: int
    contexts: dict[str, list[float]]
    unavailable: dict[str, list[str]]  # user, or "" for all -> arms
    name: Text | None = None
    date: Text | None = None


@dataclass(frozen=True)
class Decided(EventBody, kind=DECISION, user=True, decision=True):
    """A decision, by the draw of its own number in the policy's stream; lists have one number for each arm."""

    episode: int
    profile: int
    context: list[float] | None
    unavailable: list[str]
    state: int  # the event up to which the log was known
    arm: str
    probabilities: list[float]
    propensity: float | None
    reason: str
    share: float | None
    certified: int | None
    estimate: list[float] | None
    half: list[float] | None  # width of each range, or what is above the estimate
    plot: Text | None = None
    block: Text | None = None
    floor: list[float] | None = None  # of the control and of every arm
    unmeasured: list[str] | None = None  # metrics that are not measured for this user
    drawn: bool = True  # False: the control was given without a draw, because the caller could not wait
    held_out: float | None = None  # the chance with which this user came to be held out; None: it is not
    below: list[float] | None = None  # of each range, where it is not as wide as what is above


@dataclass(frozen=True)
class Told(EventBody):
    """Base of outcomes and amendments."""

    outcome: Values
    was: Values | None


@dataclass(frozen=True)
class OutcomeTold(Told, kind=OUTCOME, user=True, decision=True):
    """An outcome, or more of it."""


@dataclass(frozen=True)
class OutcomeAmended(Told, kind=AMENDMENT, user=True, decision=True):
    """A corrected outcome."""

    reason: Text
    missing: bool = False


@dataclass(frozen=True)
class OutcomeMissing(EventBody, kind=MISSING, user=True, decision=True):
    """The outcome, or the rest of it, will not come."""

    reason: Text
    was: Values | None


@dataclass(frozen=True)
class ArmGiven(EventBody, kind=GIVEN, user=True, decision=True):
    """The arm that was given, where it was not, or is not sure to be, the one that was drawn."""

    given: Text  # an arm, or OTHER
    was: Text | None  # as it was recorded before
    reason: Text
    package: Text | None = None  # the code that was told in place of the arm


@dataclass(frozen=True)
class UserAdded(EventBody, kind=USER, user=True):
    """A new user."""

    definition: dict[str, Any]


@dataclass(frozen=True)
class PreferenceChanged(EventBody, kind=PREFERENCE, user=True):
    """New weights of the metrics for a user."""

    preference: dict[str, float]
    reason: Text


@dataclass(frozen=True)
class ControlChanged(EventBody, kind=CONTROL, user=True):
    """A new control for a user."""

    control: str | dict[str, float]
    reason: Text


@dataclass(frozen=True)
class ArmAdded(EventBody, kind=ARM):
    """A new arm."""

    arm: Text
    definition: dict[str, Any]
    noise: dict[str, Any] | None = None  # arm -> its noise, where noise is known by arm


@dataclass(frozen=True)
class ArmRetired(EventBody, kind=RETIRED):
    """An arm that is not given any more."""

    arm: str
    reason: Text


@dataclass(frozen=True)
class StatusChanged(EventBody):
    """Base of paused, resumed and stopped."""

    reason: str


@dataclass(frozen=True)
class Paused(StatusChanged, kind=PAUSED):
    """No decisions until the trial is resumed."""


@dataclass(frozen=True)
class Resumed(StatusChanged, kind=RESUMED):
    """Decisions again."""


@dataclass(frozen=True)
class Stopped(StatusChanged, kind=STOPPED):
    """No decisions any more."""


@dataclass(frozen=True)
class Revealed(EventBody, kind=REVEALED):
    """Unblinding of one decision, or of all."""

    reason: Text
    decision: int | None = None  # None: all


@dataclass(frozen=True)
class LookTaken(EventBody, kind=LOOK):
    """An interim analysis by the stopping rules."""

    after: int
    cause: str
    planned: int  # its number among the planned looks; 0: it was not planned
    episode: int
    decisions: int
    outcomes: int
    claims: list[dict[str, Any]]
    limits: list[dict[str, Any]]
    ends: list[str]
    demands: list[dict[str, str]]  # events that must follow
    hash: str


@dataclass(frozen=True)
class Foreseen(EventBody, kind=FORECAST):
    """How much longer the trial takes, as rehearsed from one of its seasons; pages show the last one."""

    episode: int
    trials: Count  # simulated
    text: Text


@dataclass(frozen=True)
class RulesChanged(EventBody, kind=RULES):
    """New stopping rules."""

    stopping: dict[str, Any]
    was: dict[str, Any] | None
    reason: Text


@dataclass(frozen=True)
class SnapshotTaken(EventBody, kind=SNAPSHOT):
    """The hash of a snapshot of the state."""

    after: int
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


KINDS = tuple(BODIES)
STATUS_CHANGES: dict[str, type[StatusChanged]] = {PAUSED: Paused, RESUMED: Resumed, STOPPED: Stopped}


@dataclass(frozen=True)
class Draft:
    """An event that is about to be recorded."""

    body: EventBody
    decision: int | None = None  # the decision it is about
    user: str | None = None
    request: str | None = None  # the caller's idempotency key
    actor: str | None = None  # None: that of the transaction


def body_of(event: Event, kind: type[B]) -> B:
    """The body of an event as its dataclass; InputError if it does not have the fields of its kind."""
    body = vars(event).get("typed")
    if body is None:
        body = vars(event)["typed"] = parsed(event)
    if not isinstance(body, kind):
        raise ConflictError(f"event {event.seq} is of kind {event.kind!r}, expected {getattr(kind, 'kind', 'another')}")
    return body


def parsed(event: Event) -> EventBody:
    """The body of an event, read from its text."""
    kind = BODIES.get(event.kind)
    if kind is None:
        raise ConflictError(f"unknown kind of event {event.kind!r}; expected one of {', '.join(KINDS)}")
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    try:
        body: EventBody = _ADAPTERS[kind].validate_json(event.text)
        return body
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        field = ".".join(map(str, first["loc"])) or "body"
        raise InputError(f"event {event.seq} ({event.kind}): {field}: {first['msg']}") from None


def chain(drafts: Sequence[Draft], *, seq: int, hash: str, time: str, actor: str) -> list[Event]:
    """The drafts as the next events after number `seq`, whose hash is `hash`."""
    events = []
    for i, draft in enumerate(drafts, seq + 1):
        storable("actor", author := draft.actor or actor)
        text = to_json(draft.body.to_json())
        storable("text", text)
        event = Event(i, time, author, draft.body.kind, draft.decision, draft.user, draft.request, text, "")
        hash = vars(event)["hash"] = hash_after(hash, event)
        vars(event)["typed"] = draft.body  # the same as reading the text again
        events.append(event)
    return events


def hash_after(previous: str, e: Event) -> str:
    """The hash that event `e` must have after one whose hash is `previous`."""
    parts = (previous, e.seq, e.time, e.actor, e.kind, e.decision, e.user, e.request, e.text)
    return hashlib.sha256(to_json(parts).encode()).hexdigest()


def storable(name: str, text: str, most: int | None = None) -> None:
    """Refuse text that a database cannot keep or index."""
    if most is not None and len(text) > most:
        raise InputError(f"{name} has {len(text)} characters; {most} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{name} has a character that is not Unicode, {text[error.start]!r}") from None
    if "\0" in text:
        raise InputError(f"{name} has a zero byte, which not every database can keep; leave it out")


def to_json(data: Any) -> str:
    """Data as text: every double is read back as it was."""
    return _WRITER.encode(data)


def now() -> str:
    """The present time in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
