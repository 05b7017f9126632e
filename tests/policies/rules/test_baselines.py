from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import Control, Greedy, Uniform
from tests.examples import E1, r1_fit, r1_offer

MIXED = np.array([0.5, 0.3, 0.2])


def test_it_plays_the_control_whatever_the_data_and_the_penalty() -> None:
    p = Control().propose(r1_fit(), r1_offer(control=MIXED), Ask(penalty=np.array([9.0, 0.0, 0.0])))
    assert p.tolist() == MIXED.tolist()


def test_a_mask_shares_the_missing_mass() -> None:
    p = Control().propose(r1_fit(), r1_offer(control=MIXED), Ask(mask=np.array([True, False, True])))
    np.testing.assert_allclose(p, [5 / 7, 0.0, 2 / 7])


def test_a_control_without_available_arms_is_refused() -> None:
    with pytest.raises(InputError, match=r"every arm of the control is unavailable.*give this offer another control"):
        Control().propose(r1_fit(), r1_offer(control=E1), Ask(mask=np.array([False, True, True])))


def test_it_plays_the_largest_estimated_mean() -> None:
    assert Greedy().propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


def test_every_allowed_arm_has_the_same_probability() -> None:
    assert Uniform().propose(r1_fit(), r1_offer(), Ask()).tolist() == [1 / 3] * 3
    assert Uniform().propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True]))).tolist() == [0, 0.5, 0.5]
    assert Uniform().propose(r1_fit(batch=(2,)), r1_offer(), Ask()).tolist() == [[1 / 3] * 3] * 2
