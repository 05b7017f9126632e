"""When something else fails: the store, the time that is left, the numbers. Clients learn what to do."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from drimed.errors import NumericalError
from drimed.service.routing import Observed
from drimed.trial import ask
from drimed.trial.store import open_store
from tests.service.conftest import Bearer
from tests.service.serving import Running, processes
from tests.service.test_endpoints import T, problem
from tests.trial.trials import SMALL


def test_a_token_for_one_trial_does_not_learn_the_names_of_others(running: Running, bearer: Bearer) -> None:
    headers = bearer("read", "not there")
    for path in ("/v1/trials/not there", "/v1/trials/not there/log", "/trials/not there"):
        answer = running.http.get(path.replace("not there", "not%20there"), headers=headers)
        assert answer.status_code in (403, 404)
        assert "busy" not in answer.text
    headers = bearer("read", "absent")
    found = problem(running.http.get("/v1/trials/absent", headers=headers), 404)
    assert found["detail"] == "unknown trial 'absent'"


def test_numbers_that_cannot_be_worked_with_are_a_matter_of_the_data(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise NumericalError("the noise model did not settle")

    monkeypatch.setattr(ask, "ask", fails)
    assert "amend them" in problem(running.http.post(f"{T}/ask", json={}), 409)["detail"]


def test_a_request_that_is_cut_off_is_told_to_come_again() -> None:
    async def cut(*_: Any) -> None:
        raise asyncio.CancelledError

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request"}

    app = SimpleNamespace(state=SimpleNamespace(service=SimpleNamespace(requests=0)))
    scope = {"type": "http", "method": "POST", "path": "/v1/trials/t/ask", "headers": [], "app": app}
    asyncio.run(Observed(cut, 1000)(scope, receive, send))
    assert sent[0]["status"] == 503
    assert (b"retry-after", b"1") in sent[0]["headers"]


def test_a_stop_does_not_wait_for_a_turn_in_the_store(tmp_path: Path) -> None:
    """Somebody else holds the store: the client hears so when the grace is over, and the service ends."""
    address = f"sqlite:///{tmp_path / 'trials.db'}"
    with processes(address, tmp_path / "log", "--grace", "1") as service:
        httpx.post(f"{service.address}/v1/trials", json=SMALL).raise_for_status()
        other = open_store(address)
        with other.writing("small"):

            async def ask_and_stop() -> httpx.Response:
                async with httpx.AsyncClient(timeout=60) as client:
                    asked = asyncio.create_task(client.post(f"{service.address}{T}/ask", json={}))
                    await asyncio.sleep(1.0)
                    service.parent.send_signal(signal.SIGTERM)
                    return await asked

            answer = asyncio.run(ask_and_stop())
            assert answer.status_code == 503
            service.parent.wait(30)  # while the store is still held
        other.close()


def test_only_managers_see_the_seed(running: Running, bearer: Bearer) -> None:
    """Whoever knows it can tell arms before they are drawn."""
    for role, shown in (("read", False), ("ask-tell", False), ("manage", True)):
        headers = bearer(role)
        created = running.http.get(f"{T}/log", headers=headers).json()["items"][0]["body"]
        assert ("seed" in created, "seed" in created["spec"]) == (shown, shown)
        assert "seed" not in running.http.get(f"{T}/spec", headers=headers).json()
