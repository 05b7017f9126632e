"""`drimed bench`: any policies, on any suite, compared fairly."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from drimed.cli.progress import counting
from drimed.errors import ConfigError

FRESH_SEED = 20_000  # instances that were used for nothing else


def bench(
    name: Annotated[str, typer.Argument(metavar="SUITE", help="The suite; `drimed bench list` shows them.")],
    instances: Annotated[int | None, typer.Option(help="Instances. Default: the suite's.")] = None,
    instance_seed: Annotated[int, typer.Option(help="The first instance's seed.")] = FRESH_SEED,
    episodes: Annotated[int | None, typer.Option(help="Episodes L. Default: the suite's.")] = None,
    drifts: Annotated[str | None, typer.Option(help="Drifts, separated by commas. Default: the suite's.")] = None,
    policies: Annotated[
        str | None,
        typer.Option(help="Policies, separated by commas, with settings: dri_med:guard=certain+confidence=anytime."),
    ] = None,
    relative: Annotated[float, typer.Option(help="What counts as a violation: relative part.")] = 0.1,
    absolute: Annotated[float, typer.Option(help="What counts as a violation: absolute part.")] = 0.05,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores. Does not change any result.")] = -1,
    cluster: Annotated[
        str | None, typer.Option(help="Run on a cluster instead: dask=tcp://host:port or ray=address.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Where results go. Default: out/bench/SUITE.")] = None,
) -> None:
    """Measure regret, violations and speed of policies on a suite of worlds.

    All policies meet the same contexts and noise; differences are paired over instances. Finished runs are kept under
    OUT/runs, so an interrupted benchmark continues where it stopped, and more policies, drifts or instances cost only
    what is new.
    """
    from drimed.experiments.suites import SUITES, Benchmark, suite
    from drimed.experiments.sweep import Cluster, seed_blocks
    from drimed.guards.margin import Tolerance
    from drimed.policies.composing import parse_list

    console = Console()
    if name == "list":
        table = Table("suite", "what it is")
        for each in SUITES.values():
            table.add_row(f"[bold]{each.id}[/]", each.about)
        console.print(table)
        return
    chosen = suite(name)
    benchmark = Benchmark(
        suite=chosen,
        specs=parse_list(policies or chosen.policies),
        drifts=_names(drifts) or chosen.drifts,
        instances=chosen.instances if instances is None else instances,
        instance_seed=instance_seed,
        episodes=chosen.episodes if episodes is None else episodes,
        tolerance=Tolerance(relative=relative, absolute=absolute),
    )
    for spec in benchmark.specs:
        if spec.note():
            console.print(f"[yellow]note:[/] {spec.text}: {spec.note()}")
    where = Cluster.parse(cluster) if cluster else None
    from drimed.experiments.measure import bench as measure

    target = out or Path("out/bench") / chosen.id
    with counting(console, len(seed_blocks(benchmark.plan().values())), target / "runs") as counter:
        results = measure(benchmark, target, jobs=jobs, cluster=where, on_done=counter.done)
    table = Table("policy", "ratio to the best", "worst cell")
    for row in results["ratios"]:
        table.add_row(row["policy"], f"{row['geometric_mean']:.2f}", f"{row['worst']:.2f}")
    console.print(table)
    console.print(counter.summary(target / "index.html"))


def _names(text: str | None) -> tuple[str, ...]:
    if text is None:
        return ()
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not names:
        raise ConfigError("give at least one drift, or leave --drifts out for all of them")
    return names
