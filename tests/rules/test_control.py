from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import InputError
from drimed.rules.baselines import Control
from drimed.rules.rule import Ask
from tests.examples import E1, r1_fit, r1_offer

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
