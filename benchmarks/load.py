"""What a decision costs in a large trial, beside a smaller one of the same design: the ratios should be one.

Times are processor time for each decision; a store that does not sync holds both trials. `python -m benchmarks.load
--most 200000` measures a trial as large as one likes.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks import large, layout
from benchmarks.measure import Goal, Spread, Tick
from drimed.reports.page import write_report
from drimed.trial import export as trial_export
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

MOST_GROWTH = 1.3  # of what a decision costs, from the small trial to the large one
MOST_BYTES = 4096  # on disk, for each decision with its outcome


@dataclass(frozen=True, slots=True)
class Plan:
    """Which trials."""

    few: int  # decisions
    many: int
    users: int = large.USERS
    arms: int = large.ARMS

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """A quarter of an hour, or a first look."""
        return cls(1_000, 4_000, 100, 40) if quick else cls(10_000, 50_000)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return self.many // self.users + 2 * 3


@dataclass(frozen=True, slots=True)
class Costs:
    """For each decision: processor time in microseconds, and bytes."""

    decisions: int
    ask_and_tell: float
    report: float
    export: float
    verify: float
    bytes: float


@dataclass(frozen=True, slots=True)
class Result:
    """Both trials."""

    plan: Plan
    few: Costs
    many: Costs

    @property
    def growth(self) -> dict[str, float]:
        """Each cost of the large trial over that of the small one."""
        names = ("ask_and_tell", "report", "export", "verify", "bytes")
        return {name: getattr(self.many, name) / getattr(self.few, name) for name in names}


def run(plan: Plan, tick: Tick) -> Result:
    """The large trial is the small one continued."""
    with tempfile.TemporaryDirectory(prefix="drimed-bench-") as name:
        file = Path(name) / "trial.db"
        large.make(file, "paper", plan.users, plan.users, plan.arms, tick).store.close()  # what is compiled once
        few = _costs(file, plan, plan.few, tick)
        return Result(plan, few, _costs(file, plan, plan.many, tick))


def table(result: Result) -> Table:
    """Costs and their growth."""
    few, many = result.few, result.many
    view = layout.table(
        "Large trials",
        f"{result.plan.users:,} users, {result.plan.arms} arms; for each decision, in microseconds of the processor.",
        "what",
        *(f"{few.decisions:,}", f"{many.decisions:,}", "ratio"),
    )
    for name, ratio in result.growth.items():
        said = "bytes on disk" if name == "bytes" else name.replace("_and_", " + ")
        view.add_row(said, f"{getattr(few, name):,.0f}", f"{getattr(many, name):,.0f}", f"{ratio:.2f}")
    return view


def goals(result: Result) -> list[Goal]:
    """Flat costs, and little room on disk."""
    found = [
        Goal(f"large: {name.replace('_', ' ')}, many / few decisions", Spread(r, r, r), MOST_GROWTH, at_least=False)
        for name, r in result.growth.items()
    ]
    size = result.many.bytes
    return [*found, Goal("large: bytes for each decision", Spread(size, size, size), MOST_BYTES, at_least=False)]


def _costs(file: Path, plan: Plan, decisions: int, tick: Tick) -> Costs:
    before = time.process_time()
    trial = large.make(file, "paper", decisions, plan.users, plan.arms, tick)
    building = time.process_time() - before
    # The small trial had one episode before, the large one the whole small trial.
    new = decisions - (plan.users if decisions == plan.few else plan.few)
    out = file.parent / f"{decisions}"

    def read(work: Callable[[Trial], object]) -> float:
        start = time.process_time()
        work(trial)
        tick()
        return 1e6 * (time.process_time() - start) / decisions

    found = (
        read(lambda opened: write_report(opened, out)),
        read(lambda opened: trial_export.write(opened, out / "all.csv")),
        read(lambda opened: verify(opened.store, opened.name)),
    )
    trial.store.close()
    return Costs(decisions, 1e6 * building / new, *found, file.stat().st_size / decisions)


def main() -> None:
    """Measure a large trial beside a smaller one."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--few", type=int, default=10_000, help="decisions of the small trial (%(default)s)")
    parser.add_argument("--most", type=int, default=large.DECISIONS, help="of the large one (%(default)s)")
    chosen = parser.parse_args()
    Console().print(table(run(Plan(chosen.few, chosen.most), lambda: None)))


if __name__ == "__main__":
    main()
