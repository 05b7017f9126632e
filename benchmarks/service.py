"""The service under load from another process, behind 127.0.0.1.

Asks a second of 1, 8 and 64 clients with 1 and 2 workers, beside the same calls of Trial.ask in a process of its own,
and how long the slowest of a hundred waits; two hosts, as processes, beside one; the cost of dashboards that look at a
trial again and again; and an endurance run in which nothing may be lost or doubled and the workers' memory stays flat.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from tests.service.serving import Processes, processes, wait_until
from tests.trial import servers
from tests.trial.trials import BUSY, outcome

from benchmarks.measure import Part, Row, Size, Spread
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

CONNECTIONS = 8  # that ask at the same time
CLIENTS = (1, CONNECTIONS, 64)
REFRESH = 1.0  # seconds between two looks of one reader at everything
READERS = 3
LEAST_BESIDE = 0.85  # of the asks a second that remain beside dashboards
MOST_MEMORY = 1.1  # of a worker's memory, from a tenth of the endurance run to its end
LEAST_ALONE = {1: 0.67, 8: 1.0}  # of the rate of Trial.ask in a process of its own, by the number of clients
LEAST_CROWDED = 1.0  # of the asks a second of 8 clients that 64 get
MOST_UNEVEN = 10.0  # times the median that the slowest of a hundred waits
USERS = [f"site {i}" for i in range(64)]
# The requests are measured, not the model.
SPEC = BUSY | {"model": {"kind": "paper"}, "users": {user: {} for user in USERS}}
# Store, model and workers; the smallest size has the first, and the first ones are repeated.
LITE, SERVER = "SQLite", "PostgreSQL"
SETTINGS = [(LITE, "paper", 1), (LITE, "paper", 2)]
SETTINGS += [(LITE, "people", 1), (SERVER, "paper", 1), (SERVER, "people", 1), (SERVER, "people", 2)]
TRIALS = ["busy", "busy-2", "busy-3", "busy-4"]
LOOKS = ("/", "/trials/busy", "/trials/busy/results/effects", "/trials/busy/log", "/trials/busy/decisions/1")


def run(size: Size) -> Part:
    """Speed, readers, endurance."""
    asks, requests, repeats = {"smallest": (10, 20, 1), "quick": (200, 400, 1), "full": (2_000, 100_000, 3)}[size]
    part = Part("The service", "asks/s", "Ratio: to the yardstick that the row names.")
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name:
        folder = Path(name)
        for kind, model, workers in SETTINGS if size == "full" else SETTINGS[:1]:
            part.rows.extend(_rates(folder, kind, model, workers, asks, repeats if model == "paper" else 1))
        if size == "full":
            part.rows.extend(_hosts(folder, asks))
        store = f"sqlite:///{folder / 'busy.db'}"
        with serving(store, folder, 1) as service:
            ids = pairs(service.address, asks, "told")  # so that there is something to see
            before = ask(service.address, asks, "before")
            with looking(service.address):
                beside = ask(service.address, asks, "beside")
            ratio = Spread.of([beside / ((before + ask(service.address, asks, "after")) / 2)])
            name = f"beside {READERS} dashboards / alone"
            part.rows.append(Row(name, Spread.of([beside]), ratio, at_least=LEAST_BESIDE))
            memory = list[float]()
            for tenth in range(10):
                ids += pairs(service.address, max(1, requests // 20), f"tenth {tenth}")
                memory.append(median(_megabytes(pid) for pid in service.workers()))
            name = f"a worker's memory after {requests:,} requests / after a tenth of them (MB)"
            last, growth = Spread.of([memory[-1]]), Spread.of([memory[-1] / memory[0]])
            part.rows.append(Row(name, last, growth, at_most=MOST_MEMORY))
        decisions = check(store)
        if len(set(ids)) < len(ids) or decisions < len(ids):
            raise RuntimeError(f"of {len(ids)} decisions given out {len(set(ids))} differ; the log has {decisions}")
    return part


@contextmanager
def _store(kind: str, folder: Path) -> Iterator[str]:
    """The address of an empty store."""
    if kind == LITE:
        yield f"sqlite:///{folder / f'{time.time_ns()}.db'}"
        return
    with servers.server() as running, running.database() as address:
        yield address


def _hosts(folder: Path, asks: int) -> Iterator[Row]:
    """Two hosts on one PostgreSQL server, as two processes, beside one of them: many trials, and one."""
    with _store(SERVER, folder) as store, serving(store, folder, 1) as one:
        for name in TRIALS[1:]:
            httpx.post(f"{one.address}/v1/trials", json=SPEC | {"name": name}).raise_for_status()
        with processes(store, folder / "other.log") as other:
            wait_until(lambda: httpx.get(f"{other.address}/readyz").is_success, 300.0)
            for trials in (TRIALS, TRIALS[:1]):
                rates = []
                for addresses in ([one.address], [one.address, other.address]):
                    load(addresses, asks // 10, f"warm {len(trials)} {len(addresses)}", CONNECTIONS, trials)
                    rates.append(
                        asks / load(addresses, asks, f"{len(trials)} {len(addresses)}", CONNECTIONS, trials)[0]
                    )
                name, ratio = f"trials: {len(trials)}, two hosts / one", Spread.of([rates[1] / rates[0]])
                yield Row(name, Spread.of(rates[1:]), ratio)


def _rates(folder: Path, kind: str, model: str, workers: int, asks: int, repeats: int) -> Iterator[Row]:
    """Asks a second by the number of clients, each beside Trial.ask just after it."""
    rates, ratios, uneven = ({clients: list[float]() for clients in CLIENTS} for _ in range(3))
    for _ in range(repeats):
        with _store(kind, folder) as store:
            with serving(store, folder, workers, SPEC | {"model": {"kind": model}}) as service:
                for clients in CLIENTS:
                    seconds, waits = load([service.address], asks, f"speed {clients}", clients)
                    rates[clients].append(asks / seconds)
                    ratios[clients].append(asks / seconds / direct(store, asks))
                    uneven[clients].append(waits[int(0.99 * len(waits))] / median(waits))
            check(store)
    about = f"{kind}, {model}, {workers} workers"
    for clients in CLIENTS:
        name, least = f"{about}, {clients} clients", LEAST_ALONE.get(clients) if workers == 1 else None
        yield Row(f"{name} / Trial.ask alone", Spread.of(rates[clients]), Spread.of(ratios[clients]), at_least=least)
    many, some = CLIENTS[-1], CLIENTS[-2]
    crowded = Spread.of([a / b for a, b in zip(rates[many], rates[some], strict=True)])
    yield Row(f"{about}, {many} clients / {some}", Spread.of(rates[many]), crowded, at_least=LEAST_CROWDED)
    yield Row(f"{about}, {many} clients: p99 / p50", Spread.of(uneven[many]), at_most=MOST_UNEVEN)


def load(
    addresses: Sequence[str], asks: int, run: str, clients: int, trials: Sequence[str] = TRIALS[:1]
) -> tuple[float, list[float]]:
    """Ask over so many connections at a time, with as little work here as can be; seconds in all, and of each."""
    waits, numbers = list[float](), iter(range(asks))

    async def client(number: int) -> None:
        trial = trials[number % len(trials)]
        host, port = addresses[number % len(addresses)].removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for i in numbers:
            body = json.dumps({"users": [USERS[i % len(USERS)]]})
            head = f"POST /v1/trials/{trial}/ask HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            start = time.perf_counter()
            writer.write(f"{head}Idempotency-Key: {run} {i}\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
            answer = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            text = await reader.readexactly(int(answer.partition("content-length: ")[2].split()[0]))
            waits.append(time.perf_counter() - start)
            if " 200 " not in answer:
                raise RuntimeError(f"{answer} {text!r}")
        writer.close()

    async def all_clients() -> None:
        await asyncio.gather(*map(client, range(clients)))

    start = time.perf_counter()
    asyncio.run(all_clients())
    return time.perf_counter() - start, sorted(waits)


def send(connection: HTTPConnection, path: str, data: Any = None, key: str = "") -> bytes:
    """Post JSON, or get a page, over a connection that is kept open; the body of the answer."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": key} if data is not None else {}
    body = None if data is None else json.dumps(data).encode()
    connection.request("GET" if data is None else "POST", path, body, headers)
    answer = connection.getresponse()
    text = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{answer.status} {text!r}")
    return text


