"""Events of a trial's log: one frozen dataclass a kind, in an append-only chain.

Every event carries the hash of the one before it. Changing, removing or reordering one breaks the chain at that place;
cutting off the end contradicts the head that the store keeps beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import MISSING as REQUIRED
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from functools import cache
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from drimed.errors import ConflictError, InputError
from drimed.records import Event

START = ""  # the hash that the first event of a trial is chained to
_WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)

CREATED, EPISODE, DECISION = "created", "episode", "decision"
OUTCOME, AMENDMENT, MISSING = "outcome", "amendment", "missing"
USER, PREFERENCE, CONTROL, ARM, RETIRED = "user", "preference", "control", "arm", "retired"
PAUSED, RESUMED, STOPPED, REVEALED = "paused", "resumed", "stopped", "revealed"
LOOK, RULES, SNAPSHOT = "look", "rules", "snapshot"

Text = Annotated[str, Field(min_length=1)]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(gt=0)]
Values = dict[str, dict[str, float] | None]  # an outcome: {"metrics": ..., "control": ...}


@dataclass(frozen=True)
class EventBody:
    """Base of all kinds: an optional field that has its default is left out of the log."""

    kind: ClassVar[str]
    has_user: ClassVar[bool] = False
    has_decision: ClassVar[bool] = False
    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """As it is recorded."""
        pairs = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in pairs if f.default is REQUIRED or value != f.default}


@dataclass(frozen=True)
class Rehearsed:
    """Results of the rehearsal that was shown before a trial was created."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(strict=True, extra="forbid")

    hash: Text
    scenario: Text
    seasons: Count
    trials: Count
    control: Share  # of decisions
    power: Share | None


@dataclass(frozen=True)
class Created(EventBody):
    """The first event: the trial file and the seed of all draws."""

    kind: ClassVar[str] = CREATED
    spec: dict[str, Any]
    seed: int
    numpy: Text  # version
    rehearsal: dict[str, Any] | None = None  # a Rehearsed


@dataclass(frozen=True)
class EpisodeOpened(EventBody):
    """The next episode, with contexts of its users."""

    kind: ClassVar[str] = EPISODE
    episode: int
    contexts: dict[str, list[float]]
    unavailable: dict[str, list[str]]  # user, or "" for all -> arms
    name: Text | None = None
    date: Text | None = None


@dataclass(frozen=True)
class Decided(EventBody):
    """A decision; lists have one number for each arm."""

    kind: ClassVar[str] = DECISION
    has_user: ClassVar[bool] = True
    has_decision: ClassVar[bool] = True
    episode: int
    profile: int
    context: list[float] | None
    unavailable: list[str]
    state: int  # the event up to which the log was known
    draw: int  # number of the draw in the policy's stream
    arm: str
    probabilities: list[float]
    propensity: float | None
    reason: str
    share: float | None
    certified: int | None
    estimate: list[float] | None
    half: list[float] | None  # width of each range
    plot: Text | None = None
    block: Text | None = None
    floor: list[float] | None = None  # of the control and of every arm
    without: list[float] | None = None  # probabilities as they would have been without floors


@dataclass(frozen=True)
class Told(EventBody):
    """Base of outcomes and amendments."""

    has_user: ClassVar[bool] = True
    has_decision: ClassVar[bool] = True
    outcome: Values
    was: Values | None
    late: bool  # it had been marked as missing

    @property
    def still_missing(self) -> bool:
        """Whether the rest of the outcome is still marked as missing."""
        return bool(getattr(self, "missing", False))


@dataclass(frozen=True)
class OutcomeTold(Told):
    """An outcome, or more of it."""

    kind: ClassVar[str] = OUTCOME


@dataclass(frozen=True)
class OutcomeAmended(Told):
    """A corrected outcome."""

    kind: ClassVar[str] = AMENDMENT
    reason: Text
    missing: bool = False


@dataclass(frozen=True)
class OutcomeMissing(EventBody):
    """The outcome, or the rest of it, will not come."""

    kind: ClassVar[str] = MISSING
    has_user: ClassVar[bool] = True
    has_decision: ClassVar[bool] = True
    reason: Text
    was: Values | None


@dataclass(frozen=True)
class UserAdded(EventBody):
    """A new user."""

    kind: ClassVar[str] = USER
    has_user: ClassVar[bool] = True
    definition: dict[str, Any]


@dataclass(frozen=True)
class PreferenceChanged(EventBody):
    """New weights of the metrics for a user."""

    kind: ClassVar[str] = PREFERENCE
    has_user: ClassVar[bool] = True
    preference: dict[str, float]
    reason: Text


@dataclass(frozen=True)
class ControlChanged(EventBody):
    """A new control for a user."""

    kind: ClassVar[str] = CONTROL
    has_user: ClassVar[bool] = True
    control: str | dict[str, float]
    reason: Text


