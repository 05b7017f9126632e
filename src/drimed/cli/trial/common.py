"""What the verbs of `drimed trial` share: their options, sheets from files and to the screen."""

from __future__ import annotations

import getpass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from drimed.errors import InputError
from drimed.trial.stores.opening import open_store

if TYPE_CHECKING:  # arrays and databases take a second that help does not need
    from drimed.trial.trial import Trial

console = Console()
MOST_SHOWN = 40  # rows of a table on the screen; files hold all

Name = Annotated[str, typer.Argument(metavar="NAME", help="The trial.")]
Address = Annotated[
    str, typer.Option("--store", envvar="DRIMED_STORE", help="A SQLite file, or postgresql://user@host/database.")
]
Who = Annotated[str | None, typer.Option("--actor", envvar="DRIMED_ACTOR", help="Who acts; default: the login name.")]
Why = Annotated[str, typer.Option("--reason", help="Why; it is kept in the log.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Show what would happen; write nothing.")]
Out = Annotated[Path | None, typer.Option("--out", help="A .csv or .json file to write; default: show it.")]
Values = Annotated[list[str] | None, typer.Argument(metavar="METRIC=VALUE", help="yield=5.2 cost=110")]


def open_trial(name: str, store: str, actor: str | None) -> Trial:
    """A trial that exists."""
    from drimed.trial.trial import Trial

    return Trial.open(name, open_store(store, create=False), actor=actor_name(actor))


def actor_name(given: str | None) -> str:
    """Who acts, for the log."""
    if given:
        return given
    try:
        return getpass.getuser()
    except OSError:  # a machine without login names
        return "command line"


def read(path: Path) -> list[dict[str, Any]]:
    """The rows of a sheet, CSV or JSON by its name."""
    from drimed.trial import sheets

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {path}: {error}") from None
    return sheets.read(text, "json" if path.suffix.lower() == ".json" else "csv")


def put(rows: list[dict[str, Any]], out: Path | None, full: list[dict[str, Any]]) -> None:
    """To a file, CSV or JSON by its name, or to the screen."""
    if out is not None:
        from drimed.trial import sheets

        json_wanted = out.suffix.lower() == ".json"
        text = sheets.write(full if json_wanted else rows, "json" if json_wanted else "csv")
        try:
            out.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"cannot write {out}: {error}") from None
        console.print(f"wrote {out}")
        return
    if not rows:
        return
    names = list(dict.fromkeys(n for row in rows for n in row))
    table = Table(*names)
    for row in rows[:MOST_SHOWN]:
        table.add_row(*(_cell(row.get(n)) for n in names))
    console.print(table)
    if len(rows) > MOST_SHOWN:
        console.print(f"... and {len(rows) - MOST_SHOWN} more; --out FILE writes all")


def _cell(value: Any) -> str:
    return "" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


def values(pairs: list[str] | None) -> dict[str, float | None]:
    """name=number pairs; nothing after the sign means no value."""
    found: dict[str, float | None] = {}
    for pair in pairs or ():
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise InputError(f"expected METRIC=VALUE, got {pair!r}")
        try:
            found[name] = float(text) if text else None
        except ValueError:
            raise InputError(f"{name} must be a number, got {text!r}") from None
    return found


def numbers(pairs: list[str]) -> dict[str, float]:
    """name=number pairs, every number given."""
    found = values(pairs)
    return {name: _given_number(name, value) for name, value in found.items()}


def _given_number(name: str, value: float | None) -> float:
    if value is None:
        raise InputError(f"{name} needs a number")
    return value
