"""Tables: rows of named cells, from CSV in any common form, workbooks (.xlsx) and JSON.

Reading is strict: a cell, a row or a number that could be read in two ways is refused with its row. Writing follows one
rule for every cell: no text is ever a formula.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from itertools import chain, pairwise
from math import inf, isfinite
from typing import IO, Any

from drimed.errors import BatchError, InputError, MissingExtraError
from drimed.records import Fault
from drimed.trial.spec import decode, first_twice, is_whole, short, tidy
from drimed.trial.workbooks import GENERAL, MOST_CELLS, Line, letters, worksheets

FIRST_ROW = 2  # of data: the first row has the names
MOST_SHOWN = 200  # characters of a row in a message
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
WORKBOOK = "workbook"  # in place of a separator
MISSING = frozenset({"", "na", "n/a", "n.a.", "n.a", "#n/a", "-", "–", "—", "\N{MINUS SIGN}"})
FORMULA = frozenset("=+-@\t\r")  # the first characters of a formula in spreadsheet programs
SUFFIX, MEDIA = ".xlsx", "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
SHEET, DICTIONARY, EXPLAINED = "drimed", "columns", ("column", "meaning")  # worksheets, and columns of the second
MOST_ROWS, LONGEST_TEXT = 1_048_576, 32_767  # rows and characters that Excel has
NARROWEST, WIDEST = 10, 50  # columns that are written, in characters
SHARES, SHARE = ("propensity",), "0.0%"  # columns that workbooks show as percentages, and their format
MOST_COLUMNS, LONGEST_NAME = 1000, 300  # columns, and characters of their names

_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)  # 1.234: a decimal, or one thousand
_JOINED = re.compile(r"[+-]?\d{1,3}(?:[ \u00a0\u2009\u202f_'’.,]\d+)+(?:[.,]\d+)?", re.ASCII)
_INTEGER, _DIGITS = re.compile(r"[+\N{MINUS SIGN}-]?\d+", re.ASCII), re.compile(r"\d+", re.ASCII)
_SEP = re.compile(r'"?sep=(.)"?[,;\t ]*', re.IGNORECASE)
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")

Record = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One row by the names of its columns, without empty cells."""

    number: int  # as a spreadsheet counts
    cells: Record
    formats: Mapping[str, str] = field(default_factory=dict)  # of numbers and dates in a workbook, where they have one
    hidden: bool = False


@dataclass(frozen=True)
class Table:
    """A sheet."""

    names: Sequence[str]  # of the columns
    rows: Sequence[Row]
    separator: str = ""  # of its cells; empty: they have types, as in JSON; or WORKBOOK
    assumed: str = ""  # the encoding, where it was assumed
    top: int = 1  # the row with the names
    hidden: Collection[str] = ()  # columns

    @staticmethod
    def of(records: Iterable[Mapping[str, Any]]) -> Table:
        """A table of records in memory."""
        filled = ({k: v for k, v in record.items() if v is not None} for record in records)
        rows = [Row(number, cells) for number, cells in enumerate(filled, FIRST_ROW) if cells]
        return Table(list(dict.fromkeys(name for row in rows for name in row.cells)), rows)

    def column(self, name: str) -> Iterator[Any]:
        """The cells of a column that are filled in."""
        return (row.cells[name] for row in self.rows if name in row.cells)


@dataclass(frozen=True)
class Marks:
    """Decimal marks of the numbers of a sheet."""

    comma: bool = False  # whether a decimal comma is possible: cells are not separated by commas
    seen: frozenset[str] = frozenset()  # decimal marks that are beyond doubt


POINT = Marks()
TYPED = Marks(comma=True, seen=frozenset("."))  # numbers that are typed alone: a comma is as good where it is plain


