from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import Control, Greedy, Uniform
from tests.examples import E1, E3, r1_fit, r1_offer, unbatched

MIXED = np.array([0.5, 0.3, 0.2])


def test_it_plays_the_control_whatever_the_data_and_the_penalty() -> None:
    p = Control().propose(r1_fit(), r1_offer(control=MIXED), Ask(penalty=np.array([9.0, 0.0, 0.0])))
    assert p.tolist() == MIXED.tolist()


def test_a_mask_shares_the_missing_mass() -> None:
    p = Control().propose(r1_fit(), r1_offer(control=MIXED), Ask(mask=np.array([True, False, True])))
    np.testing.assert_allclose(p, [5 / 7, 0.0, 2 / 7])


def test_a_batch_shares_one_control() -> None:
    assert Control().propose(r1_fit(batch=(4,)), r1_offer(control=MIXED), Ask()).tolist() == [MIXED.tolist()] * 4


def test_a_control_without_available_arms_is_refused() -> None:
    with pytest.raises(InputError, match=r"every arm of the control is unavailable.*give this offer another control"):
        Control().propose(r1_fit(), r1_offer(control=E1), Ask(mask=np.array([False, True, True])))


def test_it_plays_the_largest_estimated_mean() -> None:
    assert Greedy().propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


def test_it_obeys_the_mask_and_the_penalty() -> None:
    fit, offer = r1_fit(), r1_offer()
    assert Greedy().propose(fit, offer, Ask(mask=np.array([False, True, True]))).tolist() == E3.tolist()
    assert Greedy().propose(fit, offer, Ask(penalty=np.array([0.13, 0.0, 0.0]))).tolist() == E3.tolist()
    assert Greedy().propose(fit, offer, Ask(penalty=np.array([0.11, 0.0, 0.0]))).tolist() == E1.tolist()


def test_ties_go_to_the_lowest_index() -> None:
    offer = unbatched(features=[[0.0, 1.0], [0.5, 0.5], [0.5, 0.5]], control=E1)
    assert int(Greedy().propose(r1_fit(), offer, Ask()).argmax()) == 1


def test_every_allowed_arm_has_the_same_probability() -> None:
    assert Uniform().propose(r1_fit(), r1_offer(), Ask()).tolist() == [1 / 3] * 3
    assert Uniform().propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True]))).tolist() == [0, 0.5, 0.5]
    assert Uniform().propose(r1_fit(batch=(2,)), r1_offer(), Ask()).tolist() == [[1 / 3] * 3] * 2


def test_a_penalty_does_not_change_it() -> None:
    assert Uniform().propose(r1_fit(), r1_offer(), Ask(penalty=np.array([9.0, 0.0, 0.0]))).tolist() == [1 / 3] * 3
