"""Callers that mean no good, or know no better: nobody else waits for them, and the log stays readable."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from drimed.errors import StoreError
from drimed.service import auth, connections, runtime
from drimed.service.connections import GuardedProtocol
from drimed.service.settings import FIELDS, OnePerSecond, Settings
from drimed.trial.store import open_store
from drimed.trial.tables import Row
from drimed.trial.verify import verify
from tests.service.pages.visiting import Visitor, readable
from tests.service.serving import Running, free_port, served, wait_until
from tests.service.test_endpoints import T, ok

HALF = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
FEW = 30  # connections that a small service takes from one address


def host_and_port(address: str) -> tuple[str, int]:
    url = httpx.URL(address)
    return url.host, int(url.port or 80)


@contextmanager
def half_sent(address: str, n: int, text: bytes = HALF, receives: int = 2**16) -> Iterator[list[socket.socket]]:
    """Connections that have sent a part of a request; some may be closed again soon."""
    with ExitStack() as stack:
        made = []
        for _ in range(n):
            one = stack.enter_context(socket.socket())
            one.settimeout(10)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receives)
            one.connect(host_and_port(address))
            try:
                one.sendall(text)
            except OSError:  # it was closed already
                continue
            made.append(one)
        yield made


def is_closed(connection: socket.socket, seconds: float) -> bool:
    """Whether the other end closes it in time."""
    connection.settimeout(seconds)
    try:
        while connection.recv(4096):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


def is_hung_up_on(connection: socket.socket, seconds: float) -> bool:
    """Whether the other end gives up, though nothing is read here."""
    deadline = time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            connection.sendall(b"GET ")
            time.sleep(0.2)
    except OSError:
        return True
    return False


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines of about a second."""
    monkeypatch.setattr(connections, "SWEEP", 0.1)
    for deadline in ("HEAD", "BODY", "READING"):
        monkeypatch.setattr(connections, deadline, 1.0)


