"""Stores for the tests: PostgreSQL is a real server, one for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from drimed.trial.store import MemoryStore, Store, open_store
from tests.trial import servers
from tests.trial.servers import Server


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    """A running server."""
    with servers.server() as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty store can be made."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'trials.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as empty:
        yield empty


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    if request.param == "sqlite":
        opened = open_store(str(tmp_path / "trials.db"))
        yield opened
        opened.close()
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as empty:
        opened = open_store(empty)
        yield opened
        opened.close()
