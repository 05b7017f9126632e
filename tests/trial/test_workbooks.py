"""Workbooks: what they show and what they hold must be one, or a person is asked; hostile ones cost little."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest

from drimed.errors import InputError, UnconfirmedError
from drimed.records import AskRequest, Decision, Receipt
from drimed.trial import sheets
from drimed.trial.store import MemoryStore
from drimed.trial.tables import read
from drimed.trial.trial import Trial
from drimed.trial.workbooks import BYTES, CONDITIONAL, ELEMENTS, UNKNOWN, shown
from tests.trial.drawn_workbooks import LINKS, Cell, inline, number, packed, unpacked, workbook
from tests.trial.fields import PATIENTS
from tests.trial.trials import SMALL

FEW = 1000  # cells: a limit that a small file passes
SHEET = "xl/worksheets/sheet1.xml"


def tell(
    trial: Trial, cells: Sequence[Sequence[Cell]], *words: Any, confirm: bool = False, **more: Any
) -> list[Receipt]:
    with trial.writing() as tx:
        return sheets.tell_sheet(tx, read(workbook(cells, *words, **more), "s.xlsx"), confirm=confirm)


def ask(trial: Trial, cells: Sequence[Sequence[Cell]], *words: Any, confirm: bool = False) -> list[Decision]:
    with trial.writing() as tx:
        return sheets.ask_sheet(tx, read(workbook(cells, *words), "s.xlsx"), AskRequest(confirm=confirm))


@pytest.fixture
def trial() -> Trial:
    made = Trial.create(SMALL | {"metrics": {"yield": {"range": [0, 100]}}}, MemoryStore())
    made.ask_many()
    return made


HEADS = [inline("decision"), inline("yield")]
TWO = [HEADS, [number(1), number(85)], [number(2), number(9)]]


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        (0.85, "0%", "row 2: yield: cell B2 shows 85% and holds 0.85; is what it holds right?"),
        (0.853, "0.0%", "shows 85.3% and holds 0.853"),
        (15, '0"%"', 'in the format 0"%"'),
        (8700.0, "0.0,", "shows 8.7 and holds 8700"),
        (8.7, ";;;", "shows nothing and holds 8.7"),
        (8.7, "# ?/?", "something else, in the format"),
    ],
)
def test_a_number_that_is_shown_as_another_one_is_asked_about(trial: Trial, value: float, code: str, said: str) -> None:
    cells = [HEADS, [number(1), number(value, 1)]]
    with pytest.raises(UnconfirmedError) as asked:
        tell(trial, cells, [code])
    assert said in str(asked.value)
    assert trial.status().pending == 2
    assert tell(trial, cells, [code], confirm=True)[0].outcome == {"yield": value}


def test_many_cells_of_a_column_are_one_question(trial: Trial) -> None:
    with pytest.raises(UnconfirmedError, match="and 1 more cells of the column are like it") as asked:
        tell(trial, [HEADS, [number(1), number(0.85, 1)], [number(2), number(0.9, 1)]], ["0%"])
    assert len(asked.value.faults) == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"rows": {3: 'hidden="1"'}}, "row 3: the row is hidden; is it meant?"),
        ({"rows": {2: 'ht="0"', 3: 'hidden="1"'}}, "row 2: the row is hidden, and so are 1 more"),
        ({"before": '<cols><col min="2" max="9" hidden="1"/></cols>'}, "row 1: column 'yield' is hidden"),
        ({"before": '<sheetFormatPr zeroHeight="1"/>', "rows": {2: 'ht="15"'}}, "row 3: the row is hidden; is it"),
        ({"before": '<sheetFormatPr defaultRowHeight="0"/>'}, "row 2: the row is hidden, and so are 1 more"),
        (
            {"before": '<sheetFormatPr defaultColWidth="0"/><cols><col min="1" max="1" width="9"/></cols>'},
            "row 1: column 'yield' is hidden",
        ),
    ],
)
def test_what_is_hidden_is_asked_about(trial: Trial, more: dict[str, Any], said: str) -> None:
    with pytest.raises(UnconfirmedError) as asked:
        tell(trial, TWO, **more)
    assert said in str(asked.value)
    assert len(tell(trial, TWO, confirm=True, **more)) == 2


def test_a_zero_that_is_not_shown_is_asked_about(trial: Trial) -> None:
    before = '<sheetViews><sheetView showZeros="0"/></sheetViews>'
    cells = [HEADS, [number(1), number(0)], [number(2), number(9)]]
    with pytest.raises(UnconfirmedError, match="cell B2 shows nothing and holds 0; is"):
        tell(trial, cells, before=before)


def test_a_number_whose_format_depends_on_a_condition_is_asked_about() -> None:
    rule = '<conditionalFormatting sqref="B2:B9"><cfRule type="expression" dxfId="{}"/></conditionalFormatting>'
    styles = b'<dxfs><dxf><font/></dxf><dxf><numFmt numFmtId="9" formatCode="0%"/></dxf></dxfs></styleSheet>'
    for which, formats in (("0", [{}, {}]), ("1", [{"yield": CONDITIONAL}] * 2)):
        parts = unpacked(workbook(TWO, after=rule.format(which)))
        parts["xl/styles.xml"] = parts["xl/styles.xml"].replace(b"</styleSheet>", styles)
        assert [row.formats for row in read(packed(parts), "s.xlsx").rows] == formats


def test_an_error_of_a_formula_is_no_value_and_no_name(trial: Trial) -> None:
    with pytest.raises(InputError, match="cell B2 holds the error #REF!"):
        tell(trial, [HEADS, [number(1), '<c t="e"><v>#REF!</v></c>']])


def test_merged_cells_are_refused(trial: Trial) -> None:
    with pytest.raises(InputError, match="cells B2:B3 are merged"):
        tell(trial, TWO, after='<mergeCells><mergeCell ref="B2:B3"/></mergeCells>')


@pytest.mark.parametrize(
    ("value", "code", "said"),
    [
        (7, "000", "user: cell A2 shows 007 and holds 7"),
        (46082, "d-mmm", "user: cell A2 shows 01-Mar and holds 2026-03-01"),
        (1.1, "0.00", "shows 1.10 and holds 1.1"),
        (1234, "#,##0", "shows 1,234 and holds 1234"),
        (1234567890123456, "0", "shows 1.23457e+15 and holds 1234567890123456"),
        ('<c s="1" t="d"><v>2026-03-01</v></c>', "d-mmm", "shows 01-Mar and holds 2026-03-01"),
        ('<c s="1" t="str"><v>north</v></c>', ";;;", "shows nothing and holds north"),
    ],
)
def test_a_name_that_is_shown_otherwise_is_asked_about(value: float | Cell, code: str, said: str) -> None:
    patients = Trial.create(PATIENTS, MemoryStore())
    cell = value if isinstance(value, str) else number(value, 1)
    cells = [[inline(name) for name in ("user", "age", "sex")], [cell, number(61), inline("f")]]
    with pytest.raises(UnconfirmedError) as asked:
        ask(patients, cells, [code])
    assert said in str(asked.value)
    assert str(asked.value).split(" and holds ")[1].startswith(ask(patients, cells, [code], confirm=True)[0].user)


def test_formats_of_whole_numbers_and_money_show_what_is_held() -> None:
    codes = ("0", "0.00", "#,##0.00", "0.0 €", "[$€-407] #,##0.00", "_-* #,##0.00_-;-* #,##0.00_-", "0;(0)", "@")
    assert all(shown(value, code)[1] for code in codes for value in (8, 8.5, -3.25))
    assert [shown(value, "General;-General;;@") for value in (8, -3.25, 0, "a")] == [
        *(("8", True), ("-3.25", True), ("nothing", False), ("a", True))
    ]


def test_days_are_those_of_either_calendar() -> None:
    cells = [[inline("date"), inline("user")], [number(46082, 1), inline("a")], [number(1, 1), inline("b")]]
    for book, days in (
        ("", ["2026-03-01", "1900-01-01"]),
        ('<workbookPr date1904="1"/>', ["2030-03-02", "1904-01-02"]),
    ):
        rows = read(workbook(cells, ["dd/mm/yyyy"], book=book)).rows
        assert [row.cells["date"] for row in rows] == days


# Hostile files


def part(text: str) -> bytes:
    """A workbook with these rows."""
    made = unpacked(workbook([[inline("a")]]))
    return packed(made | {SHEET: f"<worksheet><sheetData>{text}</sheetData></worksheet>".encode()})


def with_part(name: str, text: bytes) -> bytes:
    return packed(unpacked(workbook([[inline("a")]])) | {name: text})


def formatted(code: str) -> bytes:
    return workbook([[inline("a")], [number(1, 1)]], [code])


AGAIN = f'<Relationship Id="r" Type="{LINKS}/sharedStrings" Target="sharedStrings.xml"/>' * 500
READ_AGAIN = packed(
    unpacked(workbook([[inline("a")]], texts=["x" * 50_000]))
    | {"xl/_rels/workbook.xml.rels": f"<Relationships>{AGAIN}</Relationships>".encode()}
)
COLUMNS = b"<worksheet><cols>" + b'<col min="1" max="16384" hidden="1"/>' * 2_500 + b"</cols><sheetData/></worksheet>"
LAUGHS = b'<!DOCTYPE x [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><worksheet>&b;</worksheet>'


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (part('<row r="1000000000000000000"/>'), "is damaged"),
        (part('<row r="1048577"/>'), "is not in its place"),
        (part('<row r="2"/><row r="1"/>'), "is not in its place"),
        (part('<row r="1"><c r="ZZZZ1"/></row>'), "is damaged"),
        (part('<row r="1"><c r="XFE1"/></row>'), "is not in its place"),
        (part('<row r="1"><c r="XFD1"/></row>'), "at most 1,000 cells"),
        (part("<row/>" * ELEMENTS * FEW), "at most 1,000 cells"),
        (part("<row>" + "<c/>" * (FEW + 1) + "</row>"), "at most 1,000 cells"),
        (with_part("xl/styles.xml", b"<cellXfs>" + b"<xf/>" * ELEMENTS * FEW + b"</cellXfs>"), "at most 1,000 cells"),
        (READ_AGAIN, "at most 1,000 cells"),
        (with_part("xl/sharedStrings.xml", b"<sst>" + b"<si/>" * ELEMENTS * FEW + b"</sst>"), "at most 1,000 cells"),
        (with_part(SHEET, COLUMNS), "described more than once"),
        (with_part("xl/media/1.png", b" " * BYTES * FEW), "when it is unpacked"),
        (with_part(SHEET, LAUGHS), "document type"),
        (with_part(SHEET, b"<worksheet><sheetData><row r='1'><c><v>1</v></c>"), "is damaged"),
        (with_part("xl/_rels/workbook.xml.rels", b"<a/>"), "the sheet is empty"),
    ],
)  # fmt: skip
def test_a_workbook_that_would_cost_much_is_refused_at_once(data: bytes, said: str) -> None:
    start = time.process_time()
    with pytest.raises(InputError, match=said):
        read(data, "s.xlsx", FEW)
    assert time.process_time() - start < 0.5


def test_a_format_that_would_be_looked_through_again_and_again_is_not_known() -> None:
    start = time.process_time()
    assert read(formatted("[" * 30_000), "s.xlsx").rows[0].formats == {"a": UNKNOWN}
    assert time.process_time() - start < 0.5


def test_texts_of_a_cell_that_come_in_many_pieces_are_joined_once() -> None:
    start = time.process_time()
    data = part("<row><c t='inlineStr'><is>" + f"<t>{'x' * 50}</t>" * 200_000 + "</is></c></row>")
    with pytest.raises(InputError, match="at most 300 characters"):
        read(data, "s.xlsx")
    assert time.process_time() - start < 5


def test_more_styles_than_there_can_be_are_refused_before_they_are_all_read() -> None:
    start = time.process_time()
    with pytest.raises(InputError, match="more than 65,536 styles"):
        read(with_part("xl/styles.xml", b"<cellXfs>" + b"<xf/>" * 2_000_000 + b"</cellXfs>"), "s.xlsx")
    assert time.process_time() - start < 1


def test_a_tag_without_end_is_refused_before_it_is_looked_through_again_and_again() -> None:
    start = time.process_time()
    with pytest.raises(InputError, match="a tag is too long"):
        read(with_part(SHEET, b"<worksheet a='" + b"x" * 60_000_000 + b"'/>"), "s.xlsx")
    assert time.process_time() - start < 2


def test_sheets_of_any_kind_have_limits() -> None:
    with pytest.raises(InputError, match="at most 1,000 cells"):
        read("a,b\n" + "1,2\n" * FEW, most=FEW)
    with pytest.raises(InputError, match="at most 1,000 columns"):
        read(",".join(map(str, range(1001))))
