"""What passes between the rooms: plain data without dependencies.

Trial, service, pages, sheets, exports and client all speak in these records. A decision has one state wherever it is
shown: `pending` (no outcome yet), `partial` (some metrics), `complete`, or `missing` (the rest will not come).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from typing import Any, Generic, Protocol, TypeVar

T = TypeVar("T")
Path = tuple[str | int, ...]

PENDING, PARTIAL, COMPLETE, MISSING = "pending", "partial", "complete", "missing"
STATES = (PENDING, PARTIAL, COMPLETE, MISSING)

_LONG = 1000  # characters of a body from which its lists are read one by one
LISTS = ("probabilities", "estimate", "half", "without")  # of a decision, in this order: one number for each arm


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with what came in, and where it is."""

    path: Path  # from the top of the file or request to the field; empty: all of it
    message: str
    line: int | None = None  # of a text file
    row: int | None = None  # of a sheet, as a spreadsheet counts them

    @property
    def field(self) -> str:
        """The path with dots."""
        return ".".join(map(str, self.path))

    def __str__(self) -> str:
        places = [f"row {self.row}" if self.row else "", f"line {self.line}" if self.line else "", self.field]
        return ": ".join([*filter(None, places), self.message])


class Kept(Protocol):
    """A text that a store has not written out: most readers need only some of it."""

    def text(self) -> str:
        """All of it."""

    def quoted(self) -> str:
        """All of it as a JSON string, without looking at every digit of its lists."""

    def body(self, left_out: Sequence[str]) -> dict[str, Any]:
        """What it says; lists of numbers that are left out are None, and others may share the rest."""


@dataclass(frozen=True)
class Event:
    """One line of a trial's log."""

    seq: int  # from 1
    time: str  # UTC
    actor: str
    kind: str
    decision: int | None
    user: str | None
    request: str | None  # the caller's idempotency key
    kept: str | Kept  # the body, as it was written, or what its text is made of
    hash: str

    @cached_property
    def text(self) -> str:
        """The body, as it was written."""
        return self.kept if isinstance(self.kept, str) else self.kept.text()

    @property
    def quoted(self) -> str:
        """The text as a JSON string, of which the hash is taken."""
        return quoted(self.kept) if isinstance(self.kept, str) else self.kept.quoted()

    @cached_property
    def body(self) -> dict[str, Any]:
        """What happened."""
        found = self._without(())
        return found if isinstance(self.kept, str) else found | {n: list(found[n]) for n in LISTS if found.get(n)}

    @property
    def brief(self) -> dict[str, Any]:
        """The same without the arms' effects as they were estimated, which are long to read.

        Decisions that were taken together may share its lists: nobody changes them.
        """
        return vars(self).get("body") or self._without(("estimate", "half"))

    @property
    def shortest(self) -> dict[str, Any]:
        """The same without any list that has a number for each arm."""
        return vars(self).get("body") or self._without(LISTS)

    def _without(self, left_out: Sequence[str]) -> dict[str, Any]:
        return read_body(self.kept, left_out) if isinstance(self.kept, str) else self.kept.body(left_out)

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {name: value for name, value in vars(self).items() if name not in ("kept", "text", "body")} | {
            "body": self.body
        }

    @staticmethod
    def read(data: Mapping[str, Any]) -> Event:
        """From JSON data; fields that a newer service adds are left out."""
        return read(Event, {**data, "kept": json.dumps(data["body"], separators=(",", ":"), ensure_ascii=False)})


