"""Sheets: what goes out comes in again, and what is wrong is told with its row."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import BatchError, InputError
from drimed.records import Receipt
from drimed.trial import roster, sheets
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial
from tests.trial.trials import SMALL

WITH_CONTEXT = SMALL | {"context": {"rain": {"typical": 500.0, "spread": 100.0}}}


@pytest.fixture
def trial() -> Trial:
    made = Trial.create(WITH_CONTEXT, MemoryStore())
    made.open_episode({"north": {"rain": 450.0}, "south": {"rain": 600.0}})
    return made


def tell(trial: Trial, rows: list[sheets.Record], **words: Any) -> list[Receipt]:
    with trial.writing() as tx:
        return sheets.tell(tx, rows, **words)


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_any_common_delimiter_is_read(delimiter: str) -> None:
    text = delimiter.join(("user", "rain")) + "\n" + delimiter.join(("north", "4.5")) + "\n"
    assert sheets.read(text) == [{"user": "north", "rain": "4.5"}]


def test_a_byte_order_mark_empty_cells_and_empty_lines_do_no_harm() -> None:
    assert sheets.read("\ufeffuser,rain,note\nnorth,,x\n\nsouth,3,\n\n") == [
        {"user": "north", "note": "x"},
        {},
        {"user": "south", "rain": "3"},
    ]


def test_every_kind_of_line_end_is_read() -> None:
    for end in ("\n", "\r\n", "\r"):
        assert sheets.read(end.join(("user;rain", 'north;"4', '5"', "south;3", ""))) == [
            {"user": "north", "rain": "4\n5"},
            {"user": "south", "rain": "3"},
        ]


@pytest.mark.parametrize("form", ["csv", "json"])
def test_what_is_written_is_read_again(form: str) -> None:
    rows = [{"decision": 1, "user": "a, b", "yield": 0.1}, {"decision": 2, "user": 'c"d', "yield": None}]
    back = sheets.read(sheets.write(rows, form), form)
    assert [r["user"] for r in back] == ["a, b", 'c"d']
    assert [float(r["yield"]) for r in back if "yield" in r] == [0.1]


@pytest.mark.parametrize(
    ("text", "form", "said"),
    [
        ("", "csv", "empty"),
        ("a,a\n1,2\n", "csv", "two columns have the name 'a'"),
        ("a,b\n1,2,3\n", "csv", "row 2: expected 2 cells, got 3"),
        ("{", "json", "line 1: not JSON"),
        ('{"a": 1}', "json", "list of records"),
        ("[1]", "json", "list of records"),
        ("a,b\n1,2\n3," + "x" * 140_000, "csv", "row 3: a cell is too long"),
        ("x" * 140_000 + ",y\n", "csv", "row 1: a cell is too long"),
        ("a\n\ud800\n", "csv", "a character that is not valid Unicode"),
        ("[" * 100_000, "json", "nested too deeply"),
        ('[{"a": ' + "9" * 5000 + "}]", "json", "too many digits"),
        ('[{"a": 1}, {"a": "\\ud800"}]', "json", "row 3: a text has a character that is not valid Unicode"),
        ('[{"\\ud800": 1}]', "json", "row 2: a text has a character that is not valid Unicode"),
        ('[{"a": 1, "b": 2, "a": 3}]', "json", "row 2: two fields have the name 'a'"),
    ],
)
def test_a_sheet_that_is_none_is_refused(text: str, form: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        sheets.read(text, form)


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"user": "nroth", "rain": "1"}], "row 2: unknown user 'nroth'; did you mean 'north'"),
        ([{"user": "north", "rain": "1"}, {"user": "north", "rain": "2"}], "row 3: user 'north' is in the sheet twice"),
        ([{"user": "north"}], "row 2: column 'rain' is missing or empty"),
        ([{"user": "north", "rain": "4,5"}], "row 2: rain must be a number, got '4,5'; write decimals with a point"),
        ([{"user": "north", "rain": "nan"}], "row 2: rain must be finite"),
        ([{"user": "north", "rain": 10**400}], "row 2: rain must be finite, got 1000.*[.]{3};"),
        ([{"user": "north", "rain": 16**5000}], "row 2: rain must be finite"),
        ([{"user": "north", "rain": "9" * 5000}], "row 2: rain must be finite, got '999.*[.]{3};"),
        (sheets.read('[{"user": "north", "rain": ' + "[" * 300 + "]" * 300 + "}]", "json"), "rain must be a number"),
        (sheets.read('[{"user": [1], "rain": 1}]', "json"), "row 2: unknown user"),
    ],
)
def test_contexts_are_refused_with_their_row(trial: Trial, rows: list[sheets.Record], said: str) -> None:
    with pytest.raises(BatchError, match=said):
        roster.read(trial.state(), rows)


def test_the_sheet_of_ask_is_filled_in_bit_by_bit(trial: Trial) -> None:
    given = trial.ask()
    rows = sheets.read(sheets.write(sheets.decision_rows(given)))
    rows[1]["yield"] = "5.5"
    assert [t.decision for t in tell(trial, rows)] == [2]
    rows[0]["yield"] = "4.5"
    assert [t.result for t in tell(trial, rows)] == ["recorded", "already recorded"]
    assert trial.status().complete == 2


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"user": "south"}, "row 2: decision 1 is for user 'north', the sheet says 'south'"),
        ({"yield": "abc"}, "row 2: yield must be a number"),
        ({"yeild": "3"}, "row 2: unknown column 'yeild'; did you mean 'yield'"),
        ({"decision": "99"}, "row 2: decision: trial 'small' has no decision 99"),
        ({"decision": "1.5"}, "row 2: decision must be a whole number"),
        ({"decision": "1e300"}, "row 2: decision must be a whole number"),
        ({"decision": "-1"}, "row 2: decision must be a whole number"),
        ({"decision": ""}, "row 2: column 'decision' is missing"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_written(trial: Trial, change: dict[str, str], said: str) -> None:
    rows = sheets.read(sheets.write(sheets.decision_rows(trial.ask())))
    for row in rows:
        row["yield"] = "5"
    rows[0] = {k: v for k, v in (rows[0] | change).items() if v}
    before = trial.status().events
    with pytest.raises(BatchError, match=said):
        tell(trial, rows)
    assert trial.status().events == before


def test_columns_of_others_are_passed_over_when_named(trial: Trial) -> None:
    rows = [{"decision": str(trial.ask("north").id), "yield": "5", "plot": "7b"}]
    with pytest.raises(BatchError, match="unknown column 'plot'"):
        tell(trial, rows)
    assert tell(trial, rows, ignore=["plot"])[0].result == "recorded"
