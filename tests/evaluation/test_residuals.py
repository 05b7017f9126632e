from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ConfigError, ShapeError
from drimed.evaluation.calibration import residual_check, standardised
from drimed.learning.fit import Fit

N, K, M = 400, 3, 2
ARM = np.arange(N) % K


def normal(seed: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(seed).standard_normal((N, M))


def test_a_right_noise_model_is_rarely_doubted() -> None:
    doubts = [residual_check(normal(i), ARM, K, level=0.95).wrong_variance.any() for i in range(500)]
    assert np.mean(doubts) < 0.12  # the tests are asymptotic, with 133 residuals for each arm


def test_the_arm_and_metric_whose_noise_is_wrong_is_named() -> None:
    e = normal(0)
    e[ARM == 1, 0] *= 1.6
    found = residual_check(e, ARM, K)
    assert found.wrong_variance.tolist() == [[False, False], [True, False], [False, False]]
    assert found.variance[1, 0] == pytest.approx(1.6**2, rel=0.3)


def test_heavy_tails_of_unit_variance_are_called_not_normal_and_not_a_wrong_variance() -> None:
    rng = np.random.default_rng(1)
    e = rng.standard_t(5, (6000, 1)) * np.sqrt(3 / 5)
    found = residual_check(e, np.zeros(6000, int), 1)
    assert found.not_normal.all()
    assert not found.wrong_variance.any()


def test_of_few_residuals_nothing_is_said() -> None:
    found = residual_check(normal(2)[:30], np.r_[np.zeros(25, int), np.ones(5, int)], 3)
    assert np.isfinite(found.variance[0]).all()
    assert np.isnan(found.variance[1:]).all()
    assert found.count[:, 0].tolist() == [25, 5, 0]
    assert not found.wrong_variance[1:].any()


def test_one_step_ahead_residuals_have_unit_variance() -> None:
    """theta drawn from the prior of the ridge: then the predictive variance is exact at every step."""
    rng = np.random.default_rng(3)
    runs, steps, d = 4000, 5, 2
    theta = rng.standard_normal((runs, d))
    V, b = np.broadcast_to(np.eye(d), (runs, d, d)), np.zeros((runs, d))
    for _ in range(steps):
        z = rng.standard_normal((runs, 1, d))
        w = np.matvec(z, theta) + rng.standard_normal((runs, 1))
        V_inv = np.asarray(np.linalg.inv(V), np.float64)
        fit = Fit(np.matvec(V_inv, b), V_inv, np.ones(runs), None, np.zeros((runs, 1)), 1, 1.0)
        e = standardised(fit, z, w)
        assert e.var() == pytest.approx(1.0, abs=5 * np.sqrt(2 / runs))
        V, b = V + np.swapaxes(z, -1, -2) * z, b + z[:, 0] * w


def test_misuse_is_refused() -> None:
    with pytest.raises(ShapeError):
        residual_check(normal(0), ARM[:-1], K)
    with pytest.raises(ConfigError, match="level"):
        residual_check(normal(0), ARM, K, level=1.0)
