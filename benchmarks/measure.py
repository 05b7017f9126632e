"""Measurements that benchmarks share: medians with their range, ratios to a yardstick, goals, and tables."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Literal

from rich.box import SIMPLE_HEAD
from rich.table import Table

Size = Literal["smallest", "quick", "full"]  # seconds for a test, a first look, and the numbers that are quoted


@dataclass(frozen=True, slots=True)
class Spread:
    """The median of repeated measurements and their range; on a busy machine the range is half the message."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value."""
        return cls(median(values), min(values), max(values))


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: in its unit, and as a ratio to the yardstick where it has one."""

    name: str
    value: Spread
    ratio: Spread | None = None
    at_most: float | None = None  # a goal for the ratio, or for the value where there is no ratio
    at_least: float | None = None

    def with_goal(self, *, at_most: float | None = None, at_least: float | None = None) -> Row:
        """The same measurement with a goal."""
        return replace(self, at_most=at_most, at_least=at_least)

    @property
    def judged(self) -> Spread:
        """The number that a goal is about."""
        return self.value if self.ratio is None else self.ratio

    @property
    def goal(self) -> str:
        """The goal and whether the median keeps it; empty: there is none."""
        number = self.judged.median
        if self.at_most is not None:
            return f"<= {self.at_most:g} {'met' if number <= self.at_most else 'missed'}"
        if self.at_least is not None:
            return f">= {self.at_least:g} {'met' if number >= self.at_least else 'missed'}"
        return ""


@dataclass(frozen=True, slots=True)
class Part:
    """One benchmark's table."""

    title: str
    unit: str  # of the values
    caption: str
    rows: list[Row] = field(default_factory=list)

    def table(self) -> Table:
        """For a terminal of eighty columns."""
        view = Table(title=self.title, caption=self.caption, box=SIMPLE_HEAD, pad_edge=False, title_justify="left")
        view.caption_justify = "left"
        view.add_column("", overflow="fold")
        for heading in (self.unit, "ratio", "range", "goal"):
            view.add_column(heading, justify="right", no_wrap=True)
        for row in self.rows:
            low, high = row.judged.low, row.judged.high
            ratio = "" if row.ratio is None else f"{row.ratio.median:.2f}"
            view.add_row(row.name, f"{row.value.median:,.4g}", ratio, f"{low:.3g} .. {high:.3g}", row.goal)
        return view


def compared(
    timed: Mapping[str, Callable[[], float]],
    yardstick: Callable[[], float],
    repeats: int,
    *,
    scale: float = 1.0,
    faster: bool = False,
) -> dict[str, Row]:
    """Seconds of each candidate, several times over, and the ratio to a yardstick just before and just after it.

    The ratio is taken within each repeat, so that what others do to the machine slows both of its sides alike; then the
    median of the ratios. `faster`: the yardstick over the candidate. Values are seconds times `scale`.
    """
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    ratios: dict[str, list[float]] = {name: [] for name in timed}
    before = yardstick()
    for _ in range(repeats):
        for name, candidate in timed.items():
            took = candidate()
            after = yardstick()
            beside = (before + after) / 2
            seconds[name].append(scale * took)
            ratios[name].append(beside / took if faster else took / beside)
            before = after
    return {name: Row(name, Spread.of(seconds[name]), Spread.of(ratios[name])) for name in timed}


def processor_seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Processor time of each of some rounds, which leaves out the work of others."""
    start = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - start) / rounds


def clock_seconds(work: Callable[[], object], rounds: int = 1) -> float:
    """Time by the clock of each of some rounds."""
    start = time.perf_counter()
    for _ in range(rounds):
        work()
    return (time.perf_counter() - start) / rounds
