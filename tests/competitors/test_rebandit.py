from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from drimed.competitors.rebandit import SmoothAllocation
from drimed.models.offer import Fit
from drimed.policies.rules.base import Ask
from drimed.policies.rules.thompson import Thompson
from tests.examples import E1, E3, fit_of, r1_fit, r1_offer, unbatched

RULE = SmoothAllocation()
MESSAGE = unbatched(features=np.array([[1.0, 0.0], [1.0, 1.0]]), control=np.array([1.0, 0.0]))  # or none


def believing(advantage: float, deviation: float) -> Fit:
    """A level of 0.3 that is well known, and this belief about what a message adds."""
    return fit_of(np.diag([1e9, deviation**-2]), np.array([0.3, advantage]), K=2)


@pytest.mark.parametrize(("advantage", "deviation"), [(0.0, 0.3), (0.1, 0.05), (-0.2, 0.1), (0.4, 1.0)])
def test_of_two_arms_the_probability_is_the_posterior_mean_of_the_authors_curve(
    advantage: float, deviation: float
) -> None:
    def curve(z: float) -> float:
        return float((0.2 + 0.6 * expit(20 * (advantage + deviation * z) - np.log(5))) * norm.pdf(z))

    p = RULE.propose(believing(advantage, deviation), MESSAGE, Ask())
    assert p[1] == pytest.approx(quad(curve, -9, 9, limit=200)[0], abs=0.01)


def test_the_curve_is_cautious_and_stays_between_its_bounds() -> None:
    assert RULE.propose(believing(0.0, 1e-9), MESSAGE, Ask())[1] == pytest.approx(0.3, abs=1e-6)
    for advantage, most in ((-5.0, 0.2), (5.0, 0.8)):
        assert RULE.propose(believing(advantage, 0.1), MESSAGE, Ask())[1] == pytest.approx(most, abs=1e-6)
    # Noise of deviation 10 makes an advantage of .1 a hundredth of it.
    noisy = replace(MESSAGE, sigma=np.array([10.0, 10.0]))
    assert RULE.propose(believing(0.1, 1e-9), noisy, Ask())[1] == pytest.approx(0.2 + 0.6 / (1 + 5 * np.exp(-0.2)))


def test_a_steep_curve_without_bounds_is_thompson_sampling() -> None:
    steep = SmoothAllocation(lowest=0.0, highest=1.0, offset=1.0, steepness=1e9)
    for advantage in (-0.3, 0.0, 0.2):
        fit = believing(advantage, 0.3)
        want = Thompson().propose(fit, MESSAGE, Ask())
        np.testing.assert_allclose(steep.propose(fit, MESSAGE, Ask()), want, atol=0.01)


def test_with_more_arms_the_control_keeps_its_bounds_and_the_rest_share_what_it_leaves() -> None:
    p = RULE.propose(r1_fit(), r1_offer(), Ask())
    assert 0.2 <= p[2] <= 0.8
    assert p[0] > p[1] > 0
    sure = fit_of(1e9 * np.eye(2), np.array([0.5, 0.1]), K=3)  # .5, .1 and .38
    np.testing.assert_allclose(
        RULE.propose(sure, r1_offer(), Ask()),
        RULE.smooth(np.array(0.12)) * E1 + E3 * (1 - RULE.smooth(np.array(0.12))),
        atol=1e-3,
    )
    alone = Ask(mask=np.array([False, False, True]))
    assert RULE.propose(r1_fit(), r1_offer(), alone).tolist() == E3.tolist()
