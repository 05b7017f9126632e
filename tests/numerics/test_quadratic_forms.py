from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.numerics import quadratic_forms
from drimed.numerics.arrays import pick
from tests.examples import ARMS, r1_fit
from tests.strategies import arms, fits, masks


def test_leverages_and_distances_of_the_running_example() -> None:
    fit = r1_fit()
    np.testing.assert_allclose(quadratic_forms.leverages(ARMS, fit.V_inv), [1 / 3, 1 / 2, 0.44], atol=1e-15)
    leader, gap, distance = quadratic_forms.behind_leader(ARMS, fit.theta, fit.V_inv, np.ones(3, bool))
    assert int(leader) == 0
    np.testing.assert_allclose(gap, [0.0, 0.4, 0.12], atol=1e-15)
    np.testing.assert_allclose(distance, [0.0, 0.833333, 0.373333], atol=5e-7)


def test_a_mask_changes_the_leader_and_lets_a_better_arm_have_a_negative_gap() -> None:
    fit = r1_fit()
    leader, gap, _ = quadratic_forms.behind_leader(ARMS, fit.theta, fit.V_inv, np.array([False, True, True]))
    assert int(leader) == 2
    np.testing.assert_allclose(gap, [-0.12, 0.28, 0.0], atol=1e-15)


def test_twins_of_the_leader_are_at_no_divergence() -> None:
    x = np.array([[0.3, 0.1], [0.3, 0.1], [0.1, 0.3]])
    leader, gap, distance = quadratic_forms.behind_leader(x, np.array([1.0, 0.0]), np.eye(2), np.ones(3, bool))
    assert int(leader) == 0
    assert gap[1] == 0.0
    assert distance[1] > 0
    assert (gap**2 / distance)[1] == 0.0


def test_zero_features_leave_nothing_undefined() -> None:
    _, gap, distance = quadratic_forms.behind_leader(np.zeros((3, 2)), np.ones(2), np.eye(2), np.ones(3, bool))
    assert (gap**2 / distance).tolist() == [0.0, 0.0, 0.0]


@given(data=st.data())
def test_forms_agree_with_plain_algebra(data: st.DataObject) -> None:
    x = data.draw(arms())
    fit = data.draw(fits(x.shape[1], len(x), scale=4.0))
    mask = data.draw(masks(len(x)))
    lev = np.einsum("ki,ij,kj->k", x, fit.V_inv, x)
    np.testing.assert_allclose(quadratic_forms.leverages(x, fit.V_inv), np.maximum(lev, 0), atol=1e-14)
    assert (quadratic_forms.leverages(x, fit.V_inv) >= 0).all()
    leader, gap, distance = fit.behind_leader(x, mask)
    allowed = np.ones(len(x), bool) if mask is None else mask
    means = x @ fit.theta
    best = int(leader)
    size = float(np.abs(means).max(initial=1e-300))
    assert allowed[best]
    assert means[best] == pytest.approx(means[allowed].max(), abs=1e-13 * size)
    np.testing.assert_allclose(gap, means[best] - means, atol=1e-13 * size)
    D = x[best] - x
    assert (distance > 0).all()
    np.testing.assert_allclose(distance, np.einsum("ki,ij,kj->k", D, fit.V_inv, D), atol=1e-14)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_pick_takes_one_entry_per_member(batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(1)
    array, index = rng.standard_normal((*batch, 5, 2)), rng.integers(0, 5, size=batch)
    picked = pick(array, np.asarray(index))
    assert picked.shape == (*batch, 2)
    for at in np.ndindex(*batch):
        assert np.array_equal(picked[at], array[(*at, np.asarray(index)[at])])


def plain_quadratic(A: np.ndarray, x: np.ndarray) -> float:
    """x^T A x, with every term, in order."""
    total = 0.0
    for i in range(len(x)):
        s = 0.0
        for j in range(len(x)):
            s += A[i, j] * x[j]
        total += s * x[i]
    return float(total)


@pytest.mark.parametrize("d", [5, 35])
@pytest.mark.parametrize("share", [0.1, 1.0])
def test_zeros_that_are_skipped_change_no_bit(d: int, share: float) -> None:
    rng = np.random.default_rng(7)
    x = rng.standard_normal((6, d)) * (rng.random((6, d)) < share)
    x[4] = x[1]  # a twin
    z = rng.standard_normal((d, d))
    A, theta = z @ z.T, rng.standard_normal(d)
    assert quadratic_forms.leverages(x, A).tolist() == [max(plain_quadratic(A, row), 0.0) for row in x]
    best, _, behind = quadratic_forms.behind_leader(x, theta, A, np.ones(x.shape[-2], bool))
    for leader in range(6):
        least = quadratic_forms.TWIN * plain_quadratic(A, x[leader]) + quadratic_forms.NEVER_ZERO
        plain = [max(plain_quadratic(A, x[leader] - row), least) for row in x]
        assert quadratic_forms.distances(x, np.asarray(leader), A) == pytest.approx(plain, rel=1e-9)
        if leader == int(best):
            assert behind.tolist() == plain
