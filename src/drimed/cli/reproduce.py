"""`drimed reproduce`: the paper, re-measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from drimed.cli.progress import counting
from drimed.errors import UnknownNameError


def reproduce(
    seeds: Annotated[
        int, typer.Option(help="Seeds of the main comparison; ablations, allocation and instances scale with it.")
    ] = 128,
    only: Annotated[
        str | None,
        typer.Option(
            help="Parts to measure, separated by commas: main, ablations, allocation, discount, random. Default: all."
        ),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1 for all cores. Does not change any result.")] = -1,
    out: Annotated[Path, typer.Option(help="Where figures, results.json and index.html go.")] = Path("out/reproduce"),
    reading: Annotated[
        str, typer.Option(help="code: what the authors ran. printed: what the paper prints, where it can run.")
    ] = "code",
    episodes: Annotated[int, typer.Option(help="Episodes of each run; the paper has 1000.")] = 1000,
) -> None:
    """Re-measure every experiment of the paper, and judge its claims one by one.

    Finished runs are kept under OUT/runs, so an interrupted command continues where it stopped, as long as the options
    and the numerical code are the same.
    """
    from drimed.experiments.paper import PARTS, Reproduction
    from drimed.experiments.sweep import seed_blocks

    parts = PARTS if only is None else [p.strip() for p in only.split(",") if p.strip()]
    for part in parts:
        if part not in PARTS:
            raise UnknownNameError("part", part, PARTS)
    reproduction = Reproduction(
        seeds=seeds, reading=reading, parts=tuple(p for p in PARTS if p in parts), episodes=episodes
    )
    from drimed.experiments.measure import reproduce as measure

    console = Console()
    with counting(console, len(seed_blocks(reproduction.plan().values())), out / "runs") as counter:
        results = measure(reproduction, out, jobs=jobs, on_done=counter.done)

    table = Table("statement", "holds?")
    for claim in results["claims"]:
        mark = {True: "[green]yes[/]", False: "[red]no[/]", None: "[dim]not measured[/]"}[claim["holds"]]
        table.add_row(claim["text"], mark)
    console.print(table)
    console.print(counter.summary(out / "index.html"))
