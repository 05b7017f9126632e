"""Services for the tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from drimed.service import auth
from drimed.service.settings import Settings
from tests.service.serving import Running, served
from tests.trial.conftest import address, postgres  # noqa: F401  # fixtures
from tests.trial.trials import BUSY, SMALL


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A service without tokens, with two trials."""
    with served(Settings(store=str(tmp_path / "trials.db"))) as found:
        for spec in (SMALL, BUSY):
            assert found.http.post("/v1/trials", json=spec).status_code == httpx.codes.CREATED
        yield found


@pytest.fixture
def http(running: Running) -> httpx.Client:
    """Requests to it."""
    return running.http


Bearer = Callable[..., dict[str, str]]


@pytest.fixture
def bearer(running: Running) -> Bearer:
    """Makes tokens, as headers."""

    def make(
        role: str, trial: str | None = None, *, label: str | None = None, days: float | None = None
    ) -> dict[str, str]:
        label = label or f"{role} {trial or 'all'}"
        _, text = auth.create_token(running.service.store, label=label, role=role, trial=trial, days=days)
        running.service.access._open_until = 0.0  # as two seconds later
        return {"Authorization": f"Bearer {text}"}

    return make
