"""Workbooks of spreadsheet programs (.xlsx): read with their types, and written. Needs openpyxl."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from importlib import import_module
from typing import Any

from drimed.errors import InputError, MissingExtraError
from drimed.trial.tables.splitting import Line

ZIP = b"PK\x03\x04"
LARGEST = 100 * 1024 * 1024  # bytes of a workbook when it is unpacked
MOST_CELLS = 2_000_000
SHEET = "drimed"
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


def is_one(data: bytes) -> bool:
    """Whether these are the bytes of a workbook, or of something that should be one."""
    return data.startswith(ZIP)


def lines(data: bytes, name: str) -> list[Line]:
    """The rows of its only sheet that has any; cells have their types, formulas their values."""
    _refuse_others(data, name)
    with _opened(data, name, values=True) as values, _opened(data, name, values=False) as formulas:
        found = {title: _rows(values[title], formulas[title]) for title in values.sheetnames}
    filled = {title: rows for title, rows in found.items() if rows}
    if len(filled) > 1:
        titles = ", ".join(map(repr, filled))
        raise InputError(
            f"{name} has {len(filled)} sheets with something in them ({titles}): leave one, or save it as CSV"
        )
    return next(iter(filled.values()), [])


def write(rows: Sequence[Mapping[str, Any]]) -> bytes:
    """Rows as a workbook with one sheet; texts are texts, also those that look like formulas."""
    book = _openpyxl().Workbook(write_only=True)
    sheet = book.create_sheet(SHEET)
    make = import_module("openpyxl.cell").WriteOnlyCell
    names = list(dict.fromkeys(name for row in rows for name in row))
    lines: list[list[Any]] = [list(names), *([row.get(name) for name in names] for row in rows)]
    for values in lines:
        for value in values:
            if isinstance(value, str) and _NOT_XML.search(value):
                raise InputError(f"{value!r} has a character that no workbook can hold: write a .csv file")
        made = [make(sheet, value) for value in values]
        for cell in made:
            if isinstance(cell.value, str):
                cell.data_type = "s"
        sheet.append(made)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


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