def over_connections(address: str, count: int, one: Callable[[HTTPConnection, int], int]) -> list[int]:
    """So many calls over some connections at a time, and what they return."""
    numbers = iter(range(count))

    def several(_: int) -> list[int]:
        with closing(HTTPConnection(address.removeprefix("http://"))) as connection:
            return [one(connection, i) for i in numbers]

    with ThreadPoolExecutor(CONNECTIONS) as threads:
        return [number for some in threads.map(several, range(CONNECTIONS)) for number in some]


def _ask(connection: HTTPConnection, i: int, key: str) -> dict[str, Any]:
    answer = json.loads(send(connection, "/v1/trials/busy/ask", {"users": [USERS[i % len(USERS)]]}, key))
    decision: dict[str, Any] = answer["decisions"][0]
    return decision


def ask(address: str, asks: int, run: str) -> float:
    """Asks a second."""
    return asks / load([address], asks, run, CONNECTIONS)[0]


def pairs(address: str, count: int, run: str) -> list[int]:
    """Ask and tell; the numbers of the decisions."""

    def pair(connection: HTTPConnection, i: int) -> int:
        decision = _ask(connection, i, f"{run} ask {i}")
        told = {"outcome": outcome(decision["id"], decision["arm"])}
        send(connection, f"/v1/trials/busy/decisions/{decision['id']}/outcome", told, f"{run} tell {i}")
        return int(decision["id"])

    return over_connections(address, count, pair)


