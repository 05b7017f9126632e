from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.policies.rules.base import Ask
from drimed.policies.rules.imed import DriIMEDIndex
from tests.examples import E1, E2, E3, fit_of, r1_fit, r1_offer, unbatched


def test_an_arm_that_was_never_pulled_ties_with_the_leader() -> None:
    """Indices 0 (leader), 1 * (3.152538 - .5)^2 / 2 and 0 * ...: ties are shared equally."""
    p = DriIMEDIndex().propose(r1_fit(), r1_offer(), Ask())
    assert p.tolist() == [0.5, 0.0, 0.5]


def test_once_every_arm_was_pulled_an_unpenalised_leader_is_played() -> None:
    fit = replace(r1_fit(), pulls=np.ones(3))
    assert DriIMEDIndex().propose(fit, r1_offer(), Ask()).tolist() == E1.tolist()


def test_a_penalty_moves_the_choice_by_the_index() -> None:
    """(UCB_a - mean_best)^2 / 2 = 3.518 for the second arm and 3.764 for the third."""
    fit = replace(r1_fit(), pulls=np.ones(3))
    for penalty, want in ((3.51, E1), (3.53, E2)):
        p = DriIMEDIndex().propose(fit, r1_offer(), Ask(penalty=np.array([penalty, 0.0, 0.0])))
        assert p.tolist() == want.tolist()


def test_an_arm_whose_bound_is_below_the_best_mean_is_never_played() -> None:
    fit = fit_of(1e6 * np.eye(2), np.array([1.0, 0.0]), K=2)
    offer = unbatched(features=np.eye(2), control=[1.0, 0.0])
    assert DriIMEDIndex().propose(fit, offer, Ask(penalty=np.array([1e9, 0.0]))).tolist() == [1.0, 0.0]


def test_the_printed_index_divides_by_the_smallest_variance() -> None:
    """sigma^2 = 4 at least: the second arm's index falls from 3.518 to .8796."""
    fit, offer = replace(r1_fit(), pulls=np.ones(3)), r1_offer(sigma=[2.0, 3.0, 4.0])
    ask = Ask(penalty=np.array([1.0, 0.0, 0.0]))
    assert DriIMEDIndex(variance="unit").propose(fit, offer, ask).tolist() == E1.tolist()
    assert DriIMEDIndex(variance="smallest").propose(fit, offer, ask).tolist() == E2.tolist()


def test_it_obeys_the_mask() -> None:
    p = DriIMEDIndex().propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True])))
    assert p.tolist() == E3.tolist()


def test_an_unknown_variance_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"variance must be one of .*, got 'median'"):
        DriIMEDIndex(variance="median")
