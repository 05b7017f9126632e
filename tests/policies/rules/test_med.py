from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.numerics import optimal_design
from drimed.numerics.arrays import FloatArray
from drimed.policies.rules.base import Ask
from drimed.policies.rules.med import MED
from tests.examples import ARMS, E1, fit_of, r1_fit, r1_offer, unbatched

PLAIN = MED(saturation="off")
RULES = [
    PLAIN,
    MED(),
    MED(saturation="every arm"),
    MED(temperature="radius", empirical=0.005, optimal=0.99, design="approx"),
    MED(empirical=0.5, optimal=0.25, design="frank_wolfe", saturation="off"),
    MED(empirical=0.5, optimal=0.25, design="uniform", saturation="off"),
]
# Leverages of R1 with noise: 1/3, 1/2, .44 over sigma^2.
ONE_UNEXPLORED = [1.0, 0.5, 1.0]  # levels 1/3, 2, .44
TWO_UNEXPLORED = [0.5, 0.5, 1.0]  # levels 4/3, 2, .44


def weights(temperature: float) -> FloatArray:
    return np.exp(-np.array([0.0, 0.4**2 / 0.833333, 0.12**2 / 0.373333]) / temperature)


def test_the_running_example_has_its_formula() -> None:
    """Temperature 2, .9 on the empirical best: q = (.9 + 1/30, 1/30, 1/30), f = exp(-gap^2 / (2 D))."""
    q = np.array([0.9, 0.0, 0.0]) + 0.1 / 3
    want = q * weights(2.0)
    np.testing.assert_allclose(PLAIN.propose(r1_fit(), r1_offer(), Ask()), want / want.sum(), atol=1e-6)
    # No direction is unexplored (every leverage is below 1), so the saturation step does nothing.
    assert np.array_equal(MED().propose(r1_fit(), r1_offer(), Ask()), PLAIN.propose(r1_fit(), r1_offer(), Ask()))


def test_saturation_gives_half_the_mass_to_the_least_explored_arm() -> None:
    offer = r1_offer(sigma=TWO_UNEXPLORED)
    p = PLAIN.propose(r1_fit(), offer, Ask())
    np.testing.assert_allclose(MED().propose(r1_fit(), offer, Ask()), 0.5 * p + [0.0, 0.5, 0.0], atol=1e-15)


def test_saturation_over_every_arm_is_normalised() -> None:
    offer = r1_offer(sigma=TWO_UNEXPLORED)
    p = PLAIN.propose(r1_fit(), offer, Ask())
    both = MED(saturation="every arm").propose(r1_fit(), offer, Ask())
    np.testing.assert_allclose(both, 0.5 * p + [0.25, 0.25, 0.0], atol=1e-15)
    assert both.sum() == pytest.approx(1.0)
    one = MED(saturation="every arm").propose(r1_fit(), r1_offer(sigma=ONE_UNEXPLORED), Ask())
    np.testing.assert_allclose(one, 0.5 * p + [0.0, 0.5, 0.0], atol=1e-15)


def test_saturation_leaves_masked_arms_alone() -> None:
    mask = np.array([True, False, True])
    p = MED().propose(r1_fit(), r1_offer(sigma=ONE_UNEXPLORED), Ask(mask=mask))
    assert np.array_equal(p, PLAIN.propose(r1_fit(), r1_offer(), Ask(mask=mask)))
    assert p[1] == 0.0


def test_a_cold_temperature_is_greedy_and_a_hot_one_plays_the_mixture() -> None:
    cold = MED(temperature=1e-9, empirical=0.0, saturation="off").propose(r1_fit(), r1_offer(), Ask())
    hot = MED(temperature=1e12, saturation="off").propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(cold, E1, atol=1e-12)
    np.testing.assert_allclose(hot, [0.9 + 0.1 / 3, 0.1 / 3, 0.1 / 3], atol=1e-9)


def test_the_design_is_of_the_arms_scaled_by_weight_and_noise() -> None:
    rng = np.random.default_rng(0)
    x, sigma = rng.standard_normal((9, 2)), rng.uniform(0.5, 2.0, 9)
    fit = fit_of(np.diag([30.0, 20.0]), np.array([0.05, 0.01]), K=9)
    offer = unbatched(features=x, control=np.eye(9)[0], sigma=sigma)
    rule = MED(empirical=0.3, optimal=0.5, design="frank_wolfe", saturation="off")
    leader, gap, distance = fit.behind_leader(x, None)
    f = np.exp(-(gap**2) / (2 * distance))
    q = 0.3 * np.eye(9)[int(leader)] + 0.5 * optimal_design.frank_wolfe((np.sqrt(f) / sigma)[:, None] * x) + 0.2 / 9
    np.testing.assert_allclose(rule.propose(fit, offer, Ask()), q * f / (q * f).sum(), atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_adding_a_constant_to_every_penalty_changes_nothing(rule: MED) -> None:
    penalty = np.array([0.3, 0.0, 2.0])
    base = rule.propose(r1_fit(), r1_offer(), Ask(penalty=penalty))
    for shift in (1.0, 100.0, 1e4):
        moved = rule.propose(r1_fit(), r1_offer(), Ask(penalty=penalty + shift))
        np.testing.assert_allclose(moved, base, atol=1e-11)


def test_a_penalty_lowers_the_share_of_its_arm() -> None:
    base = PLAIN.propose(r1_fit(), r1_offer(), Ask())
    moved = PLAIN.propose(r1_fit(), r1_offer(), Ask(penalty=np.array([0.0, 1.0, 0.0])))
    assert moved[1] / moved[0] == pytest.approx(base[1] / base[0] * np.exp(-1))


def test_rewards_in_another_unit_change_nothing() -> None:
    """x, r and sigma by c: the weighted regression is the same, gaps and distances and noise scale together."""
    sigma = np.array([0.5, 0.5, 2.0])
    base = MED().propose(r1_fit(), r1_offer(sigma=sigma.tolist()), Ask())
    for c in (1e-6, 10.0, 1e6):
        offer = unbatched(features=c * ARMS, control=E1, sigma=c * sigma)
        np.testing.assert_allclose(MED().propose(r1_fit(), offer, Ask()), base, rtol=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": 0.0}, "temperature must be positive or 'radius', got 0.0"),
        ({"temperature": np.nan}, "temperature must be positive or 'radius', got nan"),
        ({"temperature": "warm"}, "temperature must be positive or 'radius', got 'warm'"),
        ({"empirical": 1.5}, "empirical and optimal must be at least 0 and sum to at most 1, got 1.5 and 0"),
        ({"empirical": -0.5}, "empirical and optimal must be at least 0 and sum to at most 1, got -0.5"),
        ({"empirical": np.nan}, "empirical and optimal must be at least 0 and sum to at most 1, got nan"),
        ({"empirical": 0.6, "optimal": 0.6, "design": "approx"}, "sum to at most 1, got 0.6 and 0.6"),
        ({"optimal": np.nan, "design": "approx"}, "empirical and optimal must be at least 0"),
        ({"design": "optimum", "optimal": 0.05}, "design must be one of .*, got 'optimum'"),
        ({"design": "approx"}, "optimal mass needs a design and a design needs mass, got 'approx', 0"),
        ({"optimal": 0.05}, "optimal mass needs a design and a design needs mass, got 'none', 0.05"),
        ({"saturation": "two arms"}, "saturation must be one of .*, got 'two arms'"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MED(**settings)
