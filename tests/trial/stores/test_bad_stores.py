"""Stores that cannot be used: a clear error, nothing written, and no password in any message."""

from __future__ import annotations

import socket
import sqlite3
import traceback
from pathlib import Path

import pytest
import sqlalchemy as sa

from drimed.errors import StoreError
from drimed.trial import store as stores
from drimed.trial.store import PAGE_BYTES, Store, open_store
from drimed.trial.trial import Trial
from tests.trial.servers import Server
from tests.trial.trials import SMALL

SECRET = "s3cr3t"


def fingerprint(folder: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def refused(address: str, message: str, *, create: bool = True) -> None:
    with pytest.raises(StoreError, match=message) as caught:
        open_store(address, create=create)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nowhere/trials.db", "nowhere does not exist; create it first"),
        ("", "cannot be used: unable to open database file; check that the folder exists"),
        ("file/trials.db", "file does not exist; create it first"),
    ],
)
def test_a_path_where_no_file_can_be(tmp_path: Path, path: str, message: str) -> None:
    (tmp_path / "file").write_text("x")
    before = fingerprint(tmp_path)
    refused(str(tmp_path / path), message)
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("content", [b"user,yield\nnorth,5\n" * 100, b"x", b"SQLite format 3\0" + b"\xff" * 5000])
def test_a_file_that_is_no_database(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "trials.csv").write_bytes(content)
    before = fingerprint(tmp_path)
    refused(str(tmp_path / "trials.csv"), "not a (database; it is not a )?SQLite file[;:] choose another path")
    assert fingerprint(tmp_path) == before


@pytest.mark.parametrize("create", [True, False])
def test_somebody_elses_database_is_left_alone_to_the_last_byte(tmp_path: Path, create: bool) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as other:
        other.execute("CREATE TABLE customers (name TEXT)")
        other.execute("INSERT INTO customers VALUES ('Ada')")
    other.close()
    before = fingerprint(tmp_path)
    refused(str(tmp_path / "shop.db"), "another program's database .*'customers'", create=create)
    assert fingerprint(tmp_path) == before


def test_a_store_that_should_be_there_and_is_not(tmp_path: Path) -> None:
    refused(str(tmp_path / "trials.db"), "there is no store .*trials.db; create a trial first", create=False)
    assert fingerprint(tmp_path) == {}
    (tmp_path / "trials.db").touch()
    refused(str(tmp_path / "trials.db"), "there are no trials in this database", create=False)
    assert fingerprint(tmp_path) == {str(tmp_path / "trials.db"): b""}


def test_a_postgres_database_without_trials_is_not_prepared_by_a_reader(postgres: Server) -> None:
    with postgres.database() as empty:
        refused(empty, "there are no trials in this database", create=False)
        engine = sa.create_engine(empty)
        with engine.connect() as connection:
            assert sa.inspect(connection).get_table_names() == []
        engine.dispose()


def test_a_postgres_database_may_have_other_tables(postgres: Server) -> None:
    with postgres.database() as shared:
        engine = sa.create_engine(shared)
        with engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE customers (name TEXT)")
        store = open_store(shared)
        Trial.create(SMALL, store)
        assert store.names() == ["small"]
        store.close()
        with engine.connect() as connection:
            assert "customers" in sa.inspect(connection).get_table_names()
        engine.dispose()


def test_a_store_of_a_newer_drimed_is_left_alone(address: str) -> None:
    store = open_store(address)
    store.close()
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {stores.version.name} SET version = 9999")
    refused(address, "the store has version 9999, expected 1; use the drimed that made it")
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT version FROM {stores.version.name}").scalar() == 9999
    engine.dispose()


def test_a_torn_file_is_found_when_it_is_read(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    store = open_store(str(file))
    trial = Trial.create(SMALL, store)
    for _ in range(20):
        trial.ask_many()
        trial.open_episode()
    store.close()
    whole = file.read_bytes()
    sound = 2 * PAGE_BYTES  # what the tables are, and their version
    file.write_bytes(whole[:sound] + b"\xaa" * (len(whole) - sound))
    store = open_store(str(file))
    with pytest.raises(StoreError, match="malformed; restore a backup"):
        Trial.open("small", store)
    store.close()


def test_a_full_disk_is_named_and_nothing_is_half_written(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, Store)
    trial = Trial.create(SMALL, store)
    kept = trial.ask("north")
    before = trial.status()
    pages = 1 + (tmp_path / "trials.db").stat().st_size // 4096

    @sa.event.listens_for(store._engine, "engine_connect")
    def _(connection: sa.Connection, *_: object) -> None:
        connection.connection.cursor().execute(f"PRAGMA max_page_count={pages}")

    with pytest.raises(StoreError, match="disk is full; free some space, nothing was written"):
        trial.open_episode(actor="x" * 10**6)
    assert Trial.open("small", store).status() == before
    sa.event.remove(store._engine, "engine_connect", _)
    store._engine.dispose()
    assert trial.tell(kept.id, {"yield": 1.0}).result == "recorded"  # and the trial goes on
    store.close()


@pytest.mark.parametrize(
    ("address", "message"),
    [
        (f"postgresql://me:{SECRET}@localhost:port/db", "this is no address of a store; expected sqlite:///FILE or"),
        (f"://{SECRET}", "this is no address of a store"),
        (f"postgresql//me:{SECRET}@localhost://db", "this is no address of a store"),
        (f"mysql://me:{SECRET}@localhost/db", "stores are kept in SQLite or PostgreSQL, got 'mysql'"),
        ("sqlite://", "a SQLite store needs a file; .* use MemoryStore"),
        ("sqlite:///:memory:", "a SQLite store needs a file"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_and_not_repeated(address: str, message: str) -> None:
    refused(address, message)


def test_a_server_that_does_not_answer() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound and not listening: whoever comes is refused
        port = taken.getsockname()[1]
        refused(f"postgresql://me:{SECRET}@127.0.0.1:{port}/db", "me:\\*\\*\\*@127.0.0.1.* is the server running")
        refused(f"postgresql://me@127.0.0.1:{port}/db?password={SECRET}", "refused")


def test_a_database_that_is_not_there(postgres: Server) -> None:
    with postgres.database() as empty:
        refused(str(sa.make_url(empty).set(database="nosuch")), 'database "nosuch" does not exist')


def test_a_wrong_password_is_refused_and_not_repeated(postgres: Server) -> None:
    with postgres.asking_for_passwords("guest", "right"), postgres.database() as empty:
        url = sa.make_url(empty).set(username="guest", password=SECRET)
        refused(url.render_as_string(hide_password=False), 'password authentication failed for user "guest"')


def test_a_user_without_rights_is_refused(postgres: Server) -> None:
    postgres.run("CREATE ROLE visitor LOGIN")
    with postgres.database() as empty:
        refused(str(sa.make_url(empty).set(username="visitor")), "permission denied")


def test_a_store_whose_tables_are_gone_says_so(address: str) -> None:
    store = open_store(address)
    Trial.create(SMALL, store)
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        connection.exec_driver_sql("DROP TABLE drimed_events")
    engine.dispose()
    with pytest.raises(StoreError, match=r"cannot be used: .*drimed_events"):
        Trial.open("small", store)
    store.close()
