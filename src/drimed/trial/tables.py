"""One reader of tables for every place that takes one, and one writer: bytes -> text -> rows -> values."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from importlib import import_module
from itertools import pairwise
from math import isfinite
from pathlib import PurePath
from tempfile import TemporaryFile
from typing import IO, Any

from drimed.errors import BatchError, InputError, MissingExtraError
from drimed.records import Fault
from drimed.trial.decoding import decode
from drimed.trial.names import first_twice, tidy
from drimed.trial.sentences import short
from drimed.trial.spec import is_whole

# From cells to values: numbers as people and spreadsheets write them, and what stands for a missing one.

MISSING = frozenset({"", "na", "n/a", "n.a.", "n.a", "#n/a", "-", "–", "—", "\N{MINUS SIGN}"})
WORKBOOK = "workbook"  # what separates the cells of one, for `marks`
FORMULA = "=+-@\t\r"  # what a spreadsheet takes for the beginning of a formula
_STARTS = frozenset(FORMULA)
_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)  # 1.234: a decimal, or one thousand
_JOINED = re.compile(r"[+-]?\d{1,3}(?:[ \u00a0\u2009\u202f_'’.,]\d+)+(?:[.,]\d+)?", re.ASCII)


@dataclass(frozen=True)
class Marks:
    """How the numbers of a sheet are written."""

    comma: bool = False  # whether a decimal comma is possible: cells are not separated by commas
    seen: frozenset[str] = frozenset()  # decimal marks that are beyond doubt


POINT = Marks()
# One number that somebody types: with a point, as everywhere in our documents; a comma is as good where it is plain.
TYPED = Marks(comma=True, seen=frozenset("."))


def marks(separator: str, cells: Iterable[Any]) -> Marks:
    """How the numbers are written in these cells.

    >>> marks(";", ["8,7", "1,234", "12"])
    Marks(comma=True, seen=frozenset({','}))
    """
    if separator not in (";", "\t", WORKBOOK):
        return POINT
    texts = [c for cell in cells if isinstance(cell, str) and not _GROUPED.fullmatch(c := _with_hyphen(cell))]
    seen = {","} if any(_COMMA.fullmatch(t) for t in texts) else set()
    return Marks(True, frozenset(seen | ({"."} if any("." in t and _POINT.fullmatch(t) for t in texts) else set())))


def typed_marks(texts: Iterable[str]) -> Marks:
    """How numbers that somebody types together are written.

    >>> number("yield", "7,2", typed_marks(["7,2"])), number("yield", "1.234", typed_marks(["1.234"]))
    (7.2, 1.234)
    """
    found = marks(WORKBOOK, texts)
    return found if found.seen else TYPED


def is_missing(value: Any) -> bool:
    """Whether a cell for a number says that there is none.

    >>> [is_missing(text) for text in ("", "NA", "n.a.", "-", "0")]
    [True, True, True, True, False]
    """
    return value is None or (isinstance(value, str) and value.strip().casefold() in MISSING)


def number(name: str, value: Any, written: Marks = POINT) -> float:
    """A cell as a finite number.

    >>> number("yield", "\N{MINUS SIGN}8,7", Marks(comma=True))
    -8.7
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name} must be a number, got {short(value)}")
    if isinstance(value, str):
        return _finite(name, value, _parsed(name, _with_hyphen(value), written))
    try:
        return _finite(name, value, float(value))
    except OverflowError:
        return _finite(name, value, float("inf"))