@pytest.fixture
def small(tmp_path: Path) -> Settings:
    """Few connections."""
    return Settings(store=str(tmp_path / "trials.db"), connections=2 * FEW, connections_per_address=FEW)


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failed tokens are forgiven very slowly."""
    monkeypatch.setattr(auth, "FAILURES", (0.001, 20))


def with_token(folder: Path, proxies: str) -> Settings:
    """A store for which a token was made."""
    settings = Settings(store=str(folder / "trials.db"), proxies=proxies)
    store = open_store(settings.store)
    auth.create_token(store, label="somebody", role="read")
    store.close()
    return settings


# Connections


def test_half_sent_requests_do_not_keep_others_out(small: Settings) -> None:
    with served(small) as running, half_sent(running.address, 5 * FEW):
        for _ in range(5):
            assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK


def test_forms_of_nobody_in_particular_do_not_keep_others_out_while_they_come(small: Settings) -> None:
    form = b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 9\r\n\r\nx"
    with served(small) as running, half_sent(running.address, 3 * FEW, form) as held:
        for _ in range(3):
            assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK
        assert is_closed(held[0], 5)
        assert not is_closed(held[-1], 0.2)


def test_callers_who_read_nothing_do_not_keep_others_out(small: Settings, caplog: pytest.LogCaptureFixture) -> None:
    many = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60
    with served(small) as running, half_sent(running.address, 3 * FEW, many, receives=2048) as held:
        wait_until(lambda: httpx.get(f"{running.address}/healthz").status_code == httpx.codes.OK)  # answers are written
        for _ in range(5):
            assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK
        assert is_hung_up_on(held[0], 5)
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_a_body_of_a_known_caller_makes_no_room(small: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    admitted = threading.Event()
    monkeypatch.setattr(auth, "refuse_other_sites", lambda _: admitted.set())
    body = (
        b"POST /v1/trials HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
    )
    with served(small) as running, half_sent(running.address, 1, body) as (slow,):
        assert admitted.wait(30)
        with half_sent(running.address, 2 * FEW):
            assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK
        assert not is_closed(slow, 0.2)


def test_those_who_wait_longest_make_room(small: Settings) -> None:
    with served(small) as running, half_sent(running.address, FEW) as first, half_sent(running.address, 1) as last:
        assert is_closed(first[0], 5)
        assert not is_closed(last[0], 0.2)


def test_requests_that_are_being_answered_are_not_given_up_for_others(
    small: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(small) as running:
        go, begun = threading.Event(), threading.Semaphore(0)
        names = running.service.store.names

        def slow() -> list[str]:
            begun.release()
            assert go.wait(30)
            return names()

        monkeypatch.setattr(running.service.store, "names", slow)
        with httpx.Client(base_url=running.address, timeout=30) as client:
            answers: list[int] = []
            ask = threading.Thread(target=lambda: answers.append(client.get("/v1/trials").status_code))
            ask.start()
            assert begun.acquire(timeout=30)
            with half_sent(running.address, 4 * FEW):
                assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK
            go.set()
            ask.join(30)
        assert answers == [200]


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize(
    "text",
    [
        b"",
        HALF,
        b"POST /sign-in HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 100\r\n\r\nx",
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nPOST /sign-in HTTP/1.1\r\nContent-Length: 9\r\n\r\n",
    ],
)
def test_what_does_not_come_in_time_is_not_waited_for(small: Settings, text: bytes) -> None:
    with served(small) as running, half_sent(running.address, 1, text) as (slow,):
        assert is_closed(slow, 10)


@pytest.mark.parametrize("start", [HALF, b"POST /sign-in HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-Slow: "])
def test_a_head_without_end_is_not_kept(small: Settings, start: bytes) -> None:
    with served(small) as running, half_sent(running.address, 1, start) as (endless,):
        with suppress(OSError):
            for _ in range(200):
                endless.sendall(b"x" * 10_000)
                time.sleep(0.001)
        assert is_closed(endless, 5)


@pytest.mark.usefixtures("hasty")
def test_an_answer_that_nobody_takes_is_given_up(small: Settings) -> None:
    with served(small) as running:
        waiting = socket.socket()
        waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        waiting.connect(host_and_port(running.address))
        many = b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 100
        waiting.sendall(many)
        assert is_hung_up_on(waiting, 20)
        waiting.close()


def test_many_requests_at_once_hold_up_those_of_the_same_address_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 connections that send 400 requests each, a few are answered while somebody else waits for an answer."""
    answered, waited, other = 0, list[int](), "127.0.0.2"
    receive, complete = GuardedProtocol.data_received, GuardedProtocol.on_response_complete

    def data_received(self: GuardedProtocol, data: bytes) -> None:
        if self.client and self.client[0] == other:
            waited.append(-answered)
        receive(self, data)

    def on_response_complete(self: GuardedProtocol) -> None:
        nonlocal answered
        answered += 1
        if self.client and self.client[0] == other:
            waited[-1] += answered
        complete(self)

    monkeypatch.setattr(GuardedProtocol, "data_received", data_received)
    monkeypatch.setattr(GuardedProtocol, "on_response_complete", on_response_complete)
    many = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400
    settings = Settings(store=str(tmp_path / "trials.db"), connections_per_address=300)
    with (
        served(settings) as running,
        half_sent(running.address, 200, many),
        httpx.Client(transport=httpx.HTTPTransport(local_address=other), base_url=running.address) as client,
    ):
        for _ in range(20):
            assert client.get("/healthz", timeout=30).status_code == httpx.codes.OK
    assert sorted(waited)[10] < 60


def test_a_proxy_speaks_for_many(tmp_path: Path) -> None:
    settings = Settings(store=str(tmp_path / "trials.db"), connections_per_address=2, proxies="127.0.0.1")
    with served(settings) as running, half_sent(running.address, 10) as held:
        time.sleep(0.5)
        assert not any(is_closed(one, 0.05) for one in held)


def test_the_process_takes_as_many_files_as_it_may() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        assert connections.raise_file_limit() == min(hard, connections.MOST_FILES)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, connections.MOST_FILES)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def behind_nginx(address: str, folder: Path) -> Iterator[str]:
    """The proxy of deploy/nginx.conf, without TLS."""
    if NGINX is None:
        pytest.skip("nginx is not installed: apt-get install nginx-light")
    port = free_port()
    told = (Path(__file__).parents[2] / "deploy" / "nginx.conf").read_text()
    told = "\n".join(line for line in told.splitlines() if "ssl_certificate" not in line)
    told = told.replace("listen 443 ssl;", f"listen 127.0.0.1:{port};").replace("127.0.0.1:8000", address[7:])
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{kind}_temp_path {folder / kind};\n" for kind in kinds)
    for kind in kinds:
        (folder / kind).mkdir()
    file = folder / "nginx.conf"
    file.write_text(
        f"daemon off;\npid {folder / 'pid'};\nerror_log {folder / 'error'};\nuser root;\n"
        f"events {{ worker_connections 2048; }}\nhttp {{\naccess_log off;\n{temporary}{told}\n}}\n"
    )
    running = subprocess.Popen([NGINX, "-c", file, "-p", folder], stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: listens(port) or running.poll() is not None)
        assert running.poll() is None, (folder / "error").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        running.terminate()
        running.wait(20)


