"""Stores of trials in SQLite and PostgreSQL: an append-only log for each, a table of its decisions, and a snapshot.

SQLite runs in WAL mode and syncs every commit to disk; PostgreSQL is told to. A writer takes its place in the queue at
the start of its transaction, so two of them never meet in the middle.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import time
import weakref
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Boolean, Column, Connection, Engine, ForeignKey, Index, Integer, LargeBinary, String, Table, Text
from sqlalchemy import bindparam as bind
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError, SQLAlchemyError

from drimed import errors
from drimed.errors import ConflictError, DrimedError, InputError, StoreError, UnknownNameError
from drimed.records import AMENDED, DEFAULT_STORE, PARTIAL, PENDING, DecisionRow, Event, Search
from drimed.trial.events import START, storable

LEAST_PACKED = 1000  # characters of an event's text; shorter ones are stored as they are
VERSION = 1  # of the tables
LOCK = 0x64726D  # of PostgreSQL's advisory locks, while tables are created
PATIENCE = 120.0  # seconds that a writer waits for its turn; a turn takes milliseconds
POLL = 0.0005, 0.002  # seconds between two looks whether it is one's turn
LONGEST_LOOK = 1.0  # seconds that one look counts as: a process that was stopped in between did not wait
KEPT, CONNECTIONS = 5, 15  # to the database: that stay open, and that there may be at a time
PAGE = 2000  # events that are fetched at a time
PAGE_BYTES = 8192  # of SQLite: a decision among 200 arms takes more than half of 4096, and would have a page to itself
MAGIC = b"SQLite format 3\0"  # the first bytes of every SQLite file
FEW = 3  # decisions that are read one by one
MOST_NAMES = 500  # values in one IN (...): SQLite has a limit
LARGEST = 2**31 - 1  # number that a column holds

ADVICE = {  # part of a database's message -> what to do
    "readonly": "; check the permissions of the file and its folder",
    "unable to open": "; check that the folder exists and is writable",
    "not a database": "; it is not a SQLite file: choose another path",
    "disk is full": "; free some space, nothing was written",
    "malformed": "; restore a backup (docs/verify.md)",
    "refused": "; is the server running?",
}


@dataclass(frozen=True)
class Snapshot:
    """A state after event `seq`, as bytes."""

    seq: int
    hash: str  # of that event
    data: bytes


# Tables; the first process that opens a store creates them.

metadata = sa.MetaData()

version = Table("drimed_version", metadata, Column("version", Integer, primary_key=True, autoincrement=False))

trials = Table(
    "drimed_trials",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(100), nullable=False, unique=True),
    Column("seq", Integer, nullable=False),  # the head of the chain: it betrays a log whose end was cut off,
    Column("hash", String(64), nullable=False),  # and writers of one trial wait for each other on this row
)

events = Table(
    "drimed_events",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("time", String(40), nullable=False),
    Column("actor", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("decision", Integer),
    Column("user", Text),
    Column("request", Text),
    Column("text", Text, nullable=False),  # empty: it is in `packed`
    Column("hash", String(64), nullable=False),
    Column("packed", LargeBinary),
    Index("drimed_events_by_decision", "trial", "decision"),
    Index("drimed_events_by_request", "trial", "request"),
)

# Rebuilt from the log if it is lost; `verify` compares both.
decisions = Table(
    "drimed_decisions",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("decision", Integer, primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("user", Text, nullable=False),
    Column("plot", Text),
    Column("block", Text),
    Column("arm", Text, nullable=False),
    Column("state", String(10), nullable=False),
    Column("amended", Boolean, nullable=False),
    Index("drimed_decisions_by_state", "trial", "state", "decision"),
    Index("drimed_decisions_by_user", "trial", "user", "decision"),
)

snapshots = Table(
    "drimed_snapshots",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("seq", Integer, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Tokens of the service, by the hash of each.
tokens = Table(
    "drimed_tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("label", String(100), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("trial", String(100)),  # NULL: all trials
    Column("created", String(40), nullable=False),
    Column("created_by", Text, nullable=False),
    Column("expires", String(40)),
    Column("revoked", String(40)),
    Column("revoked_by", Text),
)

# Answers to writes that carried an Idempotency-Key, written together with what they did.
requests = Table(
    "drimed_requests",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("actor", String(100), nullable=False),
    Column("key", String(255), nullable=False),
    Column("time", String(40), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", LargeBinary, nullable=False),
    Index("drimed_requests_by_key", "actor", "key", unique=True),
    Index("drimed_requests_by_time", "time"),
)


class Store:
    def __init__(self, url: str, *, create: bool = True, connections: int | None = None, lasts: bool = True) -> None:
        self.url = _normal(url)
        self._waits = True
        self.lite = self.url.get_backend_name() == "sqlite"
        with _store_errors(self.url):
            pool = {"pool_size": KEPT, "max_overflow": max(0, (connections or CONNECTIONS) - KEPT)}
            lite = _sqlite(self.url, pool, create=create, lasts=lasts) if self.lite else None
            self._engine = lite or _postgres(self.url, pool)
            try:
                self._prepare(create=create)
            except BaseException:
                self._engine.dispose()
                raise

    def names(self) -> list[str]:
        with self.transaction(write=False) as connection:
            return list(connection.scalars(sa.select(trials.c.name).order_by(trials.c.id)))

    def create(self, name: str) -> AbstractContextManager[Ledger]:
        return self._ledger(name, write=True, new=True)

    def writing(self, name: str) -> AbstractContextManager[Ledger]:
        return self._ledger(name, write=True)

    def reading(self, name: str) -> AbstractContextManager[Ledger]:
        return self._ledger(name, write=False)

    def stop_waiting(self) -> None:
        """Writers that wait for their turn on SQLite give up; nothing of theirs was written."""
        self._waits = False

    def close(self) -> None:
        self._engine.dispose()

    @contextmanager
    def transaction(self, *, write: bool) -> Iterator[Connection]:
        """One on no trial in particular: for tables that are kept beside the trials."""
        with _store_errors(self.url), self._engine.connect() as connection:
            if not write and not self.lite:
                connection.execution_options(isolation_level="REPEATABLE READ")
            with connection.begin():
                # SQLite would wait for its turn by itself, but it sleeps ever longer, up to a tenth of a second, while
                # others come and go; and it does not wait at all while a log is being recovered.
                try:
                    if self.lite and write:
                        _AT_ONCE(connection)
                    if self.lite:
                        self._wait(connection, _BEGIN if write else _BEGIN_READING)
                finally:
                    if self.lite and write:
                        _PATIENT(connection)
                yield connection

    @contextmanager
    def _ledger(self, name: str, *, write: bool, new: bool = False) -> Iterator[Ledger]:
        storable("the name of a trial", name)
        with self.transaction(write=write) as connection:
            try:
                if new:
                    connection.execute(trials.insert(), {"name": name, "seq": 0, "hash": START})
            except IntegrityError:
                raise ConflictError(f"there is a trial {name!r} already; open it, or choose another name") from None
            row = (_LOCKED_HEAD if write else _HEAD)(connection, {"name": name}).fetchone()
            if row is None:
                raise UnknownNameError("trial", name, list(connection.scalars(sa.select(trials.c.name))))
            ledger = Ledger(connection, name, *row)
            yield ledger
            if write:
                ledger.flush()

    def _wait(self, connection: Connection, statement: Prepared) -> None:
        # What counts is the time spent looking: a process that was stopped together with the one before did not wait.
        waited, looked = 0.0, time.monotonic()
        while True:
            try:
                statement(connection)
                return
            except OperationalError as error:
                now = time.monotonic()
                waited, looked = waited + min(now - looked, LONGEST_LOOK), now
                if "lock" not in str(error.orig) or waited > PATIENCE or not self._waits:
                    raise
                time.sleep(random.uniform(*POLL))

    def _prepare(self, *, create: bool) -> None:
        """Make sure that the tables are there and of this version; another program's database is left alone."""
        with self._engine.connect() as connection:
            if _is_ready(connection, create=create):  # before anything is written to the file
                return
            if self.lite:  # readers never wait with this; the switch wants the file alone for a moment
                self._wait(connection, Prepared("PRAGMA journal_mode=WAL"))
        with self.transaction(write=True) as connection:
            if not self.lite:
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
            if not _is_ready(connection, create=create):  # again: another process may have been faster
                metadata.create_all(connection)
                connection.execute(version.insert(), {"version": VERSION})


