from __future__ import annotations

import numpy as np
import pytest

from drimed.numerics import ridge


def test_the_radius_of_the_running_example() -> None:
    beta = ridge.oful_radius(np.log(6.0), noise=1.0, norm=1.0, regularisation=1.0, delta=0.01)
    assert float(beta) == pytest.approx(4.316941, abs=5e-7)
    assert float(beta) ** 2 == pytest.approx(18.635983, abs=5e-6)


def test_the_radius_without_data_is_the_confidence_and_the_bias() -> None:
    beta = ridge.oful_radius(0.0, noise=2.0, norm=3.0, regularisation=4.0, delta=0.01)
    assert float(beta) == pytest.approx(2.0 * np.sqrt(2 * np.log(100.0)) + 2.0 * 3.0)


def test_the_radius_scales_with_noise_and_norm() -> None:
    # Rewards in another unit: noise and norm by c, lambda unchanged because V is not divided by the noise.
    one = ridge.oful_radius(1.5, noise=1.0, norm=1.0, regularisation=1.0, delta=0.05)
    other = ridge.oful_radius(1.5, noise=3.0, norm=3.0, regularisation=1.0, delta=0.05)
    assert float(other) == pytest.approx(3.0 * float(one))


def test_the_trace_bound_is_never_below_the_determinant_bound() -> None:
    rng = np.random.default_rng(0)
    d, lam, V = 3, 0.5, 0.5 * np.eye(3)
    for t in range(1, 60):
        x = rng.standard_normal(d)
        x /= np.linalg.norm(x)
        V = V + np.outer(x, x)
        logdet = np.linalg.slogdet(V)[1] - d * np.log(lam)
        det = ridge.oful_radius(logdet, noise=1.0, norm=1.0, regularisation=lam, delta=0.1)
        trace = ridge.trace_radius(t, d, noise=1.0, norm=1.0, longest=1.0, regularisation=lam, delta=0.1)
        assert float(trace) >= float(det)


def test_the_trace_bound_has_its_formula() -> None:
    beta = ridge.trace_radius(9, 2, noise=2.0, norm=1.0, longest=1.0, regularisation=1.0, delta=0.1)
    assert float(beta) == pytest.approx(2.0 * np.sqrt(2 * np.log(100.0)) + 1.0)


def test_the_linimed_experiments_radius_has_its_formula() -> None:
    assert float(ridge.lin_imed_radius(3, 2, noise=1.0)) == pytest.approx(np.sqrt(6 * np.log(4.0)) + np.sqrt(2))


def test_the_2013_inflation_has_its_formula_and_starts_at_round_one() -> None:
    assert float(ridge.thompson_radius(10, 2, noise=3.0, delta=0.1)) == pytest.approx(3.0 * np.sqrt(18 * np.log(100.0)))
    first = float(ridge.thompson_radius(1, 2, noise=1.0, delta=0.1))
    assert (
        float(ridge.thompson_radius(0, 2, noise=1.0, delta=0.1)) == first == pytest.approx(np.sqrt(18 * np.log(10.0)))
    )


def test_radii_take_any_batch() -> None:
    logdet = np.array([[0.0, 1.0], [2.0, 3.0]])
    beta = ridge.oful_radius(logdet, noise=1.0, norm=1.0, regularisation=1.0, delta=0.1)
    assert beta.shape == (2, 2)
    assert (np.diff(beta.ravel()) > 0).all()
