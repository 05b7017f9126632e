"""A trial at a glance, and its users."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


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
