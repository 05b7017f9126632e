"""What a trial has found: effects of arms, and what somebody should look at."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import Any

from drimed.records.reading import read

ENOUGH_SEASONS = 2  # with outcomes of an arm and of its control, before the arm is called better or worse


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
    # With outcomes of the arm, or of the control if these are fewer; None: no season does anything to an arm alone.
    seasons: int | None = None
    # Whether its likely range says the same allowing for all arms and users that are compared; None: that is not asked.
    stands: bool | None = None

    @property
    def verdict(self) -> str:
        """In one word."""
        return {1: "better", -1: "worse", 0: "open"}[self.certain]

    @property
    def certain(self) -> int:
        """Whether it is better (1) or worse (-1) than the control at all times, or open (0)."""
        return _way(self.low, self.high) if self.confirmed else 0

    @property
    def likely(self) -> int:
        """The same by the likely range, if that stands among all arms and users that are compared."""
        return _way(self.likely_low, self.likely_high) if self.confirmed and self.stands is not False else 0

    @property
    def by_chance(self) -> bool:
        """Whether it is open though its likely range is on one side of 0, as that of one among so many easily is."""
        open_ = self.confirmed and self.stands is False and not self.certain
        return open_ and _way(self.likely_low, self.likely_high) != 0

    @property
    def confirmed(self) -> bool:
        """Whether more than one season has told of it: a single one cannot tell an arm from what it did to it."""
        return self.seasons is None or self.seasons >= ENOUGH_SEASONS

    @property
    def unconfirmed(self) -> str:
        """Why it is not judged; empty: it is."""
        return unconfirmed(self.seasons)

    @property
    def why_open(self) -> str:
        """Why it is not judged, or open though its likely range is on one side of 0; empty: neither."""
        return self.unconfirmed or ("open: among so many comparisons it may be chance" if self.by_chance else "")

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(vars(self))

    @staticmethod
    def read(data: Mapping[str, Any]) -> Effect:
        """From JSON data; an end that is not known yet is as far away as can be."""
        ends = {"low": -inf, "high": inf}
        return read(Effect, {**data, **{name: end for name, end in ends.items() if data[name] is None}})


def unconfirmed(seasons: int | None) -> str:
    """Why nothing is said of an arm that so many seasons have told of; empty: something is.

    >>> unconfirmed(1), unconfirmed(2)
    ('compared with the control in one season only: another must confirm it', '')
    """
    if seasons is None or seasons >= ENOUGH_SEASONS:
        return ""
    if not seasons:
        return "no season has outcomes of it and of the control yet"
    return "compared with the control in one season only: another must confirm it"


def _way(low: float, high: float) -> int:
    return 1 if low > 0 else -1 if high < 0 else 0


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
