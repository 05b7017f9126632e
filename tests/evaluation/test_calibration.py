from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.evaluation.calibration import calibration, inverse_check
from drimed.evaluation.log import Log, make_log
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