def read(data: bytes | str, name: str = "", most: int = MOST_CELLS) -> Table:
    """A sheet of at most so many cells from a file with this name, or (without one) from a text that was pasted."""
    what, assumed = name or "the text", ""
    if isinstance(data, bytes):
        if is_workbook(data):
            return _of_workbook(data, name or "the file", most)
        data, assumed = decode(data, what)
    text = data.removeprefix("\ufeff")
    if not is_whole(text):
        raise InputError("the sheet has a character that is not valid Unicode (a lone surrogate); save it as UTF-8")
    first = text.lstrip()[:1]
    if name.lower().endswith(".json") or (first == "[" and not name):
        return _of_json(text, most)
    if first in tuple("[{<"):
        raise InputError(f"{what} is XML, a web page or JSON without its name (.json); save it as CSV or .xlsx")
    separator, lines = _split(text, most)
    return _table(lines, separator, assumed)


def is_workbook(data: bytes) -> bool:
    return data.startswith(b"PK\x03\x04")


def refuse(errors: Mapping[int, str]) -> None:
    """Raise the errors of rows, if there are any."""
    if errors:
        raise BatchError(Fault((), message, row=row) for row, message in sorted(errors.items()))


# Cells


def marks(separator: str, cells: Iterable[Any]) -> Marks:
    """The decimal marks of these cells."""
    if separator not in (";", "\t", WORKBOOK):
        return POINT
    texts = [t for cell in cells if isinstance(cell, str) and not _GROUPED.fullmatch(t := _with_hyphen(cell))]
    commas = {","} if any(_COMMA.fullmatch(t) for t in texts) else set()
    return Marks(True, frozenset(commas | ({"."} if any("." in t and _POINT.fullmatch(t) for t in texts) else set())))


def typed_marks(texts: Iterable[str]) -> Marks:
    """The decimal marks of numbers that are typed alone: a point, or a comma where it is plain."""
    return found if (found := marks(WORKBOOK, texts)).seen else TYPED


def is_missing(value: Any) -> bool:
    """True if a cell for a number stands for a missing one."""
    return value is None or (isinstance(value, str) and value.strip().casefold() in MISSING)


def number(name: str, value: Any, written: Marks = POINT) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name} must be a number, got {short(value)}")
    try:
        parsed = _parsed(name, _with_hyphen(value), written) if isinstance(value, str) else float(value)
    except OverflowError:
        parsed = inf
    if not isfinite(parsed):
        raise InputError(f"{name} must be finite, got {short(value)}; leave the cell empty if it is not known")
    return parsed


