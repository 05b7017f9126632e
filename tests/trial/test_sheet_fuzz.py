"""Random sheets and workbooks: read as they are meant, asked about or refused; never read as something else.

`make torture` draws 10,000 of each.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from drimed.errors import InputError
from drimed.trial import sheets
from drimed.trial.sheets import SHEET, Column, Columns, Sheet
from drimed.trial.spec import CONTROL, METRIC
from drimed.trial.store import MemoryStore
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from tests.trial.drawn_sheets import METRICS, USERS, Drawn, Values, drawn
from tests.trial.drawn_workbooks import drawn_asked, drawn_workbook
from tests.trial.fields import PATIENTS

FEW = 400  # of each kind

USER = Column(SHEET, "user")
COLUMNS = Columns(dict.fromkeys([Column(part, name) for part in (METRIC, CONTROL) for name in METRICS], ""))
EMPTY = Trial.create(PATIENTS, MemoryStore())
NUMERIC = {Column(SHEET, "decision"), *(Column(METRIC, m) for m in METRICS)}


def outcomes(data: bytes) -> Values:
    """What `tell` would record of a sheet."""
    sheet = Sheet(COLUMNS, read(data, "s.csv"), NUMERIC, ())
    for name in sheet.unknown:
        COLUMNS.refuse(name)
    if any(sheet.doubts()):
        raise InputError("it must be confirmed")
    marks = sheet.marks
    told: Values = {}
    for cells in sheet.rows.values():
        report = sheets.report_of({}, cells, marks)
        which = report.decision
        if cells.get(USER, USERS[which % len(USERS)]) != USERS[which % len(USERS)]:
            raise InputError("the decision is for another user")
        if report.outcome:
            if which in told:
                raise InputError("one decision is reported twice")
            told[which] = {name: float(value) for name, value in report.outcome.items() if value is not None}
    if not told:
        raise InputError("no outcomes")
    return told


def asked(data: bytes) -> Values:
    """Whom `ask` would enrol with a sheet, and how old they are."""
    sheet = sheets.read_ask_sheet(EMPTY.state(), read(data, "s.xlsx"))
    if sheet.doubts:
        raise InputError("it must be confirmed")
    enrolled = {user: dict(sheet.request.enrol[user]["attributes"]) for user in sheet.request.users or ()}
    return {user: {"age": values["age"]} for user, values in enrolled.items()}


def wrong(sheet: Drawn, reading: Callable[[bytes], Values]) -> str | None:
    """How a sheet was read wrong; None: it was not."""
    try:
        found = reading(sheet.data)
    except InputError as error:
        return f"refused: {error}" if sheet.sound and sheet.meant else None
    return None if found == sheet.meant else f"read as {found}"


DRAWS: dict[Callable[[random.Random], Drawn], Callable[[bytes], Values]]
DRAWS = {drawn: outcomes, drawn_workbook: outcomes, drawn_asked: asked}


def check(draw: Callable[[random.Random], Drawn], sheets: int) -> None:
    """None of so many sheets is read wrong."""
    rng = random.Random(sheets)
    read_right = 0
    for _ in range(sheets):
        sheet = draw(rng)
        assert (how := wrong(sheet, DRAWS[draw])) is None, (sheet, how)
        read_right += sheet.sound
    assert read_right > sheets // 5  # the others are damaged, or have a cell with two readings


@pytest.mark.parametrize("draw", DRAWS)
def test_no_random_sheet_is_read_wrong(draw: Callable[[random.Random], Drawn]) -> None:
    check(draw, FEW)
