"""The terminal: lines, notes, tables, bars and JSON out; options, sheets and name=value pairs in."""

from __future__ import annotations

import getpass
import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from drimed import outputs
from drimed.errors import ConfigError, InputError, UnconfirmedError
from drimed.formatting import visible

if TYPE_CHECKING:
    from drimed.trial import tables
    from drimed.trial.store import Store

T = TypeVar("T")
console = Console(highlight=False)
MOST_ROWS = 40  # of a table on the screen; files hold all
MOST_QUESTIONS = 3  # values to confirm that are listed
EVERY = 10.0  # seconds between lines about progress where there is no terminal
GAP = 2  # between the columns of a table
LONGEST_WORD = 20  # letters of a word that is not broken in a table, if there is room

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trial.")]
AnyName = Annotated[str | None, typer.Argument(metavar="[NAME]", help="The trial; default: all.")]
Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]
Who = Annotated[str | None, typer.Option("--actor", envvar="DRIMED_ACTOR", help="Who acts; default: the login name.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Record unlikely values without asking.")]
Out = Annotated[Path | None, typer.Option("--out", help="A .csv, .xlsx or .json file to write; default: show it.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that exists.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
Number = Annotated[int, typer.Option("--decision", help="Which decision.")]


def open_store(address: str, *, create: bool = False) -> Store:
    """The store at an address; help and small verbs do not load a database."""
    from drimed.trial import store

    return store.open_store(address, create=create)


def say(text: str, style: str = "", *, mark: str = "") -> None:
    """Print a line; nothing in it is taken for markup, nor for a command to the terminal. A style is for the mark."""
    parts = [(mark, style), visible(text)] if mark else [(visible(text), style)]
    console.print(Text.assemble(*parts), soft_wrap=True)


def note(text: str) -> None:
    say(text, "yellow", mark="note: ")


def say_json(data: Any, *, indent: int | None = None) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    harmless = text.replace("\n", "").isprintable()
    typer.echo(text if harmless else json.dumps(data, indent=indent))


def show(rows: Sequence[dict[str, Any]], most: int = MOST_ROWS) -> None:
    """Print the first rows as a table without empty columns; in a terminal too narrow for one, each row as a list."""
    if not rows:
        return
    names = list(dict.fromkeys(n for row in rows for n in row if row[n] not in (None, "")))
    numeric = {n for n in names if all(isinstance(row.get(n), int | float | None) for row in rows)}
    shown = [{n: _cell(row.get(n)) for n in names} for row in rows[:most]]
    headings = {n: [len(word) for word in visible(n).split()] or [0] for n in names}
    least = {n: max(*headings[n], *(_least(row[n], n in numeric) for row in shown)) for n in names}
    room = console.width - GAP * len(names) - 1  # of the edge
    if sum(least.values()) <= room:
        widths = {n: max(least[n], len(visible(n)), *(len(row[n]) for row in shown)) for n in names}
        while sum(widths.values()) > room:  # the widest column that can be narrower gives way
            widths[max((n for n in names if widths[n] > least[n]), key=widths.__getitem__)] -= 1
        columns = (
            Column(Text(visible(n)), justify="right" if n in numeric else "left", overflow="fold", width=widths[n])
            for n in names
        )
        table = Table(*columns, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for row in shown:
            table.add_row(*(Text(row[n]) for n in names))
    else:
        table = Table.grid(Column(style="bold"), Column(overflow="fold"), padding=(0, GAP, 0, 0))
        for row in shown:
            for n in names:
                table.add_row(Text(visible(n)), Text(row[n]))
            table.add_row()
    console.print(table)
    if len(rows) > most:
        say(f"... and {len(rows) - most} more; --out FILE writes all")


@contextmanager
def progress(what: str, kept: Path | None = None) -> Iterator[Callable[..., None]]:
    """A bar, and a function that moves it: so many of how many, and of what. Ctrl-C tells where results are `kept`.

    Without a terminal a line goes to stderr now and then, so that a long command does not look dead.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    try:
        if not console.is_terminal:
            with _lines(what) as move:
                yield move
            return
        with Progress(*columns, console=console, transient=True) as bars:
            task = bars.add_task(what, total=None)
            yield lambda done, of, what=what: bars.update(task, completed=done, total=of, description=what)
    except KeyboardInterrupt:
        if kept is None:
            raise
        say(f"interrupted; finished runs are kept in {kept}: run the same command again to continue")
        raise typer.Exit(130) from None


@contextmanager
def _lines(what: str) -> Iterator[Callable[..., None]]:
    over, start = threading.Event(), time.monotonic()
    last = f"{what}: none yet (a first use prepares the numerical code)"

    def move(done: int, of: int, what: str = what) -> None:
        nonlocal last
        last = f"{what.strip()}: {done:,} of {of:,}"

    def tell() -> None:
        while not over.wait(EVERY):
            typer.echo(f"{last}, after {time.monotonic() - start:.0f} s", err=True)

    telling = threading.Thread(target=tell, daemon=True)
    telling.start()
    try:
        yield move
    finally:
        over.set()
        telling.join()


def _least(cell: str, number: bool) -> int:
    """The width below which a cell cannot be read: a number's own, a text's longest word up to a limit."""
    return len(cell) if number else min(LONGEST_WORD, max(map(len, cell.split()), default=0))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def put(
    rows: list[dict[str, Any]],
    out: Path | None,
    full: list[dict[str, Any]],
    empty: Sequence[str] = (),
    *,
    titles: Mapping[str, str] | None = None,
    force: bool,
) -> None:
    """Write rows to a file by its suffix, or show them; JSON gets `full`, a sheet without rows the columns `empty`.

    `titles` are headings of a workbook in place of names.
    """
    if out is None:
        show(rows)
        return
    from drimed.trial.tables import sheet

    suffix = out.suffix.lower()
    outputs.put(out, sheet(full if suffix == ".json" else rows, suffix, empty, titles=titles), force=force)
    say(f"wrote {out}")


def read_sheet(path: Path) -> tables.Table:
    """A sheet: CSV, JSON or a workbook."""
    from drimed.trial.tables import read

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    table = read(data, path.name)
    if table.assumed:
        note(f"{path.name} is not UTF-8 and was read as {table.assumed}; check letters with accents")
    return table


def confirming(record: Callable[[bool], T], yes: bool) -> T:
    """Record; unlikely values only after a confirmation. Of many, the first ones are listed."""
    try:
        return record(yes)
    except UnconfirmedError as error:
        for fault in error.faults[:MOST_QUESTIONS]:
            say(str(replace(fault, path=())), "yellow")
        if (more := len(error.faults) - MOST_QUESTIONS) > 0:
            say(f"and {more:,} more", "yellow")
        if console.is_terminal and typer.confirm("Record them anyway?", default=False):
            return record(True)
        raise InputError("nothing was recorded; if these values are right, repeat this with --yes") from None


def actor_name(given: str | None) -> str:
    """The actor for the log."""
    try:
        return given or getpass.getuser()
    except OSError:  # a machine without login names
        return "command line"


def names(option: str, text: str) -> list[str]:
    """Names of an option, separated by commas."""
    parts = list(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if not parts:
        raise ConfigError(f"give at least one name with {option}, or leave it out for the default")
    return parts


def texts(pairs: Sequence[str] | None, example: str = "ph=6.1", *, empty: bool = False) -> dict[str, str]:
    """name=value pairs as text; with `empty`, a value may be left out."""
    from drimed.trial.spec import tidy

    split: dict[str, str] = {}
    for pair in pairs or ():
        name, sign, text = pair.partition("=")
        if not name or not sign or not (text or empty):
            raise InputError(f"expected NAME=VALUE, such as {example}, got {pair!r}")
        split[tidy(name)] = text.strip()
    return split


def values(pairs: Sequence[str] | None) -> dict[str, float | str | None]:
    """metric=value pairs, words as they are; nothing after the sign means no value."""
    from drimed.trial.tables import number, typed_marks

    cells = texts(pairs, "yield=5.2", empty=True)
    marks = typed_marks(cells.values())
    told: dict[str, float | str | None] = {}
    for name, text in cells.items():
        told[name] = text or None
        if text and not text[:1].isalpha() and " " not in text:  # no word such as yes, and not 7 of 20
            told[name] = number(name, text, marks)
    return told