def _is_ready(connection: Connection, *, create: bool) -> bool:
    """Whether the tables of this version are there; StoreError if they cannot be created."""
    tables = sa.inspect(connection).get_table_names()
    if version.name in tables:
        stored = connection.scalar(sa.select(version.c.version))
        if stored != VERSION:
            raise StoreError(f"the store has version {stored}, expected {VERSION}; use the drimed that made it")
        return True
    others = [name for name in tables if not name.startswith("sqlite_")]
    if others and connection.dialect.name == "sqlite":
        raise StoreError(f"this file is another program's database (it has a table {others[0]!r}); choose another path")
    if not create:
        raise StoreError("there are no trials in this database; create one first, or check the address")
    return False


class Ledger:
    """One trial's log inside one transaction, with the events that it is about to add, which are read back too.

    A writing ledger flushes them when its `with` block ends without an error; a reading one never does: a dry run.
    """

    def __init__(self, connection: Connection, name: str, trial: int, seq: int, hash_: str) -> None:
        self.connection, self.name = connection, name
        self.seq, self.hash = seq, hash_  # of the last event; 0 before the first
        self.new: list[Event] = []
        self.rows: dict[int, DecisionRow] = {}  # decision -> its row after the new events
        self._trial, self._stored, self._kept = trial, seq, None  # type: int, int, Snapshot | None

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
        most = self.seq if until is None else until
        wanted: list[Any] = [events.c.kind.in_(list(kinds))] if kinds else []
        wanted += [] if user is None else [events.c.user == user]
        new = [
            e for e in self.new if after < e.seq <= most and (not kinds or e.kind in kinds) and user in (None, e.user)
        ]
        # With nothing new also events behind the head, which must not be there.
        most = min(most, self._stored) if self.new else most
        stored = self._pages(wanted, after, most, limit, newest_first=newest_first)
        return islice(chain(reversed(new), stored) if newest_first else chain(stored, new), limit)

    def _pages(
        self, wanted: Sequence[Any], low: int, high: int, left: int | None, *, newest_first: bool
    ) -> Iterator[Event]:
        seq, high = events.c.seq, min(high, LARGEST)
        while low < high and (left is None or left > 0):
            most = PAGE if left is None else min(PAGE, left)
            if high - low <= most and not wanted and not newest_first:  # as when a process catches up with others
                found = _FOLLOWING(self.connection, {"trial": self._trial, "low": low, "high": high})
            else:
                some = self._select().where(*wanted, seq > low, seq <= high)
                some = some.order_by(seq.desc() if newest_first else seq).limit(most)
                found = self.connection.execute(some)
            page = [_event(*row) for row in found.fetchall()]  # row by row takes longer
            yield from page
            if len(page) < most:
                return
            left = None if left is None else left - len(page)
            low, high = (low, page[-1].seq - 1) if newest_first else (page[-1].seq, high)

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        """All events about these decisions, in order; an unknown decision is left out."""
        histories: dict[int, list[Event]] = {}
        wanted = [n for n in dict.fromkeys(decisions) if 0 < n <= LARGEST]
        few = wanted if len(wanted) <= FEW else []
        found = [_OF_DECISION(self.connection, {"trial": self._trial, "decision": n}) for n in few]
        for start in range(0, 0 if few else len(wanted), MOST_NAMES):
            condition = events.c.decision.in_(wanted[start : start + MOST_NAMES])
            found.append(self.connection.execute(self._select().where(condition)))
        for event in chain.from_iterable(map(_sorted, found)):
            histories.setdefault(int(event.decision or 0), []).append(event)
        of_these = set(wanted)
        for event in self.new:
            if event.decision is not None and event.decision in of_these:
                histories.setdefault(event.decision, []).append(event)
        return dict(sorted(histories.items()))

    def of_request(self, request: str) -> list[Event]:
        rows = _OF_REQUEST(self.connection, {"trial": self._trial, "request": request})
        return _sorted(rows) + [e for e in self.new if e.request == request]

    def decision_rows(
        self, search: Search | None = None, *, before: int | None = None, limit: int | None = None
    ) -> list[DecisionRow]:
        """Stored rows of the table of decisions that match, newest first, with numbers below `before`."""
        c, search = decisions.c, search or Search()
        query = sa.select(*(column for column in c if column is not c.trial)).where(c.trial == self._trial)
        for name in ("user", "arm", "plot", "block"):
            if wanted := getattr(search, name):
                query = query.where(c[name] == wanted)
        if search.states:
            query = query.where(c.state.in_(search.states))
        if search.state == AMENDED:
            query = query.where(c.amended)
        if before is not None:
            query = query.where(c.decision < min(before, LARGEST))
        rows = self.connection.execute(query.order_by(c.decision.desc()).limit(limit))
        return [DecisionRow(*row) for row in rows]

    def oldest_open(self) -> Event | None:
        """The event of the oldest decision whose outcome, or the rest of it, is still to come."""
        c, is_open = decisions.c, decisions.c.state.in_((PENDING, PARTIAL))
        oldest = self.connection.scalar(sa.select(sa.func.min(c.decision)).where(c.trial == self._trial, is_open))
        return None if oldest is None else self.of_decisions([oldest])[oldest][0]

    def append(self, events: Sequence[Event], rows: Sequence[DecisionRow] = ()) -> None:
        """Buffer events that follow the last one, and the rows of their decisions."""
        for before, event in enumerate(events, self.seq):
            if event.seq != before + 1:
                raise ConflictError(f"event {event.seq} does not follow event {before}")
        self.new += events
        if events:
            self.seq, self.hash = events[-1].seq, events[-1].hash
        self.rows |= {row.decision: row for row in rows}

    @contextmanager
    def all_or_nothing(self) -> Iterator[None]:
        """Take back what the block has appended if it fails."""
        count, seq, hash_, rows = len(self.new), self.seq, self.hash, dict(self.rows)
        try:
            yield
        except BaseException:
            del self.new[count:]
            self.seq, self.hash, self.rows = seq, hash_, rows
            raise

    def snapshot(self) -> Snapshot | None:
        c = snapshots.c
        row = self.connection.execute(sa.select(c.seq, c.hash, c.data).where(c.trial == self._trial)).first()
        return self._kept or (None if row is None else Snapshot(row.seq, row.hash, bytes(row.data)))

    def keep(self, snapshot: Snapshot) -> None:
        self._kept = snapshot

    def flush(self) -> None:
        run, trial = self.connection.execute, {"trial": self._trial}
        if self.new:
            _ADD(self.connection, *(trial | _record(event) for event in self.new))
            _MOVE(self.connection, trial | {"seq": self.seq, "hash": self.hash})
        if self.rows:
            put = _upsert(self.connection.dialect.name)
            put(self.connection, *(trial | vars(row) for row in self.rows.values()))
        if self._kept is not None:
            run(snapshots.delete().where(snapshots.c.trial == self._trial))
            run(snapshots.insert(), trial | vars(self._kept))
        self.new, self.rows, self._kept, self._stored = [], {}, None, self.seq

    def _select(self) -> sa.Select[Any]:
        return sa.select(*_COLUMNS).where(events.c.trial == self._trial)


