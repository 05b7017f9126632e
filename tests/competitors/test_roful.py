from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.competitors.roful import ROFUL
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL
from tests.examples import E1, E2, E3, fit_of, r1_fit, r1_offer, unbatched

RULE = ROFUL(relative=0.0, absolute=0.05, width_squared=1.0)


def test_the_best_direction_is_scaled_down_to_what_is_sure() -> None:
    """w_1 = (.4, -.8): mean .12, width sqrt(.16 / 3 + .64 / 2) = .611010."""
    share = 0.05 / (0.6110101 - 0.12)
    np.testing.assert_allclose(RULE.propose(r1_fit(), r1_offer(), Ask()), share * E1 + (1 - share) * E3, atol=5e-7)
    mixed = np.array([0.0, 0.5, 0.5])  # w_1 = (.7, -.9)
    share = 0.05 / (np.sqrt(0.49 / 3 + 0.81 / 2) - 0.26)
    np.testing.assert_allclose(
        RULE.propose(r1_fit(), r1_offer(control=mixed), Ask()), share * E1 + (1 - share) * mixed, atol=1e-12
    )


def test_a_ball_around_the_control_is_safe_before_any_data() -> None:
    wide = replace(RULE, width_squared=1e6)
    p = wide.propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(p, 0.05 / np.hypot(0.4, 0.8) * E1 + (1 - 0.05 / np.hypot(0.4, 0.8)) * E3, atol=1e-12)
    p = replace(wide, norm_bound=10.0).propose(r1_fit(), r1_offer(), Ask())
    assert p[0] == pytest.approx(0.005 / np.hypot(0.4, 0.8))


def test_the_control_is_played_where_no_direction_may_be_better() -> None:
    narrow = replace(RULE, width_squared=1e-6)  # e1 is the best arm
    assert narrow.propose(r1_fit(), r1_offer(control=E1), Ask()).tolist() == E1.tolist()
    assert narrow.propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, True]))).tolist() == E3.tolist()
    # Without the control only the best of the others is left.
    assert narrow.propose(r1_fit(), r1_offer(), Ask(mask=np.array([False, True, False]))).tolist() == E2.tolist()


def test_without_a_binding_constraint_it_is_optimism_about_the_difference_to_the_control() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        fit = fit_of(np.diag(rng.uniform(1, 9, 3)), rng.standard_normal(3), K=6, radius=2.0)
        x = rng.standard_normal((6, 3))
        p = ROFUL(absolute=1e6).propose(fit, unbatched(features=x, control=np.eye(6)[0]), Ask())
        want = OFUL().propose(fit, unbatched(features=x - x[0], control=np.eye(6)[0]), Ask())
        assert p.tolist() == want.tolist()
