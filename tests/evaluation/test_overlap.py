from __future__ import annotations

import numpy as np
import pytest

from drimed.evaluation.log import make_log
from drimed.evaluation.target import Decisions, Overlap, Weights
from tests.evaluation.logs import TARGET, drawn


def test_equal_weights_count_fully_and_one_large_weight_counts_once() -> None:
    assert Weights.of(np.ones(10)).effective == pytest.approx(10)
    assert Weights.of(np.array([0.0, 0.0, 7.0])).effective == pytest.approx(1)
    assert Weights.of(np.zeros(3)).effective == 0
    assert np.isnan(Weights().mean)


def test_overlap_of_each_user_is_that_of_the_users_own_log() -> None:
    log, _ = drawn(300)
    decisions = Decisions(log, TARGET)
    found = Overlap.of(decisions, by_user=True)
    assert log.user is not None
    for user in ("ada", "bob"):
        own = Weights.of(decisions.weight[log.user == user])
        assert found.by_user[user].count == own.count
        assert found.by_user[user].effective == pytest.approx(own.effective)
        assert found.by_user[user].largest == own.largest


def test_users_for_whom_the_target_was_never_played_are_told() -> None:
    log = make_log(action=[0, 1, 1], reward=[0.0] * 3, propensity=[0.5] * 3, user=["ada", "bob", "bob"])
    told = Overlap.of(Decisions(log, np.array([1.0, 0.0])), by_user=True).warnings()
    assert any("1 users, 'bob' among them" in text for text in told)


def test_very_unequal_weights_are_told() -> None:
    n = 1000
    propensity = np.full(n, 0.9)
    propensity[0] = 1e-4
    log = make_log(action=[0] * n, reward=[0.0] * n, propensity=propensity, arms=1)
    assert any("count effectively" in text for text in Overlap.of(Decisions(log, np.ones(1))).warnings())
