"""A line of a trial's log, where the log stands, and what a replay of it found."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from drimed.records.reading import read


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
        """The body as JSON data."""
        body: dict[str, Any] = json.loads(self.text)
        return body

    def plain(self) -> dict[str, Any]:
        """As JSON data."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "text"} | {"body": self.body}

    @staticmethod
    def read(data: Mapping[str, Any]) -> Event:
        """From JSON data; fields that a newer service adds are left out."""
        return read(Event, {**data, "text": json.dumps(data["body"], separators=(",", ":"), ensure_ascii=False)})


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
    looks: int = 0  # looks at the stopping rules that were taken again
    unchecked: str | None = None  # why decisions cannot be replayed here, which says nothing against the log