def test_through_nginx_half_sent_requests_do_not_keep_others_out(tmp_path: Path) -> None:
    settings = Settings(store=str(tmp_path / "trials.db"), connections=2 * FEW, proxies="127.0.0.1")
    with (
        served(settings) as running,
        behind_nginx(running.address, tmp_path) as proxy,
        half_sent(proxy, 10 * FEW),
    ):
        for _ in range(5):  # from another address than theirs
            with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2")) as other:
                assert other.get(f"{proxy}/healthz", timeout=5).status_code == httpx.codes.OK
        assert httpx.get(f"{running.address}/healthz", timeout=5).status_code == httpx.codes.OK


@pytest.mark.usefixtures("strict")
def test_through_nginx_failed_tokens_are_counted_by_who_asks(tmp_path: Path) -> None:
    with served(with_token(tmp_path, proxies="127.0.0.1")) as running, behind_nginx(running.address, tmp_path) as proxy:
        with httpx.Client(base_url=proxy) as client:  # nginx says who asks, whatever they say themselves
            assert rotating(client, 40).count(429) == 40 - auth.FAILURES[1]
        with httpx.Client(transport=httpx.HTTPTransport(local_address="127.0.0.2"), base_url=proxy) as other:
            assert other.get("/v1/trials", headers={"Authorization": "Bearer drimed_x_y"}).status_code == 401


# Who asks


def rotating(client: httpx.Client, n: int) -> list[int]:
    """The answers to wrong tokens, each as if from another address."""
    return [
        client.get(
            "/v1/trials", headers={"Authorization": f"Bearer drimed_x_{i}", "X-Forwarded-For": f"203.0.113.{i}"}
        ).status_code
        for i in range(n)
    ]


@pytest.mark.usefixtures("strict")
def test_who_guesses_does_not_keep_others_at_the_address_out(tmp_path: Path) -> None:
    settings = Settings(store=str(tmp_path / "trials.db"))
    with closing(open_store(settings.store)) as store:
        right = [auth.create_token(store, label=f"l{i}", role="read")[1] for i in range(10)]
    with served(settings) as running:
        for token in right:  # each for the first time
            rotating(running.http, 60)
            answer = running.http.get("/v1/trials", headers={"Authorization": f"Bearer {token}"})
            assert answer.status_code == httpx.codes.OK
        named = [f"{right[0][:-4]}{i:04d}" for i in range(60)]  # the name of a token, and secrets that are wrong
        answers = [running.http.get("/v1/trials", headers={"Authorization": f"Bearer {n}"}) for n in named]
        assert {answer.status_code for answer in answers[30:]} == {429}


# Bodies


def test_a_form_that_everybody_may_send_is_small(http: httpx.Client) -> None:
    answer = http.post("/sign-in", content=b"token=" + b"x" * 100_000, headers={"Content-Type": FORM})
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE

    def pieces() -> Iterator[bytes]:
        for _ in range(100):
            yield b"x" * 1000

    answer = http.post("/sign-in", content=pieces(), headers={"Content-Type": FORM})  # which does not say its size
    assert answer.status_code == httpx.codes.REQUEST_ENTITY_TOO_LARGE


FORM = "application/x-www-form-urlencoded"


def test_large_bodies_are_read_beside_everything_else(http: httpx.Client, running: Running) -> None:
    """Ten bodies of 3 MB; a short request waits for a small part of the time that they take."""
    body = json.dumps({"reports": [{"decision": i, "outcome": {"yield": "x"}} for i in range(60_000)]}).encode()
    said, longest = list[int](), 0.0

    def send() -> None:
        with httpx.Client(base_url=running.address, timeout=120) as client:
            answer = client.post(f"{T}/tell", content=body, headers={"Content-Type": "application/json"})
            said.append(answer.status_code)

    senders, begun = [threading.Thread(target=send) for _ in range(10)], time.perf_counter()
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        start = time.perf_counter()
        ok(http.get("/healthz"))
        longest = max(longest, time.perf_counter() - start)
    assert said == [422] * 10
    assert longest < (time.perf_counter() - begun) / 3


def test_a_refused_sheet_is_gone_at_once(http: httpx.Client) -> None:
    """A search for cycles would find it later, and hold up everybody while it looks at so many objects."""
    rows = "".join(f"{i},7\n" for i in range(500, 600))
    site = Visitor(http)
    ok(http.post(f"{T}/ask", json={}))
    site.look("/trials/small/tell")
    gc.collect()
    gc.disable()
    try:
        answer = site.send("/trials/small/tell", {"how": "sheet"}, file=("s.csv", f"decision,yield\n{rows}".encode()))
        assert "no decision 599" in readable(answer.text)
        wait_until(lambda: not any(type(one) is Row for one in gc.get_objects()), 5)
    finally:
        gc.enable()


