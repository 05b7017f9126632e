from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from drimed.client import AsyncClient, Client
from drimed.errors import (
    AccessError,
    BatchError,
    ConfigError,
    ConflictError,
    InputError,
    ServiceError,
    SpecError,
    StoreError,
    UnconfirmedError,
    UnknownNameError,
)
from drimed.records import Decision, Report
from drimed.service.settings import Settings
from drimed.trial import template
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from tests.service.serving import served
from tests.trial.fields import PATIENTS
from tests.trial.trials import SMALL

REFUSING: dict[str, Any] = SMALL | {"name": "refusing"}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with served(Settings(store=str(tmp_path_factory.mktemp("client") / "s.db"))) as running:
        yield running.address


def test_a_season_with_the_client(address: str, tmp_path: Path) -> None:
    with Client(address) as client:
        assert client.create(SMALL).users == 2
        given = client.ask("small")
        assert [g.user for g in given] == ["north", "south"]
        assert given[0].effects is not None
        assert given[0].effects["old"].estimate == 0
        told = client.tell("small", given[0].id, {"yield": 5.0})
        assert (told.result, told.state) == ("recorded", "complete")
        reports: list[Report | dict[str, Any]] = [{"decision": given[1].id, "outcome": {"yield": 4.0}}]
        assert [t.result for t in client.tell_many("small", reports, dry_run=True)] == ["recorded"]
        assert [t.result for t in client.tell_many("small", reports)] == ["recorded"]
        again = [Report(given[1].id, {"yield": 4.0})]
        assert [t.result for t in client.tell_many("small", again)] == ["already recorded"]
        assert client.amend("small", 1, {"yield": 5.5}, reason="typo").outcome == {"yield": 5.5}
        assert client.open_episode("small") == 2
        third = client.ask("small", "north", unavailable=["new"])[0]
        assert third.arm == "old"
        assert client.ask("small", ["south"], dry_run=True)[0].user == "south"
        assert client.mark_missing("small", third.id, reason="hail").state == "missing"
        assert client.tell("small", third.id, {"yield": 4.5}).state == "complete"
        assert client.add_user("small", "west", group="sand").users == 3
        client.add_arm("small", "late", about="a third arm")
        client.retire_arm("small", "new", reason="gone")
        client.change_preference("small", "west", {"yield": 2.0}, reason="prices")
        client.change_control("small", "west", {"old": 0.5, "late": 0.5}, reason="the farm mixes them")
        assert client.pause("small", reason="rain").status == "paused"
        client.resume("small")
        assert [u.name for u in client.users("small").items] == ["north", "south", "west"]
        found = client.decision("small", 1)
        assert (found.state, found.reward, found.amendments) == ("complete", 5.5, 1)
        assert found.effects == given[0].effects
        assert [e.kind for e in client.history("small", 1)] == ["decision", "outcome", "amendment"]
        assert client.decisions("small", state="complete", limit=1).items[0].id == 3
        older = client.decisions("small", limit=1, before=client.decisions("small", limit=1).next)
        assert (older.items[0].id, older.next) == (2, "2")
        events = list(client.log("small", page=3))
        assert [e.seq for e in events] == list(range(1, client.status("small").events + 1))
        assert [e.seq for e in client.log("small", page=3, newest_first=True)] == [e.seq for e in events][::-1]
        assert {e.user for e in client.log("small", kinds=["decision"], user="north")} == {"north"}
        effects = {effect.arm: effect for effect in client.effects("small", user="north").items}
        assert effects["old"].estimate == 0
        assert (effects["old"].available, effects["new"].available) == (True, False)
        assert sum(effect.decisions for effect in effects.values()) == 2
        assert client.verify("small", expect=events[-1].hash).ok
        assert client.head("small").hash == events[-1].hash
        assert client.spec("small")["control"] == "old"
        rows = client.export("small", tmp_path / "out.csv", "csv").read_text(encoding="utf-8-sig").splitlines()
        assert len(rows) == 1 + 3
        assert client.trials().items[0].name == "small"
        client.stop("small", reason="enough")
        assert client.create(template()).name == "maize-nitrogen"


