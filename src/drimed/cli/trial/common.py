"""What the verbs of `drimed trial` share: options, sheets from files, tables on the screen.

Nothing here is imported before a verb needs it, so that help appears at once.
"""

from __future__ import annotations

import getpass
import json
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from drimed import outputs
from drimed.errors import InputError, UnconfirmedError
from drimed.formatting import visible
from drimed.records import Fault
from drimed.trial.stores import open_store

if TYPE_CHECKING:
    from drimed.trial.state import TrialState
    from drimed.trial.tables import table
    from drimed.trial.trial import Trial

T = TypeVar("T")

console = Console(highlight=False)
NOTHING_WRITTEN = ". Nothing was written."
NOTHING_DRAWN = ". Nothing was recorded, and no arm was drawn."
_ACTING = re.compile(
    r"[\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]"
)  # on a terminal
MOST_SHOWN = 40  # rows of a table on the screen; files hold all
GAP = 2  # between the columns of a table, with its padding
MOST_NAMED = 3  # of many that one line is about
LONGEST_WORD = 20  # letters of a word that is not broken in a table, if there is room

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trial.")]
Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]
Who = Annotated[str | None, typer.Option("--actor", envvar="DRIMED_ACTOR", help="Who acts; default: the login name.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Record unlikely values without asking.")]
Out = Annotated[Path | None, typer.Option("--out", help="A .csv, .xlsx or .json file to write; default: show it.")]
Force = Annotated[bool, typer.Option("--force", help="Write over a file that exists.")]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="Something that is known about the user: ph=6.1 or soil=sand; repeatable."),
]
CohortName = Annotated[
    str | None, typer.Option("--cohort", help="Whose defaults the user takes; the trial file has cohorts.")
]
Values = Annotated[list[str] | None, typer.Argument(metavar="METRIC=VALUE", help="yield=5.2 cost=110")]
ControlValues = Annotated[
    list[str] | None,
    typer.Option("--control", help="Of the control plot, control.yield in sheets: yield=5; repeatable."),
]


def open_trial(name: str, store: str, actor: str | None = None) -> Trial:
    """A trial that exists."""
    from drimed.trial.trial import Trial

    file = os.environ.get("DRIMED_ANCHORS")
    anchors = Path(file) if file else None
    return Trial.open(name, open_store(store, create=False), actor=actor_name(actor), anchors=anchors)


def confirming(record: Callable[[bool], T], yes: bool) -> T:
    """Record; what is unlikely only once somebody says that it is right."""
    try:
        return record(yes)
    except UnconfirmedError as error:
        for question in questions(error.faults):
            say(question, "yellow")
        if console.is_terminal and typer.confirm("Record them anyway?", default=False):
            return record(True)
        raise InputError("nothing was recorded; if these values are right, repeat this with --yes") from None


def questions(faults: Sequence[Fault]) -> list[str]:
    """Values to confirm, one a line; of many the first ones.

    >>> questions([Fault((), "ph 70 is far from the others", row=n) for n in range(2, 9)])[2:]
    ['row 4: ph 70 is far from the others', 'and 4 more']
    """
    lines = [f"row {fault.row}: {fault.message}" if fault.row else fault.message for fault in faults]
    return lines if len(lines) <= MOST_NAMED else [*lines[:MOST_NAMED], f"and {len(lines) - MOST_NAMED:,} more"]


def actor_name(given: str | None) -> str:
    """Who acts, for the log."""
    if given:
        return given
    try:
        return getpass.getuser()
    except OSError:  # a machine without login names
        return "command line"


def say(text: str, style: str = "") -> None:
    """A line on the screen; nothing in it is taken for markup, nor for a command to the terminal."""
    console.print(Text(visible(text), style=style), soft_wrap=True)


def note(text: str) -> None:
    """Something that a person should know."""
    console.print(Text.assemble(("note: ", "yellow"), visible(text)), soft_wrap=True)


def say_json(data: Any, *, indent: int | None = None) -> None:
    """Data as JSON on the screen, or in a pipe."""
    text = json.dumps(data, indent=indent, ensure_ascii=False)
    typer.echo(text if text.isprintable() else _ACTING.sub(lambda c: json.dumps(c[0])[1:-1], text))


