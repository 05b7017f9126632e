"""The progress bar of long commands, what an interruption says, and the last line."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

if TYPE_CHECKING:
    from drimed.experiments.run import Run

DESCRIPTION = 34  # characters: longer names would make the bar jump


class Counter:
    """Counts finished runs."""

    def __init__(self, progress: Progress, total: int) -> None:
        self._reused = 0
        self._start = time.perf_counter()
        self._progress, self._bar = progress, progress.add_task("runs", total=total)

    def done(self, run: Run, stored: bool) -> None:
        """One more."""
        self._reused += stored
        text = f"{run.policy}, {run.scenario.drift}"[:DESCRIPTION].ljust(DESCRIPTION)
        self._progress.update(self._bar, advance=1, description=text)

    def summary(self, page: Path) -> str:
        """How long it took, and what to open."""
        kept = f", {self._reused} runs from before" if self._reused else ""
        return f"{time.perf_counter() - self._start:.0f} s{kept}. Open [bold]{page}[/]"


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
        console.print(f"interrupted; finished runs are kept in {kept_in}: run the same command again to continue")
        raise typer.Exit(130) from None