def test_what_is_known_of_one_user_is_said_as_in_python(address: str) -> None:
    known: dict[str, float | str] = {"age": 61.0, "sex": "f"}
    here = Trial.create(PATIENTS, MemoryStore()).ask("p1", attributes=known, cohort="ward")
    with Client(address) as client:
        client.create(PATIENTS)
        (there,) = client.ask("patients", "p1", attributes=known, cohort="ward")
        (member,) = client.users("patients").items
    assert (there.user, there.arm, there.propensity) == (here.user, here.arm, here.propensity)
    assert (member.attributes, member.cohort) == (known, "ward")


def test_the_same_with_asyncio(address: str, tmp_path: Path) -> None:
    async def season() -> None:
        async with AsyncClient(address) as client:
            await client.create(SMALL | {"name": "tasks"})
            given = await client.ask("tasks")
            told = await asyncio.gather(*(client.tell("tasks", g.id, {"yield": 5.0}) for g in given))
            assert [t.result for t in told] == ["recorded", "recorded"]
            assert [e.seq async for e in client.log("tasks", page=2)] == list(range(1, 7))
            assert (await client.verify("tasks")).exact == 2
            await client.export("tasks", tmp_path / "out.json", "json")
            with pytest.raises(UnknownNameError):
                await client.status("nobody")

    asyncio.run(season())
    assert [row["decision"] for row in json.loads((tmp_path / "out.json").read_text())] == [1, 2]


