"""Trials that were created when any name was allowed: their columns are told apart by what they are."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import InputError
from drimed.records import Receipt
from drimed.trial import sheets, validation
from drimed.trial.columns import Column, Columns
from drimed.trial.names import CONTEXT, METRIC
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Table, csv_text, read
from drimed.trial.trial import Trial
from tests.trial.fields import FIELD, SEASON
from tests.trial.trials import SMALL


@pytest.fixture(autouse=True)
def _older(monkeypatch: pytest.MonkeyPatch) -> None:
    """As before names were checked when a trial is created."""
    monkeypatch.setattr(validation, "first_faults", lambda _: [])


def older(metric: str, field: str) -> Trial:
    """A trial with this metric and this context field, and its first season."""
    named = {"metrics": {metric: {}}, "preference": {metric: 1.0}, "context": {field: {"typical": 4.0}}}
    trial = Trial.create(SMALL | named, MemoryStore())
    trial.open_episode({"north": {field: 4.0}, "south": {field: 6.0}})
    return trial


def tell(trial: Trial, table: Table) -> list[Receipt]:
    with trial.writing() as tx:
        return sheets.tell_sheet(tx, table)


NAMES = [
    ("yield", "yield"), ("propensity", "rain"), ("episode", "rain"), ("yield", "decision"), ("user", "decision"),
    ("Yield", "yield"), ("context.yield", "yield"), ("arm", "arm"), ("notes", "notes"), ("decision", "Decision"),
]  # fmt: skip


@pytest.mark.parametrize(("metric", "field"), NAMES)
def test_a_sheet_that_is_written_is_read_back_as_it_was_meant(metric: str, field: str) -> None:
    trial = older(metric, field)
    given, columns = trial.ask_many(), Columns.of(trial.state().problem)
    written = csv_text(sheets.decision_rows(columns, given, [metric]))
    with pytest.raises(InputError, match="no outcomes"):  # the contexts of an unedited sheet are no outcomes
        tell(trial, read(written))
    rows = [row.cells | {columns.named(METRIC, metric): str(7 + i)} for i, row in enumerate(read(written).rows)]
    assert [t.decision for t in tell(trial, Table.of(rows))] == [1, 2]
    assert [d.outcome for d in trial.decisions()] == [{metric: 7.0}, {metric: 8.0}]
    assert [d.context for d in trial.decisions()] == [{field: 4.0}, {field: 6.0}]


@pytest.mark.parametrize(("metric", "field"), NAMES)
def test_a_sheet_to_ask_with_is_filled_in_under_the_names_that_it_has(metric: str, field: str) -> None:
    trial = older(metric, field)
    name = Columns.of(trial.state().problem).named(CONTEXT, field)
    rows = sheets.blank_sheet(trial.state())
    assert all(name in row for row in rows)
    filled = Table.of(row | {name: "5"} for row in rows)
    with trial.writing() as tx:
        assert [d.context for d in sheets.ask_sheet(tx, filled, episode=2)] == [{field: 5.0}] * 2


@pytest.mark.parametrize(
    ("metric", "field", "text", "said"),
    [
        ("yield", "yield", "decision,yield\n1,7\n", "column 'yield' may be metric 'yield' or context field 'yield'"),
        ("episode", "rain", "decision,episode\n1,7\n", "may be the sheet's own column 'episode' or metric 'episode'"),
        ("yield", "decision", "decision,yield\n4,7\n", "call the second context.decision"),
    ],
)
def test_a_name_that_may_mean_two_things_is_refused_with_what_to_write(
    metric: str, field: str, text: str, said: str
) -> None:
    trial = older(metric, field)
    trial.ask_many()
    with pytest.raises(InputError, match=said):
        tell(trial, read(text))


def test_the_sheet_of_an_earlier_version_in_which_a_context_stands_for_the_decision_is_refused() -> None:
    trial = older("yield", "decision")
    trial.ask_many()
    with pytest.raises(InputError, match="column 'decision' may be"):
        tell(trial, read("decision,episode,user,arm,propensity,reason,yield\n2.0,1,south,old,1,x,5\n"))


def test_names_of_places_may_be_metrics_and_attributes() -> None:
    users = {"north": {"attributes": {"plot": 1.0}}, "south": {"attributes": {"plot": 2.0}}}
    trial = Trial.create(FIELD | {"users": users, "enrolment": "open"}, MemoryStore())
    text = "user,attribute.plot,plot,rain,slope\nwest,3,,450,flat\nnorth,1,,450,flat\n"
    with trial.writing() as tx:
        assert [d.plot for d in sheets.ask_sheet(tx, read(text), episode=1)] == [None, None]
    with (
        pytest.raises(InputError, match="may be the sheet's own column 'plot' or attribute 'plot'"),
        trial.writing() as tx,
    ):
        sheets.ask_sheet(tx, read(SEASON), episode=1)


def test_arms_can_still_be_added_to_a_trial_with_such_names_and_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    metrics: dict[str, Any] = {"yield": {"better": "lower"}}
    trial = Trial.create(SMALL | {"metrics": metrics, "context": {"yield": {}}}, MemoryStore())
    monkeypatch.undo()
    trial.add_arm("newer")
    assert trial.status().arms == ["old", "new", "newer"]


def test_a_column_knows_its_names() -> None:
    columns = Columns(["yield", "cost"], ["rain", "yield"], ["ph"])
    assert [columns.named(METRIC, m) for m in columns.metrics] == ["metric.yield", "cost"]
    assert columns.matches("COST") == [Column(METRIC, "cost")]
    assert columns.matches("Control.Yield") == [Column("control", "yield")]
