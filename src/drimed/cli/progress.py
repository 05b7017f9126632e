"""The progress bar of long commands, and what an interruption says."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from drimed.simulation.task import Task

DESCRIPTION = 34  # characters: longer names would make the bar jump


class Counter:
    """Told of each finished run."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.reused = 0
        self._progress, self._bar = progress, progress.add_task("runs", total=total)

    def done(self, task: Task, stored: bool) -> None:
        """One more."""
        self.reused += stored
        text = f"{task.policy}, {task.setting.drift}"[:DESCRIPTION].ljust(DESCRIPTION)
        self._progress.update(self._bar, advance=1, description=text)


@contextmanager
def counting(console: Console, total: int, kept_in: Path) -> Iterator[Counter]:
    """A bar for `total` runs; Ctrl-C ends with what to do next instead of a traceback."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    try:
        with Progress(*columns, console=console) as progress:
            yield Counter(progress, total)
    except KeyboardInterrupt:
        console.print(f"interrupted; finished runs are kept in {kept_in}: run the same command again to go on")
        raise typer.Exit(130) from None