def text(value: Any) -> str:
    """A cell as a text: a number as it is written without needless decimals.

    >>> text("north"), text(7.0), text(7.5)
    ('north', '7', '7.5')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def guarded(value: Any) -> Any:
    """A cell as it is written to CSV: no text is ever a formula.

    >>> guarded("=1+1"), guarded(-1.5), guarded("north"), guarded(None)
    ("'=1+1", -1.5, 'north', '')
    """
    if isinstance(value, str):
        return f"'{value}" if value.lstrip()[:1] in _STARTS else value
    return "" if value is None else value


def unguarded(cell: str) -> str:
    """What `guarded` has written."""
    return cell[1:] if cell[:1] == "'" and cell[1:].lstrip()[:1] in _STARTS else cell


def _parsed(name: str, given: str, written: Marks) -> float:
    if _POINT.fullmatch(given):
        if written.comma and _GROUPED.fullmatch(given) and written.seen != {"."}:
            raise InputError(_two_readings(name, given, "."))
        return float(given)
    if _COMMA.fullmatch(given):
        if _GROUPED.fullmatch(given) and (not written.comma or written.seen != {","}):
            raise InputError(_two_readings(name, given, ","))
        if written.comma:
            return float(given.replace(",", "."))
        raise InputError(f"{name} must be a number, got {short(given)}; write decimals with a point")
    if given.strip().casefold().lstrip("+-") in ("nan", "inf", "infinity"):
        raise InputError(f"{name} must be finite, got {short(given)}; leave the cell empty if it is not known")
    hint = "; write digits only, with a point for decimals, such as 1234.5" if _JOINED.fullmatch(given) else ""
    raise InputError(f"{name} must be a number, got {short(given)}{hint}")


def _two_readings(name: str, given: str, mark: str) -> str:
    whole, _, digits = given.partition(mark)
    both = f"{whole}{digits} or as {whole}.{digits}"
    return f"{name} {given} can be read as {both}; write {whole}{digits} or {whole}.{digits}0"


def _finite(name: str, given: Any, value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{name} must be finite, got {short(given)}; leave the cell empty if it is not known")
    return value


def _with_hyphen(text: str) -> str:
    return text.strip().replace("\N{MINUS SIGN}", "-")


# From the text of a sheet to its cells, strictly: a doubt about where a cell ends is an error with its row.

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
LONGEST = 128 * 1024  # characters of a cell
_SEP = re.compile(r'"?sep=(.)"?[,;\t ]*', re.IGNORECASE)
_QUOTED = re.compile(r'[ ]*"([^"]*+(?:""[^"]*+)*+)"[ ]*')
_INTEGER, _DIGITS = re.compile(r"[+\N{MINUS SIGN}-]?\d+", re.ASCII), re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True)
class Line:
    """A row of a sheet as it was written."""

    number: int  # as a spreadsheet counts, from 1
    cells: list[Any]  # texts without spaces around them; those of a workbook have their types


def split(text: str) -> tuple[str, list[Line]]:
    """The separator, and the rows that have something in them."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    head, _, rest = text.partition("\n")
    said = _SEP.fullmatch(head.strip(" "))
    if said is not None:
        separator, text = said[1], rest
        if separator not in SEPARATORS:
            raise InputError(f"the first line says that cells are separated by {separator!r}; use commas, ; or tabs")
    else:
        separator = _separator(text)
    lines = [line for line in _lines(text, separator) if any(line.cells)]
    return separator, lines


def decimal_by_comma(cells: Sequence[Any]) -> str | None:
    """Two cells that may be one number with a decimal comma, as they would be written; None: there are none.

    >>> decimal_by_comma(["1", "north", "8", "7", ""]), decimal_by_comma(["1", "north", "8.7", "7"])
    ('8,7', None)
    """
    for left, right in pairwise(map(str, cells)):
        if _INTEGER.fullmatch(left) and _DIGITS.fullmatch(right):
            return f"{left},{right}"
    return None


def _separator(text: str) -> str:
    """What separates most cells of the first row."""
    counts: dict[str, int] = {}
    for separator in SEPARATORS:
        try:
            first = next((line for line in _lines(text, separator) if any(line.cells)), None)
        except InputError:
            continue  # quotes do not fit together with this one
        counts[separator] = 0 if first is None else len(first.cells)
    if not counts:
        next((line for line in _lines(text, ",") if any(line.cells)), None)  # says what is wrong with the quotes
    best = max(counts.values())
    found = [separator for separator, n in counts.items() if n == best]
    if best > 1 and len(found) > 1:
        names = " or ".join(SEPARATORS[s] for s in found)
        raise InputError(f"row 1: are cells separated by {names}? Say so in a first line, such as sep=;")
    return found[0]


def _lines(text: str, separator: str) -> Iterator[Line]:
    plain = re.compile(rf"[^{separator}\n]*")
    at, number, end = 0, 1, len(text)
    while at < end:
        cells: list[str] = []
        while True:
            quoted = _QUOTED.match(text, at)
            if quoted is not None:
                cell, at = quoted[1].replace('""', '"'), quoted.end()
                _refuse_swallowed_rows(cell, separator, number)
            else:
                unquoted = plain.match(text, at)
                assert unquoted is not None  # it may be empty
                cell, at = unquoted[0], unquoted.end()
                _refuse_stray_quotes(cell, separator, number)
            if len(cell) > LONGEST:
                raise InputError(f"row {number}: a cell is too long; is a quote not closed?")
            cells.append(cell.strip())
            if at >= end or text[at] == "\n":
                at += 1
                break
            if text[at] != separator:
                rest = text[at : at + 20].split("\n")[0]
                raise InputError(
                    f"row {number}: {rest!r} follows a closing quote; is a quote missing, or one too many?"
                )
            at += 1
        yield Line(number, cells)
        number += 1


