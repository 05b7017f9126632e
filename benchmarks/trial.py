"""Live trials: a durable decision beside the bare store, and the costs of a long trial beside a short one.

Durable writes are timed by the clock, because they wait for the disk; the yardstick waits for the same disk just before
and just after. The long trial is the paper's model, asked and told in whole episodes on a store that does not sync:
each cost of a decision (ask and tell, report, export, verify, bytes) should be that of the short one.
"""

from __future__ import annotations

import gc
import itertools
import resource
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import sqlalchemy as sa

from benchmarks.measure import Part, Row, Size, Spread, clock_seconds, compared, processor_seconds
from drimed.records import Decision, Event, Report
from drimed.reports.page import write_report
from drimed.trial import export
from drimed.trial.store import Store, open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

MOST_BARE_PAIRS = 3.0  # bare transactions in pairs, that a durable ask + tell may cost
MOST_SINGLE_ASKS = 15.0  # that an episode of all users may cost
MOST_SECONDS = 1.0  # to open the long trial
MOST_GROWTH = 1.3  # of the cost of a decision, from the short trial to the long one
MOST_MEMORY = 1.05  # of the memory, from the short trial to the long one
MOST_BYTES = 4096  # on disk, for each decision with its outcome
ROWS = ("time", "actor", "kind", "decision", "user", "request", "text", "hash")


def run(size: Size) -> Part:
    """Pairs, whole episodes, then a trial that grows."""
    pairs, repeats, users, arms, short, long = {
        "smallest": (2, 1, 3, 4, 6, 12),
        "quick": (30, 3, 50, 40, 500, 2_000),
        "full": (200, 9, 1_000, 200, 10_000, 50_000),
    }[size]
    part = Part("Live trials", "ms", f"Long: {long:,} decisions, {users:,} users, {arms} arms; short: {short:,}.")
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name:
        folder = Path(name)
        part.rows.append(_pairs(f"sqlite:///{folder / 'pairs.db'}", pairs, repeats))
        part.rows.append(_episodes(f"sqlite:///{folder / 'episodes.db'}", users, repeats))
        part.rows.extend(_growth(folder / "long.db", users, arms, short, long))
        opened = [clock_seconds(lambda: _open(folder / "long.db")) for _ in range(repeats)]
    part.rows.append(Row("opening the long trial (s)", Spread.of(opened), at_most=MOST_SECONDS))
    return part


# A pair beside two bare transactions


def _pairs(address: str, pairs: int, repeats: int) -> Row:
    store = open_store(address)
    trial = Trial.create(small_spec("pairs", 12), store)
    users = itertools.cycle(list(trial.state().users))

    def pair() -> None:
        decision = trial.ask(next(users))
        trial.tell(decision.id, outcome(decision))

    clock_seconds(pair, 30)
    with store.reading("pairs") as ledger:
        tell, ask = ledger.events(newest_first=True, limit=2)
    with _bare(store) as write:
        name = "ask + tell / two bare commits"
        rows = compared(
            {name: lambda: clock_seconds(pair, pairs)},
            lambda: clock_seconds(lambda: (write(ask), write(tell)), pairs),
            repeats,
            scale=1000,
        )
    store.close()
    return rows[name].with_goal(at_most=MOST_BARE_PAIRS)


@contextmanager
def _bare(store: Store) -> Iterator[Callable[[Event], None]]:
    """Write one event as the store does, in one durable transaction, with nothing before it and nothing around it."""
    with store.create("bare"):
        pass
    columns = ("trial", "seq", *ROWS)
    names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    connection = sqlite3.connect(str(store.url.database), isolation_level=None)
    connection.execute("PRAGMA synchronous=FULL")
    (trial,) = connection.execute("SELECT id FROM drimed_trials WHERE name = 'bare'").fetchone()
    numbers = itertools.count(1)

    def write(event: Event) -> None:
        seq = next(numbers)
        connection.execute("BEGIN IMMEDIATE")
        values = [getattr(event, name) for name in columns[2:]]
        connection.execute(f"INSERT INTO drimed_events ({names}) VALUES ({marks})", (trial, seq, *values))
        connection.execute("UPDATE drimed_trials SET seq = ?, hash = ? WHERE id = ?", (seq, event.hash, trial))
        connection.commit()

    yield write
    connection.close()


def _episodes(address: str, users: int, repeats: int) -> Row:
    """All users in one transaction beside one of them."""
    store = open_store(address)
    trial = Trial.create(small_spec("episodes", users), store)
    trial.tell_many([Report(d.id, outcome(d)) for d in trial.ask_many()])
    name, names = f"{users:,} users at once / one ask", itertools.cycle(list(trial.state().users))
    one = lambda: clock_seconds(lambda: trial.ask(next(names)), 5)  # noqa: E731
    rows = compared({name: lambda: clock_seconds(trial.ask_many)}, one, repeats, scale=1000)
    store.close()
    return rows[name].with_goal(at_most=MOST_SINGLE_ASKS)


