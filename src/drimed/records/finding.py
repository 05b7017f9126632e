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
    decisions: int = 0  # how often the arm was given here
    available: bool = True
    # Seasons with outcomes of the arm and of the control; None: seasons have no effects on single arms.
    seasons: int | None = None
    # Whether the likely range excludes 0 after adjusting for multiple comparisons; None: there is no adjustment.
    significant: bool | None = None

    @property
    def verdict(self) -> str:
        """Better, worse or open."""
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
        """Whether the arm is the control itself, which has no effect."""
        return self.estimate == self.low == self.high == 0

    @property
    def unconfirmed(self) -> str:
        """Why it is not judged; empty: it is."""
        return unconfirmed(self.seasons)

    @property
    def why_open(self) -> str:
        """Why it is open though its likely range excludes 0; empty: it is not."""
        return self.unconfirmed or ("inconclusive after adjusting for multiple comparisons" if self.by_chance else "")

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return dict(vars(self))

    @staticmethod
    def read(data: Mapping[str, Any]) -> Effect:
        """From JSON data."""
        return read(Effect, data)


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


def _side(low: float | None, high: float | None) -> int:
    """The side of 0 on which a range lies: 1, -1, or 0 for both."""
    return 1 if low is not None and low > 0 else -1 if high is not None and high < 0 else 0


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
