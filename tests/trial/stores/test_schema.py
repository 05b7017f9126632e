"""The tables come out of the migrations as they are declared, whoever opens a store first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from drimed.trial.stores import open_store, schema
from drimed.trial.stores.schema import metadata
from drimed.trial.stores.sql import SqlStore
from tests.trial import workers

PROCESSES = 8


def test_the_newest_migration_is_the_head() -> None:
    assert ScriptDirectory.from_config(schema.config()).get_heads() == [schema.HEAD]


def test_the_migrations_make_the_tables_that_are_declared(address: str) -> None:
    store = open_store(address)
    store.close()
    engine = sa.create_engine(address)
    with engine.connect() as connection:
        options = {"version_table": schema.VERSION_TABLE, "compare_type": True, "compare_server_default": True}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, metadata) == []
        found, declared = sa.inspect(connection), metadata.tables
        for name, table in declared.items():
            assert found.get_pk_constraint(name)["constrained_columns"] == [c.name for c in table.primary_key]
            indices: set[Any] = {(i["name"], *i["column_names"]) for i in found.get_indexes(name)}
            assert {(i.name, *(c.name for c in i.columns)) for i in table.indexes} <= indices
    engine.dispose()


def test_opening_a_store_again_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    open_store(str(file)).close()
    before = file.read_bytes()
    open_store(str(file)).close()
    open_store(str(file), create=False).close()
    assert file.read_bytes() == before


def test_sqlite_syncs_every_commit_and_readers_never_wait(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, SqlStore)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.close()


def test_postgres_waits_for_its_disk(postgres: Any) -> None:
    with postgres.database() as empty:
        store = open_store(empty)
        assert isinstance(store, SqlStore)
        with store._engine.connect() as connection:
            assert connection.exec_driver_sql("SHOW synchronous_commit").scalar() == "on"
            assert connection.exec_driver_sql("SHOW fsync").scalar() == "on"
        store.close()


def open_at(address: str, barrier: Any, results: Any) -> None:
    barrier.wait(60)
    try:
        store = open_store(address)
        names = store.names()
        store.close()
        results.put(names)
    except BaseException as error:
        results.put(repr(error))


@pytest.mark.parametrize("_", range(3))
def test_eight_processes_may_open_an_empty_store_at_once(address: str, _: int) -> None:
    context = workers.context()
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    processes = [
        context.Process(target=open_at, args=(address, barrier, results), daemon=True) for _ in range(PROCESSES)
    ]
    for process in processes:
        process.start()
    found = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(60)
        process.close()
    results.close()
    assert found == [[]] * PROCESSES


def revisions() -> list[str]:
    return [r.revision for r in ScriptDirectory.from_config(schema.config()).walk_revisions()]


@pytest.mark.parametrize("old", [r for r in revisions() if r != schema.HEAD])
def test_a_store_of_an_older_version_is_brought_up_to_date_with_all_it_holds(address: str, old: str) -> None:
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        command.upgrade(schema.config(connection), old)
        connection.exec_driver_sql("INSERT INTO drimed_trials (name, seq, hash) VALUES ('kept', 7, 'abc')")
    engine.dispose()
    store = open_store(address)
    with store.reading("kept") as ledger:
        assert (ledger.seq, ledger.hash) == (7, "abc")
    store.close()
    engine = sa.create_engine(address)
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT version_num FROM {schema.VERSION_TABLE}").scalar() == schema.HEAD
    engine.dispose()