def direct(store: str, asks: int) -> float:
    """Asks a second of the same calls without HTTP, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_direct, args=(store, asks, results))
    process.start()
    rate: float = results.get(timeout=600)
    process.join(30)
    return rate


def _direct(store: str, asks: int, results: Any) -> None:
    opened = open_store(store)
    trial = Trial.open("busy", opened)
    trial.ask(USERS[0])
    start, run = time.perf_counter(), time.time_ns()
    for i in range(asks):
        trial.ask(USERS[i % len(USERS)], key=f"direct {run} {i}")
    results.put(asks / (time.perf_counter() - start))
    opened.close()


@contextmanager
def looking(address: str) -> Iterator[None]:
    """Dashboards in a process of their own, for as long as the block lasts."""
    context = multiprocessing.get_context("spawn")
    stop, ready = context.Event(), context.Event()
    process = context.Process(target=_look, args=(address, stop, ready))
    process.start()
    try:
        if not ready.wait(60):  # starting it is not what looking costs
            raise RuntimeError("the dashboards do not start")
        yield
    finally:
        stop.set()
        process.join(30)


def _look(address: str, stop: Any, ready: Any) -> None:
    def reader(connection: HTTPConnection, _: int) -> int:
        while not stop.is_set():
            for path in LOOKS:
                send(connection, path)
            ready.set()
            time.sleep(REFRESH)
        return 0

    over_connections(address, READERS, reader)


@contextmanager
def serving(store: str, folder: Path, workers: int, spec: dict[str, Any] = SPEC) -> Iterator[Processes]:
    """`drimed serve` on an empty store, warm."""
    log = folder / f"{time.time_ns()}.log"
    with processes(store, log, "--workers", str(workers)) as service:
        wait_until(lambda: httpx.get(f"{service.address}/readyz").is_success, 300.0)
        httpx.post(f"{service.address}/v1/trials", json=spec).raise_for_status()
        ask(service.address, 20 * workers, "warm")
        yield service


def check(address: str) -> int:
    """Verify the log; returns its number of decisions."""
    store = open_store(address)
    proof = verify(store, "busy")
    store.close()
    if not proof.ok:
        raise RuntimeError(f"the log is broken: {proof.faults}")
    return proof.decisions


def _megabytes(pid: int) -> float:
    match = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(match[1]) / 1024 if match else float("nan")
