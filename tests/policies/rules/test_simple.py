"""Optimism, Thompson sampling and baselines."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import InputError, NumericalError
from drimed.numerics import ridge
from drimed.policies.registry import make
from drimed.policies.rules.base import Ask
from drimed.policies.rules.simple import OFUL, Control, Greedy, LinTS, Uniform
from tests.examples import ARMS, E1, r1_fit, r1_offer
from tests.worlds import played, world

MIXED = np.array([0.5, 0.3, 0.2])


def test_baselines_play_the_control_the_largest_estimate_or_every_allowed_arm_alike() -> None:
    offer, some = r1_offer(control=MIXED), Ask(mask=np.array([True, False, True]))
    assert Control().propose(r1_fit(), offer, Ask(penalty=np.array([9.0, 0.0, 0.0]))).tolist() == MIXED.tolist()
    np.testing.assert_allclose(Control().propose(r1_fit(), offer, some), [5 / 7, 0.0, 2 / 7])
    assert Greedy().propose(r1_fit(), offer, Ask()).tolist() == E1.tolist()
    assert Uniform().propose(r1_fit(), offer, Ask()).tolist() == [1 / 3] * 3
    assert Uniform().propose(r1_fit(), offer, some).tolist() == [0.5, 0, 0.5]
    assert Uniform().propose(r1_fit(batch=(2,)), offer, Ask()).tolist() == [[1 / 3] * 3] * 2


def test_the_running_example_has_its_worked_bounds() -> None:
    fit = r1_fit()
    np.testing.assert_allclose(OFUL().index(fit, r1_offer()), [2.992387, 3.152538, 3.243535], atol=5e-7)
    np.testing.assert_allclose(fit.mean(ARMS), [0.5, 0.1, 0.38], atol=1e-12)
    np.testing.assert_allclose(fit.mean(ARMS) - fit.width(ARMS), [-1.992387, -2.952538, -2.483535], atol=5e-7)
    assert OFUL().propose(fit, r1_offer(), Ask()).tolist() == [0.0, 0.0, 1.0]


def test_a_fixed_width_replaces_the_radius() -> None:
    index = OFUL(width_squared=2.0).index(r1_fit(), r1_offer())
    np.testing.assert_allclose(index, np.array([0.5, 0.1, 0.38]) + np.sqrt(2 * np.array([1 / 3, 1 / 2, 0.44])))
    assert OFUL(width_squared=0.0).propose(r1_fit(), r1_offer(), Ask()).tolist() == E1.tolist()


@pytest.mark.parametrize("c", [0.5, 3.0])
def test_equal_noise_makes_weighted_optimism_plain_optimism(c: float) -> None:
    """All sigma = c: weights with lambda equal no weights with R = c and lambda c^2, arm by arm."""
    it = world(episodes=25, seeds=range(6))
    weighted = played(make("w_oful", regularisation=0.8), it, sigma=c)
    plain = played(make("oful", noise_bound=c, regularisation=0.8 * c * c), it, sigma=c)
    assert np.array_equal(weighted, plain)
    assert len(np.unique(weighted)) > 1


ORTHANT = np.array([0.564667, 0.200275, 0.235058])  # v = 1, by an exact bivariate integral
ORTHANT_RADIUS = np.array([0.481294, 0.366010, 0.152695])  # v = 4.316941
N = 400_000


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
    fit = replace(r1_fit(round=10, batch=(50,)), noise_bound=2.0)
    v = float(ridge.thompson_radius(10, 2, noise=2.0, delta=0.1))
    ask = Ask(draws=np.random.default_rng(3).random((50, 3)))
    one, other = (rule.propose(fit, r1_offer(), ask) for rule in (LinTS(v="2013", delta=0.1), LinTS(v=v)))
    assert np.array_equal(one, other)


def test_what_leaves_nothing_to_choose_or_to_draw_is_refused() -> None:
    with pytest.raises(InputError, match=r"every arm of the control is unavailable.*give this offer another control"):
        Control().propose(r1_fit(), r1_offer(control=E1), Ask(mask=np.array([False, True, True])))
    fit = replace(r1_fit(), V_inv=np.diag([1.0, -4e-11]))
    with pytest.raises(NumericalError, match=r"positive definite covariance.*smallest eigenvalue is -4e-11"):
        LinTS().propose(fit, r1_offer(), Ask(draws=np.full(3, 0.5)))
    for draws in (None, np.zeros(2)):
        with pytest.raises(InputError, match="needs 3 uniform draws per decision"):
            LinTS().propose(r1_fit(), r1_offer(), Ask(draws=draws))