class Prepared:
    """A statement as SQLAlchemy writes it: to run a small one takes it several times as long as the database."""

    def __init__(self, statement: Any) -> None:
        self._statement = statement
        self._written = dict[str, tuple[str, Sequence[str] | None]]()  # dialect -> text, order of the values

    def __call__(self, connection: Connection, *rows: dict[str, Any]) -> Any:
        """Run with one row of values, with several or without any; the driver's cursor. Errors are SQLAlchemy's."""
        dialect = connection.dialect
        if dialect.name not in self._written:
            compiled = sa.text(self._statement) if isinstance(self._statement, str) else self._statement
            compiled = compiled.compile(dialect=dialect)
            self._written[dialect.name] = compiled.string, getattr(compiled, "positiontup", None)
        text, order = self._written[dialect.name]
        values = rows if order is None else [tuple(row[name] for name in order) for row in rows]
        cursor = connection.connection.cursor()
        try:
            return cursor.executemany(text, values) if len(rows) > 1 else cursor.execute(text, *values)
        except dialect.loaded_dbapi.Error as error:
            raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error


_HEAD = Prepared(_FIND := sa.select(trials.c.id, trials.c.seq, trials.c.hash).where(trials.c.name == bind("name")))
_LOCKED_HEAD = Prepared(_FIND.with_for_update())
_ADD = Prepared(events.insert())
_MOVE = Prepared(trials.update().where(trials.c.id == bind("trial")).values(seq=bind("seq"), hash=bind("hash")))
_BEGIN, _BEGIN_READING = Prepared("BEGIN IMMEDIATE"), Prepared("BEGIN DEFERRED")
_AT_ONCE, _PATIENT = Prepared("PRAGMA busy_timeout=0"), Prepared(f"PRAGMA busy_timeout={int(1000 * PATIENCE)}")


