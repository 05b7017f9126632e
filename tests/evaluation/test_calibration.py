from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.calibration import calibration, inverse_check, residual_check, standardised
from drimed.evaluation.log import Log, make_log
from drimed.learning.offer import Fit
from tests.evaluation.logs import drawn


def told_wrong(log: Log) -> Log:
    """The same choices, with probabilities written down as if a fifth of each went to the first arm."""
    assert log.probabilities is not None
    p = 0.8 * log.probabilities
    p[:, 0] += 0.2
    return replace(log, probabilities=p, propensity=p[np.arange(len(log)), log.action])


def test_true_propensities_are_rejected_at_the_stated_rate() -> None:
    p = [calibration(drawn(400, seed=i)[0]).p_value for i in range(1000)]
    assert np.mean(np.array(p) < 0.05) == pytest.approx(0.05, abs=0.025)  # 3.6 standard errors


def test_wrong_propensities_are_found_and_the_arm_named() -> None:
    log, _ = drawn(2000)
    found = calibration(told_wrong(log))
    assert found.p_value < 1e-6
    assert int(np.abs(found.z).argmax()) == 0
    assert found.realised[0] < found.expected[0]
    assert calibration(log).p_value > 1e-3


def test_betting_is_not_fooled_by_rare_arms_and_many_looks_but_finds_what_is_wrong() -> None:
    """At 1 %: one draw of a rare arm is no evidence, at whatever decision one looks; 60 of 100 heads is, in time."""
    rng = np.random.default_rng(5)

    def alarms(said: list[float], true: list[float], n: int, runs: int) -> float:
        p = np.tile(said, (n, 1))
        drawn = (rng.choice(len(true), n, p=true) for _ in range(runs))
        logs = (make_log(action=a, reward=[0.0] * n, probabilities=p) for a in drawn)
        return float(np.mean([calibration(log).anytime_p < 0.01 for log in logs]))  # the largest stake ever: any look

    for n in (4, 20, 144):
        assert alarms([0.97, 0.015, 0.015], [0.97, 0.015, 0.015], n, 500) <= 0.02
    assert alarms([0.5, 0.5], [0.5, 0.5], 600, 300) <= 0.02
    assert alarms([0.5, 0.5], [0.6, 0.4], 1000, 50) > 0.9


def test_the_table_counts_every_pair_of_decision_and_arm() -> None:
    log, _ = drawn(300)
    found = calibration(log, bins=5)
    assert found.bin_count.sum() == 300 * 3
    assert (found.bin_realised * found.bin_count).sum() == pytest.approx(300)
    assert found.realised.sum() == 300
    assert np.isnan(found.bin_p[found.bin_count == 0]).all()


def test_a_deterministic_log_has_nothing_to_test() -> None:
    log = make_log(action=[0, 1], reward=[0.0, 0.0], probabilities=[[1.0, 0.0], [0.0, 1.0]])
    assert calibration(log).p_value == 1.0
    lying = make_log(
        action=[0] * 400, reward=[0.0] * 400, probabilities=np.tile([0.5, 0.5], (400, 1))
    )  # the first arm every time, said to be a coin
    assert calibration(lying).p_value < 1e-6


def test_the_propensity_of_the_arm_played_alone_can_be_checked() -> None:
    log, _ = drawn(2000)
    mean, p = inverse_check(log)
    assert mean == pytest.approx(3, rel=0.1)
    assert p > 1e-3
    assert inverse_check(told_wrong(log))[1] < 1e-3


def test_misuse_is_refused() -> None:
    log, _ = drawn(20)
    with pytest.raises(InputError, match="probabilities of all arms"):
        calibration(replace(log, probabilities=None))
    with pytest.raises(ConfigError, match="bins"):
        calibration(log, bins=0)
    with pytest.raises(InputError, match="unknown"):
        inverse_check(replace(log, propensity=np.full(20, np.nan)))


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


def test_misuse_of_residuals_is_refused() -> None:
    with pytest.raises(ShapeError):
        residual_check(normal(0), ARM[:-1], K)
    with pytest.raises(ConfigError, match="level"):
        residual_check(normal(0), ARM, K, level=1.0)
