"""The service under load from another process, behind 127.0.0.1.

Asks a second with 1 and 2 workers on SQLite, beside the same calls of Trial.ask in a process of its own; the cost of
dashboards that look at a trial again and again; and an endurance run in which nothing may be lost or doubled and the
workers' memory stays flat.
"""

from __future__ import annotations

import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from tests.service.serving import Processes, processes
from tests.trial.trials import BUSY, outcome

from benchmarks.measure import Part, Row, Size, Spread
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

CONNECTIONS = 8  # that ask at the same time
REFRESH = 1.0  # seconds between two looks of one reader at everything
READERS = 3
LEAST_BESIDE = 0.8  # of the asks a second that remain beside dashboards
MOST_MEMORY = 1.1  # of a worker's memory, from a tenth of the endurance run to its end
SPEC = BUSY | {"model": {"kind": "paper"}}  # the requests are measured, not the model
USERS = list(BUSY["users"])
LOOKS = ("/", "/trials/busy", "/trials/busy/results/effects", "/trials/busy/log", "/trials/busy/decisions/1")


def run(size: Size) -> Part:
    """Speed, readers, endurance."""
    asks, requests, repeats = {"smallest": (10, 20, 1), "quick": (200, 400, 1), "full": (2_000, 100_000, 3)}[size]
    part = Part("The service", "asks/s", f"{CONNECTIONS} connections. Ratio: to the yardstick that the row names.")
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name:
        folder = Path(name)
        for workers in (1,) if size == "smallest" else (1, 2):
            rates, ratios = list[float](), list[float]()
            for repeat in range(repeats):
                store = f"sqlite:///{folder / f'{workers}-{repeat}.db'}"
                with serving(store, folder, workers) as service:
                    rates.append(ask(service.address, asks, "speed"))
                ratios.append(rates[-1] / direct(store, asks))
                check(store)
            part.rows.append(Row(f"{workers} workers / Trial.ask alone", Spread.of(rates), Spread.of(ratios)))
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
    start = time.perf_counter()
    over_connections(address, asks, lambda connection, i: int(_ask(connection, i, f"{run} {i}")["id"]))
    return asks / (time.perf_counter() - start)


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
    trial.ask(USERS[0], key="direct first")
    start = time.perf_counter()
    for i in range(asks):
        trial.ask(USERS[i % len(USERS)], key=f"direct {i}")
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
def serving(store: str, folder: Path, workers: int) -> Iterator[Processes]:
    """`drimed serve` on an empty store, warm."""
    log = folder / f"{time.time_ns()}.log"
    with processes(store, log, "--workers", str(workers)) as service:
        httpx.post(f"{service.address}/v1/trials", json=SPEC).raise_for_status()
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