@dataclass(frozen=True)
class ArmAdded(EventBody):
    """A new arm."""

    kind: ClassVar[str] = ARM
    arm: Text
    definition: dict[str, Any]
    noise: dict[str, Any] | None = None  # arm -> its noise, where noise is known by arm


@dataclass(frozen=True)
class ArmRetired(EventBody):
    """An arm that is not given any more."""

    kind: ClassVar[str] = RETIRED
    arm: str
    reason: Text


@dataclass(frozen=True)
class StatusChanged(EventBody):
    """Base of paused, resumed and stopped."""

    reason: str


@dataclass(frozen=True)
class Paused(StatusChanged):
    """No decisions until the trial is resumed."""

    kind: ClassVar[str] = PAUSED


@dataclass(frozen=True)
class Resumed(StatusChanged):
    """Decisions again."""

    kind: ClassVar[str] = RESUMED


@dataclass(frozen=True)
class Stopped(StatusChanged):
    """No decisions any more."""

    kind: ClassVar[str] = STOPPED


@dataclass(frozen=True)
class Revealed(EventBody):
    """Unblinding of one decision, or of all."""

    kind: ClassVar[str] = REVEALED
    reason: Text
    decision: int | None = None  # None: all


@dataclass(frozen=True)
class LookTaken(EventBody):
    """An interim analysis by the stopping rules."""

    kind: ClassVar[str] = LOOK
    after: int
    cause: str
    episode: int
    decisions: int
    outcomes: int
    rules: list[dict[str, Any]]
    limits: list[dict[str, Any]]
    ends: list[str]
    demands: dict[str, str] | None
    hash: str


@dataclass(frozen=True)
class RulesChanged(EventBody):
    """New stopping rules."""

    kind: ClassVar[str] = RULES
    stopping: dict[str, Any]
    was: dict[str, Any] | None
    reason: Text


@dataclass(frozen=True)
class SnapshotTaken(EventBody):
    """The hash of a snapshot of the state."""

    kind: ClassVar[str] = SNAPSHOT
    after: int
    hash: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


_BODIES: tuple[type[EventBody], ...] = (
    Created, EpisodeOpened, Decided, OutcomeTold, OutcomeAmended, OutcomeMissing, UserAdded, PreferenceChanged,
    ControlChanged, ArmAdded, ArmRetired, Paused, Resumed, Stopped, Revealed, LookTaken, RulesChanged, SnapshotTaken,
)  # fmt: skip
BODIES = {body.kind: body for body in _BODIES}
KINDS = tuple(BODIES)
STATUS_CHANGES: dict[str, type[StatusChanged]] = {PAUSED: Paused, RESUMED: Resumed, STOPPED: Stopped}
B = TypeVar("B", bound=EventBody)


@dataclass(frozen=True)
class Draft:
    """An event that is about to be recorded."""

    body: EventBody
    decision: int | None = None  # the decision it is about
    user: str | None = None
    request: str | None = None  # the caller's idempotency key


def body_of(event: Event, kind: type[B]) -> B:
    """The body of an event as its dataclass; InputError if it does not have the fields of its kind."""
    body = vars(event).get("typed")
    if body is None:
        if event.kind not in BODIES:
            raise ConflictError(f"unknown kind of event {event.kind!r}; expected one of {', '.join(KINDS)}")
        try:
            body = vars(event)["typed"] = _adapter(event.kind).validate_json(event.text)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"])) or "body"
            raise InputError(f"event {event.seq} ({event.kind}): {where}: {first['msg']}") from None
    if not isinstance(body, kind):
        raise ConflictError(f"event {event.seq} is of kind {event.kind!r}, expected {getattr(kind, 'kind', 'another')}")
    return body


def check_rehearsal(said: dict[str, Any]) -> None:
    """Refuse anything but the results of a rehearsal."""
    try:
        TypeAdapter(Rehearsed).validate_json(to_json(said))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(("rehearsal", *map(str, first["loc"])))
        raise InputError(f"{where}: {first['msg']}; expected the results of a rehearsal, got {said!r}") from None


def chain(drafts: Sequence[Draft], *, seq: int, hash: str, time: str, actor: str) -> list[Event]:
    """The drafts as the next events after number `seq`, whose hash is `hash`."""
    events = []
    storable("actor", actor)
    for i, draft in enumerate(drafts, seq + 1):
        text = to_json(draft.body.to_json())
        storable("text", text)
        event = Event(i, time, actor, draft.body.kind, draft.decision, draft.user, draft.request, text, "")
        hash = hash_after(hash, event)
        event = Event(i, time, actor, draft.body.kind, draft.decision, draft.user, draft.request, text, hash)
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


@cache
def _adapter(kind: str) -> TypeAdapter[Any]:
    return TypeAdapter(BODIES[kind])