def say_typical(state: TrialState, lacking: Mapping[str, int]) -> None:
    """That some came without an attribute, if any did."""
    if not lacking:
        return
    one, many = ("person", "people") if state.spec.kind == "people" else ("user", "users")
    parts = [f"{n} {one if n == 1 else many} came without {name}" for name, n in lacking.items()]
    more = f" and {len(parts) - MOST_NAMED} more attributes were left empty" if parts[MOST_NAMED:] else ""
    they = "it counts" if sum(lacking.values()) == 1 else "they count"
    note(f"{', '.join(parts[:MOST_NAMED])}{more}: {they} as typical")


def read_sheet(path: Path) -> table.Table:
    """A sheet: CSV, JSON or a workbook."""
    from drimed.trial.tables.table import read

    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    found = read(data, path.name)
    if found.assumed:
        note(f"{path.name} is not UTF-8 and was read as {found.assumed}; check letters with accents")
    return found


def put(
    rows: list[dict[str, Any]],
    out: Path | None,
    full: list[dict[str, Any]],
    empty: Sequence[str] = (),
    *,
    force: bool = False,
) -> None:
    """To a file, CSV, JSON or a workbook by its name, or to the screen; `empty` are the columns of no rows."""
    if out is None:
        show(rows)
        return
    from drimed.trial.tables.writing import sheet

    suffix = out.suffix.lower()
    written = sheet(full if suffix == ".json" else rows, suffix, empty)
    outputs.put(out, written, force=force)
    say(f"wrote {out}")


def show(rows: Sequence[dict[str, Any]]) -> None:
    """Rows as a table on the screen; where that is too narrow for one, each row as a list."""
    if not rows:
        return
    names = list(dict.fromkeys(n for row in rows for n in row))
    numeric = {n for n in names if all(isinstance(row.get(n), int | float | None) for row in rows)}
    shown = [{n: _cell(row.get(n)) for n in names} for row in rows[:MOST_SHOWN]]
    least = {n: max(len(visible(n)), *(_least(row[n], n in numeric) for row in shown)) for n in names}
    room = console.width - GAP * len(names) - 1  # of the edge
    if sum(least.values()) <= room:
        widths = _narrowed({n: max(least[n], *(len(row[n]) for row in shown)) for n in names}, least, room)
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
    if len(rows) > MOST_SHOWN:
        say(f"... and {len(rows) - MOST_SHOWN} more; --out FILE writes all")


def _narrowed(widths: dict[str, int], least: dict[str, int], room: int) -> dict[str, int]:
    """Widths that fit: the widest column that can be narrower gives way, one letter at a time.

    >>> _narrowed({"a": 9, "b": 4}, {"a": 3, "b": 4}, 10)
    {'a': 6, 'b': 4}
    """
    found = dict(widths)
    while sum(found.values()) > room:
        found[max((n for n in found if found[n] > least[n]), key=lambda n: found[n])] -= 1
    return found


def _least(cell: str, number: bool) -> int:
    """The width below which a cell cannot be read: a number's own, a text's longest word up to a limit."""
    return len(cell) if number else min(LONGEST_WORD, max(map(len, cell.split()), default=0))


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else visible(str(value))


def values(pairs: list[str] | None) -> dict[str, float | None]:
    """name=number pairs; nothing after the sign means no value."""
    from drimed.trial.names import tidy
    from drimed.trial.tables.cells import number, typed_marks

    parts = [pair.partition("=") for pair in pairs or ()]
    for pair, (name, separator, _) in zip(pairs or (), parts, strict=True):
        if not separator or not name:
            raise InputError(f"expected METRIC=VALUE, got {pair!r}")
    marks = typed_marks(text for _, _, text in parts)
    return {tidy(name): number(name, text, marks) if text else None for name, _, text in parts}


def texts(pairs: list[str] | None) -> dict[str, str]:
    """name=value pairs as they are written: numbers, or levels of categories."""
    from drimed.trial.names import tidy

    found: dict[str, str] = {}
    for pair in pairs or ():
        name, _, text = pair.partition("=")
        if not name or not text:
            raise InputError(f"expected NAME=VALUE, such as ph=6.1 or soil=sand, got {pair!r}")
        found[tidy(name)] = text.strip()
    return found


def numbers(pairs: list[str]) -> dict[str, float]:
    """name=number pairs, every number given."""
    found = values(pairs)
    for name, value in found.items():
        if value is None:
            raise InputError(f"{name} needs a number")
    return {name: value for name, value in found.items() if value is not None}
