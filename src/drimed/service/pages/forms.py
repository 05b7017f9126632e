"""What came with a form, and why it was refused: each message beside its field, or beside its row of a sheet."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import TypeVar

from starlette.datastructures import UploadFile
from starlette.responses import Response

from drimed.errors import DrimedError, InputError, UnconfirmedError
from drimed.records import Fault
from drimed.service.pages.route import Visit
from drimed.trial.tables import cells, workbook, writing
from drimed.trial.tables.decoding import decode
from drimed.trial.tables.table import Record, read

T = TypeVar("T")

MOST_SHOWN = 200  # rows of a sheet with errors: those, and some of the others
MOST_LISTED = 20  # messages above a form


@dataclass(frozen=True)
class Sent:
    """What was uploaded or pasted."""

    name: str  # of the file; empty: pasted
    data: bytes | str

    @property
    def text(self) -> str:
        """To be shown, and corrected in place; a workbook as CSV."""
        if isinstance(self.data, str):
            return self.data
        try:
            if workbook.is_one(self.data):
                return writing.table_text(read(self.data, self.name))
            return _lines(decode(self.data, self.name)[0])
        except DrimedError:
            return ""


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
        return replace(refused("sheet", error), text=sent.text)
    columns, rows = _table(sent)
    near = {n + d for n in wrong for d in (-1, 0, 1)}
    shown = [SheetRow(n, cells, wrong.get(n, [])) for n, cells in rows if n in near or len(rows) <= MOST_SHOWN]
    known = {row.number for row in shown}
    shown += [SheetRow(n, [], messages) for n, messages in sorted(wrong.items()) if n not in known]
    shown = shown[: 2 * MOST_SHOWN]
    found = [(f"row-{n}", f"Row {n}: {'; '.join(messages)}") for n, messages in sorted(wrong.items())]
    return FormErrors("sheet", found, mark(error), sent.text, columns, shown, len(rows) - len(shown))


def confirmed(visit: Visit, act: Callable[[bool], T]) -> T:
    """Do it; what is unlikely only if the form confirms exactly this."""
    try:
        return act(False)
    except UnconfirmedError as error:
        if visit.field("confirm") != mark(error):
            raise
        return act(True)


def mark(error: DrimedError) -> str:
    """What confirms the values that an error is about, and no others."""
    if not isinstance(error, UnconfirmedError):
        return ""
    return hashlib.sha256("\n".join(map(str, error.faults)).encode()).hexdigest()[:16]


async def sent(visit: Visit, what: str) -> Sent:
    """What came with a form: a file, or else the pasted text."""
    file, text = visit.form.get("file"), visit.form.get("text")
    if isinstance(file, UploadFile) and file.filename:
        return Sent(file.filename, await file.read())
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"choose {what} or paste its text")
    return Sent("", _lines(text))


def download(visit: Visit, name: str, rows: Sequence[Record], empty: Sequence[str] = ()) -> Response:
    """A sheet to save: CSV, or the workbook that the address asks for; `empty` are its columns if it has no rows."""
    suffix = PurePosixPath(visit.request.url.path).suffix
    headers = {"Content-Disposition": f'attachment; filename="{name}{suffix}"'}
    if suffix == workbook.SUFFIX:
        return Response(writing.sheet(rows, suffix, empty), headers=headers, media_type=workbook.MEDIA)
    text = writing.csv_text(rows, empty)
    return Response(text.encode("utf-8-sig"), headers=headers, media_type="text/csv; charset=utf-8")


def _lines(text: str) -> str:
    """With line ends of one kind."""
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _table(sent: Sent) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The columns and rows of a sheet; of one that cannot be read, its lines."""
    try:
        table = read(sent.data, sent.name)
    except DrimedError:
        return [], [(i, [line]) for i, line in enumerate(sent.text.split("\n"), 1)]
    return list(table.names), [(r.number, [cells.text(r.cells.get(n, "")) for n in table.names]) for r in table.rows]
