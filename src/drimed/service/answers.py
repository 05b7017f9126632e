"""What is answered, field by field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field

from drimed.errors import UnknownNameError
from drimed.trial import events as kinds
from drimed.trial.events import Event
from drimed.trial.outcomes import Story
from drimed.trial.records import Effect, Given, Status, Told
from drimed.trial.trial import Trial


@dataclass(frozen=True)
class Fault:
    """One field that is wrong."""

    field: str  # from the top of the body, with dots; empty: the whole of it
    detail: str
    line: int | None = None  # of a trial file
    where: Annotated[str | None, Field(alias="in")] = None  # query, path or header, where it is not the body


@dataclass(frozen=True)
class Problem:
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[Fault] = field(default_factory=list)


@dataclass(frozen=True)
class Checked:
    """A trial that could be created, and what its author should know."""

    name: str
    notes: list[str]


@dataclass(frozen=True)
class Trials:
    """Some trials, in the order of their creation."""

    items: list[Status]
    next: str | None  # give it as `after` to get what follows; null: that was all


@dataclass(frozen=True)
class Opened:
    """The episode that is open now."""

    episode: int


@dataclass(frozen=True)
class Asked:
    """Decisions, in the order of the request."""

    decisions: list[Given]


@dataclass(frozen=True)
class ToldMany:
    """What became of outcomes, in the order of the request."""

    told: list[Told]


@dataclass(frozen=True)
class Done:
    """Something was changed."""

    trial: str
    events: int  # how many the log has now


@dataclass(frozen=True)
class LogEvent:
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

    @staticmethod
    def of(event: Event, *, seed: bool) -> LogEvent:
        """As it is shown, with the seed or without."""
        e = event
        body = e.body
        if e.kind == kinds.CREATED and not seed:
            body = unseeded(body) | {"spec": unseeded(body["spec"])}
        return LogEvent(e.seq, e.time, e.actor, e.kind, e.decision, e.user, e.request, body, e.hash)


@dataclass(frozen=True)
class Log:
    """Some events."""

    items: list[LogEvent]
    next: str | None  # give it as `cursor` to get what follows; null: that was all


@dataclass(frozen=True)
class DecisionStory:
    """One decision: what was known and decided, what came of it, and everything recorded about it."""

    decision: Given
    state: str  # awaited, told, missing
    outcome: dict[str, float | None] | None
    control: dict[str, float | None] | None
    reward: float | None  # to the user; null while a metric that counts is not there
    amendments: int
    events: list[LogEvent]

    @staticmethod
    def of(trial: Trial, number: int) -> DecisionStory:
        """The story of decision `number`."""
        if number not in trial.decisions([number]):
            raise UnknownNameError("decision", str(number), ())
        given, events = trial.decision(number)
        memory, story = trial.memory(), Story.of(events)
        reward = None
        if story.outcome is not None:
            reward = memory.reward(memory.profiles[story.event.body["profile"]], story.outcome)
        return DecisionStory(
            given,
            "told" if story.outcome is not None else "missing" if story.missing else "awaited",
            None if story.outcome is None else story.outcome["metrics"],
            None if story.outcome is None else story.outcome["control"],
            reward,
            story.amendments,
            [LogEvent.of(e, seed=False) for e in events],
        )


@dataclass(frozen=True)
class Verdict:
    """What a replay of the whole log found."""

    ok: bool
    events: int
    decisions: int
    exact: int  # decisions that came out again to the last bit
    rounded: int  # that came out to round-off
    faults: list[str]
    hash: str  # of the last event


@dataclass(frozen=True)
class Effects:
    """Every arm against the control, user by user."""

    items: list[Effect]
    next: str | None  # the user to give as `after` for what follows; null: that was all
    events: int  # of the log that this rests on
    level: float  # of the guaranteed ranges


@dataclass(frozen=True)
class UserNow:
    """A user as described last."""

    name: str
    preference: dict[str, float] | None
    control: str | dict[str, float] | None
    arms: list[str] | None
    group: str | None


@dataclass(frozen=True)
class Users:
    """Some users, in the order in which they joined."""

    items: list[UserNow]
    next: str | None


@dataclass(frozen=True)
class Health:
    """Whether the service can do its work."""

    status: str


def unseeded(data: Mapping[str, Any]) -> dict[str, Any]:
    """Without the seed: whoever knows it can tell arms before they are drawn."""
    return {name: value for name, value in data.items() if name != "seed"}