# A trial that grows


def _growth(file: Path, users: int, arms: int, short: int, long: int) -> Iterator[Row]:
    store = open_store(f"sqlite:///{file}")
    without_sync(store)
    trial = Trial.create(_large_spec(users, arms), store)
    _grow(trial, users)  # compiles
    before = _costs(trial, file, short)
    after = _costs(trial, file, long)
    store.close()
    limits = {"memory (MB)": MOST_MEMORY, "bytes on disk": None}
    for name, cost in after.items():
        value, ratio = Spread.of([cost]), Spread.of([cost / before[name]])
        yield Row(f"long / short: {name}", value, ratio, at_most=limits.get(name, MOST_GROWTH))
    yield Row("bytes on disk for each decision", Spread.of([after["bytes on disk"]]), at_most=MOST_BYTES)


def _costs(trial: Trial, file: Path, decisions: int) -> dict[str, float]:
    """For each decision: milliseconds of the processor, and bytes. The trial grows to so many."""
    done, out = trial.state().counts.decisions, file.parent / f"report-{decisions}"
    grown = 1000 * processor_seconds(lambda: _grow(trial, decisions)) / max(1, decisions - done)
    memory = _megabytes()
    reading: dict[str, Callable[[], object]] = {
        "report": lambda: write_report(trial, out),
        "export": lambda: export.write(trial, file.parent / f"all-{decisions}.csv"),
        "verify": lambda: verify(trial.store, trial.name),
    }
    costs = {name: 1000 * processor_seconds(work) / decisions for name, work in reading.items()}
    return {"ask + tell": grown, **costs, "memory (MB)": memory, "bytes on disk": file.stat().st_size / decisions}


def _grow(trial: Trial, decisions: int) -> None:
    """Ask all users, and tell nearly all outcomes, until there are so many decisions."""
    users = list(trial.state().users)
    while (done := trial.state().counts.decisions) < decisions:
        rng = np.random.default_rng(done)
        contexts = {user: {"rain": float(r)} for user, r in zip(users, rng.normal(450, 120, len(users)), strict=True)}
        given = trial.ask_many(contexts=contexts, episode=trial.state().episode.number + 1)
        noise = rng.normal(0.0, (0.8, 0.3), (len(given), 2)).round(2).tolist()
        reports = []
        for decision, (e0, e1) in zip(given, noise, strict=True):
            dose = int(decision.arm.removeprefix("dose ")) / 200
            outcome = {"yield": round(4 + 3 * dose - 1.5 * dose**2 + e0, 2), "cost": round(1 + dose + e1, 2)}
            reports += [Report(decision.id, outcome)] if decision.id % 50 else []  # some are still waited for
        trial.tell_many(reports, confirm=True)


def _open(file: Path) -> None:
    store = open_store(f"sqlite:///{file}")
    Trial.open("large", store).status()
    store.close()


def without_sync(store: Store) -> None:
    """Do not wait for the disk."""

    @sa.event.listens_for(store._engine, "engine_connect")
    def _(connection: sa.Connection) -> None:
        connection.connection.cursor().execute("PRAGMA synchronous=OFF")
        connection.connection.commit()


def _megabytes() -> float:
    """Memory of this process now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6


def small_spec(name: str, users: int) -> dict[str, Any]:
    """Five arms and two metrics; the part `field` measures the mixed model."""
    return {
        "name": name,
        "seed": 1,
        "decisions": "any number",
        "model": {"kind": "paper"},
        "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
        "arms": {arm: {} for arm in ("none", "low", "middle", "high", "split")},
        "control": "none",
        "preference": {"yield": 1.0, "cost": -0.5},
        "users": {f"field {i}": {} for i in range(users)},
        "tolerance": {"absolute": 0.5},
    }


def outcome(decision: Decision) -> dict[str, float]:
    level = {"none": 4.0, "low": 4.5, "middle": 5.0, "high": 5.5, "split": 6.0}[decision.arm]
    return {"yield": level + (decision.id * 7919 % 97) / 97, "cost": 1.0 + (decision.id * 104729 % 89) / 89}


def _large_spec(users: int, arms: int) -> dict[str, Any]:
    """Doses of one substance, two metrics, users in twenty groups."""
    doses = enumerate(np.linspace(0.0, 1.0, arms).tolist())
    return {
        "name": "large",
        "seed": 1,
        "model": {"kind": "paper"},
        "noise": {"kind": "known", "sd": {"yield": 0.8, "cost": 0.3}},
        "confidence": "anytime",
        "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
        "arms": {f"dose {i:03d}": {"attributes": {"dose": dose, "late": i % 7 / 6}} for i, dose in doses},
        "control": "dose 000",
        "preference": {"yield": 1.0, "cost": -0.5},
        "context": {"rain": {"typical": 450, "spread": 120}},
        "users": {f"user {i:04d}": {"group": f"group {i % 20:02d}"} for i in range(users)},
        "tolerance": {"absolute": 0.5},
    }
