"""A sheet as rows of named cells, whatever file it came in: CSV in any common form, JSON, or a workbook (.xlsx)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any

from drimed.errors import BatchError, InputError
from drimed.records import Fault
from drimed.trial.names import first_twice, tidy
from drimed.trial.parts import is_whole
from drimed.trial.tables import cells, workbook
from drimed.trial.tables.decoding import decode
from drimed.trial.tables.splitting import Line, decimal_by_comma, split

FIRST_ROW = 2  # of data: the first row has the names
MOST_SHOWN = 200  # characters of a row in a message

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """What one row says: by the name of the column; empty cells are left out."""

    number: int  # as a spreadsheet counts
    cells: Record


@dataclass(frozen=True)
class Table:
    """A sheet."""

    names: Sequence[str]  # of the columns
    rows: Sequence[Row]
    separator: str = ""  # of its cells; empty: they have types, as in JSON; or WORKBOOK
    assumed: str = ""  # the encoding, where it was assumed
    top: int = 1  # the row with the names

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Table:
        """Records that are at hand."""
        rows = [Row(i, {k: v for k, v in r.items() if v is not None}) for i, r in enumerate(records, FIRST_ROW)]
        return Table(list(dict.fromkeys(name for row in rows for name in row.cells)), rows)

    def column(self, name: str) -> Iterator[Any]:
        """The cells of a column that are filled in."""
        return (row.cells[name] for row in self.rows if name in row.cells)


def read(data: bytes | str, name: str = "") -> Table:
    """A sheet from a file with this name, or (without one) from a text that was pasted."""
    form, assumed = PurePath(name).suffix.lower(), ""
    if isinstance(data, bytes):
        if workbook.is_one(data):
            return _of_lines(workbook.lines(data, name), cells.WORKBOOK)
        data, assumed = decode(data, name or "the text")
    text = data.removeprefix("\ufeff")
    if not is_whole(text):
        raise InputError(f"the sheet {_HALF}; save it as UTF-8")
    begins = text.lstrip()[:1]
    if form == ".json" or (not name and begins == "["):
        return _of_json(text)
    if begins in ("[", "{"):
        raise InputError(f"{name or 'the text'} looks like JSON and not like a sheet; if it is, call it .json")
    if begins == "<":
        raise InputError(f"{name or 'the text'} is a web page or XML and not a sheet; save it as CSV or .xlsx")
    separator, lines = split(text)
    table = _of_lines(lines, separator)
    return replace(table, assumed=assumed)


def refuse(errors: Mapping[int, str]) -> None:
    """Say what is wrong in which rows."""
    if errors:
        raise BatchError(Fault((), message, row=row) for row, message in sorted(errors.items()))


def _of_lines(lines: Sequence[Line], separator: str) -> Table:
    if not lines:
        raise InputError("the sheet is empty; its first line must name the columns")
    names = [tidy(str(cell)) for cell in lines[0].cells]
    width, lengths = len(names), {len(line.cells) for line in lines[1:]}
    # Some programs end every row but the first with a separator. If only one row is longer, something was shifted.
    alike = len(lengths) == 1 and len(lines) > FIRST_ROW
    while not names[-1]:
        names.pop()
    if (again := first_twice([name for name in names if name])) is not None:
        raise InputError(f"two columns have the name {again!r}")
    rows, errors = [], {}
    for line in lines[1:]:
        if wrong := _misfit(line, names, separator, longer=len(line.cells) > width, alike=alike):
            errors[line.number] = wrong
        filled = ((n, c) for n, c in zip(names, line.cells, strict=False) if c != "" and c is not None)
        rows.append(Row(line.number, {n: cells.unguarded(c) if isinstance(c, str) else c for n, c in filled}))
    refuse(errors)
    return Table(names, rows, separator, top=lines[0].number)


def _misfit(line: Line, names: Sequence[str], separator: str, *, longer: bool, alike: bool) -> str | None:
    """How a row has other cells than the columns; None: it fits."""
    given = line.cells
    shown = " | ".join(map(str, given))[:MOST_SHOWN]
    beyond = [i for i, cell in enumerate(given) if cell not in ("", None) and not (i < len(names) and names[i])]
    decimal = decimal_by_comma(given) if separator == "," else None
    hint = ""
    if decimal is not None:
        point = decimal.replace(",", ".")
        hint = f"; if {decimal} is one number, write {point}, or separate cells by semicolons"
    if any(i >= len(names) for i in beyond):
        return f"expected {len(names)} cells, got {max(beyond) + 1}: {shown}{hint}"
    if beyond:
        return f"cell {beyond[0] + 1}, {str(given[beyond[0]])[:40]!r}, has no name in the first row: {shown}{hint}"
    if longer and (decimal is not None or not alike):
        return f"expected {len(names)} cells, got {len(given)}, of which the last is empty: {shown}{hint}"
    return None


def _of_json(text: str) -> Table:
    try:
        data = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError:
        raise InputError("not JSON: a number has too many digits") from None
    except RecursionError:
        raise InputError("not JSON: lists or records are nested too deeply") from None
    if not isinstance(data, list) or not all(isinstance(row, _Pairs) for row in data):
        raise InputError("expected a list of records: [{...}, {...}]")
    rows: list[Row] = []
    errors: dict[int, str] = {}
    for i, row in enumerate(data, FIRST_ROW):
        again = first_twice([tidy(name) for name, _ in row])
        if again is not None:
            errors[i] = f"two fields have the name {again!r}"
        elif not all(is_whole(text) for pair in row for text in pair if isinstance(text, str)):
            errors[i] = f"a text {_HALF}"
        found = {tidy(k): "[...]" if isinstance(v, list) else v for k, v in row if v is not None}
        if found:
            rows.append(Row(i, found))
    refuse(errors)
    return Table(list(dict.fromkeys(name for row in rows for name in row.cells)), rows)


class _Pairs(list[tuple[str, Any]]):
    """A record of JSON, before a name that comes twice is lost."""


_HALF = "has a character that is not valid Unicode (a lone surrogate)"
