from __future__ import annotations

import numpy as np
import pytest

from drimed.numerics import optimal_design
from drimed.policies.rules.base import Ask
from drimed.policies.rules.med import MED, LinMED
from tests.examples import ARMS, r1_fit, r1_offer, unbatched


def test_the_running_example_has_its_worked_weights() -> None:
    fit = r1_fit()
    _, gap, distance = fit.behind_leader(ARMS, None)
    f = np.exp(-(gap**2) / (fit.radius**2 * distance))
    np.testing.assert_allclose(f, [1.0, 0.989750, 0.997932], atol=5e-7)


@pytest.mark.parametrize(
    ("empirical", "optimal", "want"),
    [
        (0.99, 0.005, [0.993374, 0.003299, 0.003327]),
        (0.005, 0.99, [0.338048, 0.329614, 0.332339]),
    ],
)
def test_the_running_example_has_its_worked_probabilities(empirical: float, optimal: float, want: list[float]) -> None:
    p = LinMED(empirical=empirical, optimal=optimal).propose(r1_fit(), r1_offer(), Ask())
    np.testing.assert_allclose(p, want, atol=5e-7)


def test_the_first_round_has_no_leader() -> None:
    """p = alpha_opt q_opt + (1 - alpha_opt) / K, without weights."""
    x = np.random.default_rng(7).standard_normal((12, 2))
    offer = unbatched(features=x, control=np.eye(12)[0])
    p = LinMED(empirical=0.1, optimal=0.6).propose(r1_fit(round=1), offer, Ask())
    np.testing.assert_allclose(p, 0.6 * optimal_design.approx(x) + 0.4 / 12)


def test_it_is_med_at_the_temperature_of_the_radius() -> None:
    med = MED(temperature="radius", empirical=0.99, optimal=0.005, design="approx", saturation="off")
    fit, offer = r1_fit(), r1_offer()
    for ask in (Ask(), Ask(mask=np.array([True, True, False])), Ask(penalty=np.array([0.3, 0.0, 1.0]))):
        assert np.array_equal(LinMED().propose(fit, offer, ask), med.propose(fit, offer, ask))
