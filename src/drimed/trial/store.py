"""Stores of trials: an append-only log for each, a table of its decisions, and a snapshot that makes opening fast.

A ledger is one trial's log inside one transaction. It buffers what is appended and reads it back with the rest. A
writing ledger flushes its buffer when its `with` block ends without an error: then all of it is durable, or nothing is.
A reading ledger never flushes, which makes it a dry run. Writers of one trial wait for each other.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, Union, final, get_args

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from drimed.errors import ConflictError, InputError, MissingExtraError, UnknownNameError
from drimed.records import PARTIAL, PENDING, STATES, Event
from drimed.trial.events import START

if TYPE_CHECKING:
    from drimed.trial.sql_store import SqlReader, SqlStore

K = TypeVar("K")
V = TypeVar("V")
OPEN, AMENDED = "open", "amended"  # the outcome may still come; it was amended
SEARCHES = (*STATES, OPEN, AMENDED)


@dataclass(frozen=True)
class Snapshot:
    """A state after event `seq`, as bytes."""

    seq: int
    hash: str  # of that event
    data: bytes


@dataclass(frozen=True)
class DecisionRow:
    """One row of the table of decisions, which follows from the log."""

    decision: int
    seq: int  # of its own event
    user: str
    plot: str | None
    block: str | None
    arm: str
    state: str  # pending, partial, complete or missing
    amended: bool = False


@dataclass(frozen=True)
class Search:
    """Conditions on decisions; an empty field matches all."""

    user: str = ""
    arm: str = ""
    state: str = ""  # one of SEARCHES
    plot: str = ""
    block: str = ""

    def matches(self, row: DecisionRow) -> bool:
        named = all(getattr(self, name) in ("", getattr(row, name)) for name in ("user", "arm", "plot", "block"))
        return named and (not self.states or row.state in self.states) and (row.amended or self.state != AMENDED)

    @property
    def states(self) -> tuple[str, ...]:
        """States that are searched for; empty: all."""
        return (PENDING, PARTIAL) if self.state == OPEN else () if self.state in ("", AMENDED) else (self.state,)


@dataclass(frozen=True)
class Selection:
    """Conditions on events with after < seq <= until, in order."""

    after: int
    until: int
    kinds: Sequence[str] = ()  # empty: all
    user: str | None = None
    limit: int | None = None
    newest_first: bool = False

    def of(self, events: Sequence[Event]) -> Iterator[Event]:
        selected = (
            event
            for event in (reversed(events) if self.newest_first else events)
            if self.after < event.seq <= self.until
            and (not self.kinds or event.kind in self.kinds)
            and (self.user is None or event.user == self.user)
        )
        return islice(selected, self.limit)


class Ledger:
    """One trial's log inside one transaction, with the events that it is about to add."""

    def __init__(self, reader: SqlReader | _MemoryReader) -> None:
        self.reader, self.name = reader, reader.name
        self.seq, self.hash = reader.seq, reader.hash  # of the last event; 0 before the first
        self.connection: Any = reader.connection  # of a store in a database, for tables beside the log
        self.new: list[Event] = []
        self.rows: dict[int, DecisionRow] = {}  # decision -> its row after the new events
        self._kept: Snapshot | None = None

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
        wanted = Selection(after, self.seq if until is None else until, kinds, user, limit, newest_first)
        if not self.new:
            return self.reader.events(wanted)
        stored = self.reader.events(replace(wanted, until=min(wanted.until, self.reader.seq)))
        parts = stored, wanted.of(self.new)
        return islice(chain(*(reversed(parts) if newest_first else parts)), limit)

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        """All events about these decisions, in order; an unknown decision is left out."""
        histories = self.reader.of_decisions(decisions)
        if not self.new:
            return histories
        wanted = set(decisions)
        for event in self.new:
            if event.decision is not None and event.decision in wanted:
                histories.setdefault(event.decision, []).append(event)
        return dict(sorted(histories.items()))

    def of_request(self, request: str) -> list[Event]:
        """Events with this idempotency key."""
        return self.reader.of_request(request) + [e for e in self.new if e.request == request]

    def decision_rows(
        self, search: Search | None = None, *, before: int | None = None, limit: int | None = None
    ) -> list[DecisionRow]:
        """Rows of the table of decisions that match, newest first, with numbers below `before`."""
        search = search or Search()
        if not self.rows:
            return self.reader.decision_rows(search, before=before, limit=limit)
        rows = {row.decision: row for row in self.reader.decision_rows(Search(), before=before)} | self.rows
        numbers = sorted((n for n in rows if before is None or n < before), reverse=True)
        return [rows[n] for n in numbers if search.matches(rows[n])][:limit]

    def append(self, events: Sequence[Event], rows: Sequence[DecisionRow] = ()) -> None:
        """Buffer events that follow the last one, and the rows of their decisions."""
        for before, event in enumerate(events, self.seq):
            if event.seq != before + 1:
                raise ConflictError(f"event {event.seq} does not follow event {before}")
        self.new += events
        if events:
            self.seq, self.hash = events[-1].seq, events[-1].hash
        self.rows |= {row.decision: row for row in rows}

    def snapshot(self) -> Snapshot | None:
        return self._kept or self.reader.snapshot()

    def keep(self, snapshot: Snapshot) -> None:
        self._kept = snapshot

    def flush(self) -> None:
        """Write the buffer to the store."""
        if self.new or self._kept is not None:
            self.reader.write(self.new, list(self.rows.values()), self._kept)
            self.new, self.rows, self._kept = [], {}, None