@cache
def _upsert(dialect: str) -> Prepared:
    insert = (sqlite if dialect == "sqlite" else postgresql).insert(decisions)
    changed = {"state": insert.excluded.state, "amended": insert.excluded.amended}
    return Prepared(insert.on_conflict_do_update(index_elements=["trial", "decision"], set_=changed))


_COLUMNS = [column for column in events.c if column.name != "trial"]  # in the order of an Event, and `packed`
_OF_TRIAL, _seq = sa.select(*_COLUMNS).where(events.c.trial == bind("trial")), events.c.seq
_FOLLOWING = Prepared(_OF_TRIAL.where(_seq > bind("low"), _seq <= bind("high")).order_by(_seq))
_OF_REQUEST = Prepared(_OF_TRIAL.where(events.c.request == bind("request")))
_OF_DECISION = Prepared(_OF_TRIAL.where(events.c.decision == bind("decision")))


def _sorted(rows: Iterable[Any]) -> list[Event]:
    """In order: asked to sort, SQLite walks through the whole trial rather than sort three rows."""
    return sorted((_event(*row) for row in rows), key=lambda e: e.seq)


def pack(text: bytes) -> bytes:
    """Compressed for zlib.decompress; a short text with little memory, which takes a tenth of the time."""
    packing = zlib.compressobj(wbits=12, memLevel=5) if len(text) < 1 << 12 else zlib.compressobj()
    return packing.compress(text) + packing.flush()


