"""Sheets as they are written: CSV, JSON or a workbook, by one rule for every cell."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from drimed.trial.tables import workbook
from drimed.trial.tables.cells import guarded
from drimed.trial.tables.table import Table


def csv_line(cells: Iterable[Any]) -> str:
    """Cells as a line of CSV: an empty one for None, and nothing that a spreadsheet would run."""
    return csv_lines([cells])


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells as lines of CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([guarded(cell) for cell in cells] for cells in rows)
    return out.getvalue()


def columns(rows: Sequence[Mapping[str, Any]], empty: Sequence[str] = ()) -> list[str]:
    """The columns of rows, in the order in which they first appear; of no rows, those of an `empty` sheet."""
    return list(dict.fromkeys(name for row in rows for name in row)) or list(empty)


def csv_text(rows: Sequence[Mapping[str, Any]], empty: Sequence[str] = ()) -> str:
    """Rows as CSV."""
    names = columns(rows, empty)
    return csv_line(names) + csv_lines(map(row.get, names) for row in rows)


def table_text(table: Table) -> str:
    """A table that was read, as CSV with every row in its place."""
    rows = {row.number: row.cells for row in table.rows}
    lines = ["\n"] * (table.top - 1) + [csv_line(table.names)]
    for number in range(table.top + 1, max(rows, default=0) + 1):
        cells = rows.get(number)
        lines.append("\n" if cells is None else csv_line(cells.get(name) for name in table.names))
    return "".join(lines)


def json_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as a list of records."""
    return json.dumps([dict(row) for row in rows], indent=1, ensure_ascii=False) + "\n"


def sheet(
    rows: Sequence[Mapping[str, Any]],
    suffix: str,
    empty: Sequence[str] = (),
    meanings: Callable[[Sequence[str]], Mapping[str, str]] = lambda _: {},
) -> bytes:
    """Rows as a file with this suffix: .json, .xlsx, or anything else for CSV; `meanings` are those of its columns."""
    if suffix == ".xlsx":
        names = columns(rows, empty)
        return workbook.write(names, rows, meanings(names))
    return (json_text(rows) if suffix == ".json" else csv_text(rows, empty)).encode()
