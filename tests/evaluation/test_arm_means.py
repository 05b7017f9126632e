from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import InputError, ShapeError
from drimed.evaluation.arm_means import arm_band, difference_band
from tests.evaluation.adaptive import MEANS, greedy_trials, naive_effect

RUNS, N, ALPHA, SD = 1000, 600, 0.1, 0.5
TRIALS = greedy_trials(RUNS, N, sd=SD, seed=3)
SIGMA = np.where(np.arange(N) >= N // 2, 2 * SD, SD)


def test_every_arms_band_holds_at_all_times_under_adaptive_allocation() -> None:
    for arm in range(3):
        band = arm_band(action=TRIALS.action, reward=TRIALS.reward, arm=arm, sigma=SIGMA, alpha=ALPHA)
        assert (~band.holds(MEANS[arm])).mean() <= ALPHA


def test_the_difference_holds_at_all_times_and_the_usual_interval_does_not() -> None:
    band = difference_band(action=TRIALS.action, reward=TRIALS.reward, arm=2, control=0, sigma=SIGMA, alpha=ALPHA)
    truth = MEANS[2] - MEANS[0]
    assert (~band.holds(truth)).mean() <= ALPHA
    assert (~naive_effect(TRIALS, 2, 0, 1.645).holds(truth)).mean() > 0.3


def test_before_the_first_play_nothing_is_known() -> None:
    band = arm_band(action=[0, 1], reward=[1.0, 2.0], arm=1, sigma=1.0, alpha=0.1)
    assert band.low[0] == -np.inf
    assert np.isfinite(band.low[1])


def test_quieter_plays_count_more() -> None:
    loud = arm_band(action=[0, 0], reward=[0.0, 1.0], arm=0, sigma=[1.0, 10.0], alpha=0.1)
    assert (loud.low + loud.high)[-1] / 2 == pytest.approx(0.01 / 1.01)


def test_units_of_the_reward_do_not_matter() -> None:
    here = arm_band(action=TRIALS.action[:3], reward=TRIALS.reward[:3], arm=0, sigma=SIGMA, alpha=0.1)
    there = arm_band(action=TRIALS.action[:3], reward=7 * TRIALS.reward[:3], arm=0, sigma=7 * SIGMA, alpha=0.1)
    np.testing.assert_allclose(there.low, 7 * here.low)


def test_misuse_is_refused() -> None:
    with pytest.raises(InputError, match="sigma must be positive"):
        arm_band(action=[0], reward=[1.0], arm=0, sigma=0.0, alpha=0.1)
    with pytest.raises(ShapeError, match="one shape"):
        arm_band(action=[0, 1], reward=[1.0], arm=0, sigma=1.0, alpha=0.1)
