"""The service under load from another process: `python -m benchmarks.service`.

    speed      asks a second and their p50 and p99, on SQLite and PostgreSQL, with 1 and 2 workers, against the same
               calls of Trial.ask in a process of its own; all in one run, in turns
    readers    what dashboards (every page and the chart data of a trial, again and again) cost asking
    endurance  many requests: nothing lost or doubled, and the workers' memory stays flat

Everything stays on this machine, behind 127.0.0.1. Prints tables and writes service.json.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import re
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table
from tests.service.serving import Processes, processes
from tests.trial import servers
from tests.trial.trials import BUSY, outcome

from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

PARTS = ("speed", "readers", "endurance")
CONNECTIONS = 8  # that ask at the same time
REFRESH = 1.0  # seconds between two looks of one reader at everything
READERS = 3
TOLD = 1000  # decisions with outcomes, before anybody looks
MOST_SLOWED = 0.20  # of the asks a second, by readers
USERS = list(BUSY["users"])
# What a look takes in: the pages that people keep open, or the same through /v1.
LOOKS = {
    "pages": ("/", "/trials/busy", "/trials/busy?by=user", "/trials/busy/log", "/trials/busy/decisions/1"),
    "/v1": tuple(f"/v1/trials/busy{path}" for path in ("", "/effects", "/log?order=newest&limit=50", "/decisions/1")),
}


@dataclass(frozen=True)
class Load:
    """What one stretch of asking came to."""

    asks: int
    seconds: float
    p50: float  # milliseconds
    p99: float

    @property
    def rate(self) -> float:
        """Asks a second."""
        return self.asks / self.seconds

    @staticmethod
    def of(latencies: list[float], seconds: float) -> Load:
        """From the seconds of every ask."""
        ranked = sorted(latencies)
        p50, p99 = (1000 * ranked[int(q * (len(ranked) - 1))] for q in (0.5, 0.99))
        return Load(len(ranked), seconds, p50, p99)


class Connection:
    """A kept-alive connection that costs next to nothing: what is measured is the service."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str) -> None:
        self._reader, self._writer, self._host = reader, writer, host

    @classmethod
    async def to(cls, address: str) -> Connection:
        host, port = address.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)), f"{host}:{port}")

    async def post(self, path: str, data: Any, key: str) -> Any:
        body = json.dumps(data).encode()
        head = (
            f"POST {path} HTTP/1.1\r\nHost: {self._host}\r\nContent-Type: application/json\r\n"
            f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return json.loads(await self._send(head.encode() + body))

    async def get(self, path: str) -> bytes:
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
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


async def _ask(address: str, asks: int, connections: int, run: str) -> Load:
    """So many asks over some connections."""
    latencies: list[float] = []
    numbers = iter(range(asks))

    async def one(open_to: Connection) -> None:
        for i in numbers:
            start = time.perf_counter()
            await open_to.post("/v1/trials/busy/ask", {"user": USERS[i % len(USERS)]}, f"{run}-{i}")
            latencies.append(time.perf_counter() - start)

    opened = [await Connection.to(address) for _ in range(connections)]
    start = time.perf_counter()
    await asyncio.gather(*(one(c) for c in opened))
    seconds = time.perf_counter() - start
    for connection in opened:
        await connection.close()
    return Load.of(latencies, seconds)


def ask(address: str, asks: int, connections: int, run: str) -> Load:
    """So many asks over some connections, from this process."""
    return asyncio.run(_ask(address, asks, connections, run))


def _direct(store: str, asks: int, run: str, results: Any) -> None:
    opened = open_store(store)
    trial = Trial.open("busy", opened)
    latencies: list[float] = []
    trial.ask(USERS[0], key=f"{run} first")
    begun = time.perf_counter()
    for i in range(asks):
        start = time.perf_counter()
        trial.ask(USERS[i % len(USERS)], key=f"{run} {i}")
        latencies.append(time.perf_counter() - start)
    results.put(Load.of(latencies, time.perf_counter() - begun))
    opened.close()


def direct(store: str, asks: int, run: str) -> Load:
    """The same calls without HTTP, in a process of their own."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    process = context.Process(target=_direct, args=(store, asks, run, results))
    process.start()
    found: Load = results.get(timeout=600)
    process.join(30)
    return found


async def _dashboards(address: str, paths: Sequence[str], stop: Any, ready: Any) -> tuple[int, int]:
    looks, errors = 0, 0

    async def one(open_to: Connection) -> None:
        nonlocal looks, errors
        while not stop.is_set():
            for path in paths:
                try:
                    await open_to.get(path)
                except RuntimeError:
                    errors += 1
                looks += 1
            ready.set()
            await asyncio.sleep(REFRESH)

    await asyncio.gather(*[one(await Connection.to(address)) for _ in range(READERS)])
    return looks, errors


def _look(address: str, paths: Sequence[str], stop: Any, ready: Any, results: Any) -> None:
    results.put(asyncio.run(_dashboards(address, paths, stop, ready)))


@contextmanager
def looking(address: str, paths: Sequence[str]) -> Iterator[list[tuple[int, int]]]:
    """Dashboards in a process of their own, for as long as the block lasts; then their looks and errors."""
    context = multiprocessing.get_context("spawn")
    stop, ready, results = context.Event(), context.Event(), context.Queue()
    process = context.Process(target=_look, args=(address, paths, stop, ready, results))
    process.start()
    if not ready.wait(60):  # what it takes to start is not what it costs to look
        raise RuntimeError("the dashboards do not start")
    found: list[tuple[int, int]] = []
    try:
        yield found
    finally:
        stop.set()
        found.append(results.get(timeout=60))
        process.join(30)


@contextmanager
def serving(store: str, folder: Path, workers: int) -> Iterator[Processes]:
    """`drimed serve` on an empty store, warm."""
    log = folder / f"{time.time_ns()}.log"
    with processes(store, log, "--workers", str(workers)) as found:
        httpx.post(f"{found.address}/v1/trials", json=BUSY).raise_for_status()
        ask(found.address, 200, CONNECTIONS, "warm")
        yield found


@contextmanager
def stores(folder: Path) -> Iterator[dict[str, Any]]:
    """Where empty stores can be made: name -> a function that gives an address."""
    with servers.server() as postgres, contextlib.ExitStack() as databases:
        count = iter(range(1000))
        yield {
            "SQLite": lambda: f"sqlite:///{folder / f'{next(count)}.db'}",
            "PostgreSQL": lambda: databases.enter_context(postgres.database()),
        }


def speed(folder: Path, asks: int, repeats: int, console: Console) -> list[dict[str, Any]]:
    """Asks a second, their p50 and p99, with and without HTTP."""
    rows: dict[tuple[str, str], list[Load]] = {}
    with stores(folder) as made:
        for kind, address in made.items():
            for repeat in range(repeats):
                for workers in (1, 2):
                    store = address()
                    with serving(store, folder, workers) as service:
                        for connections in (1, CONNECTIONS):
                            name = f"{workers} workers, {connections} at once"
                            found = ask(service.address, asks, connections, f"{repeat}-{connections}")
                            rows.setdefault((kind, name), []).append(found)
                    # The same trial, with the same past, right afterwards.
                    rows.setdefault((kind, "without HTTP"), []).append(direct(store, asks, f"direct {repeat}"))
                    _check(store)
                    console.print(f"{kind}, repeat {repeat + 1}, {workers} workers done")
    return [
        {
            "store": kind,
            "way": way,
            "rate": median(load.rate for load in loads),
            "p50": median(load.p50 for load in loads),
            "p99": median(load.p99 for load in loads),
            "rates": [load.rate for load in loads],
        }
        for (kind, way), loads in rows.items()
    ]


def readers(folder: Path, asks: int, repeats: int, console: Console) -> list[dict[str, Any]]:
    """Asks alone and beside dashboards, in turns, on both stores."""
    rows = []
    with stores(folder) as made:
        for kind, address in made.items():
            for workers in (1, 2):
                with serving(address(), folder, workers) as service:
                    asyncio.run(_pairs(service.address, TOLD, "told"))  # so that there is something to see
                    for look, paths in LOOKS.items():
                        found = _beside(service.address, paths, asks, repeats)
                        rows.append({"store": kind, "workers": workers, "look": look, **found})
                        console.print(f"{kind}, {workers} workers, {look} done")
    return rows


def _beside(address: str, paths: Sequence[str], asks: int, repeats: int) -> dict[str, Any]:
    """A ratio within each turn: what others do to the machine meanwhile is in all three of its parts."""
    turns, looks, errors, run = [], 0, 0, time.time_ns()
    for turn in range(repeats):
        before = ask(address, asks, CONNECTIONS, f"{run} {turn} before")
        with looking(address, paths) as seen:
            beside = ask(address, asks, CONNECTIONS, f"{run} {turn} beside")
        after = ask(address, asks, CONNECTIONS, f"{run} {turn} after")
        looks, errors = looks + sum(n for n, _ in seen), errors + sum(e for _, e in seen)
        turns.append((before, beside, after))
    ratios = [beside.rate / ((before.rate + after.rate) / 2) for before, beside, after in turns]
    return {
        "alone": median((b.rate + a.rate) / 2 for b, _, a in turns),
        "beside": median(b.rate for _, b, _ in turns),
        "p99_alone": median((b.p99 + a.p99) / 2 for b, _, a in turns),
        "p99_beside": median(b.p99 for _, b, _ in turns),
        "ratios": ratios,
        "ratio": median(ratios),
        "looks": looks,
        "errors": errors,
    }


def endurance(folder: Path, requests: int, workers: int, console: Console) -> list[dict[str, Any]]:
    """Ask and tell, on both stores."""
    with stores(folder) as made:
        rows = []
        for kind, address in made.items():
            rows.append({"store": kind, **_endure(address(), folder, requests, workers, console)})
            console.print({k: v for k, v in rows[-1].items() if k != "megabytes"})
        return rows


def _endure(store: str, folder: Path, requests: int, workers: int, console: Console) -> dict[str, Any]:
    """Memory of the workers at every tenth of the way."""
    memory: list[dict[str, float]] = []
    with serving(store, folder, workers) as service:
        start = time.perf_counter()
        given: set[int] = set()
        for tenth in range(10):
            given |= asyncio.run(_pairs(service.address, requests // 20, f"tenth {tenth}"))
            memory.append({str(pid): _megabytes(pid) for pid in service.workers()})
            shown = ", ".join(f"{m:.0f} MB" for m in memory[-1].values())
            console.print(f"{(tenth + 1) * requests // 10} requests: {shown}")
        seconds = time.perf_counter() - start
    decisions = _check(store)
    first, last = (median(m.values()) for m in (memory[1], memory[-1]))
    return {
        "requests": 2 * len(given),
        "seconds": seconds,
        "distinct decisions": len(given),
        "decisions in the log": decisions - 200,  # without the warm-up
        "megabytes": memory,
        "growth after the second tenth": last / first - 1,
    }


async def _pairs(address: str, pairs: int, run: str) -> set[int]:
    given: set[int] = set()
    numbers = iter(range(pairs))

    async def one(open_to: Connection) -> None:
        for i in numbers:
            body = {"user": USERS[i % len(USERS)]}
            decision = (await open_to.post("/v1/trials/busy/ask", body, f"{run} ask {i}"))["decisions"][0]
            if decision["id"] in given:
                raise RuntimeError(f"decision {decision['id']} was given out twice")
            given.add(decision["id"])
            told = {"outcome": outcome(decision["id"], decision["arm"])}
            await open_to.post(f"/v1/trials/busy/decisions/{decision['id']}/outcome", told, f"{run} tell {i}")

    opened = [await Connection.to(address) for _ in range(CONNECTIONS)]
    await asyncio.gather(*(one(c) for c in opened))
    for connection in opened:
        await connection.close()
    return given


def _check(address: str) -> int:
    """The log must be whole; how many decisions it has."""
    store = open_store(address)
    proof = verify(store, "busy")
    store.close()
    if not proof.ok:
        raise RuntimeError(f"the log is broken: {proof.faults}")
    return proof.decisions


def _megabytes(pid: int) -> float:
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    """Run the chosen parts, print what they came to and write it all down."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.service", description="The service under load from another process."
    )
    parser.add_argument("--only", choices=PARTS, help="run one part")
    parser.add_argument("--asks", type=int, default=2000, help="in each measurement (%(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="of each measurement (%(default)s)")
    parser.add_argument("--requests", type=int, default=100_000, help="of the endurance run (%(default)s)")
    parser.add_argument("--out", default="out/bench", help="folder of service.json (%(default)s)")
    chosen = parser.parse_args()
    console, report = Console(), dict[str, Any]()
    report["load_before"] = os.getloadavg()
    parts = PARTS if chosen.only is None else (chosen.only,)
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name:
        folder = Path(name)
        if "speed" in parts:
            report["speed"] = speed(folder, chosen.asks, chosen.repeats, console)
            table = Table("store", "way", "asks/s", "p50 ms", "p99 ms", title="Asks")
            for row in report["speed"]:
                numbers = (f"{row['rate']:.0f}", f"{row['p50']:.2f}", f"{row['p99']:.2f}")
                table.add_row(row["store"], row["way"], *numbers)
            console.print(table)
        if "readers" in parts:
            report["readers"] = readers(folder, chosen.asks, chosen.repeats, console)
            console.print(_readers_table(report["readers"]))
        if "endurance" in parts:
            report["endurance"] = endurance(folder, chosen.requests, 2, console)
    report["load_after"] = os.getloadavg()
    out = Path(chosen.out)
    out.mkdir(parents=True, exist_ok=True)
    (out / "service.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    console.print(f"wrote {out / 'service.json'}")


def _readers_table(rows: list[dict[str, Any]]) -> Table:
    goal = 1 - MOST_SLOWED
    table = Table(
        *("store", "workers", "they look at", "asks/s alone", "beside", "ratio", "range", "p99 ms", "looks", "errors"),
        title=f"Asks beside {READERS} dashboards; goal: a ratio of at least {goal:.2f}",
    )
    for row in rows:
        table.add_row(
            *(row["store"], str(row["workers"]), row["look"], f"{row['alone']:.0f}", f"{row['beside']:.0f}"),
            f"{row['ratio']:.2f} {'met' if row['ratio'] >= goal else 'missed'}",
            f"{min(row['ratios']):.2f} to {max(row['ratios']):.2f}",
            f"{row['p99_alone']:.1f}, {row['p99_beside']:.1f}",
            *(str(row["looks"]), str(row["errors"])),
        )
    return table


if __name__ == "__main__":
    main()
