"""Speed, as ratios measured in one run: `python -m benchmarks`.

Times are processor time, so that what others run on the machine is not counted; those of live trials are by the clock
on the wall, because what they wait for is the disk. Prints tables, writes results.json
and the scaling figure, and says which goals are met. A missed goal is a finding, not a failure: the exit code is 0
either way.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

# One core, for the yardstick too. NumPy reads these once, when it is imported.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["OPENBLAS_NUM_THREADS"] = "1"
os.environ["MKL_NUM_THREADS"] = "1"

from benchmarks import field, layout, live, load, scaling, startup, throughput, trial
from benchmarks.measure import Goal, Tick

SPEED = ("startup", "throughput", "live", "trial", "load", "field", "scaling")

R = TypeVar("R")


def main() -> None:
    """Run the chosen parts, print their tables and write everything that was measured."""
    options = _options()
    folder = Path(options.out)
    folder.mkdir(parents=True, exist_ok=True)
    console, goals = Console(), list[Goal]()
    report: dict[str, Any] = {"quick": options.quick, "environment": _environment(), "load_before": _load()}
    start = time.perf_counter()
    for part in SPEED if options.only is None else (options.only,):
        measured, found = _measure(part, options.quick, folder, console)
        report[part] = measured
        goals += found
    report["seconds"] = time.perf_counter() - start
    report["load_after"] = _load()
    report["goals"] = [asdict(goal) | {"met": goal.met, "met_throughout": goal.met_throughout} for goal in goals]
    results = folder / "results.json"
    results.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    console.print(f"wrote {results} after {report['seconds']:.0f} s")
    if goals:
        console.print(_verdicts(goals))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed, as ratios measured in one run.")
    parser.add_argument("--quick", action="store_true", help="a first look: fewer repeats, wider ranges")
    parser.add_argument("--out", default="out/bench", help="folder of results.json and the figure (%(default)s)")
    parser.add_argument("--only", choices=SPEED, help="run one part")
    return parser.parse_args()


def _measure(part: str, quick: bool, folder: Path, console: Console) -> tuple[dict[str, Any], list[Goal]]:
    """Run one part and print it: what it measured, and how its goals stand."""
    if part == "throughput":
        speed_plan = throughput.Plan.sized(quick)
        speed = _with_bar(console, part, speed_plan.ticks, lambda tick: throughput.run(speed_plan, tick))
        console.print(throughput.table(speed))
        return asdict(speed), throughput.goals(speed)
    if part == "startup":
        start_plan = startup.Plan.sized(quick)
        starts = _with_bar(console, part, start_plan.ticks, lambda tick: startup.run(start_plan, tick))
        console.print(startup.table(starts))
        return asdict(starts), startup.goals(starts)
    if part == "live":
        live_plan = live.Plan.sized(quick)
        steps = _with_bar(console, part, live_plan.ticks, lambda tick: live.run(live_plan, tick))
        console.print(live.table(steps))
        return asdict(steps), live.goals(steps)
    if part == "trial":
        trial_plan = trial.Plan.sized(quick)
        durable = _with_bar(console, part, trial_plan.ticks, lambda tick: trial.run(trial_plan, tick))
        console.print(trial.table(durable))
        return asdict(durable), trial.goals(durable)
    if part == "load":
        load_plan = load.Plan.sized(quick)
        costs = _with_bar(console, part, load_plan.ticks, lambda tick: load.run(load_plan, tick))
        console.print(load.table(costs))
        return asdict(costs), load.goals(costs)
    if part == "field":
        field_plan = field.Plan.sized(quick)
        sites = _with_bar(console, part, field_plan.ticks, lambda tick: field.run(field_plan, tick))
        console.print(field.table(sites))
        return asdict(sites), field.goals(sites)
    growth_plan = scaling.Plan.sized(quick)
    growth = _with_bar(console, part, growth_plan.ticks, lambda tick: scaling.run(growth_plan, tick))
    for view in scaling.views(growth):
        console.print(view, "")
    for file in scaling.figure(growth, folder):
        console.print(f"wrote {file}")
    return asdict(growth), []


def _with_bar(console: Console, name: str, ticks: int, run: Callable[[Tick], R]) -> R:
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(name, total=ticks)
        return run(lambda: progress.advance(task))


def _verdicts(goals: list[Goal]) -> Table:
    view = layout.table(
        "Goals, as ratios",
        "simulated: times faster than the plain loop; live: plain steps per decision and update; trials: by the clock "
        "on the wall, beside the bare store (opening: seconds); sites and people: beside the paper's model, and beside "
        "few people; large trials: the cost of a decision beside that in a smaller one. The median decides.",
        "goal",
        *("wanted", "ratio", "range", "verdict"),
    )
    for goal in goals:
        view.add_row(
            goal.name,
            f"{'>=' if goal.at_least else '<='} {goal.bound:g}",
            f"{goal.ratio.median:.2f}",
            goal.ratio.range(2),
            _verdict(goal),
        )
    return view


def _verdict(goal: Goal) -> str:
    if not goal.met:
        return "[red]missed[/]"
    return "[green]met[/]" if goal.met_throughout else "[yellow]met at median[/]"


def _environment() -> dict[str, Any]:
    packages = {name: version(name) for name in ("drimed", "numpy", "numba", "scipy")}
    return {"python": platform.python_version(), "machine": platform.machine(), "cores": os.cpu_count()} | packages


def _load() -> list[float] | None:
    """Load averages over 1, 5 and 15 minutes, where the system tells: the work of others widens the ranges."""
    return list(os.getloadavg()) if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    main()
