"""Files and pasted texts of forms, and sheets: to keep, or with what is wrong beside the row."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, field

from starlette.responses import Response

from drimed.errors import BatchError, InputError
from drimed.service.pages.route import Visit
from drimed.trial import sheets

MOST_SHOWN = 200  # rows of a sheet with errors: those, and some of the others
ZIP, OLD_EXCEL = b"PK\x03\x04", b"\xd0\xcf\x11\xe0"


@dataclass(frozen=True)
class Sent:
    """A text that was uploaded or pasted."""

    name: str  # of the file; empty: pasted
    text: str

    @property
    def form(self) -> str:
        """json or csv."""
        return "json" if self.name.lower().endswith(".json") or self.text.lstrip()[:1] == "[" else "csv"


@dataclass(frozen=True)
class BadRow:
    """A row as the sheet shows it."""

    number: int
    cells: list[str]
    error: str | None = None


@dataclass(frozen=True)
class BadSheet:
    """What is wrong with a sheet."""

    message: str  # about the whole of it; empty: see the rows
    names: list[str] = field(default_factory=list)
    rows: list[BadRow] = field(default_factory=list)
    left_out: int = 0

    @property
    def errors(self) -> list[BadRow]:
        """Rows that are wrong."""
        return [row for row in self.rows if row.error is not None]


async def sent(visit: Visit, what: str) -> Sent:
    """What came with a form: the file before the pasted text."""
    file = await visit.upload("file")
    if file is None:
        value = visit.form.get("text")
        text = value if isinstance(value, str) else ""
        if not text.strip():
            raise InputError(f"choose {what} or paste its text")
        return Sent("", _lines(text))
    name, data = file
    if data.startswith((ZIP, OLD_EXCEL)):
        raise InputError(f"{name} is a spreadsheet program's own file; save it as “CSV UTF-8” and upload that")
    try:
        return Sent(name, _lines(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 (byte {error.start}); save it as “CSV UTF-8” or as text in UTF-8"
        ) from None


def _lines(text: str) -> str:
    """Lines that end as everywhere, whatever system they come from."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def download(name: str, text: str) -> Response:
    """A sheet that the browser keeps."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(text.encode("utf-8-sig"), headers=headers, media_type="text/csv; charset=utf-8")


def bad_sheet(text: Sent, error: Exception) -> BadSheet:
    """The sheet as it came, with each error beside its row."""
    if not isinstance(error, BatchError):
        return BadSheet(str(error))
    names, rows = _table(text)
    wrong = {i + 1: message for i, message in error.errors.items()}  # rows as a spreadsheet counts them
    shown = []
    near = {n + d for n in wrong for d in (-1, 0, 1)}
    for number, cells in rows:
        if number in wrong or number in near or len(rows) <= MOST_SHOWN:
            shown.append(BadRow(number, cells, wrong.get(number)))
    known = {row.number for row in shown}
    shown += [BadRow(n, [], message) for n, message in sorted(wrong.items()) if n not in known]
    kept = shown[: MOST_SHOWN * 2]
    return BadSheet("", names, kept, len(rows) - len(kept))


def _table(text: Sent) -> tuple[list[str], list[tuple[int, list[str]]]]:
    if text.form == "json":
        try:
            records = json.loads(text.text)
        except (ValueError, RecursionError):
            return [], []
        names = list(dict.fromkeys(name for record in records for name in record))
        rows = [["" if record.get(n) is None else str(record[n]) for n in names] for record in records]
    else:
        first = text.text.split("\n", 1)[0]
        delimiter = max(",;\t", key=first.count)
        cells = list(csv.reader(io.StringIO(text.text), delimiter=delimiter))
        names, rows = (cells[0], cells[1:]) if cells else ([], [])
    return names, [(i + sheets.FIRST_ROW, row) for i, row in enumerate(rows)]
