"""Alerts: what somebody is woken for, as metrics and to a signed webhook that holds up nothing."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
import yaml
from prometheus_client import REGISTRY

from drimed.service import alerts
from drimed.service.alerts import Watch
from drimed.service.runtime import Service
from drimed.service.settings import Settings
from drimed.trial import store as stores
from drimed.trial.trial import Trial
from tests.trial.trials import SMALL

SECRET = "a secret of both"


def started(tmp_path: Path, **settings: Any) -> Service:
    given: dict[str, Any] = {"webhook": "http://receiver.example/hook", "webhook_secret": SECRET, "overdue": 30.0}
    return Service(Settings(**given | {"store": str(tmp_path / "s.db")} | settings))


def metric(name: str, **labels: str) -> float | None:
    return REGISTRY.get_sample_value(name, labels)


def receiver(answers: Callable[[int], httpx.Response], received: list[httpx.Request]) -> httpx.MockTransport:
    def take(request: httpx.Request) -> httpx.Response:
        received.append(request)
        return answers(len(received))

    return httpx.MockTransport(take)


async def looked(watch: Watch, until: Callable[[], bool]) -> None:
    sending = asyncio.create_task(watch._send())
    await watch.look()
    await watch.look()  # what holds already is not told again
    for _ in range(200):
        if until():
            break
        await asyncio.sleep(0.01)
    sending.cancel()


def old_decisions(service: Service, trial: Trial) -> None:
    """Asked long ago."""
    long_ago = Trial(trial.name, service.store, clock=lambda: "2020-01-01T00:00:00.000000+00:00")
    for user in trial.state().users:
        long_ago.ask(user)


def test_what_is_new_is_told_once_and_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "FIRST_WAIT", 0.001)
    service, received = started(tmp_path), list[httpx.Request]()
    trial = Trial.create(SMALL | {"name": "alerting"}, service.store)
    old_decisions(service, trial)
    busy = receiver(lambda n: httpx.Response(200 if n == 3 else 503), received)
    asyncio.run(looked(Watch(service, busy), lambda: len(received) == 3))
    assert len(received) == 3  # two tries that failed, and one that did not
    assert len({request.headers["idempotency-key"] for request in received}) == 1
    moment, code = (part.partition("=")[2] for part in received[-1].headers["drimed-signature"].split(","))
    signed = f"{moment}.".encode() + received[-1].content
    assert hmac.compare_digest(code, hmac.new(SECRET.encode(), signed, hashlib.sha256).hexdigest())
    told = json.loads(received[-1].content)
    assert (told["trial"], told["kind"]) == ("alerting", "overdue")
    assert "decision 1 of 2020-01-01" in told["text"]
    assert metric("drimed_alert", trial="alerting", kind="overdue") == 1
    assert metric("drimed_alert", trial="alerting", kind="proof") == 0
    assert metric("drimed_trial_pending", trial="alerting") == 2
    for given in trial.decisions():
        trial.tell(given.id, {"yield": 5.0})
    asyncio.run(Watch(service).look())
    assert metric("drimed_alert", trial="alerting", kind="overdue") == 0
    service.close()


def test_a_receiver_that_is_not_there_is_left_after_some_tries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(alerts, "FIRST_WAIT", 0.0001)
    service, received = started(tmp_path), list[httpx.Request]()
    old_decisions(service, Trial.create(SMALL, service.store))
    failed = metric("drimed_webhooks_total", result="failed") or 0.0
    gone = receiver(lambda _: httpx.Response(500), received)
    asyncio.run(looked(Watch(service, gone), lambda: len(received) >= alerts.ATTEMPTS))
    assert len(received) == alerts.ATTEMPTS
    assert metric("drimed_webhooks_total", result="failed") == failed + 1
    service.close()


def test_a_log_that_was_changed_is_an_alert_once_it_was_proved(tmp_path: Path) -> None:
    service = started(tmp_path, webhook="")
    trial = Trial.create(SMALL | {"name": "forged"}, service.store)
    given = trial.ask("north")
    trial.tell(given.id, {"yield": 5.0})
    with service.store.transaction(write=True) as connection:
        forged = stores.events.update().where(stores.events.c.kind == "outcome").values(text=sa.literal("{}"))
        connection.execute(forged)

    async def prove() -> None:
        assert not (await service.prove("forged", None, alerts._never)).ok
        await Watch(service).look()

    asyncio.run(prove())
    assert metric("drimed_alert", trial="forged", kind="proof") == 1
    service.close()


def test_seconds_of_writers_are_counted_by_trial(tmp_path: Path) -> None:
    service = started(tmp_path)
    trial = Trial.create(SMALL | {"name": "timed"}, service.store)
    trial.ask("north")
    assert all(seconds >= 0 for seconds in trial.spent.values())
    assert trial.spent["work"] > 0
    assert trial.spent["commit"] > 0
    service.close()


def test_rules_for_prometheus_are_about_metrics_that_there_are() -> None:
    rules = yaml.safe_load((Path(__file__).parents[2] / "deploy" / "alerts.yaml").read_text(encoding="utf-8"))
    known = {family.name for family in REGISTRY.collect()} | {f"{family.name}_total" for family in REGISTRY.collect()}
    named = {name for rule in rules["groups"][0]["rules"] for name in re.findall(r"drimed_\w+", rule["expr"])}
    assert named
    assert named <= known
    kinds = {kind for rule in rules["groups"][0]["rules"] for kind in re.findall(r'kind=~?"([a-z|]+)"', rule["expr"])}
    assert {one for some in kinds for one in some.split("|")} == set(alerts.KINDS)
