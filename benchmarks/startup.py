"""How long the command takes to start, beside `python -c pass`: help, and verbs that need no arrays.

A process that loads everything, as every verb would without lazy imports, is a row of its own, and so are the libraries
that no command can do without: typer alone, and typer with what it shows help with.
"""

from __future__ import annotations

import resource
import subprocess
import sys
from dataclasses import dataclass
from functools import partial

from rich.table import Table

from benchmarks import layout
from benchmarks.measure import Comparison, Goal, Pair, Spread, Tick, in_turn

LARGEST_SHARE = 1 / 3  # of the time that it takes to load everything
VERBS = ("--help", "--version", "policies", "trial --help", "trial template", "token --help", "serve --help")
_EVERYTHING = "everything loaded"
_LOAD_ALL = (
    "from drimed.cli.main import VERBS, load; [load(verb) for verb in VERBS]; "
    "import drimed.trial.trial, drimed.trial.sql_store, drimed.service.auth, drimed.service.demo"
)
_FLOORS = {"typer": "import typer", "typer and its help": "import typer, typer.rich_utils"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to run."""

    repeats: int

    @classmethod
    def sized(cls, quick: bool) -> Plan:
        """A minute, or a first look."""
        return cls(3) if quick else cls(9)

    @property
    def ticks(self) -> int:
        """How many pieces of work the run has."""
        return self.repeats * (len(VERBS) + len(_FLOORS) + 1)


@dataclass(frozen=True, slots=True)
class Result:
    """Per command: microseconds of processor time, and how many empty processes that is."""

    plan: Plan
    rows: list[Comparison]
    shares: dict[str, Spread]  # of the time that everything takes


def run(plan: Plan, tick: Tick) -> Result:
    """The commands in turn, each between two empty processes; one round before that fills the caches of the disk."""
    code = _FLOORS | {_EVERYTHING: _LOAD_ALL}
    timed = {name: partial(_seconds, "-c", text) for name, text in code.items()}
    timed |= {verb: partial(_seconds, "-m", "drimed.cli.main", *verb.split()) for verb in VERBS}
    for each in timed.values():
        each()
    pairs = in_turn(timed, partial(_seconds, "-c", "pass"), plan.repeats, tick)
    rows = [Comparison.of(name, found, _ratio) for name, found in pairs.items()]
    whole = pairs[_EVERYTHING]
    shares = {v: Spread.of([a.seconds / b.seconds for a, b in zip(pairs[v], whole, strict=True)]) for v in VERBS}
    return Result(plan, rows, shares)


def table(result: Result) -> Table:
    """Milliseconds, the ratio to an empty process, and the share of what everything takes."""
    view = layout.table(
        "Starting the command",
        f"Processor time, {result.plan.repeats} repeats. Share: of what it takes to load everything.",
        "command",
        *("ms", "of python -c pass", "range", "share"),
    )
    for row in result.rows:
        share = result.shares.get(row.name)
        view.add_row(
            row.name,
            f"{row.microseconds.median / 1000:.0f}",
            f"{row.ratio.median:.1f}",
            row.ratio.range(1),
            "" if share is None else f"{share.median:.2f}",
            end_section=row.name == _EVERYTHING,
        )
    return view


def goals(result: Result) -> list[Goal]:
    """Every verb that needs no arrays."""
    return [Goal(f"start {v}", share, LARGEST_SHARE, at_least=False) for v, share in result.shares.items()]


def _ratio(pair: Pair) -> float:
    return pair.seconds / pair.plain


def _seconds(*words: str) -> float:
    """Processor time of one Python process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