def _refuse_stray_quotes(cell: str, separator: str, number: int) -> None:
    if cell.lstrip().startswith('"'):
        raise InputError(f"row {number}: a quote is opened and never closed: {cell.strip()[:40]!r}")
    if '"' in cell and separator != "\t":  # what is copied from a spreadsheet has quotes as they are
        raise InputError(
            f"row {number}: there is a quote inside of {cell.strip()[:40]!r}; put the whole cell in quotes, and write "
            "the quote inside of it twice"
        )


def _refuse_swallowed_rows(cell: str, separator: str, number: int) -> None:
    """A quote that is closed rows later may have been meant to end in its own row."""
    if "\n" in cell and any(separator in line for line in cell.split("\n")[1:]):
        raise InputError(
            f"row {number}: a cell in quotes goes on over several lines, and they look like rows; is a quote not "
            f"closed? It begins with {cell[:40]!r}"
        )


# Workbooks of spreadsheet programs (.xlsx): read with their types, and written. Needs openpyxl.

ZIP = b"PK\x03\x04"
LARGEST = 100 * 1024 * 1024  # bytes of a workbook when it is unpacked
MOST_CELLS = 2_000_000
SHEET = "drimed"
DICTIONARY, EXPLAINED = "columns", ("column", "meaning")  # the sheet that says what they mean, and its own columns
SUFFIX = ".xlsx"
MEDIA = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
MOST_ROWS = 1_048_576  # that spreadsheet programs show, with the row of names
LONGEST_workbook = 32_767  # characters of a cell
_PROPERTIES, _MOMENT = "docProps/core.xml", re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def is_one(data: bytes) -> bool:
    """Whether these are the bytes of a workbook, or of something that should be one."""
    return data.startswith(ZIP)


def lines_workbook(data: bytes, name: str) -> list[Line]:
    """The rows of its only sheet that has any, but for the one that explains its columns.

    Cells have their types, formulas their values.
    """
    _refuse_others(data, name)
    with _opened(data, name, values=True) as values, _opened(data, name, values=False) as formulas:
        found = {title: _rows(values[title], formulas[title]) for title in values.sheetnames}
    filled = {title: rows for title, rows in found.items() if rows and not _explains(title, rows)}
    if len(filled) > 1:
        titles = ", ".join(map(repr, filled))
        raise InputError(
            f"{name} has {len(filled)} sheets with something in them ({titles}): leave one, or save it as CSV"
        )
    return next(iter(filled.values()), [])


def _explains(title: str, rows: Sequence[Line]) -> bool:
    return title == DICTIONARY and list(rows[0].cells[: len(EXPLAINED)]) == list(EXPLAINED)


def heading(data: bytes, name: str) -> list[str]:
    """The first row of its first sheet, as texts."""
    _refuse_others(data, name)
    with _opened(data, name, values=True) as book:
        row = next(book[book.sheetnames[0]].iter_rows(values_only=True), ())
    return [str(cell) for cell in row if cell is not None]


def write(names: Sequence[str], rows: Sequence[Mapping[str, Any]], meanings: Mapping[str, str] | None = None) -> bytes:
    """Columns of these names as a workbook, and `meanings` of them on a sheet of their own."""
    out = io.BytesIO()
    save(names, rows, out, meanings)
    return out.getvalue()


def save(
    names: Sequence[str],
    rows: Iterable[Mapping[str, Any]],
    out: IO[bytes],
    meanings: Mapping[str, str] | None = None,
) -> int:
    """Columns of these names, of which nothing is kept in memory; texts are texts, also those that look like formulas.

    Returns the number of rows.
    """
    book = _openpyxl().Workbook(write_only=True)
    count = _fill(book.create_sheet(SHEET), names, rows)
    if meanings:
        told = (dict(zip(EXPLAINED, words, strict=True)) for words in meanings.items())
        _fill(book.create_sheet(DICTIONARY), EXPLAINED, told)
    with TemporaryFile() as made:
        book.save(made)
        _without_times(made, out)
    return count


