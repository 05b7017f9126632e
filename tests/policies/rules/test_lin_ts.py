from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import ndtr

from drimed.errors import ConfigError, InputError
from drimed.numerics import ridge
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import LinTS
from tests.examples import ARMS, E1, r1_fit, r1_offer, unbatched

TWO = unbatched(features=ARMS[:2], control=[1.0, 0.0])
ORTHANT = np.array([0.564667, 0.200275, 0.235058])  # v = 1, by an exact bivariate integral
ORTHANT_RADIUS = np.array([0.481294, 0.366010, 0.152695])  # v = 4.316941
N = 400_000
# Each share is within 4 standard errors of its probability: all six alarms together are false once in 2600 seeds.
SE = 0.5 / np.sqrt(N)


def test_two_arms_have_a_closed_form() -> None:
    p = LinTS().probabilities(r1_fit(), TWO, np.zeros((0, 2)))
    np.testing.assert_allclose(p, [0.669371, 0.330629], atol=5e-7)
    wide = LinTS(v="radius").probabilities(r1_fit(), TWO, np.zeros((0, 2)))
    np.testing.assert_allclose(wide[0], ndtr(0.4 / (4.316941 * np.sqrt(5 / 6))), atol=1e-7)


@pytest.mark.parametrize(("v", "want"), [(1.0, ORTHANT), ("radius", ORTHANT_RADIUS)])
def test_three_arms_have_their_orthant_probabilities(
    v: float | str, want: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    normals = np.random.default_rng(0).standard_normal((N, 2))
    p = LinTS(v=v).probabilities(r1_fit(), r1_offer(), normals)
    assert p.sum() == pytest.approx(1.0)
    assert (np.abs(p - want) <= 4 * np.sqrt(want * (1 - want) / N) + 5e-7).all()


@pytest.mark.parametrize(("v", "want"), [(1.0, ORTHANT), ("radius", ORTHANT_RADIUS)])
def test_choices_have_the_orthant_frequencies(
    v: float | str, want: np.ndarray[tuple[int], np.dtype[np.float64]]
) -> None:
    draws = np.random.default_rng(1).random((N, 3))
    choice = LinTS(v=v).propose(r1_fit(batch=(N,)), r1_offer(), Ask(draws=draws))
    assert (choice.sum(-1) == 1).all()
    share = choice.mean(0)
    chi_squared = float((N * (share - want) ** 2 / want).sum())
    assert chi_squared < 27.6  # two degrees of freedom: exceeded by chance once in a million


def test_the_first_draw_is_kept_for_choosing_the_arm() -> None:
    rng = np.random.default_rng(2)
    draws = rng.random((50, 3))
    other = draws.copy()
    other[:, 0] = rng.random(50)
    fit = r1_fit(batch=(50,))
    one, two = (LinTS().propose(fit, r1_offer(), Ask(draws=u)) for u in (draws, other))
    assert np.array_equal(one, two)


def test_the_middle_draw_plays_the_estimate_and_the_edges_are_finite() -> None:
    fit, offer = r1_fit(), r1_offer()
    assert LinTS().propose(fit, offer, Ask(draws=np.full(3, 0.5))).tolist() == E1.tolist()
    for edge in (0.0, 1 - 2.0**-53):
        p = LinTS().propose(fit, offer, Ask(draws=np.full(3, edge)))
        assert sorted(p.tolist()) == [0.0, 0.0, 1.0]


def test_the_inflation_can_be_that_of_2013() -> None:
    fit = replace(r1_fit(round=10), noise_bound=2.0)
    rule = LinTS(v="2013", delta=0.1)
    v = float(ridge.thompson_radius(10, 2, noise=2.0, delta=0.1))
    np.testing.assert_allclose(
        rule.probabilities(fit, TWO, np.zeros((0, 2)))[0], ndtr(0.4 / (v * np.sqrt(5 / 6))), atol=1e-12
    )


def test_too_few_draws_are_refused() -> None:
    for draws in (None, np.zeros(2)):
        with pytest.raises(InputError, match="needs 3 uniform draws per decision"):
            LinTS().propose(r1_fit(), r1_offer(), Ask(draws=draws))


@pytest.mark.parametrize("v", [0.0, -1.0, np.nan, np.inf, "wide"])
def test_an_inflation_out_of_range_is_refused(v: float | str) -> None:
    with pytest.raises(ConfigError, match=f"v must be a positive number.*got {v!r}"):
        LinTS(v=v)
