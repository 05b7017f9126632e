"""Tables of a store in a database; the first process that opens it creates them."""

from __future__ import annotations

import time
from contextlib import suppress

import sqlalchemy as sa
from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Engine,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from drimed.errors import StoreError

VERSION = 1  # of these tables
LOCK = 0x64726D  # of PostgreSQL's advisory locks, while tables are created
PATIENCE = 60.0  # seconds

metadata = MetaData()

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
    Column("base", Integer),  # the event whose text is the dictionary of `packed`
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


def prepare(engine: Engine, *, create: bool) -> None:
    """Make sure that the tables are there and of this version; another program's database is left alone."""
    with engine.connect() as connection:
        if _is_ready(connection, create=create):  # before anything is written to the file
            return
        if engine.dialect.name == "sqlite":
            _wal(connection)
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        try:
            if not _is_ready(connection, create=create):  # again: another process may have been faster
                metadata.create_all(connection)
                connection.execute(version.insert(), {"version": VERSION})
        except BaseException:
            with suppress(SQLAlchemyError):  # the connection may be gone, and the error above says more
                connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")


def _is_ready(connection: Connection, *, create: bool) -> bool:
    """Whether the tables of this version are there; StoreError if they cannot be created."""
    tables = sa.inspect(connection).get_table_names()
    if version.name in tables:
        stored = connection.scalar(sa.select(version.c.version)) if _has_column(connection) else None
        if stored != VERSION:
            raise StoreError(f"the store has version {stored}, expected {VERSION}; use the drimed that made it")
        return True
    others = [name for name in tables if not name.startswith("sqlite_")]
    if others and connection.dialect.name == "sqlite":
        raise StoreError(f"this file is another program's database (it has a table {others[0]!r}); choose another path")
    if not create:
        raise StoreError("there are no trials in this database; create one first, or check the address")
    return False


def _has_column(connection: Connection) -> bool:
    return any(column["name"] == "version" for column in sa.inspect(connection).get_columns(version.name))


def _wal(connection: Connection) -> None:
    """Switch to a write-ahead log, so that readers never wait; the switch wants the file alone for a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)
