"""Visitors for the tests."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pytest

from drimed.service import auth
from tests.service.pages.visiting import Visitor
from tests.service.serving import Running
from tests.trial.trials import outcome

Token = Callable[..., str]


@pytest.fixture
def visitor(running: Running) -> Visitor:
    """Somebody on the machine of a service without tokens."""
    return Visitor(running.http)


@pytest.fixture
def token(running: Running) -> Token:
    """Makes tokens."""

    def make(role: str, trial: str | None = None) -> str:
        _, text = auth.create_token(running.service.store, label=f"{role} {trial or 'all'}", role=role, trial=trial)
        running.service.access._open_until = 0.0  # as two seconds later
        return text

    return make


@pytest.fixture
def season(http: httpx.Client) -> list[int]:
    """The numbers of 24 decisions of trial `busy`, of which the last four are pending."""
    numbers = []
    for _ in range(6):
        http.post("/v1/trials/busy/episodes", json={"contexts": {}}).raise_for_status()
        given = http.post("/v1/trials/busy/ask", json={"users": [f"site {i}" for i in range(4)]}).json()["decisions"]
        numbers += [g["id"] for g in given]
        if len(numbers) < 24:
            reports = [{"decision": g["id"], "outcome": outcome(g["id"], g["arm"])} for g in given]
            http.post("/v1/trials/busy/tell", json={"reports": reports}).raise_for_status()
    return numbers
