"""The tables, and how a store gets those of this version: created where there are none, migrated where they are older.

A change of the tables needs a migration; a test compares the two. The first process to open a store prepares it while
others wait; somebody else's database is left alone.
"""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import (
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

if TYPE_CHECKING:  # Alembic is loaded where tables are made or changed: a store that is up to date opens without it
    from alembic.config import Config

VERSION_TABLE = "drimed_version"
HEAD = "0006"  # a test holds it to the newest migration
LOCK = 0x64726D  # of PostgreSQL's advisory locks, for the moment of preparation
PATIENCE = 60.0  # seconds


metadata = MetaData()

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
    Column("text", Text, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("base", Integer),  # a long text is kept compressed, maybe against another event's (packing.py)
    Column("packed", LargeBinary),
    Index("drimed_events_by_decision", "trial", "decision"),
    Index("drimed_events_by_request", "trial", "request"),
)

snapshots = Table(
    "drimed_snapshots",
    metadata,
    Column("trial", Integer, ForeignKey("drimed_trials.id"), primary_key=True),
    Column("seq", Integer, primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("data", LargeBinary, nullable=False),
)

# Who may use the service (drimed.service.tokens); what is stored of a token is a hash.
tokens = Table(
    "drimed_tokens",
    metadata,
    Column("id", String(16), primary_key=True),
    Column("hash", String(64), nullable=False),
    Column("label", String(100), nullable=False, unique=True),
    Column("role", String(20), nullable=False),
    Column("trial", String(100)),  # NULL: all trials
    Column("created", String(40), nullable=False),
    Column("expires", String(40)),
    Column("revoked", String(40)),
)

# What was done to tokens, chained as the events of a trial are (drimed.service.token_log).
log = Table(
    "drimed_log",
    metadata,
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("time", String(40), nullable=False),
    Column("actor", Text, nullable=False),
    Column("kind", String(20), nullable=False),
    Column("text", Text, nullable=False),
    Column("hash", String(64), nullable=False),
)

# Answers to writes that carried an Idempotency-Key (drimed.service.retries), written together with what they did.
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
    """Make sure that the tables are there and of this version."""
    lite = engine.dialect.name == "sqlite"
    with engine.connect() as connection:
        found = _version(connection)
        if found == HEAD:
            return
        _refuse(connection, found, create=create)  # before anything is written to the file
        if lite:
            _wal(connection)
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        else:
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({LOCK})")
        try:
            found = _version(connection)  # again: another process may have been faster
            if found != HEAD:
                _refuse(connection, found, create=create)
                from alembic import command

                command.upgrade(config(connection), HEAD)
        except BaseException:
            with suppress(SQLAlchemyError):  # the connection may be gone, and the error above says more
                connection.exec_driver_sql("ROLLBACK")
            raise
        connection.exec_driver_sql("COMMIT")


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, without a file."""
    from alembic.config import Config

    made = Config()
    made.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
    made.set_main_option("path_separator", "os")
    made.attributes["connection"] = connection
    return made


def _refuse(connection: Connection, found: str | None, *, create: bool) -> None:
    """Leave alone what is not ours to change."""
    if found is None:
        others = [t for t in sa.inspect(connection).get_table_names() if not t.startswith("sqlite_")]
        if VERSION_TABLE in others:  # another process was faster, just now
            return
        if others and connection.dialect.name == "sqlite":
            raise StoreError(
                f"this file is somebody else's database (it has a table {others[0]!r}); choose another path"
            )
        if not create:
            raise StoreError("there are no trials in this database; create one first, or check the address")
    elif found not in _revisions():
        raise StoreError(f"the store has version {found}, which this drimed does not know; use the newer one")


def _version(connection: Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.scalar(sa.text(f"SELECT version_num FROM {VERSION_TABLE}"))
    return None if found is None else str(found)


def _wal(connection: Connection) -> None:
    """Readers then never wait for a writer. The switch itself wants the file alone for a moment."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if "locked" not in str(error.orig) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def _revisions() -> set[str]:
    """Every version that this drimed knows."""
    from alembic.script import ScriptDirectory

    return {r.revision for r in ScriptDirectory.from_config(config()).walk_revisions()}
