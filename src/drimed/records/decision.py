"""A decision, its outcome as somebody reports it, and what comes back.

A decision has one state wherever it is shown: `pending` (no outcome yet), `partial` (some metrics), `complete`, or
`missing` (the rest will not come).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drimed.records.reading import read

PENDING, PARTIAL, COMPLETE, MISSING = "pending", "partial", "complete", "missing"
STATES = (PENDING, PARTIAL, COMPLETE, MISSING)


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
    share: float | None  # how much of the policy's own proposal the guard kept
    # Arms against the control, as estimated then, each end at the trial's confidence; none where nothing was known.
    effects: dict[str, Interval] | None
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
