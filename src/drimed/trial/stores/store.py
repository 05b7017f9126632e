"""What a store is. One contract suite holds every kind to it.

A ledger is one trial's events inside one transaction. Writers of one trial wait for each other; what one of them
appends is durable when the `with` block ends without an error, and has never been there when it ends with one. It sees
its own additions; others see them when they are durable, and then all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from drimed.errors import InputError
from drimed.records import Event


@dataclass(frozen=True)
class Snapshot:
    """What was known after event `seq`; only there to make opening fast."""

    seq: int
    hash: str  # of that event
    data: bytes


class Ledger(Protocol):
    """One trial's events, inside one transaction."""

    @property
    def name(self) -> str:
        """The trial's name."""

    @property
    def seq(self) -> int:
        """The number of the last event; 0 before the first."""

    @property
    def hash(self) -> str:
        """Its hash, as the store keeps it beside the events."""

    def events(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        kinds: Sequence[str] = (),
        user: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Event]:
        """Events with after < seq <= until, in order."""

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        """Everything that is recorded about these decisions, in order; a decision that is unknown is left out."""

    def untouched(self) -> list[int]:
        """Decisions about which nothing was recorded since they were taken, in order."""

    def of_request(self, request: str) -> list[Event]:
        """What was recorded for a caller's key."""

    def append(self, events: Sequence[Event]) -> None:
        """Record; they must follow the last event."""

    def seq_of(self, hash: str) -> int | None:
        """The number of the event that has this hash."""

    def snapshot(self, until: int | None = None) -> Snapshot | None:
        """The newest one; the newest after event `until` or an earlier one."""

    def snapshot_seq(self) -> int:
        """After which event it was taken; 0 if there is none."""

    def snapshot_seqs(self) -> list[int]:
        """After which events those were taken that are kept, in order."""

    def keep(self, snapshot: Snapshot, *, alone: bool = False) -> None:
        """Keep this one as the newest; some of the older ones go (`keeping.given_up`), or all of them."""


def checked(store: Any) -> None:
    """Refuse what is no store, with how to get one."""
    if not hasattr(store, "reading"):
        raise InputError(f"expected a store, such as open_store('trials.db') or MemoryStore(), got {store!r}")


class Store(Protocol):
    """Trials by name."""

    def names(self) -> list[str]:
        """Every trial, in the order of their creation."""

    def create(self, name: str) -> AbstractContextManager[Ledger]:
        """A new, empty trial, to be filled in the same transaction; ConflictError if there is one of that name."""

    def writing(self, name: str) -> AbstractContextManager[Ledger]:
        """The trial, for one writer at a time; UnknownNameError if there is none of that name."""

    def reading(self, name: str) -> AbstractContextManager[Ledger]:
        """The trial as it stands now; never waits for a writer."""

    def close(self) -> None:
        """Give back files and connections."""