@dataclass(frozen=True)
class Interval:
    """An estimate and its range."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Report:
    """An outcome as somebody reports it. Metrics that are still to come are left out."""

    decision: int
    outcome: Mapping[str, float | None]
    control: Mapping[str, float | None] | None = None  # of the control plot, where feedback is `difference`


@dataclass(frozen=True)
class Decision:
    """A decision with its outcome as it stands."""

    id: int
    episode: int
    user: str
    arm: str  # empty: not shown, in a dry run or to somebody who is blinded
    probabilities: dict[str, float]  # empty: not known before the draw, or not shown
    propensity: float | None  # None: the policy's own draw has no closed form, or it is not shown
    reason: str  # what the guard did
    share: float | None  # how much of the rule's own proposal the guard kept
    effects: dict[str, Interval] | None  # each arm against the control, as estimated at that moment
    context: dict[str, float | str] | None
    unavailable: list[str]
    state_version: int  # the event up to which the log was known
    time: str
    actor: str
    season: str | None = None  # what the episode is called, if it has a name
    plot: str | None = None  # where the user has plots
    block: str | None = None  # of that plot
    repeated: bool = False  # an earlier decision, returned again
    state: str = PENDING
    outcome: dict[str, float] | None = None  # metric -> value; None: nothing is recorded
    control: dict[str, float] | None = None  # the same of the control plot
    reward: float | None = None  # None while a metric that counts is not there
    amendments: int = 0
    code: str | None = None  # of the arm, where the trial has codes

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @staticmethod
    def read(data: Mapping[str, Any]) -> Decision:
        """From JSON data; fields that a newer service adds are left out."""
        effects = data["effects"]
        found = None if effects is None else {arm: read(Interval, e) for arm, e in effects.items()}
        return read(Decision, {**data, "effects": found})


@dataclass(frozen=True)
class Alarm:
    """Something that a person should look at."""

    what: str
    episode: int | None
    advice: str


@dataclass(frozen=True)
class Checks:
    """What the checks of a trial found."""

    withdrawn: str | None  # which promise does not hold, and why; None: there is no sign against any
    alarms: list[Alarm]
    events: int  # of the log that this rests on

    @staticmethod
    def read(data: Mapping[str, Any]) -> Checks:
        """From JSON data."""
        return read(Checks, {**data, "alarms": [read(Alarm, one) for one in data["alarms"]]})


@dataclass(frozen=True)
class Receipt:
    """The answer to a reported outcome."""

    decision: int
    result: str  # recorded, completed, already recorded, amended, missing
    state: str  # of the decision now
    outcome: dict[str, float] | None  # all that is known of it now
    control: dict[str, float] | None
    waits_for: list[str]  # metrics without which the policy does not learn from it yet

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Opening:
    """A code that was opened, for one decision or for all."""

    time: str
    actor: str
    reason: str
    decision: int | None = None  # None: for all
    arm: str | None = None  # of that decision
    code: str | None = None
    codes: dict[str, str] | None = None  # arm -> code, where it was opened for all and there are codes

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Effect:
    """An arm against the control, for one user, a group or all users."""

    who: str
    arm: str
    on: str  # "reward" or a metric
    estimate: float
    low: float  # the guaranteed range: it holds at all times at once
    high: float
    likely_low: float  # the likely range, 95 %
    likely_high: float
    source: str = "model"  # or "propensities": without a model of the mean
    decisions: int = 0  # how often the arm was given here
    available: bool = True

    @property
    def verdict(self) -> str:
        """In one word."""
        return "better" if self.low > 0 else "worse" if self.high < 0 else "open"

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(vars(self))


@dataclass(frozen=True)
class Claim:
    """What a stopping rule says of the range of one arm."""

    rule: str
    kind: str  # superiority, non_inferiority, equivalence, futility or harm
    on: str  # "reward" or a metric
    who: str  # all users, a group or a user
    arm: str
    low: float | None  # None: nothing can be told yet
    high: float | None
    margin: float
    distance: float | None  # how far the rule is from being met, in the unit of what is measured; negative: met
    met: bool
    all_arms: bool = False  # distance and met are those of all arms together

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Limit:
    """A largest number of seasons or decisions."""

    limit: str
    of: int
    reached: int
    met: bool


@dataclass(frozen=True)
class Look:
    """What the stopping rules said at one moment."""

    event: int  # 0: it was not recorded
    time: str
    actor: str
    cause: str  # season, decisions or by hand
    episode: int
    decisions: int
    outcomes: int  # complete ones
    claims: list[Claim]
    limits: list[Limit]
    floor_ends: list[str]  # for whom the floor ends with this look
    demands: str | None  # paused or stopped
    reason: str  # why that follows
    hash: str  # of all that it says, as it is recorded

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)

    @staticmethod
    def read(data: Mapping[str, Any]) -> Look:
        """From JSON data; fields that a newer service adds are left out."""
        claims = [read(Claim, one) for one in data["claims"]]
        return read(Look, {**data, "claims": claims, "limits": [read(Limit, one) for one in data["limits"]]})


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
    pending: int
    partial: int
    complete: int
    missing: int
    amendments: int
    policy: str
    created: str
    events: int
    hash: str
    notes: list[str]
    model: str = "paper"  # field, people or paper
    enrolment: str = "closed"  # open: asking for somebody unknown enrols them
    season: str | None = None  # what the open episode is called, if it has a name
    looks: int = 0  # at the stopping rules
    rules_met: list[str] = field(default_factory=list)  # stopping rules that a look has found met
    floor_ended: list[str] = field(default_factory=list)  # for whom: all users, groups or users
    halted: str = ""  # why a stopping rule has paused or stopped it

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Member:
    """A user as described last; None: as the trial says for all."""

    name: str
    preference: dict[str, float] | None
    control: str | dict[str, float] | None
    arms: list[str] | None
    group: str | None
    cohort: str | None = None
    attributes: dict[str, float | str] | None = None
    blocks: dict[str, list[str]] | None = None  # block -> its plots
    plots: list[str] | None = None  # the same without blocks


@dataclass(frozen=True)
class Head:
    """Where a log stood: kept elsewhere, it proves later that nothing before it was changed."""

    trial: str
    event: int  # the number of the last event
    hash: str
    time: str  # when that was seen

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return asdict(self)


@dataclass(frozen=True)
class Proof:
    """What a replay of the whole log found."""

    ok: bool
    events: int
    decisions: int
    exact: int  # decisions that were reproduced to the last bit
    rounded: int  # to round-off only: the arm and all else is the same
    faults: list[str]
    hash: str  # of the last event
    anchors: int = 0  # hashes that were kept elsewhere, and are still those of their events
    since: int = 0  # events up to this one were taken as they are, because a kept hash is of a later one; 0: none were
    looks: int = 0  # looks at the stopping rules that were taken again


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of many."""

    items: list[T]
    next: str | None  # the cursor of what follows; None: that was all


