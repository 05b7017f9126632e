"""Headings with units: taken off where they are the trial's, refused where they are others, never misread."""

from __future__ import annotations

from typing import Any

import pytest

from drimed.errors import InputError
from drimed.trial import sheets
from drimed.trial.past import read_rows
from drimed.trial.problem import Problem
from drimed.trial.sheets import Column, Columns
from drimed.trial.spec import CONTEXT, CONTROL, METRIC, TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.tables import Table, read
from drimed.trial.trial import Trial
from tests.trial.trials import SMALL

FARM: dict[str, Any] = SMALL | {
    "metrics": {"yield": {"unit": "t/ha"}, "protein": {}},
    "preference": {"yield": 1.0, "protein": 0.1},
    "context": {"rain": {"unit": "mm", "typical": 500.0, "spread": 100.0}},
}


@pytest.fixture
def trial() -> Trial:
    made = Trial.create(FARM, MemoryStore())
    made.ask_many(contexts={"north": {"rain": 450.0}, "south": {"rain": 600.0}})
    return made


def told(trial: Trial, heading: str) -> dict[str, float] | None:
    """What a sheet with one value under this heading says of it."""
    with trial.writing() as tx:
        sheets.tell_sheet(tx, Table.of([{"decision": 1, heading: 8.7}]), confirm=True)
    return trial.decision(1).outcome


@pytest.mark.parametrize(
    "heading",
    ["YIELD (t/ha)", "Yield [t/ha]", "yield, t/ha", "yield t/ha", "yield / t/ha", "yield {t ha-1}", "Yield (t ha⁻¹)",
     "YIELD (T/HA)", "metric.yield (t/ha)", "yield (t per ha)", "yield_t/ha"],
)  # fmt: skip
def test_the_declared_unit_is_taken_off_a_heading(trial: Trial, heading: str) -> None:
    assert told(trial, heading) == {"yield": 8.7}


@pytest.mark.parametrize("heading", ["Yield (kg/ha)", "yield, kg/ha", "yield kg/ha", "yield [t/ac]", "yield (t)"])
def test_another_unit_than_the_declared_one_is_refused(trial: Trial, heading: str) -> None:
    with pytest.raises(InputError, match="of the trial in t/ha: convert the values, or call"):
        told(trial, heading)
    assert trial.decision(1).outcome is None


def test_a_metric_whose_name_has_brackets_is_itself() -> None:
    named = {"metrics": {"yield": {"unit": "t/ha"}, "yield (kg)": {}}, "preference": {"yield": 1.0}}
    trial = Trial.create(SMALL | named, MemoryStore())
    trial.ask_many()
    assert told(trial, "yield (kg)") == {"yield (kg)": 8.7}


def test_contexts_have_headings_with_units_too(trial: Trial) -> None:
    found = sheets.read_ask_sheet(trial.state(), read("user,Rain (mm)\nnorth,480\nsouth,510\n"))
    assert found.request.contexts == {"north": {"rain": 480.0}, "south": {"rain": 510.0}}
    with pytest.raises(InputError, match=r"column 'rain \(cm\)' is in cm, and rain of the trial in mm"):
        sheets.read_ask_sheet(trial.state(), read("user,rain (cm)\nnorth,48\nsouth,51\n"))


def test_what_asking_does_not_look_at_may_have_any_unit(trial: Trial) -> None:
    found = sheets.read_ask_sheet(trial.state(), read("user;rain;yield (kg/ha)\nnorth;480;8000\nsouth;510;7000\n"))
    assert found.request.contexts["north"] == {"rain": 480.0}


def test_a_table_of_the_past_may_have_units_in_its_headings() -> None:
    problem = Problem(TrialSpec.read(FARM))
    rows = [(s, f, a, 8 + len(a), 11) for s in ("2024", "2025") for f in ("north", "south") for a in problem.arms]
    text = "".join(f"{','.join(map(str, row))}\n" for row in rows)
    found = read_rows(problem, read(f"season,site,arm,Yield (t/ha),Protein (%)\n{text}"))
    assert all(set(row.metrics) == {"yield", "protein"} for row in found)
    with pytest.raises(InputError, match="is in kg/ha"):
        read_rows(problem, read(f"season,site,arm,Yield (kg/ha),Protein (%)\n{text}"))


def test_a_column_is_known_by_its_short_and_its_long_name_in_any_case() -> None:
    known = [Column(METRIC, "cost"), Column(CONTROL, "yield"), Column(CONTEXT, "rain"), Column(METRIC, "season")]
    columns = Columns(dict.fromkeys(known, ""))
    headings = ("COST", "metric.cost", "Control.Yield", "context.Rain", "cost (t/ha)", "season")
    assert [columns.match(heading)[0] for heading in headings] == [known[i] for i in (0, 0, 1, 2, 0, 3)]
    with pytest.raises(InputError, match=r"columns 'cost' and 'metric\.cost' are both 'metric\.cost'"):
        columns.read(read("cost,metric.cost\n1,2\n"))