def _record(event: Event) -> dict[str, Any]:
    """An event as columns, its text packed where it is long."""
    record = {column.name: getattr(event, column.name) for column in _COLUMNS[:-1]}
    packed = pack(event.text.encode()) if len(event.text) >= LEAST_PACKED else None
    return record | {"text": event.text if packed is None else "", "packed": packed}


def _event(*row: Any) -> Event:
    """An event as it was recorded; a damaged text is empty, and its hash will not be right."""
    seq, time, actor, kind, decision, user, request, text, hash_, packed = row
    if packed is not None and not text:
        with suppress(zlib.error, ValueError, TypeError):
            text = zlib.decompress(packed).decode()
    text = text if isinstance(text, str) else ""  # SQLite takes bytes for text
    return Event(seq, time, actor, kind, decision, user, request, text, hash_)


def open_store(address: str = DEFAULT_STORE, *, create: bool = True, connections: int | None = None) -> Store:
    """The store at an address; a plain path is a SQLite file. `connections`: for as many threads at a time."""
    try:
        return Store(address if "://" in address else f"sqlite:///{address}", create=create, connections=connections)
    except ModuleNotFoundError as error:
        raise errors.MissingExtraError("psycopg", "postgres") from error


def MemoryStore() -> Store:
    """A store that ends with the process: for tests, examples and simulations."""
    folder = tempfile.mkdtemp(prefix="drimed-")
    store = Store(f"sqlite:///{folder}/trials.db", lasts=False)
    weakref.finalize(store, shutil.rmtree, folder, ignore_errors=True)  # the last one is called first
    weakref.finalize(store, store._engine.dispose)
    return store


