from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, ShapeError
from drimed.evaluation.log import make_log, unknown_propensity
from tests.evaluation.logs import drawn

GOOD: dict[str, Any] = {"action": [0, 1, 0], "reward": [1.0, 2.0, 3.0], "propensity": [0.5, 0.25, 1.0]}


def test_without_names_arms_are_numbered() -> None:
    log = make_log(**GOOD)
    assert log.arms == ("0", "1")
    assert make_log(**GOOD, arms=4).K == 4


def test_without_a_propensity_column_it_is_read_off_the_probabilities() -> None:
    log = make_log(action=[0, 1], reward=[1.0, 2.0], probabilities=[[0.3, 0.7], [0.6, 0.4]])
    assert log.propensity.tolist() == [0.3, 0.4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward": [1.0, np.nan, 3.0]}, "reward must be finite, got nan in row 102"),
        ({"reward": [1.0, np.inf, -np.inf]}, "reward must be finite, got inf in row 102"),
        ({"episode": [0.0, np.nan, 1.0]}, "episode must be finite, got nan in row 102"),
        ({"reward": ["a", "b", "c"]}, "reward must be numbers"),
        ({"propensity": [0.5, 0.0, 1.0]}, "above 0 and at most 1, got 0.0 in row 102"),
        ({"propensity": [0.5, -0.1, 1.0]}, "above 0 and at most 1, got -0.1"),
        ({"propensity": [0.5, 0.2, 1.5]}, "above 0 and at most 1, got 1.5 in row 103"),
        ({"propensity": None}, "a log needs the propensity of the arm played"),
        ({"action": [0, 2, 0], "arms": ["a", "b"]}, "an arm from 0 to 1, got 2 in row 102"),
        ({"action": [0, -1, 0]}, "got -1 in row 102"),
        ({"action": [0.5, 1.0, 0.0]}, "action must be the index of an arm"),
        ({"arms": ["a", "a"]}, "arms must be different names"),
        ({"probabilities": [[0.5, 0.5], [0.7, 0.3], [1.0, 0.0]]}, "disagree in row 102: 0.25 and 0.3"),
        ({"probabilities": [[0.5, 0.5], [0.7, 0.25], [1.0, 0.0]]}, "must sum to 1 over the arms, got 0.95"),
        ({"probabilities": [[0.5, 0.5], [1.2, -0.2], [1.0, 0.0]]}, "must not be negative"),
        ({"available": [[True, True], [True, False], [True, True]]}, "although it was not available"),
        ({"targets": {"t": [[1.0, 0.0], [0.4, 0.4], [1.0, 0.0]]}}, "target t must sum to 1"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make_log(**(GOOD | change), start=100)


@pytest.mark.parametrize(
    "change",
    [{"action": [0, 1]}, {"propensity": [0.5]}, {"predictions": [[1.0, 2.0]]}, {"user": ["a"]}, {"metrics": [1.0]}],
)
def test_columns_of_other_lengths_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(ShapeError):
        make_log(**(GOOD | change))


def test_an_unknown_propensity_is_kept_and_told_with_advice() -> None:
    log = make_log(**(GOOD | {"propensity": [0.5, np.nan, 1.0]}), start=7)
    told = unknown_propensity(log)
    assert told is not None
    assert "row 9:" in told
    assert "direct method" in told
    assert unknown_propensity(make_log(**GOOD)) is None


def test_rows_cut_every_column_and_remember_where_they_are_from() -> None:
    log, _ = drawn(30)
    part = log.rows(10, 25)
    assert len(part) == 15
    assert part.start == 10
    assert part.probabilities is not None
    assert log.probabilities is not None
    np.testing.assert_array_equal(part.probabilities, log.probabilities[10:25])


def test_judged_by_a_metric_the_predictions_of_the_reward_are_gone() -> None:
    log, _ = drawn(30)
    assert log.metrics is not None
    other = log.valued(log.metrics[:, 1])
    np.testing.assert_array_equal(other.reward, log.metrics[:, 1])
    assert other.predictions is None
