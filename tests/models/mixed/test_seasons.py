"""In how many seasons an arm and its control were seen."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.models.linear_regression import Learner
from drimed.models.mixed.effects import has_enough_seasons, seasons_of_arms, seasons_with_both_arms
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.mixed.observations import Cells, Rows
from drimed.models.mixed.terms import FACTORS
from drimed.models.offer import Offer, Shape
from drimed.numerics.arrays import FloatArray

K, M = 3, 2
BOTH, FIRST = 0b11, 0b01  # metrics that were observed


def told(*outcomes: tuple[int, int, int]) -> Cells:
    """Outcomes (season, arm, metrics)."""
    keys = np.zeros((len(outcomes), len(FACTORS)), np.intp)
    for row, (season, arm, _) in zip(keys, outcomes, strict=True):
        row[FACTORS.index("season")], row[FACTORS.index("arm")] = season, arm
    rows = Rows(keys, np.array([pattern for _, _, pattern in outcomes]), np.ones((len(outcomes), M)))
    return Cells.empty(M).add(rows)


def evidence(learner: Field, found: Cells) -> FieldEvidence:
    start = learner.start(Shape(K=K, M=M, d=K * M, H=2))
    return FieldEvidence(found, start.fitted, start.sizes, start.seen, 0, 0, 3)


def offers(*control: list[float], preference: FloatArray | None = None) -> Offer:
    """Users with these controls."""
    wish = np.ones((len(control), M)) if preference is None else preference
    return Offer(features=np.zeros((len(control), K, K * M)), control=np.array(control), preference=wish)


def test_seasons_are_counted_once_for_each_metric_that_was_observed() -> None:
    found = told((0, 1, BOTH), (0, 1, BOTH), (2, 1, FIRST), (1, 2, 0))
    assert seasons_of_arms(found, K, M).tolist() == [[0, 0], [2, 1], [0, 0]]
    assert seasons_of_arms(found, K, M, before=2).tolist() == [[0, 0], [1, 1], [0, 0]]
    merged = found.compact()
    assert seasons_of_arms(merged, K, M).tolist() == [[0, 0], [2, 1], [0, 0]]


def test_the_fewer_of_arm_and_control_count_and_for_the_reward_the_metric_seen_in_fewest() -> None:
    seen = [(s, 1, BOTH) for s in range(3)] + [(0, 0, BOTH), (1, 0, FIRST)] + [(0, 2, BOTH), (1, 2, BOTH)]
    learner = Field()
    there = evidence(learner, told(*seen))
    found = seasons_with_both_arms(learner, there, offers([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.5, 0.0, 0.5]))
    assert found is not None
    of_arm_1 = found[:, 1].tolist()  # (reward, first metric, second metric)
    assert of_arm_1 == [[1, 2, 1], [2, 2, 2], [1, 2, 1]]
    only_first = np.tile([1.0, 0.0], (1, 1))
    found = seasons_with_both_arms(learner, there, offers([1.0, 0.0, 0.0], preference=only_first))
    assert found is not None
    assert found[0, 1].tolist() == [2, 2, 1]
    may = has_enough_seasons(learner, there, offers([1.0, 0.0, 0.0], [0.0, 0.0, 1.0]))
    assert may[:, 1].tolist() == [False, True]


@pytest.mark.parametrize("learner", [Field(seasons=False), Field(kind="people"), Field(kind="people", seasons=False)])
def test_seasons_do_not_count_where_none_does_anything_to_an_arm_alone(learner: Field) -> None:
    there = evidence(learner, told((0, 1, BOTH)))
    assert seasons_with_both_arms(learner, there, offers([1.0, 0.0, 0.0])) is None
    assert has_enough_seasons(learner, there, offers([1.0, 0.0, 0.0])).all()
    assert has_enough_seasons(Learner(), None, offers([1.0, 0.0, 0.0])).all()
