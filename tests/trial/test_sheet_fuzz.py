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
from drimed.trial.tables import read
from tests.trial.drawn_sheets import METRICS, USERS, Drawn, Values, drawn
from tests.trial.drawn_workbooks import drawn_workbook

FEW = 400  # of each kind

USER = Column(SHEET, "user")
COLUMNS = Columns(dict.fromkeys([Column(part, name) for part in (METRIC, CONTROL) for name in METRICS], ""))
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


def wrong(sheet: Drawn) -> str | None:
    """How a sheet was read wrong; None: it was not."""
    try:
        found = outcomes(sheet.data)
    except InputError as error:
        return f"refused: {error}" if sheet.sound and sheet.meant else None
    return None if found == sheet.meant else f"read as {found}"


DRAWS = (drawn, drawn_workbook)


def check(draw: Callable[[random.Random], Drawn], sheets: int) -> None:
    """None of so many sheets is read wrong."""
    rng = random.Random(sheets)
    read_right = 0
    for _ in range(sheets):
        sheet = draw(rng)
        assert wrong(sheet) is None, (sheet, wrong(sheet))
        read_right += sheet.sound
    assert read_right > sheets // 5  # the others are damaged, or have a cell with two readings


@pytest.mark.parametrize("draw", DRAWS)
def test_no_random_sheet_is_read_wrong(draw: Callable[[random.Random], Drawn]) -> None:
    check(draw, FEW)
