"""Columns of sheets."""

from __future__ import annotations

import pytest

from drimed.errors import InputError
from drimed.trial.columns import Column, Columns
from drimed.trial.names import CONTEXT, CONTROL, METRIC
from drimed.trial.tables import read

COLUMNS = Columns(["yield", "cost"], ["rain"], ["ph"])


@pytest.mark.parametrize(
    ("heading", "column"),
    [
        ("COST", Column(METRIC, "cost")),
        ("metric.cost", Column(METRIC, "cost")),
        ("Control.Yield", Column(CONTROL, "yield")),
        ("context.Rain", Column(CONTEXT, "rain")),
        ("yield (t/ha)", Column(METRIC, "yield")),
    ],
)
def test_a_column_is_known_by_its_short_and_its_long_name_in_any_case(heading: str, column: Column) -> None:
    assert COLUMNS.match(heading)[0] == column


def test_a_column_that_comes_twice_is_refused() -> None:
    with pytest.raises(InputError, match=r"columns 'yield' and 'metric\.yield' are the same: metric 'yield'"):
        COLUMNS.read(read("yield,metric.yield\n1,2\n"))


def test_a_word_that_the_trial_uses_is_no_column_of_notes() -> None:
    assert Columns(["season"], [], []).match("season")[0] == Column(METRIC, "season")
