"""The service under load from another process, behind 127.0.0.1.

Asks a second with 1 and 2 workers on SQLite, beside the same calls of Trial.ask in a process of its own; the cost of
dashboards that look at a trial again and again; and an endurance run in which nothing may be lost or doubled and the
workers' memory stays flat.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
LOOKS = ("/", "/trials/busy", "/trials/busy?by=user", "/trials/busy/log", "/trials/busy/decisions/1")


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
                    rates.append(asyncio.run(ask(service.address, asks, "speed")))
                ratios.append(rates[-1] / direct(store, asks))
                check(store)
            part.rows.append(Row(f"{workers} workers / Trial.ask alone", Spread.of(rates), Spread.of(ratios)))
        store = f"sqlite:///{folder / 'busy.db'}"
        with serving(store, folder, 1) as service:
            given = asyncio.run(pairs(service.address, asks, "told"))  # so that there is something to see
            before = asyncio.run(ask(service.address, asks, "before"))
            with looking(service.address):
                beside = asyncio.run(ask(service.address, asks, "beside"))
            after = asyncio.run(ask(service.address, asks, "after"))
            ratio = Spread.of([beside / ((before + after) / 2)])
            name = f"beside {READERS} dashboards / alone"
            part.rows.append(Row(name, Spread.of([beside]), ratio, at_least=LEAST_BESIDE))
            memory = list[float]()
            for tenth in range(10):
                given |= asyncio.run(pairs(service.address, max(1, requests // 20), f"tenth {tenth}"))
                memory.append(median(_megabytes(pid) for pid in service.workers()))
            memory_row = Row(
                f"a worker's memory after {requests:,} requests / after a tenth of them (MB)",
                Spread.of([memory[-1]]),
                Spread.of([memory[-1] / memory[0]]),
                at_most=MOST_MEMORY,
            )
            part.rows.append(memory_row)
        decisions = check(store)
        if decisions < len(given):
            raise RuntimeError(f"{len(given)} decisions were given out and {decisions} are in the log")
    return part


class Connection:
    """A kept-alive connection that costs next to nothing: what is measured is the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def to(cls, address: str) -> Connection:
        """Open one."""
        host, port = address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)), f"{host}:{port}")

    async def post(self, path: str, data: Any, key: str) -> Any:
        """Send JSON and return the answer's."""
        body = json.dumps(data).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return json.loads(await self._send(head.encode() + body))

    async def get(self, path: str) -> bytes:
        """The body of an answer."""
        return await self._send(f"GET {path} HTTP/1.1\r\nHost: {self._host}\r\n\r\n".encode())

    async def _send(self, request: bytes) -> bytes:
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length is None:
            raise RuntimeError(f"no length in {head!r}")
        body = await self._reader.readexactly(int(length[1]))
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(f"{head!r} {body!r}")
        return body

    async def close(self) -> None:
        """Close it."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def ask(address: str, asks: int, run: str) -> float:
    """Asks a second of so many asks over some connections."""
    numbers = iter(range(asks))

    async def one(connection: Connection) -> None:
        for i in numbers:
            await connection.post("/v1/trials/busy/ask", {"users": [USERS[i % len(USERS)]]}, f"{run}-{i}")

    opened = [await Connection.to(address) for _ in range(CONNECTIONS)]
    start = time.perf_counter()
    await asyncio.gather(*(one(c) for c in opened))
    seconds = time.perf_counter() - start
    for connection in opened:
        await connection.close()
    return asks / seconds


async def pairs(address: str, count: int, run: str) -> set[int]:
    """Ask and tell; the numbers of the decisions, of which none may come twice."""
    given: set[int] = set()
    numbers = iter(range(count))

    async def one(connection: Connection) -> None:
        for i in numbers:
            body = {"users": [USERS[i % len(USERS)]]}
            decision = (await connection.post("/v1/trials/busy/ask", body, f"{run} ask {i}"))["decisions"][0]
            if decision["id"] in given:
                raise RuntimeError(f"decision {decision['id']} was given out twice")
            given.add(decision["id"])
            told = {"outcome": outcome(decision["id"], decision["arm"])}
            await connection.post(f"/v1/trials/busy/decisions/{decision['id']}/outcome", told, f"{run} tell {i}")

    opened = [await Connection.to(address) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(one(c) for c in opened))
    for connection in opened:
        await connection.close()
    return given


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
    async def one(connection: Connection) -> None:
        while not stop.is_set():
            for path in LOOKS:
                await connection.get(path)
            ready.set()
            await asyncio.sleep(REFRESH)

    async def everybody() -> None:
        await asyncio.gather(*[one(await Connection.to(address)) for _ in range(READERS)])

    asyncio.run(everybody())


@contextmanager
def serving(store: str, folder: Path, workers: int) -> Iterator[Processes]:
    """`drimed serve` on an empty store, warm."""
    log = folder / f"{time.time_ns()}.log"
    with processes(store, log, "--workers", str(workers)) as service:
        httpx.post(f"{service.address}/v1/trials", json=SPEC).raise_for_status()
        asyncio.run(ask(service.address, 20 * workers, "warm"))
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
