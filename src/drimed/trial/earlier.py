"""Which files are earlier outputs of a trial, and may be written over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from drimed.errors import InputError
from drimed.outputs import Kind, archive_with, table_with, text_with
from drimed.trial.columns import NOTES
from drimed.trial.tables import workbook
from drimed.trial.tables.cells import is_missing
from drimed.trial.tables.table import Table, read


def workbook_with(*names: str, first: Sequence[str] = ()) -> Kind:
    """Workbooks with these columns, of which some are the first ones, or without any."""

    def is_one(path: Path) -> bool:
        try:
            columns = workbook.heading(path.read_bytes(), path.name)
        except InputError:
            return False
        return not columns or (set(names) <= set(columns) and list(first) == columns[: len(first)])

    return is_one


DICTIONARY = table_with(first=("column", "meaning"))
PAGE = text_with(r"<title>[^<]* · drimed</title>")
TABLES: dict[str, tuple[str, ...]] = {  # of a report, by their first columns
    "effects": ("who", "arm", "on", "estimate"),
    "recommendations": ("user", "arm", "control", "effect"),
    "allocation": ("episode",),
    "over_time": ("episode", "arm", "on"),
    "varies": ("metric", "family", "says"),
    "levels": ("of", "metric", "name"),
    "covariates": ("covariate", "value", "arm"),
}
Recorded = Callable[[Iterable[int]], Iterable[Mapping[str, Any]]]
CHANCE = "chance of "  # begins a column of a dry run, which has one for each arm
_SHEET = ("decision", "episode", "user", "arm", "propensity", "reason")
EXPORTS: dict[str, Kind] = {
    ".csv": table_with("action", "propensity", first=("decision", "episode")),
    ".xlsx": workbook_with("action", "propensity", first=("decision", "episode")),
    ".json": text_with(r"\A\[\s*(\{\"decision\": \d+, \"episode\": \d+, (\"season\": [^{}]*)?\"user\": |\])"),
    ".npz": archive_with("n_rounds.npy", "action.npy", "pscore.npy"),
}


def report_table(name: str, suffix: str) -> Kind:
    """An earlier table of a report; one without rows has no columns."""
    return (workbook_with if suffix == workbook.SUFFIX else table_with)(first=TABLES[name])


def sheet(rows: Sequence[Mapping[str, Any]], suffix: str, recorded: Recorded = lambda _: ()) -> Kind:
    """An earlier sheet of decisions, into which nobody has typed what neither the new rows nor the trial have.

    `recorded` gives decisions that the new sheet does not have, as they stand.
    """
    if suffix == ".json":
        return text_with(r"\A\[(\s*\{\s*\"id\": \d+,\s*\"episode\": \d+,\s*\"user\": |\s*\])")

    def is_one(path: Path) -> bool:
        try:
            old = read(path.read_bytes(), path.name)
        except InputError:
            return False
        blinded = tuple(old.names[:3]) == _SHEET[:3] and not set(_SHEET[3:]) & set(old.names)
        if _of_dry_run(old):
            old = _without_chances(old)
        elif not set(_SHEET) <= set(old.names) and not blinded:
            return False
        elif old.rows and any(name.startswith(CHANCE) for row in rows for name in row):
            raise InputError(f"{path} is a sheet of decisions, and a dry run has none: choose another name")
        _refuse_typed_in(path, old, rows, recorded)
        return True

    return is_one


def _of_dry_run(old: Table) -> bool:
    return {"decision", "episode", "user", "reason"} <= set(old.names) and any(n.startswith(CHANCE) for n in old.names)


def _without_chances(old: Table) -> Table:
    """What a dry run has worked out is worked out again, and nobody has typed it."""
    rows = [replace(r, cells={n: c for n, c in r.cells.items() if not n.startswith(CHANCE)}) for r in old.rows]
    return replace(old, names=[n for n in old.names if not n.startswith(CHANCE)], rows=rows)


def _refuse_typed_in(path: Path, old: Table, rows: Sequence[Mapping[str, Any]], recorded: Recorded) -> None:
    """What was filled in by hand must not be lost: under the decisions of the new sheet, or under earlier ones."""
    new = {str(row["decision"]): row for row in rows}
    numbers = {str(row.cells.get("decision")) for row in old.rows} - set(new)
    new |= {str(row["decision"]): row for row in recorded(int(n) for n in numbers if n.isdecimal())}
    names = {name for row in new.values() for name in row}
    for row in old.rows:
        after = new.get(str(row.cells.get("decision")), {})
        for name, cell in row.cells.items():
            lost = name not in names or (name in after and after[name] is None)
            if lost and not is_missing(cell):
                how = "choose another name" if name in NOTES else "tell it first, or choose another name"
                raise InputError(
                    f"{path} has {name} = {cell} in row {row.number}, which the new sheet does not have: {how}"
                )