def checked(store: Any) -> None:
    """Refuse an object that is not a store."""
    if not hasattr(store, "reading"):
        raise InputError(f"expected a store, such as open_store('trials.db') or MemoryStore(), got {store!r}")


# A store that lasts as long as the process: for tests, examples and simulations.


@final
class Layers(Mapping[K, V]):
    """An immutable mapping in the order of insertion; a changed copy shares almost everything with the original.

    It is a stack of dictionaries, each at most half as large as the one below: adding an entry costs O(log n) on
    average, and looking one up at most log2(n) steps.

    >>> one = Layers({"a": 1})
    >>> two = one.with_items([("b", 2), ("a", 3)])
    >>> dict(one), dict(two)
    ({'a': 1}, {'a': 3, 'b': 2})
    """

    def __init__(self, items: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        base = dict(items)
        self._layers: tuple[dict[K, V], ...] = (base,) if base else ()
        self._length = len(base)

    def with_items(self, items: Iterable[tuple[K, V]]) -> Layers[K, V]:
        """A copy with more entries, or others in their place."""
        top = dict(items)
        new: Layers[K, V] = Layers()
        new._length = self._length + sum(key not in self for key in top)
        layers = list(self._layers)
        while layers and 2 * len(top) > len(layers[-1]):
            top = layers.pop() | top
        new._layers = (*layers, top) if top else self._layers
        return new

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        as_dict = core_schema.plain_serializer_function_ser_schema(dict)
        entries = handler(dict.__class_getitem__(get_args(source)))
        return core_schema.no_info_after_validator_function(cls, entries, serialization=as_dict)

    def __getitem__(self, key: K) -> V:
        for layer in reversed(self._layers):
            if key in layer:
                return layer[key]
        raise KeyError(key)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[K]:
        merged: dict[K, V] = {}
        for layer in self._layers:
            merged |= layer
        return iter(merged)


@dataclass
class _Trial:
    events: list[Event] = field(default_factory=list)
    related: dict[int | str, list[Event]] = field(default_factory=lambda: defaultdict(list))  # to a decision or request
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
            with self.writing(name, trial) as ledger:
                yield ledger
            self._trials[name] = trial

    @contextmanager
    def writing(self, name: str, new: _Trial | None = None) -> Iterator[Ledger]:
        trial = new or self._trial(name)
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

    connection = None

    def __init__(self, name: str, trial: _Trial) -> None:
        self.name, self._trial = name, trial
        self.seq, self._rows, self._snapshot = trial.committed
        self.hash = trial.events[self.seq - 1].hash if self.seq else START

    def events(self, wanted: Selection) -> Iterator[Event]:
        return wanted.of(self._trial.events[wanted.after : min(wanted.until, self.seq)])

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        return {n: events for n in sorted(set(decisions)) if (events := self._related(n))}

    def of_request(self, request: str) -> list[Event]:
        return self._related(request)

    def decision_rows(
        self, search: Search, *, before: int | None = None, limit: int | None = None
    ) -> list[DecisionRow]:
        last = len(self._rows) if before is None else min(before - 1, len(self._rows))
        rows = (self._rows[n] for n in range(last, 0, -1))
        return [row for row in rows if search.matches(row)][:limit]

    def snapshot(self) -> Snapshot | None:
        return self._snapshot

    def write(self, events: Sequence[Event], rows: Sequence[DecisionRow], snapshot: Snapshot | None) -> None:
        trial = self._trial
        for event in events:
            trial.events.append(event)
            for key in (event.decision, event.request):
                if key is not None:
                    trial.related[key].append(event)
        known = self._rows.with_items((row.decision, row) for row in rows)
        trial.committed = len(trial.events), known, snapshot or self._snapshot

    def _related(self, key: int | str) -> list[Event]:
        return [event for event in self._trial.related.get(key, ()) if event.seq <= self.seq]


# Where trials are kept: in SQLite, in PostgreSQL, or in memory.

DEFAULT = "drimed.db"
Store: TypeAlias = Union[MemoryStore, "SqlStore"]


def open_store(address: str = DEFAULT, *, create: bool = True, connections: int | None = None) -> SqlStore:
    """The store at an address; a plain path is a SQLite file. `connections`: for as many threads at a time."""
    try:
        from drimed.trial.sql_store import SqlStore
    except ImportError as error:
        raise MissingExtraError("SQLAlchemy", "trial") from error
    url = address if "://" in address else f"sqlite:///{address}"
    try:
        return SqlStore(url, create=create, connections=connections)
    except ModuleNotFoundError as error:
        raise MissingExtraError("psycopg", "postgres") from error
