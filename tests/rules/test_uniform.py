from __future__ import annotations

import numpy as np

from drimed.rules.baselines import Uniform
from drimed.rules.rule import Ask
from tests.examples import r1_fit, r1_offer


def test_every_allowed_arm_has_the_same_probability() -> None:
    assert Uniform().propose(r1_fit(), r1_offer(), Ask()).tolist() == [1 / 3] * 3
    assert Uniform().propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True]))).tolist() == [0, 0.5, 0.5]
    assert Uniform().propose(r1_fit(batch=(2,)), r1_offer(), Ask()).tolist() == [[1 / 3] * 3] * 2


def test_a_penalty_does_not_change_it() -> None:
    assert Uniform().propose(r1_fit(), r1_offer(), Ask(penalty=np.array([9.0, 0.0, 0.0]))).tolist() == [1 / 3] * 3
