"""What came with a form, and why it was refused: each message beside its field, or beside its row of a sheet."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from starlette.datastructures import UploadFile
from starlette.responses import Response

from drimed.errors import DrimedError, InputError, UnconfirmedError
from drimed.records import Fault
from drimed.service.pages.route import Visit
from drimed.trial import sheets

MOST_SHOWN = 200  # rows of a sheet with errors: those, and some of the others
MOST_LISTED = 20  # messages above a form
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
class SheetRow:
    """A row of a sheet as it came, and what is wrong with it."""

    number: int
    cells: list[str]
    errors: list[str]


@dataclass(frozen=True)
class FormErrors:
    """Why a form was refused."""

    form: str = ""  # which one of the page
    found: list[tuple[str, str]] = field(default_factory=list)  # (name of the input, or empty: the whole form; message)
    mark: str = ""  # what the form must send to confirm its values; empty: there is nothing to confirm
    text: str = ""  # the sheet as it came, to correct it in place
    columns: list[str] = field(default_factory=list)
    rows: list[SheetRow] = field(default_factory=list)
    left_out: int = 0  # rows without errors that are not shown

    @property
    def status(self) -> int:
        """Of the page that shows the form."""
        return 422 if self.found else 200

    def at(self, form: str, name: str) -> str:
        """What is wrong with an input; empty: nothing."""
        return "; ".join(message for at, message in self.found if at == name) if form == self.form else ""


NO_ERRORS = FormErrors()


def refused(form: str, error: DrimedError, place: Callable[[Fault], str] = lambda _: "") -> FormErrors:
    """An error for the form that caused it; `place` finds the input of a fault."""
    found = [(place(fault), fault.message) for fault in error.faults] or [("", str(error))]
    return FormErrors(form, found, mark(error))


def refused_sheet(sent: Sent, error: DrimedError) -> FormErrors:
    """The same for a sheet, with each error beside its row."""
    wrong: dict[int, list[str]] = {}
    for fault in error.faults:
        if fault.row is not None:
            wrong.setdefault(fault.row, []).append(fault.message)
    if not wrong:
        return FormErrors("sheet", [("", str(error))], text=sent.text)
    columns, rows = _table(sent)
    near = {n + d for n in wrong for d in (-1, 0, 1)}
    shown = [SheetRow(n, cells, wrong.get(n, [])) for n, cells in rows if n in near or len(rows) <= MOST_SHOWN]
    known = {row.number for row in shown}
    shown += [SheetRow(n, [], messages) for n, messages in sorted(wrong.items()) if n not in known]
    shown = shown[: 2 * MOST_SHOWN]
    found = [(f"row-{n}", f"Row {n}: {'; '.join(messages)}") for n, messages in sorted(wrong.items())]
    return FormErrors("sheet", found, mark(error), sent.text, columns, shown, len(rows) - len(shown))


def mark(error: DrimedError) -> str:
    """What confirms the values that an error is about, and no others."""
    if not isinstance(error, UnconfirmedError):
        return ""
    return hashlib.sha256("\n".join(map(str, error.faults)).encode()).hexdigest()[:16]


async def sent(visit: Visit, what: str) -> Sent:
    """What came with a form: a file, or else the pasted text."""
    file, text = visit.form.get("file"), visit.form.get("text")
    if not isinstance(file, UploadFile) or not file.filename:
        if not isinstance(text, str) or not text.strip():
            raise InputError(f"choose {what} or paste its text")
        return Sent("", _lines(text))
    name, data = file.filename, await file.read()
    if data.startswith((ZIP, OLD_EXCEL)):
        raise InputError(f"{name} is in a spreadsheet program's own format; save it as “CSV UTF-8” and upload that")
    try:
        return Sent(name, _lines(data.decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise InputError(
            f"{name} is not UTF-8 (byte {error.start}); save it as “CSV UTF-8” or as text in UTF-8"
        ) from None


def download(name: str, rows: Iterable[sheets.Record]) -> Response:
    """A sheet to save."""
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    text = sheets.write(list(rows))
    return Response(text.encode("utf-8-sig"), headers=headers, media_type="text/csv; charset=utf-8")


def _lines(text: str) -> str:
    """With line ends of one kind."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _table(sent: Sent) -> tuple[list[str], list[tuple[int, list[str]]]]:
    if sent.form == "json":
        try:
            records = json.loads(sent.text)
        except (ValueError, RecursionError):
            return [], []
        names = list(dict.fromkeys(name for record in records for name in record))
        rows = [["" if record.get(n) is None else str(record[n]) for n in names] for record in records]
    else:
        first = sent.text.split("\n", 1)[0]
        delimiter = max(",;\t", key=first.count)
        cells = list(csv.reader(io.StringIO(sent.text), delimiter=delimiter))
        names, rows = (cells[0], cells[1:]) if cells else ([], [])
    return names, [(i + sheets.FIRST_ROW, row) for i, row in enumerate(rows)]
