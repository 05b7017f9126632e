"""`drimed serve` as it really runs: several processes, some of which die."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path

import httpx
import pytest

from drimed.client import Client
from drimed.service import auth
from drimed.trial.store import open_store
from drimed.trial.verify import verify
from tests.service.serving import PATIENCE, Processes, processes
from tests.trial.trials import BUSY, outcome

CLIENTS, PAIRS, KILLS = 3, 25, 2


def test_workers_may_be_killed_and_nothing_is_lost_or_doubled(address: str, tmp_path: Path) -> None:
    store = open_store(address)
    _, token = auth.create_token(store, label="field", role="manage")
    given: dict[str, int] = {}
    failures: list[BaseException] = []

    def season(client: Client, name: str) -> None:
        try:
            for i in range(PAIRS):
                key = f"{name} {i}"
                asked = client.ask("busy", f"site {i % 4}", key=key)[0]
                given[key] = asked.id
                client.tell("busy", asked.id, outcome(asked.id, asked.arm))
        except BaseException as error:
            failures.append(error)

    flags = ("--workers", "2", "--rate", "0")
    with (
        processes(address, tmp_path / "log", *flags) as service,
        Client(service.address, token=token, attempts=14) as client,
    ):
        client.create(BUSY)
        threads = [threading.Thread(target=season, args=(client, f"client {n}")) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        killed = _kill_now_and_then(service, threads)
        for thread in threads:
            thread.join(120)
        assert not failures
        status = client.status("busy")
        assert client.verify("busy").ok
        requests = sum(1 for _ in client.log("busy", kinds=["decision"]))
    assert killed == KILLS
    assert len(given) == CLIENTS * PAIRS == requests == status.decisions == status.complete
    assert sorted(given.values()) == list(range(1, CLIENTS * PAIRS + 1))
    proof = verify(store, "busy")
    assert proof.ok
    assert proof.exact == CLIENTS * PAIRS
    store.close()
    _logs_are_json_without_secrets(tmp_path / "log", token)


def _kill_now_and_then(service: Processes, threads: list[threading.Thread]) -> int:
    killed = 0
    deadline = time.monotonic() + PATIENCE
    while killed < KILLS and any(t.is_alive() for t in threads) and time.monotonic() < deadline:
        time.sleep(0.3)
        alive = service.workers()
        if alive:
            os.kill(alive[-1], signal.SIGKILL)
            killed += 1
    return killed


def _logs_are_json_without_secrets(log: Path, token: str) -> None:
    text = log.read_text()
    assert token.split("_", 2)[2] not in text
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    asked = [line for line in lines if line.get("path") == "/v1/trials/busy/ask"]
    assert asked
    assert all({"request_id", "status", "ms", "time", "level"} <= set(line) for line in asked)
    assert {line["actor"] for line in asked} == {"field"}


def test_a_stop_finishes_what_has_begun(tmp_path: Path) -> None:
    """Without retries: whatever was recorded was also answered."""
    address = f"sqlite:///{tmp_path / 'trials.db'}"
    answered: list[int] = []

    def ask(base: str) -> None:
        with httpx.Client(base_url=base, timeout=30) as http:
            while True:
                try:
                    answer = http.post("/v1/trials/busy/ask", json={"users": ["site 0"]})
                except httpx.TransportError:
                    return
                answered.append(answer.json()["decisions"][0]["id"])

    with processes(address, tmp_path / "log", "--grace", "10") as service:
        httpx.post(f"{service.address}/v1/trials", json=BUSY)
        threads = [threading.Thread(target=ask, args=(service.address,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        time.sleep(1)
    for thread in threads:
        thread.join(30)
    store = open_store(address)
    proof = verify(store, "busy")
    store.close()
    assert proof.ok
    assert sorted(answered) == list(range(1, proof.decisions + 1))


def test_a_service_is_replaced_under_load_without_an_error(address: str, tmp_path: Path) -> None:
    """Who finds the first process gone goes to the second one, with the same request."""
    given, statuses = dict[str, int](), set[int]()
    with processes(address, tmp_path / "new") as new, processes(address, tmp_path / "old") as old:
        httpx.post(f"{old.address}/v1/trials", json=BUSY)

        def ask(name: str) -> None:
            places = [new.address, old.address]
            with httpx.Client(timeout=PATIENCE) as http:
                for i in range(PAIRS):
                    key, answer = f"{name} {i}", None
                    while answer is None:
                        try:
                            path, head = f"{places[-1]}/v1/trials/busy/ask", {"Idempotency-Key": key}
                            answer = http.post(path, json={"users": [f"site {i % 4}"]}, headers=head)
                        except httpx.TransportError:
                            places.pop()
                    statuses.add(answer.status_code)
                    given[key] = answer.json()["decisions"][0]["id"]

        threads = [threading.Thread(target=ask, args=(f"client {n}",)) for n in range(CLIENTS)]
        for thread in threads:
            thread.start()
        while len(given) < CLIENTS * PAIRS // 4 and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)
        old.parent.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join(PATIENCE)
        assert statuses == {200}
    store = open_store(address)
    proof = verify(store, "busy")
    store.close()
    assert proof.ok
    assert sorted(given.values()) == list(range(1, CLIENTS * PAIRS + 1))
    assert "/ask" in (tmp_path / "new").read_text()


def test_a_demo_is_there_at_once_and_its_metrics_add_up_over_workers(tmp_path: Path) -> None:
    with processes(str(tmp_path / "demo.db"), tmp_path / "log", "--demo", "--workers", "2") as service:
        with Client(service.address) as client:
            status = client.trials().items[0]
            assert (status.name, status.decisions, status.pending, status.missing) == ("maize-demo", 144, 4, 1)
            page = client.effects("maize-demo")
            assert len({effect.who for effect in page.items}) == 6
            assert client.verify("maize-demo").ok
        for _ in range(10):
            httpx.get(f"{service.address}/v1/trials", timeout=PATIENCE)  # a connection each: either worker may take it
        text = httpx.get(f"{service.address}/metrics").text
        counted = [line for line in text.splitlines() if 'route="/v1/trials",' in line and "requests_total" in line]
        assert [float(line.rpartition(" ")[2]) for line in counted] == [11.0]
    said = (tmp_path / "log").read_text()
    assert "there are no tokens" in said
    assert "simulated a trial" in said


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_strangers_are_not_served_without_tokens(tmp_path: Path, host: str) -> None:
    from typer.testing import CliRunner

    from drimed.cli.main import app
    from drimed.errors import ConfigError

    result = CliRunner().invoke(app, ["serve", "--store", str(tmp_path / "s.db"), "--host", host])
    assert isinstance(result.exception, ConfigError)
    assert "drimed token create --role manage" in str(result.exception)
