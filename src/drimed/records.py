"""Data classes shared by all packages, without dependencies: requests, decisions, outcomes, effects, looks, faults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from math import inf
from typing import Any, Generic, Literal, TypedDict, TypeVar

# States of a decision: no outcome yet, some metrics, all, the rest will not come.
PENDING, PARTIAL, COMPLETE, MISSING = STATES = ("pending", "partial", "complete", "missing")
OTHER = "other"  # what was given is no arm of the trial (one that is called so takes precedence)
OPEN, AMENDED = "open", "amended"  # the outcome may still come; it was amended
SEARCHES = (*STATES, OPEN, AMENDED)
DEFAULT_STORE = "drimed.db"
ENOUGH_SEASONS = 2  # with outcomes of an arm and of its control, before the arm is called better or worse
LONGEST_KEY = 200  # characters of an idempotency key

Path = tuple[str | int, ...]  # from the top of a file or request to a field
Context = Mapping[str, float | str]
Plots = Mapping[str, Sequence[str]] | Sequence[str]  # block -> plots, or plots
Told = float | bool | str | None  # a value of a metric as it is told: yes, "7 of 20"; None: none, or taken back
Values = Mapping[str, Told]  # metric -> value
T = TypeVar("T")


class Record:
    """Base of records that are sent as JSON."""

    def plain(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]


def read(kind: type[T], data: Mapping[str, Any]) -> T:
    """A record from JSON data; fields that a newer service adds are left out."""
    names = getattr(kind, "__dataclass_fields__", {})
    return kind(**{name: value for name, value in data.items() if name in names})


@dataclass(frozen=True)
class Page(Generic[T]):
    """Some of many records."""

    items: list[T]
    next: str | None  # the cursor of the next page; None: this is the last one


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a file or a request, and its place."""

    path: Path  # empty: all of it
    message: str
    line: int | None = None  # of a text file
    row: int | None = None  # of a sheet, as a spreadsheet counts them
    severity: Literal["error", "unlikely"] = "error"  # unlikely: a possible value that must be confirmed

    def __str__(self) -> str:
        places = [f"row {self.row}" if self.row else "", f"line {self.line}" if self.line else ""]
        return ": ".join([*filter(None, [*places, ".".join(map(str, self.path))]), self.message])


# Requests. Paths of faults begin with the names of their fields: ("contexts", "north", "rain").


class AskOptions(TypedDict, total=False):
    """Parameters of a request that are the same for one user and for many."""

    unavailable: Sequence[str]
    episode: int | None
    season: str | None
    date: str | None
    key: str | None
    confirm: bool


@dataclass(frozen=True, kw_only=True)
class AskRequest:
    """Users to decide for, and what is known about them."""

    users: Sequence[str] | None = None  # None: all users of the trial
    contexts: Mapping[str, Context] = field(default_factory=dict)  # user -> field -> value
    enrol: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # new user -> attributes, cohort, group, plots
    plots: Mapping[str, Plots] = field(default_factory=dict)  # user -> plots to decide for; left out: all of its own
    unavailable: Sequence[str] = ()  # arms that none of these users can get
    episode: int | None = None  # None: the open one; the next one is opened
    season: str | None = None  # the episode by its name
    date: str | None = None  # of a season that is opened
    key: str | None = None  # idempotency key: a repeated request is answered with the first decisions
    confirm: bool = False  # accept unlikely values and undeclared plots

    @staticmethod
    def of_user(
        user: str,
        *,
        context: Context | None = None,
        attributes: Mapping[str, float | str] | None = None,
        cohort: str | None = None,
        plot: str | None = None,
        block: str | None = None,
        **more: Any,
    ) -> AskRequest:
        """A request for one user, or for one of its plots."""
        definition = {k: v for k, v in {"attributes": attributes, "cohort": cohort}.items() if v is not None}
        plots = None if plot is None else [plot] if block is None else {block: [plot]}
        own = {"contexts": context, "enrol": definition or None, "plots": plots}
        more |= {name: {user: value} for name, value in own.items() if value is not None}
        return AskRequest(users=[user], **more)


