"""One reader of tables: what a sheet says is read right, or refused with its row, and never read wrong."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest

from drimed.errors import BatchError, DrimedError, InputError, MissingExtraError
from drimed.trial import tables
from drimed.trial.tables import Record, csv_text, marks, number, read, sheet, table_text


def records(data: bytes | str, name: str = "") -> list[Record]:
    return [row.cells for row in read(data, name).rows]


def test_any_common_separator_is_read_and_every_kind_of_line_end() -> None:
    for separator in ",;\t":
        for end in ("\n", "\r\n", "\r"):
            text = end.join((f"user{separator}rain", f'north{separator}"4', '5"', f"south{separator}3", ""))
            assert records(text) == [{"user": "north", "rain": "4\n5"}, {"user": "south", "rain": "3"}]


def test_blank_rows_and_empty_columns_at_the_end_are_passed_over_and_rows_keep_their_numbers() -> None:
    found = read("\n\nuser,rain,note,,\nnorth,,x,,\n,,,,\n\nsouth,3,,,\n\n")
    assert [(r.number, r.cells) for r in found.rows] == [
        (4, {"user": "north", "note": "x"}),
        (7, {"user": "south", "rain": "3"}),
    ]


@pytest.mark.parametrize(
    ("data", "assumed"),
    [
        ("user,rain\nMüller,3\n".encode(), ""),
        ("user,rain\nMüller,3\n".encode("utf-8-sig"), ""),
        ("user,rain\nMüller,3\n".encode("utf-16"), ""),
        ("user,rain\nMüller,3\n".encode("utf-16-be").join((b"\xfe\xff", b"")), ""),
        ("user,rain\nMüller,3\n".encode("cp1252"), "Windows-1252"),
    ],
)
def test_encodings_are_told_apart_and_what_was_assumed_is_said(data: bytes, assumed: str) -> None:
    found = read(data, "s.csv")
    assert ([r.cells["user"] for r in found.rows], found.assumed) == (["Müller"], assumed)


@pytest.mark.parametrize("suffix", [".csv", ".json", ".xlsx"])
def test_what_is_written_is_read_again(suffix: str) -> None:
    rows = [
        {"decision": 1, "user": "a, b", "yield": 0.1, "group": "=1+1"},
        {"decision": 2, "user": 'c"d', "yield": None, "group": "-x"},
    ]
    back = [row.cells for row in read(sheet(rows, suffix), f"s{suffix}").rows]
    assert [r["user"] for r in back] == ["a, b", 'c"d']
    assert [r["group"] for r in back] == ["=1+1", "-x"]
    assert [float(r["yield"]) for r in back if "yield" in r] == [0.1]


@pytest.mark.parametrize(
    ("text", "name", "said"),
    [
        ("", "", "empty"),
        ("a,a\n1,2\n", "", "two columns have the name 'a'"),
        ("a,ａ\n1,2\n", "", "two columns have the name 'a'"),
        ("a,b\n1,2,3\n", "", "row 2: expected 2 cells, got 3: 1 | 2 | 3"),
        ("decision,user,yield,leaching\n1,north,8,7,31\n", "", "row 2: expected 4 cells, got 5.*if 8,7 is one number"),
        ("decision,user,yield,leaching\n1,north,8,7,\n", "", "row 2: expected 4 cells.* the last is empty"),
        ("user,rain,\nnorth,400,5\n", "", "row 2: expected 2 cells, got 3"),
        ("user,,rain\nnorth,x,5\n", "", "row 2: cell 2, 'x', has no name"),
        ('a,b\n1,"2\n3,4\n5,6\n', "", "row 2: the cells cannot be told apart .*is a quote not closed"),
        ('a,b\n1,"2\n3,4"\n5,6\n', "", "row 2: a cell in quotes goes on over several lines"),
        ('a,b\n1,"2"3\n', "", "row 2: the cells cannot be told apart"),
        ('a,b\n1,x"y,z"\n', "", "row 2: expected 2 cells, got 3"),
        ("a;b,c\n1;2,3\n", "", "are cells separated by commas or semicolons"),
        ("sep=|\na|b\n", "", "separated by '|'"),
        ('[{"decision": 1}]', "s.csv", "JSON without its name"),
        ("{", "s.json", "line 1: not JSON"),
        ('{"a": 1}', "s.json", "list of records"),
        ("[1]", "s.json", "list of records"),
        ("[" * 100_000, "s.json", "nested too deeply"),
        ('[{"a": ' + "9" * 5000 + "}]", "s.json", "too many digits"),
        ('[{"a": 1}, {"a": "\\ud800"}]', "s.json", "row 3: a text has a character that is not valid Unicode"),
        ('[{"a": 1, "b": 2, "a": 3}]', "s.json", "row 2: two fields have the name 'a'"),
        (json.dumps([{f"c{i}": 1} for i in range(1001)]), "s.json", "at most 1,000 columns"),
        ("<html>", "s.csv", "a web page"),
        ("a,b\n1,2\n3," + "x" * 140_000, "", "row 3: the cells cannot be told apart"),
        ("x" * 140_000 + ",y\n", "", "row 1: the cells cannot be told apart"),
        ("a\n\ud800\n", "", "a character that is not valid Unicode"),
    ],
)
def test_a_sheet_that_is_none_or_leaves_a_doubt_is_refused(text: str, name: str, said: str) -> None:
    with pytest.raises(InputError, match=said.replace("|", "[|]")):
        read(text, name)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"%PDF-1.7 ...", "is a PDF"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1", "is not a text"),
        (b"PK\x03\x04 not a zip", "is damaged"),
        (b"SQLite format 3\x00....", "is not a text"),
        (b"a,b\n\x00\x01", "is not a text"),
        ("a,b\n1,2\n".encode("utf-16-le"), "is not a text"),
        (b"\xff\xfea\x00,", "is not UTF-16"),
    ],
)
def test_a_file_that_is_no_text_is_refused_by_its_name(data: bytes, said: str) -> None:
    with pytest.raises(InputError, match=rf"s\.csv.*{said}"):
        read(data, "s.csv")


@pytest.mark.parametrize(
    ("text", "separator", "others", "value"),
    [
        ("8.7", ",", [], 8.7),
        ("1.234", ",", [], 1.234),
        ("8,7", ";", [], 8.7),
        ("\N{MINUS SIGN}8,7", "\t", [], -8.7),
        ("512,5", tables.WORKBOOK, [], 512.5),
        ("1,234", ";", ["8,7"], 1.234),
        ("1.234", ";", ["8.7"], 1.234),
        ("0,123", ";", [], 0.123),
        (".5", ",", [], 0.5),
        ("1,5E+03", ";", [], 1500.0),
    ],
)
def test_numbers_are_read_as_their_sheet_writes_them(
    text: str, separator: str, others: list[str], value: float
) -> None:
    assert number("yield", text, marks(separator, [text, *others])) == value


@pytest.mark.parametrize(
    ("text", "separator", "others", "said"),
    [
        ("8,7", ",", [], "write decimals with a point"),
        ("1,234", ",", [], "yield 1,234 can be read as 1234 or as 1.234; write 1234 or 1.2340"),
        ("1,234", ";", [], "can be read as 1234 or as 1.234"),
        ("1,234", ";", ["8.7", "9,1"], "can be read as 1234 or as 1.234"),
        ("1.234", ";", ["8,7"], "can be read as 1234 or as 1.234"),
        ("8_7", ",", [], "write digits only"),
        ("1\N{NARROW NO-BREAK SPACE}234,5", ";", [], "write digits only"),
        ("1.234,5", ";", [], "write digits only"),
        ("1'234", ",", [], "write digits only"),
        ("８.７", ",", [], "must be a number"),
        ("0x10", ",", [], "must be a number"),
        ("inf", ",", [], "must be finite"),
    ],
)
def test_a_number_with_two_readings_or_none_is_refused(text: str, separator: str, others: list[str], said: str) -> None:
    with pytest.raises(InputError, match=said):
        number("yield", text, marks(separator, [text, *others]))


def test_texts_that_a_spreadsheet_would_run_are_written_as_texts() -> None:
    for text in ("=1+1", "+1", "-1", "@a", " =1", "\t=1"):
        assert tables.guarded(text) == f"'{text}"
        (row,) = read(csv_text([{"a": text.strip(), "b": "'quoted'"}])).rows
        assert row.cells == {"a": text.strip(), "b": "'quoted'"}


# Workbooks


def book(*sheets: list[list[Any]]) -> bytes:
    openpyxl = pytest.importorskip("openpyxl")
    made = openpyxl.Workbook()
    made.remove(made.active)
    for i, rows in enumerate(sheets):
        page = made.create_sheet(f"page {i + 1}")
        for row in rows:
            page.append(row)
    out = io.BytesIO()
    made.save(out)
    return out.getvalue()


def test_a_workbook_is_read_with_its_types_whatever_it_is_called() -> None:
    data = book([["decision", "user", "yield", None], [], [1, 7, 8.7, None], [2.0, "north ", "n/a"]], [])
    for name in ("s.xlsx", "s.csv"):
        found = read(data, name)
        assert [(r.number, r.cells) for r in found.rows] == [
            (3, {"decision": 1, "user": 7, "yield": 8.7}),
            (4, {"decision": 2, "user": "north", "yield": "n/a"}),
        ]


@pytest.mark.parametrize(
    ("sheets", "said"),
    [
        ([[["a"], [1]], [["b"], [2]]], "page 1', 'page 2'"),
        ([[["a", "b"], [1, "=A2+1"]]], "row 2: the formula '=A2[+]1' has no value in the file"),
        ([[["a"], [1, 2]]], "row 2: expected 1 cells, got 2"),
        ([[]], "empty"),
    ],
)
def test_a_workbook_that_leaves_a_doubt_is_refused(sheets: list[list[list[Any]]], said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(book(*sheets), "s.xlsx")


def test_an_archive_that_is_no_workbook_or_is_damaged_is_refused() -> None:
    import zipfile

    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        packed.writestr("content.xml", "x")
    with pytest.raises(InputError, match=r"is not an \.xlsx workbook"):
        read(out.getvalue(), "s.ods")
    with pytest.raises(DrimedError):
        read(book([["a"], [1]])[:200], "s.xlsx")


def test_workbooks_are_read_without_openpyxl_and_writing_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    data = book([["a"], [1]])

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(tables, "import_module", missing)
    assert read(data, "s.xlsx").rows[0].cells == {"a": 1}
    with pytest.raises(MissingExtraError, match=r"pip install 'drimed\[excel\]'"):
        sheet([{"a": 1}], ".xlsx")


def test_a_table_is_shown_with_every_row_in_its_place() -> None:
    found = read(book([["a", "b"], [], [1, "x,y"], [], [2, None]]), "s.xlsx")
    again = read(table_text(found))
    assert [(r.number, r.cells) for r in again.rows] == [(3, {"a": "1", "b": "x,y"}), (5, {"a": "2"})]


def test_columns_of_a_workbook_are_as_wide_as_their_names() -> None:
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.load_workbook(io.BytesIO(sheet([{"id": 1, "yield of the first cut (t/ha)": 2.5}], ".xlsx")))
    widths = book.active.column_dimensions
    assert (widths["A"].width, widths["B"].width) == (10, len("yield of the first cut (t/ha)") + 2)


def test_a_title_above_the_headings_is_one_error() -> None:
    sheet = "Outcomes of spring 2026,,\n,,\ndecision,user,yield\n" + "".join(f"{i},north,5\n" for i in range(1, 19))
    said = "row 1 looks like a title; the headings seem to be in row 3: decision | user | yield. Take out the rows"
    with pytest.raises(InputError, match=re.escape(said)):
        read(sheet)
    with pytest.raises(BatchError, match="row 2: expected 2 cells, got 3"):
        read("decision,yield\n1,north,5\n2,south,7\n")