class Slow(httpx.HTTPTransport):
    """An answer to `ask` takes longer than the caller may wait."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.url.path.endswith("/ask"):
            answer.read()
            time.sleep(0.5)
        return answer


class SlowTasks(httpx.AsyncHTTPTransport):
    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        answer = await super().handle_async_request(request)
        if request.url.path.endswith("/ask"):
            await answer.aread()
            await asyncio.sleep(0.5)
        return answer


def test_a_caller_that_cannot_wait_gives_the_control_and_that_is_recorded(address: str) -> None:
    visiting = {"name": "visits", "decisions": "any number"}
    with Client(address) as client, Client(address, transport=Slow()) as slow:
        client.create(SMALL | visiting)
        quick = client.ask_within(30.0, "visits", "north", control="old")
        assert (quick.late, quick.arm) == (False, quick.decision.result().arm)
        late = slow.ask_within(0.05, "visits", "south", control="old")
        assert (late.late, late.arm) == (True, "old")
    check_late(address, late.decision.result())


def test_a_task_that_cannot_wait_gives_the_control_and_that_is_recorded(address: str) -> None:
    async def visit() -> Decision:
        async with AsyncClient(address, transport=SlowTasks()) as slow:
            await slow.create(SMALL | {"name": "late-tasks", "decisions": "any number"})
            quick = await slow.ask_within(30.0, "late-tasks", "north", control="old")
            assert (quick.late, quick.arm) == (False, (await quick.decision).arm)
            late = await slow.ask_within(0.05, "late-tasks", "south", control="old")
            assert (late.late, late.arm) == (True, "old")
        given: Decision = late.decision.result()  # closing has waited for it
        return given

    check_late(address, asyncio.run(visit()), "late-tasks")


def check_late(address: str, given: Decision, trial: str = "visits") -> None:
    assert (given.arm, given.drawn, given.propensity, given.reason) == ("old", False, None, "no answer within 50 ms")
    with Client(address) as client:
        counts = client.status(trial)
        assert counts.decisions - counts.missing == 2  # an answer that came too late is marked as missing
        assert client.tell(trial, given.id, {"yield": 5.0}).state == "complete"
        assert client.verify(trial).ok


def test_refusals_are_drimeds_own_errors(address: str, tmp_path: Path) -> None:
    with Client(address) as client:
        client.create(REFUSING)
        client.ask("refusing")
        with pytest.raises(UnknownNameError, match="unknown trial 'nobody'"):
            client.status("nobody")
        with pytest.raises(UnknownNameError) as unknown:
            client.ask("refusing", "nort")
        assert (unknown.value.kind, unknown.value.name) == ("user", "nort")
        with pytest.raises(ConflictError, match="already"):
            client.create(REFUSING)
        with pytest.raises(SpecError) as spec:
            client.create(template().replace('control = "practice"', 'control = "x"'))
        assert spec.value.faults[0].line is not None
        outcome = {"yield": 5.0}
        with pytest.raises(BatchError) as batch:
            client.tell_many("refusing", [{"decision": n, "outcome": outcome} for n in (1, 8, 9)])
        assert [f.path for f in batch.value.faults] == [("reports", 1, "decision"), ("reports", 2, "decision")]
        assert [f.path for f in unknown.value.faults] == [("users", 0)]
        with pytest.raises(UnconfirmedError, match="outside 0 to 10") as unlikely:
            client.tell("refusing", 1, {"yield": 99.0})
        assert [f.path for f in unlikely.value.faults] == [("reports", 0, "outcome", "yield")]
        assert client.tell("refusing", 1, {"yield": 99.0}, confirm=True).result == "recorded"
        with pytest.raises(SpecError) as definition:
            client.add_user("refusing", "west", preference={"yeld": 1.0})
        assert [f.path for f in definition.value.faults] == [("users", "west", "preference", "yeld")]
        with pytest.raises(BatchError) as several:
            client.ask("refusing", "", unavailable=[""])
        assert [f.path for f in several.value.faults] == [("users", 0), ("unavailable", 0)]
        with pytest.raises(InputError):
            client.tell("refusing", 1, {})
        with pytest.raises(UnknownNameError, match="unknown decision"):
            client.decision("refusing", 99)
        with pytest.raises(UnknownNameError):
            client.export("nobody", tmp_path / "x.csv")
        with pytest.raises(InputError, match="Idempotency-Key"):
            client.ask("refusing", "south", key="k" * 300)
    with Client(address, token="drimed_00000000_x") as stranger, pytest.raises(AccessError, match="unknown"):
        stranger.status("refusing")


class Scripted:
    """A service that answers, fails or breaks off as it is told, and remembers what it was asked."""

    def __init__(self, *script: Callable[[], httpx.Response]) -> None:
        self.script, self.asked, self.slept = list(script), list[httpx.Request](), list[float]()

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        return self.script.pop(0)()

    def client(self, **settings: Any) -> Client:
        return Client("http://x", transport=httpx.MockTransport(self), sleep=self.slept.append, **settings)


def breaks() -> httpx.Response:
    raise httpx.RemoteProtocolError("the worker died")


def busy() -> httpx.Response:
    return httpx.Response(429, json={"detail": "too many"}, headers={"Retry-After": "3"})


def fails() -> httpx.Response:
    return httpx.Response(503, json={"detail": "the disk is full"})


def opened() -> httpx.Response:
    return httpx.Response(200, json={"episode": 2})


def test_a_request_is_repeated_with_the_same_key_until_it_is_answered() -> None:
    service = Scripted(breaks, busy, fails, opened)
    assert service.client().open_episode("t") == 2
    keys = {r.headers["idempotency-key"] for r in service.asked}
    assert len(service.asked) == 4
    assert len(keys) == 1
    assert len({r.content for r in service.asked}) == 1
    assert service.slept[1] >= 3
    assert service.slept[2] > service.slept[0]


def test_asyncio_repeats_requests_alike() -> None:
    service = Scripted(breaks, busy, opened)

    async def sleep(seconds: float) -> None:
        service.slept.append(seconds)

    async def opening() -> int:
        async with AsyncClient("http://x", transport=httpx.MockTransport(service), sleep=sleep) as client:
            return int(await client.open_episode("t"))

    assert asyncio.run(opening()) == 2
    assert len({r.headers["idempotency-key"] for r in service.asked}) == 1
    assert service.slept[1] >= 3


def test_it_gives_up_after_so_many_attempts() -> None:
    service = Scripted(*[breaks] * 5)
    with pytest.raises(ServiceError, match="no answer"):
        service.client(attempts=3).status("t")
    assert len(service.asked) == 3
    with pytest.raises(StoreError, match="disk"):
        Scripted(fails, fails).client(attempts=2).status("t")


def test_what_is_refused_is_not_repeated_and_other_services_are_told_apart() -> None:
    for status, error in ((409, ConflictError), (422, InputError), (401, AccessError), (500, ServiceError)):
        service = Scripted(lambda status=status: httpx.Response(status, json={"detail": "no", "type": "x"}))  # type: ignore[misc]
        with pytest.raises(error, match="no"):
            service.client().pause("t", reason="r")
        assert len(service.asked) == 1
    with pytest.raises(ServiceError, match="is it a drimed service"):
        Scripted(lambda: httpx.Response(200, text="<html>")).client().status("t")
    with pytest.raises(ServiceError, match="status 418"):
        Scripted(lambda: httpx.Response(418, text="teapot")).client().status("t")


def test_names_cannot_lead_to_other_addresses() -> None:
    service = Scripted(lambda: httpx.Response(418))
    with pytest.raises(ServiceError):
        service.client().status("../x?y#z")
    assert service.asked[0].url.raw_path == b"/v1/trials/..%2Fx%3Fy%23z"


def test_the_client_needs_no_arrays_and_nothing_of_the_trial() -> None:
    """A program that only asks a service starts at once: neither NumPy nor the rest of drimed is imported."""
    program = "import sys, drimed.client; print(*sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    ours = {name for name in said if name.partition(".")[0] in ("drimed", "numpy")}
    assert ours == {"drimed", "drimed.errors", "drimed.records", "drimed.client"}


def test_a_token_is_stripped_and_never_shown() -> None:
    service = Scripted(opened)
    service.client(token=" drimed_1_secret\n").open_episode("t")
    assert service.asked[0].headers["authorization"] == "Bearer drimed_1_secret"
    for token in ("drimed_1_\nsecret", "drimed_1_sécret", "drimed_1_secret\x00", "", " \n"):
        with pytest.raises(ConfigError, match="token must be one line") as error:
            Client("http://x", token=token)
        assert "cret" not in str(error.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), np.float64("nan"), np.float32("-inf")])
def test_what_is_no_finite_number_is_refused_by_its_name(value: float) -> None:
    client = Scripted().client()
    with pytest.raises(InputError, match=r"^outcome.yield must be a finite number, got -?(nan|inf)"):
        client.tell("t", 1, {"cost": 1.0, "yield": value})
    with pytest.raises(InputError, match=r"^control.yield must be"):
        client.amend("t", 1, {"yield": 1.0}, control={"yield": value}, reason="r")
    with pytest.raises(InputError, match=r"^reports.1.outcome.yield must be"):
        client.tell_many("t", [{"decision": 1, "outcome": {}}, {"decision": 2, "outcome": {"yield": value}}])
    with pytest.raises(InputError, match=r"^contexts.north.rain must be"):
        client.open_episode("t", {"north": {"rain": value}})
    with pytest.raises(InputError, match=r"^outcome.yield must be a number, a text, a list or a mapping, got object"):
        client.tell("t", 1, {"yield": object()})  # type: ignore[dict-item]


def test_numbers_of_numpy_are_numbers() -> None:
    service = Scripted(opened)
    rain, count = np.array([1.5, 2.0]), np.array([3])
    service.client().open_episode("t", {"north": {"rain": rain[0]}, "hill": {"rain": count[0]}}, number=count[0] - 1)
    contexts = {"north": {"rain": 1.5}, "hill": {"rain": 3}}
    assert json.loads(service.asked[0].content) == {"contexts": contexts, "number": 2}


@pytest.mark.parametrize("key", ["", "k" * 201, "a\nb", "é"])
def test_a_key_that_no_header_may_have_is_refused(key: str) -> None:
    service = Scripted()
    with pytest.raises(InputError, match="Idempotency-Key of 1 to 200"):
        service.client().open_episode("t", key=key)
    with pytest.raises(InputError, match="Idempotency-Key of 1 to 200"):
        service.client().create("name = 't'", key=key)
    assert not service.asked
