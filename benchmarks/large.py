"""A trial of many decisions: what it takes to open, look at, export and prove it, and what one more decision costs.

It grows by all of its users at a time, on a store that does not sync. Reading is done by a process of its own, whose
memory is its peak. `python -m benchmarks.large 1000000` goes on to another size than `make bench`.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import resource
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from rich.console import Console

from benchmarks.measure import Part, Row, Size, Spread, clock_seconds, processor_seconds
from benchmarks.trial import outcome, small_spec, without_sync
from drimed.records import Report
from drimed.reports.analysis import analyse
from drimed.trial import export
from drimed.trial.store import open_store
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

USERS = 1_000
MOST_SECONDS = {"opening": 2.0, "overview": 1.0}
LEAST_RATE = 20_000  # decisions a second, exported or proved
MOST_GROWTH = 1.3  # of the cost of a decision, from the first size to the last
PAIRS = 50  # of ask and tell, whose cost is measured


def run(size: Size) -> Part:
    """Costs at each size."""
    return measured({"smallest": (1_000, 3_000), "quick": (5_000, 20_000), "full": (10_000, 100_000)}[size])


def measured(sizes: Sequence[int]) -> Part:
    """A trial that grows to these sizes, and is read at each of them."""
    part = Part(
        "A large trial", "", f"{USERS:,} users. Ratio: to {sizes[0]:,} decisions. Rates are decisions a second."
    )
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as folder:
        store = open_store(f"sqlite:///{folder}/large.db")
        without_sync(store)
        trial, costs = Trial.create(small_spec("large", USERS), store), list[float]()
        names = itertools.cycle(list(trial.state().users))
        for decisions in sizes:
            while trial.state().counts.decisions < decisions - PAIRS:
                given = trial.ask_many(list(itertools.islice(names, min(USERS, decisions))))
                trial.tell_many([Report(one.id, outcome(one)) for one in given])
            costs.append(1000 * processor_seconds(lambda: _pair(trial, next(names)), PAIRS))
            ratio = Spread.of([costs[-1] / costs[0]])
            part.rows.append(Row(f"{decisions:,}: ask + tell (ms)", Spread.of(costs[-1:]), ratio, at_most=MOST_GROWTH))
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as another:
                found = another.submit(_read, folder).result()
            for name, value in found.items():
                row = Row(f"{decisions:,}: {name}", Spread.of([value]), at_most=MOST_SECONDS.get(name))
                part.rows.append(row.with_goal(at_least=LEAST_RATE) if name in ("export", "proof") else row)
        store.close()
    return part


def _pair(trial: Trial, user: str) -> None:
    given = trial.ask(user)
    trial.tell(given.id, outcome(given))


def _read(folder: str) -> dict[str, float]:
    store = open_store(f"sqlite:///{folder}/large.db")
    Trial.open("large", store).status()  # loads what it needs
    found = {"opening": clock_seconds(lambda: Trial.open("large", store).status())}
    trial = Trial.open("large", store)
    decisions = trial.status().decisions
    found["overview"] = clock_seconds(lambda: analyse(trial))
    found["export"] = decisions / clock_seconds(lambda: export.write(trial, Path(folder) / f"{decisions}.csv"))
    found["memory without the proof (MB)"] = _peak()
    found["proof"] = decisions / clock_seconds(lambda: verify(store, "large"))
    store.close()
    return found | {"memory with it (MB)": _peak()}


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure at ten thousand, then at ten times as many, up to the size that is given."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("decisions", type=int, help="at the end")
    last = parser.parse_args(arguments).decisions
    first = min(last, 10_000)
    sizes = [first * 10**i for i in range(9) if first * 10**i < last]
    Console().print(measured([*sizes, last]).table())


if __name__ == "__main__":
    main()