def read_body(text: str, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """The body of an event from its text; lists of numbers that are left out are None.

    Decisions that were taken together often have the same lists: each is read once.

    >>> read_body('{"arm":"a","half":[1.0,2.0]}')
    {'arm': 'a', 'half': [1.0, 2.0]}
    """
    if len(text) < _LONG:
        data: dict[str, Any] = json.loads(text)
        return data | dict.fromkeys(name for name in left_out if name in data) if left_out else data
    pieces, cut = cut_lists(text)
    lists = {name: None if name in left_out else list(_numbers(numbers)) for name, numbers in cut.items()}
    data = json.loads("null".join(pieces))
    return data | lists


def cut_lists(text: str) -> tuple[list[str], dict[str, str]]:
    """The text of a body without its lists of numbers, in pieces, and the lists that belong between them.

    >>> cut_lists('{"arm":"a","half":[1.0,2.0]}')
    (['{"arm":"a","half":', '}'], {'half': '[1.0,2.0]'})
    """
    pieces: list[str] = []
    lists: dict[str, str] = {}
    at = 0
    for name in LISTS:
        # No text that somebody typed can look like this: its quotes have backslashes.
        start = text.find(f'"{name}":[', at) + len(name) + 3
        end = text.find("]", start) + 1
        if start > at + len(name) + 2 and end:
            pieces.append(text[at:start])
            lists[name], at = text[start:end], end
    return [*pieces, text[at:]], lists


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def whole_text(pieces: Sequence[str], lists: Sequence[str]) -> str:
    """What was cut, put together again."""
    return "".join(part for pair in zip(pieces, [*lists, ""], strict=True) for part in pair)


@lru_cache(128)
def _numbers(text: str) -> tuple[float, ...]:
    return tuple(json.loads(text))


def read(kind: type[T], data: Mapping[str, Any]) -> T:
    """A record from JSON data; fields that a newer service adds are left out."""
    names = getattr(kind, "__dataclass_fields__", {})
    return kind(**{name: value for name, value in data.items() if name in names})
