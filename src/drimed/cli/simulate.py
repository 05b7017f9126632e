"""`drimed reproduce`, `drimed bench` and `drimed policies`: the paper measured again, and policies compared fairly."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drimed.cli.console import AsJson, names, note, progress, say, say_json, show
from drimed.errors import UnknownNameError

if TYPE_CHECKING:
    from drimed.simulation.sweep import Progress as Done

FRESH_SEED = 20_000  # instances that were used for nothing else
DESCRIPTION = 34  # characters: longer names would make the bar jump

Jobs = Annotated[int, typer.Option(help="Processes; -1 for all cores. Does not change any result.")]


def policies(as_json: AsJson = False) -> None:
    """List the policies, with their source and the information each one uses."""
    from drimed.policies.registry import REGISTRY, offered

    rows = [{"name": e.name, "about": e.about, "reference": e.reference, "uses": e.uses} for e in REGISTRY.values()]
    # Policies of other packages are not imported for a list.
    rows += [{"name": n, "about": f"installed: {place}", "reference": "", "uses": ""} for n, place in offered().items()]
    if as_json:
        say_json(rows, indent=1)
        return
    titles = {"name": "name", "about": "what it does", "reference": "reference", "uses": "what it uses"}
    show([{titles[k]: v for k, v in row.items()} for row in rows], len(rows))


def reproduce(
    seeds: Annotated[int, typer.Option(help="Seeds of the main comparison; other parts scale with it.")] = 128,
    only: Annotated[str | None, typer.Option(help="Of main, ablations, allocation, discount, random.")] = None,
    jobs: Jobs = -1,
    out: Annotated[Path, typer.Option(help="Where results.json and index.html go.")] = Path("out/reproduce"),
    reading: Annotated[str, typer.Option(help="code: what the authors ran. printed: what the paper says.")] = "code",
    episodes: Annotated[int, typer.Option(help="Episodes of each run; the paper has 1000.")] = 1000,
) -> None:
    """Re-measure every experiment of the paper, and judge its claims one by one.

    Finished runs are kept under OUT/runs, so an interrupted command continues where it stopped, as long as the options
    and the code are the same.
    """
    from drimed.simulation.reproduction import PARTS, Reproduction

    wanted = PARTS if only is None else names("--only", only)
    for part in wanted:
        if part not in PARTS:
            raise UnknownNameError("part", part, PARTS)
    parts = tuple(part for part in PARTS if part in wanted)
    reproduction = Reproduction(seeds=seeds, reading=reading, parts=parts, episodes=episodes)
    from drimed.reports.results_page import reproduce as measure

    results, last = _measured(out, partial(measure, reproduction, out, jobs=jobs))
    marks = {True: "yes", False: "no", None: "not measured"}
    claims = results["claims"]
    show([{"statement": claim["text"], "holds?": marks[claim["holds"]]} for claim in claims], len(claims))
    say(last)


def bench(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="The suite; `drimed bench list` shows them.")],
    instances: Annotated[int | None, typer.Option(help="Instances. Default: the suite's.")] = None,
    instance_seed: Annotated[int, typer.Option(help="The first instance's seed.")] = FRESH_SEED,
    episodes: Annotated[int | None, typer.Option("--episodes", "--seasons", help="Default: the suite's.")] = None,
    drifts: Annotated[str | None, typer.Option("--drifts", "--cells", help="Drifts or cells, with commas.")] = None,
    policies: Annotated[str | None, typer.Option(help="With commas: med,dri_med:guard=certain+absolute=0.1.")] = None,
    relative: Annotated[float | None, typer.Option(help="Relative part of the tolerated shortfall.")] = None,
    absolute: Annotated[float | None, typer.Option(help="Its absolute part. Default: the suite's.")] = None,
    sites: Annotated[int | None, typer.Option(help="Sites of a field. Default: the suite's.")] = None,
    floor: Annotated[float | None, typer.Option(help="Least chance of the control in a field; 0: none.")] = None,
    jobs: Jobs = -1,
    cluster: Annotated[str | None, typer.Option(help="Run on a cluster instead: dask=tcp://host:port.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go. Default: out/bench/SUITE.")] = None,
) -> None:
    """Measure regret, violations and speed of policies on a suite of worlds.

    All policies meet the same contexts and noise; differences are paired over instances. Finished runs are kept under
    OUT/runs, so an interrupted benchmark continues where it stopped, and more policies, drifts or instances cost only
    what is new.
    """
    from drimed.policies.registry import parse_list
    from drimed.simulation.benchmark import RATIO_TO_THE_BEST, SUITES, Benchmark, suite

    if name == "list":
        show([{"suite": each.id, "what it is": each.about} for each in SUITES.values()])
        return
    chosen = suite(name)
    tolerance, changes = {"relative": relative, "absolute": absolute}, {"sites": sites, "floor": floor}
    benchmark = Benchmark(
        suite=chosen,
        specs=parse_list(policies or chosen.policies),
        drifts=tuple(chosen.cells) if drifts is None else tuple(names("--drifts", drifts)),
        instance_seed=instance_seed,
        tolerance=replace(chosen.tolerance, **{k: v for k, v in tolerance.items() if v is not None}),
        instances=chosen.instances if instances is None else instances,
        episodes=chosen.episodes if episodes is None else episodes,
        changes={name: value for name, value in changes.items() if value is not None},
    )
    for spec in benchmark.specs:
        if spec.note():
            note(f"{spec.text}: {spec.note()}")
    from drimed.reports.results_page import bench as measure

    target = out or Path("out/bench") / chosen.id
    results, last = _measured(target, partial(measure, benchmark, target, jobs=jobs, cluster=cluster))
    ratios = {"policy": "policy", "geometric_mean": "ratio to the best", "worst": "worst cell"}
    show([{title: row[k] for k, title in ratios.items()} for row in results["ratios"]], len(results["ratios"]))
    say(RATIO_TO_THE_BEST, "dim")
    say(last)


def _measured(out: Path, measure: Callable[..., dict[str, Any]]) -> tuple[dict[str, Any], str]:
    """Results under a progress bar, and a last line."""
    start, reused = time.perf_counter(), 0

    def done(block: Done[Any]) -> None:
        nonlocal reused
        reused += block.stored
        move(block.finished, block.seeds, block.task.label[:DESCRIPTION].ljust(DESCRIPTION))

    with progress("runs", out / "runs") as move:
        results = measure(on_done=done)
    kept = f", {reused} runs from before" if reused else ""
    return results, f"{time.perf_counter() - start:.0f} s{kept}. Open {out / 'index.html'}"
