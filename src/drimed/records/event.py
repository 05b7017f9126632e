"""A line of a trial's log, where the log stands, and what a replay of it found."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Protocol

from drimed.records.body import LISTS, quoted, read_body
from drimed.records.reading import read


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
    unchecked: str | None = None  # why decisions cannot be replayed here, which says nothing against the log
