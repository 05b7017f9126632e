from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import DrimedError, InputError, UnknownNameError
from drimed.evaluation import target
from drimed.evaluation.log import make_log
from tests.evaluation.logs import drawn

LOG, _ = drawn(20)


def test_uniform_plays_the_available_arms_only() -> None:
    mask = np.array([[True, True, False], [True, True, True]])
    log = make_log(action=[0, 1], reward=[0.0, 0.0], propensity=[0.5, 0.5], arms=3, available=mask)
    assert target.uniform().probabilities(log).tolist() == [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    assert target.uniform().probabilities(LOG).tolist() == [1 / 3] * 3


def test_targets_are_parsed_by_name() -> None:
    assert target.parse("control", control="old").probabilities(LOG).tolist() == [1.0, 0.0, 0.0]
    assert target.parse("arm=new").probabilities(LOG).tolist() == [0.0, 1.0, 0.0]
    np.testing.assert_array_equal(target.parse("logged").probabilities(LOG), LOG.probabilities)


@pytest.mark.parametrize("text", ["unifrom", "arm=", "columns=", "arm"])
def test_an_unknown_target_is_told(text: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown target policy"):
        target.parse(text)


def test_a_log_without_a_control_cannot_be_asked_about_it() -> None:
    with pytest.raises(InputError, match="--control NAME"):
        target.parse("control")
    with pytest.raises(UnknownNameError, match="unknown arm 'odl'; did you mean 'old'"):
        target.parse("control", control="odl").probabilities(LOG)


def test_the_logged_policy_needs_all_probabilities() -> None:
    log = make_log(action=[0], reward=[0.0], propensity=[0.5])
    with pytest.raises(InputError, match="only that of the arm played"):
        target.logged().probabilities(log)


def test_a_target_with_a_row_for_each_decision_follows_the_pieces() -> None:
    rows = np.eye(3)[np.arange(20) % 3]
    each = target.fixed("mine", rows)
    np.testing.assert_array_equal(each.probabilities(LOG.rows(5, 9)), rows[5:9])
    with pytest.raises(InputError, match="has 3 rows, the log has at least 20"):
        target.fixed("short", rows[:3]).probabilities(LOG)
    with pytest.raises(InputError, match="has 2 arms, the log has 3"):
        target.fixed("narrow", [0.5, 0.5]).probabilities(LOG)


def test_users_may_have_a_lottery_each() -> None:
    by = target.by_user("recommended", {"ada": [1.0, 0.0, 0.0], "bob": [0.0, 0.0, 1.0]})
    p = by.probabilities(LOG)
    assert LOG.user is not None
    assert (p[LOG.user == "ada", 0] == 1).all()
    assert (p[LOG.user == "bob", 2] == 1).all()
    with pytest.raises(DrimedError, match="says nothing about user 'bob'"):
        target.by_user("half", {"ada": [1.0, 0.0, 0.0]}).probabilities(LOG)
