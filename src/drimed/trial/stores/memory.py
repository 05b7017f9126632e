"""A store that lasts as long as the process: for tests, examples and simulations."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from drimed.errors import ConflictError, UnknownNameError
from drimed.records import Event
from drimed.trial.events import START
from drimed.trial.layers import Layers
from drimed.trial.stores.store import DecisionRow, Ledger, Search, Snapshot


@dataclass
class _Trial:
    events: list[Event] = field(default_factory=list)
    by_decision: dict[int, list[Event]] = field(default_factory=lambda: defaultdict(list))
    by_request: dict[str, list[Event]] = field(default_factory=lambda: defaultdict(list))
    lock: threading.Lock = field(default_factory=threading.Lock)
    # Length of the log, rows of decisions and snapshot as of the last commit: replaced together.
    committed: tuple[int, Layers[int, DecisionRow], Snapshot | None] = field(
        default_factory=lambda: (0, Layers(), None)
    )


class MemoryStore:
    """Trials in lists."""

    def __init__(self) -> None:
        self._trials: dict[str, _Trial] = {}
        self._lock = threading.Lock()

    def names(self) -> list[str]:
        return list(self._trials)

    @contextmanager
    def create(self, name: str) -> Iterator[Ledger]:
        with self._lock:
            if name in self._trials:
                raise ConflictError(f"there is a trial {name!r} already; open it, or choose another name")
            trial = _Trial()
            ledger = Ledger(_MemoryReader(name, trial))
            yield ledger
            ledger.flush()
            self._trials[name] = trial

    @contextmanager
    def writing(self, name: str) -> Iterator[Ledger]:
        trial = self._trial(name)
        with trial.lock:
            ledger = Ledger(_MemoryReader(name, trial))
            yield ledger
            ledger.flush()

    @contextmanager
    def reading(self, name: str) -> Iterator[Ledger]:
        yield Ledger(_MemoryReader(name, self._trial(name)))

    def close(self) -> None:
        """Nothing to give back."""

    def _trial(self, name: str) -> _Trial:
        if name not in self._trials:
            raise UnknownNameError("trial", name, self._trials)
        return self._trials[name]


class _MemoryReader:
    """The log as of the last commit."""

    def __init__(self, name: str, trial: _Trial) -> None:
        self.name, self._trial = name, trial
        self.seq, self._rows, self._snapshot = trial.committed
        self.hash = trial.events[self.seq - 1].hash if self.seq else START

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
        given = 0
        for i in range(last - 1, after - 1, -1) if newest_first else range(after, last):
            event = self._trial.events[i]
            if (kinds and event.kind not in kinds) or (user is not None and event.user != user):
                continue
            if limit is not None and given >= limit:
                return
            given += 1
            yield event

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        found = {n: self._committed(self._trial.by_decision.get(n, [])) for n in decisions}
        return {n: events for n, events in sorted(found.items()) if events}

    def of_request(self, request: str) -> list[Event]:
        return self._committed(self._trial.by_request.get(request, []))

    def decision_rows(
        self, search: Search, *, before: int | None = None, limit: int | None = None
    ) -> list[DecisionRow]:
        last = len(self._rows) if before is None else min(before - 1, len(self._rows))
        rows = (self._rows[n] for n in range(last, 0, -1))
        return [row for row in rows if search.matches(row)][:limit]

    def snapshot(self) -> Snapshot | None:
        return self._snapshot

    def snapshot_seq(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.seq

    def write(self, events: Sequence[Event], rows: Sequence[DecisionRow], snapshot: Snapshot | None) -> None:
        trial = self._trial
        for event in events:
            trial.events.append(event)
            if event.decision is not None:
                trial.by_decision[event.decision].append(event)
            if event.request is not None:
                trial.by_request[event.request].append(event)
        known = self._rows.with_items((row.decision, row) for row in rows)
        trial.committed = len(trial.events), known, snapshot or self._snapshot

    def _committed(self, events: list[Event]) -> list[Event]:
        return [e for e in events if e.seq <= self.seq]
