"""What stopping rules said at one moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from drimed.records.finding import unconfirmed
from drimed.records.reading import read


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
    distance: float | None  # how far the range is from where it must be, in the unit of what is measured
    met: bool
    all_arms: bool = False  # distance and met are those of all arms together
    seasons: int | None = None  # that have told of arm and control, where a rule takes no claim from one alone
    withdrawn: str | None = None  # what shows that the model is wrong, where a rule rests on it and would be met

    @property
    def waits(self) -> str:
        """Why it is not met, whatever the range; empty: the range decides."""
        if self.withdrawn:
            return f"the model is wrong and shows nothing ({self.withdrawn})"
        return unconfirmed(self.seasons)

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
