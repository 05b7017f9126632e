"""What a trial has found: effects of arms, and what somebody should look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from drimed.records.reading import read


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