def checked(store: Any) -> None:
    if not hasattr(store, "reading"):
        raise InputError(f"expected a store, such as open_store('trials.db') or MemoryStore(), got {store!r}")


def _normal(url: str) -> sa.URL:
    try:
        made = sa.make_url(url)
    except (SQLAlchemyError, ValueError):  # without the text: a password may be in it
        raise StoreError(
            "this is no address of a store; expected sqlite:///FILE or postgresql://USER:PASSWORD@HOST:PORT/DATABASE, "
            "with special characters in the password written as %XX"
        ) from None
    backend = made.get_backend_name()
    if backend not in ("sqlite", "postgresql"):
        raise StoreError(f"stores are kept in SQLite or PostgreSQL, got {backend!r}")
    return made.set(drivername="postgresql+psycopg") if made.drivername == "postgresql" else made


def _sqlite(url: sa.URL, pool: dict[str, int], *, create: bool, lasts: bool) -> Engine:
    if url.database in (None, "", ":memory:"):
        raise StoreError("a SQLite store needs a file; for one that lasts as long as the process, use MemoryStore")
    file = Path(str(url.database))
    if not create and not file.exists():
        raise StoreError(f"there is no store {file}; create a trial first, or check the path")
    if not file.parent.is_dir():
        raise StoreError(f"the folder {file.parent} does not exist; create it first")
    # SQLite would take a very short text for an empty file; if it cannot be read at all, SQLite says why.
    with suppress(OSError), file.open("rb") as stream:
        if stream.read(len(MAGIC)) not in (b"", MAGIC):
            raise StoreError(f"{file} is not a SQLite file; choose another path")
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", connect_args={"timeout": PATIENCE}, **pool)

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, record: Any) -> None:
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")  # of a new file; those that are there keep theirs
        connection.execute(f"PRAGMA synchronous={'FULL' if lasts else 'OFF'}")
        connection.execute("PRAGMA foreign_keys=ON")
        record.info["file"] = file.stat()

    @sa.event.listens_for(engine, "checkout")
    def _(_connection: Any, record: Any, _proxy: Any) -> None:
        """A backup may have been put in its place: what is written to the old file would be lost."""
        try:
            same = os.path.samestat(file.stat(), record.info["file"])
        except FileNotFoundError:
            raise StoreError(f"there is no store {file} any more; put it back, or check what removed it") from None
        if not same:
            raise sa.exc.DisconnectionError("another file is in its place")  # the pool opens that one

    return engine


def _postgres(url: sa.URL, pool: dict[str, int]) -> Engine:
    engine = sa.create_engine(url, pool_pre_ping=True, **pool)

    @sa.event.listens_for(engine, "connect")
    def _(connection: Any, _record: Any) -> None:
        connection.execute("SET synchronous_commit TO on")
        connection.commit()

    return engine


@contextmanager
def _store_errors(url: sa.URL) -> Iterator[None]:
    """Database errors in our words; the caller's own pass through."""
    try:
        yield
    except SQLAlchemyError as error:
        if isinstance(error.__cause__, DrimedError):
            raise error.__cause__ from None
        reason = str(error.orig).strip().splitlines()[0] if isinstance(error, DBAPIError) else str(error)
        advice = next((more for part, more in ADVICE.items() if part in reason), "")
        address = url.set(query={name: value for name, value in url.query.items() if "password" not in name})
        shown = address.render_as_string(hide_password=True)
        raise StoreError(f"the store {shown} cannot be used: {reason}{advice}") from error