def _fill(sheet: Any, names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> int:
    """Returns the number of rows."""
    make = import_module("openpyxl.cell").WriteOnlyCell
    sheet.append([_cell(make(sheet), name) for name in names])
    count = 0
    for row in rows:
        count += 1
        if count >= MOST_ROWS:
            raise InputError(f"a sheet of a workbook has at most {MOST_ROWS:,} rows: write a .csv file")
        sheet.append([_cell(make(sheet), row.get(name)) for name in names])
    return count


def _without_times(made: IO[bytes], out: IO[bytes]) -> None:
    """The same workbook without the moment at which it was made: the same rows are the same bytes."""
    with zipfile.ZipFile(made) as before, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as after:
        for name in before.namelist():
            with before.open(name) as source, after.open(_packed(name), "w") as target:
                if name == _PROPERTIES:
                    target.write(_MOMENT.sub(b"1980-01-01T00:00:00Z", source.read()))
                else:
                    shutil.copyfileobj(source, target)


def _packed(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


def _cell(cell: Any, value: Any) -> Any:
    if isinstance(value, str):
        if _NOT_XML.search(value) or len(value) > LONGEST_workbook:
            what = (
                "a character that no workbook can hold"
                if len(value) <= LONGEST_workbook
                else "more than a cell can hold"
            )
            raise InputError(f"{short(value)} has {what}: write a .csv file")
        cell.value = value
        cell.data_type = "s"
        cell.quotePrefix = value[:1] in FORMULA  # it stays a text when somebody edits it
    elif isinstance(value, float):
        cell.value = repr(float(value))  # openpyxl rounds numbers to 16 digits, and a double may need 17
        cell.data_type = "n" if isfinite(value) else "s"
    else:
        cell.value = value
    return cell


def _openpyxl() -> Any:
    try:
        return import_module("openpyxl")
    except ImportError as error:
        raise MissingExtraError("openpyxl", "excel") from error


def _refuse_others(data: bytes, name: str) -> None:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            members = {member.filename: member.file_size for member in packed.infolist()}
    except (zipfile.BadZipFile, ValueError, OSError) as error:
        raise InputError(f"{name} begins like a workbook and is damaged: {error}") from None
    if "xl/workbook.xml" not in members:
        raise InputError(f"{name} is not an .xlsx workbook; save it as one, or as CSV")
    if sum(members.values()) > LARGEST:
        raise InputError(f"{name} is larger than {LARGEST // 2**20} MB when it is unpacked; save it as CSV")


@contextmanager
def _opened(data: bytes, name: str, *, values: bool) -> Iterator[Any]:
    """A workbook with the values of its formulas, or with the formulas."""
    load = _openpyxl().load_workbook
    try:
        book = load(io.BytesIO(data), data_only=values, read_only=True)
    except Exception as error:  # openpyxl lets every error of the files inside through
        raise InputError(f"{name} cannot be read as a workbook: {error}") from None
    try:
        yield book
    finally:
        book.close()


def _rows(values: Any, formulas: Any) -> list[Line]:
    found, count = [], 0
    for sheet in (values, formulas):
        sheet.reset_dimensions()  # what a file says about its own size may be wrong
    for number, (row, written) in enumerate(zip(values.iter_rows(), formulas.iter_rows(), strict=True), 1):
        cells = [_value(cell, other, number) for cell, other in zip(row, written, strict=True)]
        count += len(cells)
        if count > MOST_CELLS:
            raise InputError(f"a workbook may have at most {MOST_CELLS:,} cells; save it as CSV")
        if any(cell != "" for cell in cells):
            found.append(Line(number, cells))
    return found


def _value(cell: Any, written: Any, row: int) -> Any:
    if written.data_type == "f" and cell.value is None:
        raise InputError(
            f"row {row}: the formula {str(written.value)[:60]!r} has no value in the file; open it in a spreadsheet "
            "program and save it again, or write the value"
        )
    value = cell.value
    if value is None:
        return ""
    if isinstance(value, datetime):
        return value.date().isoformat() if value.time() == time() else value.isoformat(sep=" ")
    if isinstance(value, date | time):
        return value.isoformat()
    return value.strip() if isinstance(value, str) else value


# A sheet as rows of named cells, whatever file it came in: CSV in any common form, JSON, or a workbook (.xlsx).

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
        if is_one(data):
            return _of_lines(lines_workbook(data, name), WORKBOOK)
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
        rows.append(Row(line.number, {n: unguarded(c) if isinstance(c, str) else c for n, c in filled}))
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


# Sheets as they are written: CSV, JSON or a workbook, by one rule for every cell.


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
        return write(names, rows, meanings(names))
    return (json_text(rows) if suffix == ".json" else csv_text(rows, empty)).encode()