def test_a_service_of_its_own_looks_for_cycles_when_nothing_else_is_done(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_until(lambda: not running.service.requests)
    before, collected = (gc.get_threshold(), sys.getswitchinterval()), list[int]()
    monkeypatch.setattr(runtime, "QUIET", 0.02)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(running.service.requests))
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, 1))

    async def tidy(requests: int) -> int:
        running.service.requests, n = requests, len(collected)
        with suppress(TimeoutError):
            await asyncio.wait_for(running.service.tidy(), 0.3)
        return len(collected) - n

    try:
        assert (asyncio.run(tidy(1)), asyncio.run(tidy(0)) > 0) == (0, True)
        assert gc.get_threshold()[2] == runtime.RARELY
    finally:
        gc.unfreeze()
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])


# Work that nobody waits for


def test_proofs_that_nobody_waits_for_hold_up_nobody(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    go, proved = threading.Event(), list[str]()
    plain = verify

    def slow(store: Any, trial: str, *, progress: Any, **asked: Any) -> Any:
        proved.append(trial)
        while not go.wait(0.1):
            progress(1, 2)
        return plain(store, trial, progress=progress, **asked)

    monkeypatch.setattr(runtime, "verify", slow)
    ok(running.http.post(f"{T}/ask", json={}))
    gone = [socket.create_connection(host_and_port(running.address), 10) for _ in range(30)]
    for one in gone:
        one.sendall(f"GET {T}/verify HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    wait_until(lambda: proved)
    for one in gone:
        one.close()
    start = time.perf_counter()
    assert running.http.get(f"{T}/export").status_code == httpx.codes.OK
    assert time.perf_counter() - start < 5
    said: list[bool] = []

    def ask() -> None:
        def asked() -> httpx.Response | None:
            answer = httpx.get(f"{running.address}{T}/verify", timeout=60)
            return None if answer.status_code == 429 else answer  # proofs without a caller hold up others

        said.append(ok(wait_until(asked, 20))["ok"])

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    time.sleep(1.5)
    go.set()
    for thread in threads:
        thread.join(60)
    assert said == [True] * 3
    assert len(proved) <= 4  # of 33 that were asked for


def test_a_client_that_hangs_up_is_one_quiet_line(running: Running, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "drimed.service")
    head = (
        f"POST {T}/ask HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{{"
    )
    with half_sent(running.address, 1, head.encode()) as (one,):
        time.sleep(0.3)
        one.close()
        lines = wait_until(lambda: [r for r in caplog.records if getattr(r, FIELDS, {}).get("status") == 499])
    assert [(r.levelname, r.exc_info) for r in lines] == [("INFO", None)]
    assert not [r for r in caplog.records if r.levelno >= logging.WARNING]
    assert 'status="499"' in running.http.get("/metrics").text


# What the log and the answers say


def test_one_kind_of_error_is_one_line_a_second() -> None:
    moment = 0.0
    calm = OnePerSecond(clock=lambda: moment)

    def record(message: str, level: int = logging.ERROR, **fields: Any) -> logging.LogRecord:
        made = logging.LogRecord("asyncio", level, "", 0, message, (), None)
        setattr(made, FIELDS, fields)
        return made

    assert [bool(calm.filter(record("out of files"))) for _ in range(5)] == [True] + [False] * 4
    assert calm.filter(record("another"))
    assert all(calm.filter(record("request", logging.INFO, status=200, actor=None)) for _ in range(3))
    assert all(calm.filter(record("request", logging.INFO, status=404, actor="office")) for _ in range(3))
    refused = [calm.filter(record("request", logging.INFO, status=401, actor=None)) for _ in range(3)]
    assert [bool(passed) for passed in refused] == [True, False, False]
    moment = 1.1
    later = record("out of files")
    assert calm.filter(later)
    assert getattr(later, FIELDS)["left_out"] == 4


def test_where_the_store_is_stays_in_the_log(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    secret = "postgresql://kept-user@kept-host/kept-name cannot be used"

    def away(*_: Any, **__: Any) -> Any:
        raise StoreError(secret)

    monkeypatch.setattr(running.service.store, "transaction", away)
    for path in ["/readyz", "/v1/trials", "/", "/sign-in"]:
        running.service.access._open_until = 0.0
        answer = running.http.get(path, headers={"X-Request-ID": "look-me-up", "Accept": "text/html"})
        assert answer.status_code == httpx.codes.SERVICE_UNAVAILABLE
        assert "kept-" not in answer.text
        assert answer.headers["retry-after"] == "1"
        assert "look-me-up" in answer.text
        logged = [r for r in caplog.records if "kept-host" in r.getMessage()]
        assert getattr(logged[-1], FIELDS)["request_id"] == "look-me-up"