@dataclass(frozen=True)
class Report:
    """The outcome of a decision. Metrics that are still to come are left out."""

    decision: int
    outcome: Values
    control: Values | None = None  # of the control plot, where feedback is `difference`
    given: str | None = None  # where another arm was given than was drawn, or OTHER; of coded packages, the code
    reason: str | None = None  # for that


@dataclass(frozen=True)
class Interval:
    """An estimate and its range."""

    estimate: float
    low: float
    high: float

    @property
    def is_control(self) -> bool:
        return self.estimate == self.low == self.high == 0


@dataclass(frozen=True)
class Decision(Record):
    """A decision with its outcome as it stands."""

    id: int
    episode: int
    user: str
    arm: str  # empty: not shown, in a dry run or to a blinded reader
    probabilities: dict[str, float]  # empty: not known before the draw, or not shown
    propensity: float | None  # None: the policy's own draw has no closed form, or it is not shown
    reason: str  # for what the guard did
    share: float | None  # of the policy's own proposal that the guard kept
    # Effects against the control as estimated then, each end at the trial's confidence; None: nothing was known.
    effects: dict[str, Interval] | None
    context: dict[str, float | str] | None
    unavailable: list[str]
    state_version: int  # the event up to which the log was known
    time: str
    actor: str
    season: str | None = None  # name of the episode
    plot: str | None = None  # where the user has plots
    block: str | None = None  # of that plot
    repeated: bool = False  # an earlier decision, returned again
    state: str = PENDING
    outcome: dict[str, float] | None = None  # metric -> value; None: nothing is recorded
    control: dict[str, float] | None = None  # the same of the control plot
    reward: float | None = None  # None while a metric that counts is not there
    amendments: int = 0
    code: str | None = None  # of the arm, where the trial has codes
    drawn: bool = True  # False: the control was given without a draw, because the caller could not wait
    given: str | None = None  # the arm that was given, or OTHER; None: nothing else than the arm drawn was reported
    held_out: float | None = None  # the chance with which its user came to be held out, on the control; None: it is not

    @staticmethod
    def read(data: Mapping[str, Any]) -> Decision:
        effects = data["effects"] and {arm: read(Interval, e) for arm, e in data["effects"].items()}
        return read(Decision, {**data, "effects": effects})


@dataclass(frozen=True)
class DecisionRow:
    """One row of the table of decisions, which follows from the log."""

    decision: int
    seq: int  # of its own event
    user: str
    plot: str | None
    block: str | None
    arm: str
    state: str  # pending, partial, complete or missing
    amended: bool = False


@dataclass(frozen=True)
class Search:
    """Conditions on decisions; an empty field matches all."""

    user: str = ""
    arm: str = ""
    state: str = ""  # one of SEARCHES
    plot: str = ""
    block: str = ""

    @property
    def states(self) -> tuple[str, ...]:
        """States that are searched for; empty: all."""
        return (PENDING, PARTIAL) if self.state == OPEN else () if self.state in ("", AMENDED) else (self.state,)


@dataclass(frozen=True)
class Receipt(Record):
    """The answer to a reported outcome."""

    decision: int
    result: str  # recorded, completed, already recorded, amended, missing
    state: str  # of the decision now
    outcome: dict[str, float] | None  # recorded values
    control: dict[str, float] | None
    waits_for: list[str]  # metrics without which the policy does not learn from it yet


@dataclass(frozen=True)
class Opening(Record):
    """An unblinding, of one decision or of all."""

    time: str
    actor: str
    reason: str
    decision: int | None = None  # None: all
    arm: str | None = None  # of that decision
    code: str | None = None
    codes: dict[str, str] | None = None  # arm -> code, where all were unblinded and there are codes


@dataclass(frozen=True)
class Status(Record):
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
    enrolment: str = "closed"  # open: asking for an unknown user enrols it
    season: str | None = None  # name of the open episode
    looks: int = 0  # at the stopping rules
    rules_met: list[str] = field(default_factory=list)  # stopping rules that a look has found met
    floor_ended: list[str] = field(default_factory=list)  # for all users, groups or users
    halted: str = ""  # why a stopping rule has paused or stopped it
    history: str = ""  # outcomes from before the trial, and what rests on them
    failures: int = 0  # decisions by the control because the model could not be computed


