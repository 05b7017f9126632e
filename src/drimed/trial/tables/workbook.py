"""Workbooks of spreadsheet programs (.xlsx): read with their types, and written. Needs openpyxl."""

from __future__ import annotations

import io
import re
import shutil
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from importlib import import_module
from math import isfinite
from tempfile import TemporaryFile
from typing import IO, Any

from drimed.errors import InputError, MissingExtraError
from drimed.trial.sentences import short
from drimed.trial.tables.cells import FORMULA
from drimed.trial.tables.splitting import Line

ZIP = b"PK\x03\x04"
LARGEST = 100 * 1024 * 1024  # bytes of a workbook when it is unpacked
MOST_CELLS = 2_000_000
SHEET = "drimed"
DICTIONARY, EXPLAINED = "columns", ("column", "meaning")  # the sheet that says what they mean, and its own columns
SUFFIX = ".xlsx"
MEDIA = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
MOST_ROWS = 1_048_576  # that spreadsheet programs show, with the row of names
LONGEST = 32_767  # characters of a cell
_PROPERTIES, _MOMENT = "docProps/core.xml", re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def is_one(data: bytes) -> bool:
    """Whether these are the bytes of a workbook, or of something that should be one."""
    return data.startswith(ZIP)


def lines(data: bytes, name: str) -> list[Line]:
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
        if _NOT_XML.search(value) or len(value) > LONGEST:
            what = "a character that no workbook can hold" if len(value) <= LONGEST else "more than a cell can hold"
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
