"""A store that lasts as long as the process: for tests, examples and simulations."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.records import Event
from drimed.trial.events import START
from drimed.trial.stores.keeping import given_up
from drimed.trial.stores.store import Snapshot


@dataclass
class _Trial:
    events: list[Event] = field(default_factory=list)
    length: int = 0  # of what is committed: readers never see half of a transaction
    snapshots: tuple[Snapshot, ...] = ()  # in order
    by_decision: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    by_request: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryStore:
    """Trials in lists."""

    def __init__(self) -> None:
        self._trials: dict[str, _Trial] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        return list(self._trials)

    @contextmanager
    def create(self, name: str) -> Iterator[MemoryLedger]:
        with self._lock:
            if name in self._trials:
                raise ConflictError(f"there is a trial {name!r} already; open it, or choose another name")
            trial = _Trial()
            ledger = MemoryLedger(name, trial, writable=True)
            yield ledger
            ledger.commit()
            self._trials[name] = trial

    @contextmanager
    def writing(self, name: str) -> Iterator[MemoryLedger]:
        trial = self._trial(name)
        with trial.lock:
            ledger = MemoryLedger(name, trial, writable=True)
            yield ledger
            ledger.commit()

    @contextmanager
    def reading(self, name: str) -> Iterator[MemoryLedger]:
        yield MemoryLedger(name, self._trial(name), writable=False)

    def close(self) -> None:
        """Nothing to give back."""

    def _trial(self, name: str) -> _Trial:
        if name not in self._trials:
            raise UnknownNameError("trial", name, self._trials)
        return self._trials[name]


class MemoryLedger:
    """The events at the moment of opening, and those that are about to be added."""

    def __init__(self, name: str, trial: _Trial, *, writable: bool) -> None:
        self.name = name
        self._trial, self._writable = trial, writable
        self._length = trial.length
        self._new: list[Event] = []
        self._kept: tuple[Snapshot, ...] | None = None  # snapshots after this transaction, if one was taken

    @property
    def seq(self) -> int:
        return self._length + len(self._new)

    @property
    def hash(self) -> str:
        if self._new:
            return self._new[-1].hash
        return self._trial.events[self._length - 1].hash if self._length else START

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
        last = self.seq if until is None else min(until, self.seq)
        numbers = range(last - 1, after - 1, -1) if newest_first else range(after, last)
        given = 0
        for i in numbers:
            event = self._trial.events[i] if i < self._length else self._new[i - self._length]
            if (kinds and event.kind not in kinds) or (user is not None and event.user != user):
                continue
            if limit is not None and given >= limit:
                return
            given += 1
            yield event

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        found: dict[int, list[Event]] = {n: self._seen(self._trial.by_decision.get(n, [])) for n in decisions}
        for event in self._new:
            if event.decision in found:
                found[event.decision].append(event)
        return {n: events for n, events in found.items() if events}

    def untouched(self) -> list[int]:
        about = Counter(e.decision for e in self.events() if e.decision is not None)
        return sorted(number for number, events in about.items() if events == 1)

    def of_request(self, request: str) -> list[Event]:
        return self._seen(self._trial.by_request.get(request, [])) + [e for e in self._new if e.request == request]

    def append(self, events: Sequence[Event]) -> None:
        if not self._writable:
            raise InputError("this ledger was opened for reading")
        for before, event in zip([self.seq, *(e.seq for e in events)], events, strict=False):
            if event.seq != before + 1:
                raise ConflictError(f"event {event.seq} does not follow event {before}")
        self._new += events

    def seq_of(self, hash: str) -> int | None:
        return next((event.seq for event in self.events(newest_first=True) if event.hash == hash), None)

    def snapshot(self, until: int | None = None) -> Snapshot | None:
        found = [one for one in self._snapshots() if until is None or one.seq <= until]
        return found[-1] if found else None

    def snapshot_seq(self) -> int:
        return max(self.snapshot_seqs(), default=0)

    def snapshot_seqs(self) -> list[int]:
        return [one.seq for one in self._snapshots()]

    def keep(self, snapshot: Snapshot, *, alone: bool = False) -> None:
        if not self._writable:
            raise InputError("this ledger was opened for reading")
        known = () if alone else self._snapshots()
        gone = given_up([one.seq for one in known], snapshot.seq)
        self._kept = (*(one for one in known if one.seq not in gone), snapshot)

    def _snapshots(self) -> Sequence[Snapshot]:
        kept = self._trial.snapshots if self._kept is None else self._kept
        return [one for one in kept if one.seq <= self.seq]

    def commit(self) -> None:
        """Make it so."""
        for event in self._new:
            self._trial.events.append(event)
            if event.decision is not None:
                self._trial.by_decision[event.decision].append(event)
            if event.request is not None:
                self._trial.by_request[event.request].append(event)
        self._trial.length += len(self._new)
        if self._kept is not None:
            self._trial.snapshots = self._kept

    def _seen(self, events: list[Event]) -> list[Event]:
        return [e for e in events if e.seq <= self._length]