@dataclass(frozen=True)
class Member:
    """A user as described last; None: the trial's default."""

    name: str
    preference: dict[str, float] | None
    control: str | dict[str, float] | None
    arms: list[str] | None
    group: str | None
    metrics: list[str] | None = None  # that are measured for it
    cohort: str | None = None
    attributes: dict[str, float | str] | None = None
    blocks: dict[str, list[str]] | None = None  # block -> its plots
    plots: list[str] | None = None  # the same without blocks


@dataclass(frozen=True)
class Effect(Record):
    """An arm against the control at one look, for one user, a group or all users."""

    who: str
    arm: str
    on: str  # "reward" or a metric
    estimate: float
    low: float | None  # the range that holds at all looks at once; None: nothing is known yet
    high: float | None
    likely_low: float | None  # the 95 % range at this look; None: nothing is known yet
    likely_high: float | None
    source: str = "model"  # or "propensities": without a model of the mean
    decisions: int = 0  # with this arm
    available: bool = True
    # Seasons with outcomes of the arm and of the control; None: seasons have no effects on single arms.
    seasons: int | None = None
    # Whether the likely range excludes 0 after adjusting for multiple comparisons; None: there is no adjustment.
    significant: bool | None = None

    @property
    def verdict(self) -> str:
        return {1: "better", -1: "worse", 0: "open"}[self.certain]

    @property
    def certain(self) -> int:
        """1 for better and -1 for worse than the control by the range at all looks, 0 for open."""
        return _side(self.low, self.high) if self.confirmed else 0

    @property
    def likely(self) -> int:
        """The same by the likely range, after adjusting for multiple comparisons."""
        return _side(self.likely_low, self.likely_high) if self.confirmed and self.significant is not False else 0

    @property
    def by_chance(self) -> bool:
        """Whether the likely range excludes 0, but not after adjusting for multiple comparisons."""
        open_ = self.confirmed and self.significant is False and not self.certain
        return open_ and _side(self.likely_low, self.likely_high) != 0

    @property
    def confirmed(self) -> bool:
        """Whether enough seasons have outcomes of the arm and of the control."""
        return self.seasons is None or self.seasons >= ENOUGH_SEASONS

    @property
    def is_known(self) -> bool:
        """Whether outcomes have told anything about it."""
        return self.likely_low is not None and self.likely_high is not None

    @property
    def ends(self) -> tuple[float, float]:
        """The range at all looks; infinite where it is not known."""
        return -inf if self.low is None else self.low, inf if self.high is None else self.high

    @property
    def likely_ends(self) -> tuple[float, float]:
        """The likely range; infinite where it is not known."""
        low, high = self.likely_low, self.likely_high
        return -inf if low is None else low, inf if high is None else high

    @property
    def is_control(self) -> bool:
        return self.estimate == self.low == self.high == 0

    @property
    def unconfirmed(self) -> str:
        """Why it is not judged; empty: it is."""
        return unconfirmed(self.seasons)

    @property
    def why_open(self) -> str:
        """Why it is open though its likely range excludes 0; empty: it is not."""
        return self.unconfirmed or ("inconclusive after adjusting for multiple comparisons" if self.by_chance else "")


def unconfirmed(seasons: int | None) -> str:
    """Why an arm with outcomes of so many seasons is not judged; empty: it is.

    >>> unconfirmed(1), unconfirmed(2)
    ('compared with the control in one season only: another must confirm it', '')
    """
    if seasons is None or seasons >= ENOUGH_SEASONS:
        return ""
    one = "compared with the control in one season only: another must confirm it"
    return one if seasons else "no season has outcomes of it and of the control yet"


def _side(low: float | None, high: float | None) -> int:
    """The side of 0 on which a range lies: 1, -1, or 0 for both."""
    return 1 if low is not None and low > 0 else -1 if high is not None and high < 0 else 0