def text(value: Any) -> str:
    """A cell as a text: a number as it is written without needless decimals."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def guarded(value: Any) -> Any:
    """A cell as it is written to CSV: no text is ever a formula."""
    if isinstance(value, str):
        return f"'{value}" if value.lstrip()[:1] in FORMULA else value
    return "" if value is None else value


def _unguarded(cell: Any) -> Any:
    guards = isinstance(cell, str) and cell[:1] == "'" and cell[1:].lstrip()[:1] in FORMULA
    return cell[1:] if guards else cell


def decimal_by_comma(cells: Sequence[Any]) -> str | None:
    """Two cells that may be one number with a decimal comma, as they would be written; None: there are none."""
    for left, right in pairwise(map(str, cells)):
        if _INTEGER.fullmatch(left) and _DIGITS.fullmatch(right):
            return f"{left},{right}"
    return None


def _parsed(name: str, cell: str, written: Marks) -> float:
    mark = "." if _POINT.fullmatch(cell) else "," if _COMMA.fullmatch(cell) else ""
    if mark and _GROUPED.fullmatch(cell) and (written.comma or mark == ",") and written.seen != {mark}:
        whole, _, digits = cell.partition(mark)
        both = f"{whole}{digits} or as {whole}.{digits}"
        raise InputError(f"{name} {cell} can be read as {both}; write {whole}{digits} or {whole}.{digits}0")
    if mark == "." or (mark and written.comma):
        return float(cell.replace(",", "."))
    if mark:
        raise InputError(f"{name} must be a number, got {short(cell)}; write decimals with a point")
    if cell.casefold().lstrip("+-") in ("nan", "inf", "infinity"):
        return inf
    hint = (
        "; write digits only, with a point for decimals, such as 1234.5" if _JOINED.fullmatch(cell[:MOST_SHOWN]) else ""
    )
    raise InputError(f"{name} must be a number, got {short(cell)}{hint}")


def _with_hyphen(cell: str) -> str:
    return cell.strip().replace("\N{MINUS SIGN}", "-")


# From text to rows


def _split(text: str, most: int) -> tuple[str, Iterable[Line]]:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    head, _, rest = text.partition("\n")
    if (declared := _SEP.fullmatch(head.strip(" "))) is not None:
        if declared[1] not in SEPARATORS:
            raise InputError(f"the first line says that cells are separated by {declared[1]!r}; use commas, ; or tabs")
        return declared[1], _lines(rest, declared[1], most)
    counts: dict[str, int] = {}  # cells in the first row
    for separator in SEPARATORS:
        with suppress(InputError):  # quotes do not fit together with this one
            counts[separator] = len(next((line.cells for line in _lines(text, separator, most)), ()))
    best = max(counts.values(), default=0)
    likely = [separator for separator, n in counts.items() if n == best]
    if best > 1 and len(likely) > 1:
        names = " or ".join(SEPARATORS[s] for s in likely)
        raise InputError(f"row 1: are cells separated by {names}? Say so in a first line, such as sep=;")
    separator = likely[0] if likely else ","
    return separator, _lines(text, separator, most)


def _lines(text: str, separator: str, most: int) -> Iterator[Line]:
    """The rows that have something in them, without spaces around their cells."""
    reader = csv.reader(io.StringIO(text), delimiter=separator, strict=True, skipinitialspace=separator != "\t")
    number = count = 0
    try:
        for number, cells in enumerate(reader, 1):  # it is used where the reader fails
            count += len(cells)
            if count > most:
                raise InputError(f"a sheet may have at most {most:,} cells; send it in parts")
            for cell in cells:
                if "\n" in cell and any(separator in line for line in cell.split("\n")[1:]):
                    rows = f"row {number}: a cell in quotes goes on over several lines, and they look like rows"
                    raise InputError(f"{rows}; is a quote not closed? It begins with {cell[:40]!r}")
            if any(cell.strip() for cell in cells):
                yield Line(number, [cell.strip() for cell in cells])
    except csv.Error as error:
        quotes = "is a quote not closed, missing or one too many?"
        raise InputError(f"row {number + 1}: the cells cannot be told apart ({error}); {quotes}") from None


def _table(lines: Iterable[Line], separator: str, assumed: str = "", hidden: Collection[int] = ()) -> Table:
    top, *body = list(lines) or [Line(0, [])]
    names = [tidy(str(cell)) for cell in top.cells]
    while names and not names[-1]:
        names.pop()
    _check_names(names)
    # Some programs end every row but the first with a separator. If only one row is longer, something was shifted.
    all_alike = len({len(line.cells) for line in body}) == 1 and len(body) > 1
    rows, errors = [], {}
    for line in body:
        longer = len(line.cells) > len(top.cells)
        if wrong := _misfit(line.cells, names, separator, longer=longer, all_alike=all_alike):
            errors[line.number] = wrong
        filled = ((n, c) for n, c in zip(names, line.cells, strict=False) if c != "" and c is not None)
        formats = {names[i]: code for i, code in line.formats.items() if i < len(names)}
        rows.append(Row(line.number, {name: _unguarded(cell) for name, cell in filled}, formats, line.hidden))
    if errors:
        _refuse_title(top, body)
    refuse(errors)
    unseen = names if top.hidden else [name for i, name in enumerate(names) if i in hidden]
    return Table(names, rows, separator, assumed, top.number, unseen)


def _refuse_title(top: Line, body: Sequence[Line]) -> None:
    """Refuse a sheet whose first row has fewer cells than a row of three names or more that follows."""
    filled = [[cell for cell in line.cells if cell not in ("", None)] for line in (top, *body)]
    at = next((n for n, cells in enumerate(filled) if len(cells) > max(2, len(filled[0]))), 0)
    if at and all(isinstance(name, str) and not _POINT.fullmatch(name) for name in filled[at]):
        raise InputError(
            f"row {top.number} looks like a title; the headings seem to be in row {body[at - 1].number}: "
            f"{' | '.join(filled[at])[:MOST_SHOWN]}. Take out the rows above them"
        )


def _check_names(names: Sequence[str]) -> None:
    if not names:
        raise InputError("the sheet is empty; its first line must name the columns")
    if len(names) > MOST_COLUMNS:
        raise InputError(f"a sheet may have at most {MOST_COLUMNS:,} columns, got {len(names):,}; leave some out")
    if (long := next((name for name in names if len(name) > LONGEST_NAME), None)) is not None:
        raise InputError(f"the name of a column may have at most {LONGEST_NAME} characters, got {short(long)}")
    if (again := first_twice([name for name in names if name])) is not None:
        raise InputError(f"two columns have the name {again!r}")


def _misfit(cells: list[Any], names: Sequence[str], separator: str, *, longer: bool, all_alike: bool) -> str | None:
    """The misfit of the cells of a row with the columns; None: they fit."""
    beyond = [i for i, cell in enumerate(cells) if cell not in ("", None) and not (i < len(names) and names[i])]
    decimal = decimal_by_comma(cells) if separator == "," else None
    if beyond and beyond[-1] < len(names):
        wrong = f"cell {beyond[0] + 1}, {str(cells[beyond[0]])[:40]!r}, has no name in the first row"
    elif beyond:
        wrong = f"expected {len(names)} cells, got {beyond[-1] + 1}"
    elif longer and (decimal is not None or not all_alike):
        wrong = f"expected {len(names)} cells, got {len(cells)}, of which the last is empty"
    else:
        return None
    wrong += ": " + " | ".join(map(str, cells))[:MOST_SHOWN]
    if decimal is not None:
        wrong += f"; if {decimal} is one number, write {decimal.replace(',', '.')}, or separate cells by semicolons"
    return wrong


def _of_json(text: str, most: int) -> Table:
    """A list of records."""
    try:
        data = json.loads(text, object_pairs_hook=tuple)  # of pairs: a name that comes twice is not lost
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except (ValueError, RecursionError):
        raise InputError("not JSON: a number has too many digits, or lists are nested too deeply") from None
    if not isinstance(data, list) or not all(isinstance(row, tuple) for row in data):
        raise InputError("expected a list of records: [{...}, {...}]")
    if sum(map(len, data)) > most:
        raise InputError(f"a sheet may have at most {most:,} cells; send it in parts")
    table, errors = Table.of({tidy(k): "[...]" if isinstance(v, tuple | list) else v for k, v in r} for r in data), {}
    _check_names(table.names)
    for number, pairs in enumerate(data, FIRST_ROW):
        if (again := first_twice([tidy(name) for name, _ in pairs])) is not None:
            errors[number] = f"two fields have the name {again!r}"
        elif not all(is_whole(part) for pair in pairs for part in pair if isinstance(part, str)):
            errors[number] = "a text has a character that is not valid Unicode (a lone surrogate)"
    refuse(errors)
    return table


# Workbooks


def _openpyxl() -> Any:
    try:
        return import_module("openpyxl")
    except ImportError as error:
        raise MissingExtraError("openpyxl", "excel") from error


def _of_workbook(data: bytes, name: str, most: int) -> Table:
    """The only worksheet with anything in it, but for the one that explains its columns."""
    sheets = worksheets(data, name, most)
    filled = [s for s in sheets if s.title != DICTIONARY or s.lines[0][:2] != (1, [*EXPLAINED])]
    if len(filled) > 1:
        titles = ", ".join(repr(s.title) for s in filled)
        raise InputError(
            f"{name} has {len(filled)} sheets with something in them ({titles}): leave one, or save it as CSV"
        )
    if filled and filled[0].is_hidden:
        raise InputError(f"the sheet {filled[0].title!r} of {name} is hidden, and the others are empty: show it")
    return _table(filled[0].lines, WORKBOOK, hidden=filled[0].hidden) if filled else _table([], WORKBOOK)


def save_workbook(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    out: IO[bytes],
    meanings: Mapping[str, str] | None = None,
    titles: Mapping[str, str] | None = None,
    shares: Collection[str] = SHARES,
) -> int:
    """Write columns of these names row by row, and `meanings` of them on a second sheet; return the number of rows.

    `titles` are headings in place of names; `shares` are shown as percentages.
    """
    titles = titles or {}
    book, make, count = _openpyxl().Workbook(write_only=True), import_module("openpyxl.cell").WriteOnlyCell, 0
    sheet = book.create_sheet(SHEET)
    for i, name in enumerate(names):
        sheet.column_dimensions[letters(i)].width = min(max(NARROWEST, len(titles.get(name, name)) + 2), WIDEST)
    formats = [SHARE if name in shares else GENERAL for name in names]
    for count, cells in enumerate(chain([[titles.get(n, n) for n in names]], (map(row.get, names) for row in rows))):
        if count == MOST_ROWS:
            raise InputError(f"a sheet of a workbook has at most {MOST_ROWS:,} rows: write a .csv file")
        sheet.append([_cell(make(sheet), value, code) for value, code in zip(cells, formats, strict=True)])
    if meanings:
        sheet = book.create_sheet(DICTIONARY)
        sheet.column_dimensions["A"].width, sheet.column_dimensions["B"].width = WIDEST / 2, 2 * WIDEST
        for cells in [EXPLAINED, *meanings.items()]:
            sheet.append([_cell(make(sheet), value) for value in cells])
    book.save(out)
    return count


def _cell(cell: Any, value: Any, code: str = GENERAL) -> Any:
    if isinstance(value, str):
        if _NOT_XML.search(value) or len(value) > LONGEST_TEXT:
            raise InputError(f"{short(value)} is longer than a workbook allows, or not XML: write a .csv file")
        cell.value, cell.data_type = value, "s"
        cell.quotePrefix = value[:1] in FORMULA  # it stays a text when it is edited
    elif isinstance(value, float):
        cell.value = repr(float(value))  # openpyxl rounds numbers to 16 digits, and a double may need 17
        cell.data_type, cell.number_format = "n" if isfinite(value) else "s", code
    else:
        cell.value = value
    return cell


# Writing


def csv_lines(rows: Iterable[Iterable[Any]]) -> str:
    """Rows of cells as lines of CSV: empty for None, and nothing that a spreadsheet would run."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([guarded(cell) for cell in cells] for cells in rows)
    return out.getvalue()


