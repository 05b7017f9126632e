from __future__ import annotations

import numpy as np
import pytest

from drimed.linear import radius


def test_the_radius_of_the_running_example() -> None:
    beta = radius.oful(np.log(6.0), noise=1.0, norm=1.0, regularisation=1.0, delta=0.01)
    assert float(beta) == pytest.approx(4.316941, abs=5e-7)
    assert float(beta) ** 2 == pytest.approx(18.635983, abs=5e-6)


def test_the_radius_without_data_is_the_confidence_and_the_bias() -> None:
    beta = radius.oful(0.0, noise=2.0, norm=3.0, regularisation=4.0, delta=0.01)
    assert float(beta) == pytest.approx(2.0 * np.sqrt(2 * np.log(100.0)) + 2.0 * 3.0)


def test_the_radius_scales_with_noise_and_norm() -> None:
    # Rewards in another unit: noise and norm by c, lambda unchanged because V is not divided by the noise.
    one = radius.oful(1.5, noise=1.0, norm=1.0, regularisation=1.0, delta=0.05)
    other = radius.oful(1.5, noise=3.0, norm=3.0, regularisation=1.0, delta=0.05)
    assert float(other) == pytest.approx(3.0 * float(one))


def test_the_trace_bound_is_never_below_the_determinant_bound() -> None:
    rng = np.random.default_rng(0)
    d, lam, V = 3, 0.5, 0.5 * np.eye(3)
    for t in range(1, 60):
        x = rng.standard_normal(d)
        x /= np.linalg.norm(x)
        V = V + np.outer(x, x)
        logdet = np.linalg.slogdet(V)[1] - d * np.log(lam)
        det = radius.oful(logdet, noise=1.0, norm=1.0, regularisation=lam, delta=0.1)
        trace = radius.oful_trace(t, d, noise=1.0, norm=1.0, longest=1.0, regularisation=lam, delta=0.1)
        assert float(trace) >= float(det)


def test_the_trace_bound_has_its_formula() -> None:
    beta = radius.oful_trace(9, 2, noise=2.0, norm=1.0, longest=1.0, regularisation=1.0, delta=0.1)
    assert float(beta) == pytest.approx(2.0 * np.sqrt(2 * np.log(100.0)) + 1.0)


def test_the_linimed_experiments_radius_has_its_formula() -> None:
    assert float(radius.lin_imed_experiments(3, 2, noise=1.0)) == pytest.approx(np.sqrt(6 * np.log(4.0)) + np.sqrt(2))


def test_the_2013_inflation_has_its_formula_and_starts_at_round_one() -> None:
    assert float(radius.thompson_2013(10, 2, noise=3.0, delta=0.1)) == pytest.approx(3.0 * np.sqrt(18 * np.log(100.0)))
    first = float(radius.thompson_2013(1, 2, noise=1.0, delta=0.1))
    assert float(radius.thompson_2013(0, 2, noise=1.0, delta=0.1)) == first == pytest.approx(np.sqrt(18 * np.log(10.0)))


def test_radii_take_any_batch() -> None:
    logdet = np.array([[0.0, 1.0], [2.0, 3.0]])
    beta = radius.oful(logdet, noise=1.0, norm=1.0, regularisation=1.0, delta=0.1)
    assert beta.shape == (2, 2)
    assert (np.diff(beta.ravel()) > 0).all()