@dataclass(frozen=True)
class Alarm:
    """A result of a check that a person should look at."""

    what: str
    episode: int | None
    advice: str


@dataclass(frozen=True)
class Checks:
    """Results of the checks of a trial."""

    withdrawn: str | None  # the promise that does not hold, and why; None: there is no sign against any
    alarms: list[Alarm]
    events: int  # of the log that this rests on

    @staticmethod
    def read(data: Mapping[str, Any]) -> Checks:
        return read(Checks, {**data, "alarms": [read(Alarm, one) for one in data["alarms"]]})


@dataclass(frozen=True)
class Claim(Record):
    """A stopping rule applied to the range of one arm."""

    rule: str
    kind: str  # superiority, non_inferiority, equivalence, futility or harm
    on: str  # "reward" or a metric
    by: str  # all, group or user
    who: str  # all users, a group or a user
    arm: str
    low: float | None  # None: nothing can be told yet
    high: float | None
    alpha: float  # the range fails at all looks together at most so often
    margin: float
    distance: float | None  # of the range from where it must be, in the unit of what is measured
    met: bool
    all_arms: bool = False  # distance and met are those of all arms together
    seasons: int | None = None  # with outcomes of arm and control, where a rule takes no claim from one season alone
    withdrawn: str | None = None  # evidence against the model, where a rule rests on it and would be met
    planned: bool = True  # whether the look counts: a rule with a planned number of looks is met at these only

    @property
    def waits(self) -> str:
        """Why it is not met, whatever the range; empty: the range decides."""
        if not self.planned:
            return "this look was not planned, and does not count"
        if self.withdrawn:
            return f"the model is wrong and shows nothing ({self.withdrawn})"
        return unconfirmed(self.seasons)


@dataclass(frozen=True)
class Limit:
    """A largest number of seasons or decisions."""

    limit: str
    of: int
    reached: int
    met: bool


@dataclass(frozen=True)
class Look(Record):
    """An interim analysis: what the stopping rules said at one moment."""

    event: int  # 0: it was not recorded
    time: str
    actor: str
    cause: str  # season, decisions or by hand
    planned: int  # its number among the planned looks; 0: it was not planned
    episode: int
    decisions: int
    outcomes: int  # complete ones
    claims: list[Claim]
    limits: list[Limit]
    floor_ends: list[str]  # users for whom the floor ends with this look
    demands: str | None  # paused or stopped
    dropped: list[str]  # arms that are not given any more
    reason: str  # for these
    hash: str  # of all that it says, as it is recorded

    @staticmethod
    def read(data: Mapping[str, Any]) -> Look:
        claims = [read(Claim, one) for one in data["claims"]]
        return read(Look, {**data, "claims": claims, "limits": [read(Limit, one) for one in data["limits"]]})


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
    text: str  # the body as it was written
    hash: str

    @cached_property
    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(self.text)
        return body

    def plain(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "text"} | {"body": self.body}

    @staticmethod
    def read(data: Mapping[str, Any]) -> Event:
        return read(Event, {**data, "text": json.dumps(data["body"], separators=(",", ":"), ensure_ascii=False)})


@dataclass(frozen=True)
class Head(Record):
    """The end of a log at some time: kept elsewhere, it proves later that nothing before it was changed."""

    trial: str
    event: int  # sequence number of the last event
    hash: str
    time: str


@dataclass(frozen=True)
class Proof:
    """Results of replaying a whole log."""

    ok: bool
    events: int
    decisions: int
    exact: int  # decisions that were reproduced to the last bit
    rounded: int  # to round-off only: the arm and all else is the same
    faults: list[str]
    hash: str  # of the last event
    anchors: int = 0  # hashes that were kept elsewhere, and are still those of their events
    looks: int = 0  # interim analyses that were repeated
    unchecked: str | None = None  # what is not proved here, and why, which says nothing against the log
    made_with: str = ""  # versions that the trial was created with
    left_out: str = ""  # what is no part of the log, and was not looked at