def csv_text(rows: Sequence[Mapping[str, Any]], empty: Sequence[str] = ()) -> str:
    """Rows as CSV; `empty` are the columns of a sheet without rows."""
    names = _names(rows, empty)
    return csv_lines([names, *(map(row.get, names) for row in rows)])


def table_text(table: Table) -> str:
    """A table that was read, as CSV with every row in its place."""
    rows = {table.top: csv_lines([table.names])}
    rows |= {row.number: csv_lines([map(row.cells.get, table.names)]) for row in table.rows}
    return "".join(rows.get(number, "\n") for number in range(1, max(rows) + 1))


def sheet(
    rows: Sequence[Mapping[str, Any]],
    suffix: str,
    empty: Sequence[str] = (),
    meanings: Callable[[Sequence[str]], Mapping[str, str]] = lambda _: {},
    titles: Mapping[str, str] | None = None,
) -> bytes:
    """Rows as a file with this suffix: .json, .xlsx, or anything else for CSV.

    `meanings` are those of its columns, `titles` the headings of a workbook in place of names.
    """
    if suffix == SUFFIX:
        names, out = _names(rows, empty), io.BytesIO()
        save_workbook(names, rows, out, meanings(names), titles)
        return out.getvalue()
    if suffix == ".json":
        return (json.dumps([dict(row) for row in rows], indent=1, ensure_ascii=False) + "\n").encode()
    return csv_text(rows, empty).encode()


def _names(rows: Sequence[Mapping[str, Any]], empty: Sequence[str]) -> list[str]:
    """The columns in the order in which they first appear."""
    return list(dict.fromkeys(name for row in rows for name in row)) or list(empty)
