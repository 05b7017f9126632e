"""Stores for the tests: PostgreSQL is a real server, one for each process that runs tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
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


@contextmanager
def _empty(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'trials.db'}"
        return
    server: Server = request.getfixturevalue("postgres")
    with server.database() as found:
        yield found


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """Where an empty store can be made."""
    with _empty(request, tmp_path) as found:
        yield found


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """An empty store of each kind."""
    if request.param == "memory":
        yield MemoryStore()
        return
    with _empty(request, tmp_path) as found, closing(open_store(found)) as opened:
        yield opened
