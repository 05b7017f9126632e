"""Thompson's rule: the probability of being best, as a function of the posterior alone."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import norm, t

from drimed.errors import ConfigError
from drimed.models.offer import Fit, make_offer
from drimed.numerics.arrays import FloatArray
from drimed.policies.rules.base import Ask
from drimed.policies.rules.thompson import Thompson, quasi_random_points


def proposed(mean: list[float], V_inv: FloatArray, freedom: float = np.inf, ask: Ask | None = None) -> FloatArray:
    K = len(mean)
    fit = Fit(np.array(mean), V_inv, np.array(1.0), None, np.zeros(K), 1, 1.0, freedom=np.array(freedom))
    offer = make_offer(features=np.eye(K), control=np.eye(K)[0])
    return Thompson().propose(fit, offer, ask or Ask())[0]


@pytest.mark.parametrize("gap", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("freedom", [5.0, np.inf])
def test_of_two_arms_it_is_the_chance_that_one_beats_the_other(gap: float, freedom: float) -> None:
    V_inv = np.array([[0.5, 0.1], [0.1, 0.7]])
    z = gap / np.sqrt(0.5 + 0.7 - 0.2)
    exact = norm.sf(z) if np.isinf(freedom) else t.sf(z * np.sqrt(freedom / (freedom - 2)), freedom)
    assert proposed([gap, 0.0], V_inv, freedom)[1] == pytest.approx(exact, abs=0.02)


def test_of_several_arms_it_is_the_share_of_draws_in_which_each_is_best() -> None:
    rng = np.random.default_rng(0)
    root = rng.normal(size=(5, 5))
    mean, V_inv = rng.normal(size=5), root @ root.T
    best = (mean + rng.normal(size=(200_000, 5)) @ root.T).argmax(1)
    np.testing.assert_allclose(proposed(mean.tolist(), V_inv), np.bincount(best, minlength=5) / 200_000, atol=0.03)


def test_no_allowed_arm_is_impossible_and_no_other_is_possible() -> None:
    p = proposed([0.0, 30.0, 5.0, 8.0], np.eye(4), ask=Ask(mask=np.array([[True, False, True, True]])))
    assert p.sum() == pytest.approx(1.0)
    assert p[1] == 0.0
    assert (p[[0, 2, 3]] > 0).all()
    assert p[0] < 1e-6 < p[2] < p[3]


def test_arms_that_are_alike_share_their_probability() -> None:
    p = proposed([0.0, 0.0, 0.0], np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.0]]))
    assert p[0] == pytest.approx(p[1], abs=0.02)
    assert p[2] == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("variance", [0.0, 0.7, 1e6])
@pytest.mark.parametrize("mean", [[0.1 + 0.2, 0.3], [0.3, 0.1 + 0.2, 0.3], [0.3, 0.3, 0.1], [0.1, 0.3, 0.3, 0.3]])
def test_best_arms_that_never_differ_share_equally(mean: list[float], variance: float) -> None:
    """All arms move together, so that only those with the largest mean can be best."""
    K = len(mean)
    best = np.isclose(mean, max(mean))
    for order in (slice(None), slice(None, None, -1)):
        p = proposed(mean[order], np.full((K, K), variance))
        np.testing.assert_allclose(p, best[order] / best.sum(), atol=1e-9)


def test_points_are_standard_normal_and_symmetric() -> None:
    normal, uniform = quasi_random_points(256, 4)
    np.testing.assert_allclose(normal.mean(0), 0.0, atol=1e-12)
    np.testing.assert_allclose(normal.T @ normal / 256, np.eye(4), atol=1e-9)
    assert abs(uniform.mean() - 0.5) < 0.02
    with pytest.raises(ConfigError, match="an even number"):
        Thompson(points=3)
