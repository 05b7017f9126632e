"""Tables are created by the first process that opens a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from drimed.trial.store import Store, open_store
from tests.trial import workers

PROCESSES = 8


def test_opening_a_store_again_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "trials.db"
    open_store(str(file)).close()
    before = file.read_bytes()
    open_store(str(file)).close()
    open_store(str(file), create=False).close()
    assert file.read_bytes() == before


def test_sqlite_syncs_every_commit_and_readers_never_wait(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "trials.db"))
    assert isinstance(store, Store)
    with store._engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
        assert connection.exec_driver_sql("PRAGMA foreign_keys").scalar() == 1
    store.close()


def test_postgres_waits_for_its_disk(postgres: Any) -> None:
    with postgres.database() as empty:
        store = open_store(empty)
        assert isinstance(store, Store)
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


def test_eight_processes_may_open_an_empty_store_at_once(address: str) -> None:
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
