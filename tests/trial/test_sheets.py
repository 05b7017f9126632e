"""Sheets: what goes out comes in again, and what is wrong is told with its row."""

from __future__ import annotations

import time
from typing import Any

import pytest

from drimed.errors import MOST_HINTS, BatchError, InputError
from drimed.records import Receipt
from drimed.trial import sheets
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Record, Table, csv_text, read
from drimed.trial.trial import Trial
from tests.trial.trials import SMALL

WITH_CONTEXT = SMALL | {"context": {"rain": {"typical": 500.0, "spread": 100.0}}}


@pytest.fixture
def trial() -> Trial:
    made = Trial.create(WITH_CONTEXT, MemoryStore())
    made.open_episode({"north": {"rain": 450.0}, "south": {"rain": 600.0}})
    return made


def tell(trial: Trial, rows: list[Record], **words: Any) -> list[Receipt]:
    with trial.writing() as tx:
        return sheets.tell_sheet(tx, Table.of(rows), **words)


def records(text: str) -> list[Record]:
    """The rows of a sheet."""
    return [row.cells for row in read(text).rows]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"user": "nroth", "rain": "1"}], "row 2: unknown user 'nroth'; did you mean 'north'"),
        ([{"user": "north", "rain": "1"}, {"user": "north", "rain": "2"}], "row 3: user 'north' is in the sheet twice"),
        ([{"user": "north", "rain": "-"}], "row 2: column 'rain' is empty"),
        ([{"user": "north", "rain": "4,5"}], "row 2: rain must be a number, got '4,5'; write decimals with a point"),
        ([{"user": "north", "rain": 10**400}], "row 2: rain must be finite, got 1000.*[.]{3};"),
        ([{"user": "north", "rain": 16**5000}], "row 2: rain must be finite"),
        ([{"user": "north", "rain": "9" * 5000}], "row 2: rain must be finite, got '999.*[.]{3};"),
        ([{"user": "north", "rain": [1]}], "rain must be a number"),
        ([{"user": [1], "rain": 1}], "row 2: unknown user"),
    ],
)
def test_contexts_are_refused_with_their_row(trial: Trial, rows: list[Record], said: str) -> None:
    with pytest.raises(BatchError, match=said):
        sheets.read_ask_sheet(trial.state(), Table.of(rows))


def test_a_column_that_is_not_there_is_named_once_with_those_that_are(trial: Trial) -> None:
    rows = [{"Farm": "north", "RAIN (sum)": "4"}, {"Farm": "south", "RAIN (sum)": "4"}]
    with pytest.raises(InputError) as error:
        sheets.read_ask_sheet(trial.state(), Table.of(rows))
    there = "the sheet has no columns 'user', 'rain'; it has 'Farm', 'RAIN (sum)'"
    assert str(error.value) == f"{there}: call 'Farm' 'user' if it is that"


def test_the_sheet_of_ask_is_filled_in_bit_by_bit(trial: Trial) -> None:
    rows = records(csv_text(sheets.decision_rows(trial.state(), trial.ask_many())))
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
        ({"Farm": "north"}, "unknown column 'Farm'; did you mean 'user'"),
        ({"yeild": "3"}, "unknown column 'yeild'; did you mean 'yield'"),
        ({"decision": "99"}, "row 2: decision: trial 'small' has no decision 99"),
        ({"decision": "1.5"}, "row 2: decision must be a whole number"),
        ({"decision": ""}, "row 2: column 'decision' is missing"),
    ],
)
def test_a_wrong_row_is_named_and_nothing_is_written(trial: Trial, change: dict[str, str], said: str) -> None:
    rows = records(csv_text(sheets.decision_rows(trial.state(), trial.ask_many())))
    for row in rows:
        row["yield"] = "5"
    rows[0] = {k: v for k, v in (rows[0] | change).items() if v}
    before = trial.status().events
    with pytest.raises(InputError, match=said):
        tell(trial, rows)
    assert trial.status().events == before


def test_columns_of_others_are_passed_over_when_named(trial: Trial) -> None:
    rows = [{"decision": str(trial.ask("north").id), "yield": "5", "plot": "7b"}]
    with pytest.raises(BatchError, match="row 2: decision 1 has no plot, the sheet says '7b'"):
        tell(trial, rows)
    assert tell(trial, rows, ignore=["plot"])[0].result == "recorded"


def test_a_decision_that_comes_twice_is_told_with_both_of_its_rows(trial: Trial) -> None:
    trial.ask_many()
    before = trial.status().events
    rows = [{"decision": n, "yield": value} for n, value in (("2", "5"), ("1", "5"), ("1", ""), ("2", "6"))]
    with pytest.raises(BatchError) as refused:
        tell(trial, rows)
    assert str(refused.value) == "row 5: decision 2 has an outcome in row 2 too; tell each once"
    assert trial.status().events == before


def test_a_wrong_sheet_is_refused_without_the_lock(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    trial.ask_many()
    monkeypatch.setattr(trial.store, "writing", lambda _: pytest.fail("the lock was taken"))
    for act in (
        lambda tx: sheets.tell_sheet(tx, read("decision,yield\n1,8.7x\n")),
        lambda tx: sheets.ask_sheet(tx, read("user,rain\nnobody,4\n")),
    ):
        with pytest.raises(BatchError):
            trial.decide(act, large=True)


def test_only_the_first_faults_say_what_was_probably_meant(trial: Trial) -> None:
    with pytest.raises(BatchError) as error:
        sheets.read_ask_sheet(trial.state(), Table.of({"user": f"nrth{i}", "rain": 1} for i in range(100)))
    messages = [fault.message for fault in error.value.faults]
    assert ["did you mean 'north'" in message for message in messages] == [i < MOST_HINTS for i in range(100)]


def test_doubts_about_a_sheet_take_time_by_its_length_only() -> None:
    """20,000 rows that may each be one number with a decimal comma: 10 s before."""
    two = {"metrics": {"yield": {}, "leaching": {}}, "preference": {"yield": 1.0, "leaching": -1.0}}
    trial = Trial.create(SMALL | two, MemoryStore())
    for decision in trial.ask_many():
        trial.tell(decision.id, {"yield": 8.25, "leaching": 7.5})
    state = trial.state()
    table = read("decision,yield,leaching\n" + "".join(f"{n},8,7\n" for n in range(1, 20_001)))
    sheet = sheets.Sheet(sheets.Columns.of(state.problem), table, {sheets.Column("metric", "yield")}, ())
    reports = {row: sheets.report_of(state.spec.metrics, cells, sheet.marks) for row, cells in sheet.rows.items()}
    start = time.process_time()
    assert len(list(sheets._split_decimals(state, sheet, reports, {}))) == 20_000
    assert time.process_time() - start < 2
