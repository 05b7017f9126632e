"""Live trials: what a durable decision costs beside the bare store, and what a long trial costs.

Times are those of a clock on the wall, because what is waited for here is the disk; the yardstick waits for the same
disk just before and just after. How long a commit takes to reach it decides the two ratios, and on a machine whose disk
is sometimes cached they swing: so the processor's share is measured too, and with it from which disk on a goal holds.
The long trial is built from whole episodes, each asked and told in one transaction,
on a store that does not sync: building it is not what is measured.
"""

from __future__ import annotations

import gc
import itertools
import resource
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import psycopg
import sqlalchemy as sa
from rich.table import Table
from tests.trial import servers

from benchmarks import layout
from benchmarks.measure import Comparison, Goal, Spread, Tick, in_turn
from drimed.records import Decision, Event, Report
from drimed.trial.sql_store import SqlStore
from drimed.trial.store import open_store
from drimed.trial.trial import Trial

MOST_BARE_PAIRS = 2.0  # bare transactions in pairs, that a durable ask + tell may cost
MOST_SINGLE_ASKS = 20.0  # that an episode of all users may cost
MOST_SECONDS = 1.0  # to open a long trial
MOST_GROWTH = 1.05  # of the memory, from a tenth of the long trial to its end
MOST_SLOWER = 1.2  # that a pair's processor time may grow, from the first third of many pairs to the last
USERS = 1000
ROWS = ("time", "actor", "kind", "decision", "user", "request", "text", "hash")
_WARM_UP_PAIRS = 30


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    pairs: int  # per repeat
    repeats: int
    decisions: int  # of the long trial
    seconds: float  # of durable pairs in a row, for the memory they take

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """Six minutes, or a first look."""
        return cls(50, 5, 10_000, 10.0) if quick else cls(200, 9, 100_000, 180.0)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return 2 * (2 * self.repeats + self.decisions // USERS) + self.repeats + 1


@dataclass(frozen=True, slots=True)
class Share:
    """What the processor does, when the disk costs nothing."""

    name: str
    processor_ms: float
    plain_processor_ms: float
    least_disk_ms: float  # a commit that takes at least so long makes the goal hold


@dataclass(frozen=True, slots=True)
class Length:
    """A long trial on one store."""

    decisions: int
    events: int
    open_seconds: Spread  # from a closed store to a trial that can be asked
    megabytes: Spread  # of this process while the trial grew, from a tenth of it on
    growth: float  # the memory at the end over that at a tenth


@dataclass(frozen=True, slots=True)
class Endurance:
    """Durable pairs, one after the other."""

    pairs: int
    seconds: float
    megabytes: Spread
    growth: float
    slower: float  # processor time of a pair: the last third's median over the first's


@dataclass(frozen=True, slots=True)
class Result:
    """Everything that was measured."""

    plan: Plan
    pair: list[Comparison]  # beside two bare transactions that write the same rows
    episode: list[Comparison]  # beside one ask
    shares: list[Share]
    long: dict[str, Length]
    endurance: Endurance


def run(plan: Plan, tick: Tick) -> Result:
    """SQLite and PostgreSQL in turn."""
    pair, episode, shares = list[Comparison](), list[Comparison](), list[Share]()
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name, servers.server() as server:
        folder = Path(name)
        with server.database() as database:
            places = {"SQLite": f"sqlite:///{folder / 'short.db'}", "PostgreSQL": database}
            for kind, address in places.items():
                for rows, measure in ((pair, _pairs), (episode, _episodes)):
                    row, share = measure(kind, address, plan, tick)
                    rows.append(row)
                    shares.append(share)
        with server.database() as database:
            places = {"SQLite": f"sqlite:///{folder / 'long.db'}", "PostgreSQL": database}
            long = {kind: _long(address, plan, tick) for kind, address in places.items()}
        endurance = _endurance(f"sqlite:///{folder / 'pairs.db'}", plan)
        tick()
    return Result(plan, pair, episode, shares, long, endurance)


def table(result: Result) -> Table:
    """Milliseconds and ratios."""
    plan = result.plan
    view = layout.table(
        "Live trials",
        f"{plan.repeats} repeats of {plan.pairs} pairs. The long trial has {plan.decisions:,} decisions; memory: its "
        f"end over a tenth of it. {result.endurance.pairs:,} durable pairs took {result.endurance.seconds:.0f} s. "
        "The share is the processor's; beside it, from which milliseconds of a commit on the goal holds.",
        "what",
        *("ms", "beside", "ratio", "range"),
    )
    for row in (*result.pair, *result.episode):
        ms, beside = row.microseconds.median / 1000, row.plain_microseconds.median / 1000
        view.add_row(row.name, f"{ms:.2f}", f"{beside:.2f}", f"{row.ratio.median:.2f}", row.ratio.range(2))
    for share in result.shares:
        holds = f"disk >= {share.least_disk_ms:.1f} ms"
        plain = f"{share.plain_processor_ms:.2f}"
        view.add_row(f"share, {share.name}", f"{share.processor_ms:.2f}", plain, "", holds)
    for kind, found in result.long.items():
        seconds = found.open_seconds
        view.add_row(f"opening the long trial, {kind}", f"{1000 * seconds.median:.0f}", "", "", "")
        view.add_row(
            f"memory of the long trial, {kind}", "", "", f"{found.growth:.3f}", f"{found.megabytes.range(0)} MB"
        )
    end = result.endurance
    view.add_row("memory of durable pairs, SQLite", "", "", f"{end.growth:.3f}", f"{end.megabytes.range(0)} MB")
    view.add_row("a pair, the last third / the first, SQLite", "", "", f"{end.slower:.3f}", "")
    return view


def goals(result: Result) -> list[Goal]:
    """Those of SQLite, which every machine has; PostgreSQL is measured beside it."""
    found = result.long["SQLite"]
    growth, slower = max(found.growth, result.endurance.growth), result.endurance.slower
    return [
        Goal("trial: ask + tell / two bare commits", result.pair[0].ratio, MOST_BARE_PAIRS, at_least=False),
        Goal(f"trial: {USERS} users at once / one ask", result.episode[0].ratio, MOST_SINGLE_ASKS, at_least=False),
        Goal("trial: seconds to open a long one", found.open_seconds, MOST_SECONDS, at_least=False),
        Goal("trial: memory at the end / at a tenth", Spread(growth, growth, growth), MOST_GROWTH, at_least=False),
        Goal("trial: a late pair / an early one", Spread(slower, slower, slower), MOST_SLOWER, at_least=False),
    ]


# A pair beside two bare transactions


def _pairs(kind: str, address: str, plan: Plan, tick: Tick) -> tuple[Comparison, Share]:
    store = open_store(address)
    trial = Trial.create(_spec("pairs", 12), store)
    _ask_and_tell(trial, _WARM_UP_PAIRS)
    with store.reading("pairs") as ledger:
        sample = list(ledger.events(newest_first=True, limit=2))
    with _bare(store) as write:

        def ours() -> float:
            return _ask_and_tell(trial, plan.pairs)

        def bare() -> float:
            return _each(plan.pairs, lambda: (write(sample[1]), write(sample[0])))

        found = in_turn({kind: ours}, bare, plan.repeats, tick)
        share = _share(
            f"ask + tell, {kind}", _processor(ours, plan.pairs), _processor(bare, plan.pairs), (2, 2), MOST_BARE_PAIRS
        )
    store.close()
    name = f"ask + tell / two bare commits, {kind}"
    return Comparison.of(name, found[kind], lambda p: p.seconds / p.plain), share


def _ask_and_tell(trial: Trial, n: int) -> float:
    users = list(trial.state().users)
    numbers = iter(range(n))

    def pair() -> None:
        decision = trial.ask(users[next(numbers) % len(users)])
        trial.tell(decision.id, _outcome(decision))

    return _each(n, pair)


@contextmanager
def _bare(store: SqlStore) -> Iterator[Callable[[Event], None]]:
    """Writes one event as the store does, in one durable transaction, with nothing before it and nothing around it."""
    with store.create("bare"):
        pass
    url, lite = store.url, store.lite
    columns, mark = ("trial", "seq", *ROWS), "?" if lite else "%s"
    names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join([mark] * len(columns))
    insert = f"INSERT INTO drimed_events ({names}) VALUES ({marks})"
    update = f"UPDATE drimed_trials SET seq = {mark}, hash = {mark} WHERE id = {mark}"
    if lite:
        connection: Any = sqlite3.connect(str(url.database), isolation_level=None)
        connection.execute("PRAGMA synchronous=FULL")
    else:
        connection = psycopg.connect(url.set(drivername="postgresql").render_as_string(hide_password=False))
    row = connection.execute("SELECT id FROM drimed_trials WHERE name = 'bare'").fetchone()
    connection.commit()
    numbers = itertools.count(1)

    def write(event: Event) -> None:
        seq = next(numbers)
        if lite:
            connection.execute("BEGIN IMMEDIATE")
        connection.execute(insert, (row[0], seq, *(getattr(event, name) for name in columns[2:])))
        connection.execute(update, (seq, event.hash, row[0]))
        connection.commit()

    yield write
    connection.close()


# All users beside one of them


def _episodes(kind: str, address: str, plan: Plan, tick: Tick) -> tuple[Comparison, Share]:
    store = open_store(address)
    trial = Trial.create(_spec("episodes", USERS), store)
    users = list(trial.state().users)
    trial.tell_many([Report(d.id, _outcome(d)) for d in trial.ask_many()])
    few = max(5, plan.pairs // 10)

    def one() -> float:
        numbers = iter(range(few))
        return _each(few, lambda: trial.ask(users[next(numbers)]))

    def everybody() -> float:
        return _each(1, trial.ask_many)

    found = in_turn({kind: everybody}, one, plan.repeats, tick)
    name = f"{USERS} users at once / one ask, {kind}"
    alone, together = _processor(one, few), _processor(lambda: _each(few, trial.ask_many), few)
    share = _share(f"{USERS} users, {kind}", together, alone, (1, 1), MOST_SINGLE_ASKS)
    store.close()
    return Comparison.of(name, found[kind], lambda p: p.seconds / p.plain), share


def _processor(run: Callable[[], object], n: int) -> float:
    """Milliseconds of the processor for each of n rounds."""
    start = time.process_time()
    run()
    return 1000 * (time.process_time() - start) / n


def _share(name: str, ours: float, plain: float, commits: tuple[int, int], bound: float) -> Share:
    """From which disk on a goal holds: ours + commits * disk <= bound * (plain + commits * disk)."""
    disk = max(0.0, (ours - bound * plain) / (bound * commits[1] - commits[0]))
    return Share(name, ours, plain, disk)


# A long trial


def _long(address: str, plan: Plan, tick: Tick) -> Length:
    store = open_store(address)
    without_sync(store)
    trial = Trial.create(_spec("long", USERS, decisions="one per episode"), store)
    episodes, memory = plan.decisions // USERS, list[float]()
    for _ in range(episodes):
        trial.open_episode()
        trial.tell_many([Report(d.id, _outcome(d)) for d in trial.ask_many()])
        memory.append(_megabytes())
        tick()
    status = trial.status()
    store.close()
    del trial
    seconds = [_opening(address) for _ in range(plan.repeats)]
    kept = memory[episodes // 10 :]
    return Length(status.decisions, status.events, Spread.of(seconds), Spread.of(kept), kept[-1] / kept[0])


def _opening(address: str) -> float:
    start = time.perf_counter()
    store = open_store(address)
    Trial.open("long", store).status()
    took = time.perf_counter() - start
    store.close()
    return took


def without_sync(store: SqlStore) -> None:
    """Do not wait for the disk."""

    @sa.event.listens_for(store._engine, "engine_connect")
    def _(connection: sa.Connection) -> None:
        statement = "PRAGMA synchronous=OFF" if store.lite else "SET synchronous_commit TO off"
        connection.connection.cursor().execute(statement)
        connection.connection.commit()


def _endurance(address: str, plan: Plan) -> Endurance:
    store = open_store(address)
    trial = Trial.create(_spec("pairs", 12), store)
    pairs, memory, times, start = 0, list[float](), list[float](), time.perf_counter()
    while time.perf_counter() - start < plan.seconds:
        times.append(_processor(lambda: _ask_and_tell(trial, 100), 100))
        pairs += 100
        memory.append(_megabytes())
    took = time.perf_counter() - start
    store.close()
    kept, third = memory[len(memory) // 10 :], max(1, len(times) // 3)
    slower = median(times[-third:]) / median(times[:third])
    return Endurance(pairs, took, Spread.of(kept), kept[-1] / kept[0], slower)


def _megabytes() -> float:
    """What this process holds now; where the system does not tell, the most it ever held."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3


def _each(n: int, task: Callable[[], object]) -> float:
    start = time.perf_counter()
    for _ in range(n):
        task()
    return (time.perf_counter() - start) / n


def _spec(name: str, users: int, *, decisions: str = "any number") -> dict[str, Any]:
    return {
        "name": name,
        "seed": 1,
        "decisions": decisions,
        "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
        "arms": {arm: {} for arm in ("none", "low", "middle", "high", "split")},
        "control": "none",
        "preference": {"yield": 1.0, "cost": -0.5},
        "users": {f"field {i}": {} for i in range(users)},
        "tolerance": {"absolute": 0.5},
    }


def _outcome(decision: Decision) -> dict[str, float]:
    level = {"none": 4.0, "low": 4.5, "middle": 5.0, "high": 5.5, "split": 6.0}[decision.arm]
    return {"yield": level + (decision.id * 7919 % 97) / 97, "cost": 1.0 + (decision.id * 104729 % 89) / 89}
