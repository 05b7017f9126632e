"""Effects from propensities: unbiased, and valid at all times under adaptive allocation; the usual interval is not."""

from __future__ import annotations

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.scores import Scores, contrast, effect_at_end, effect_band, effect_scores, past_means
from tests.evaluation.adaptive import MEANS, K, Trials, greedy_trials, naive_effect

RUNS, N, ALPHA = 1000, 1000, 0.1
COINS = greedy_trials(RUNS, N, decay=0.25)
NORMAL = greedy_trials(RUNS, N, decay=0.25, sd=0.5, seed=1)  # its noise doubles half-way
PAIRS = [(1, 0), (2, 0)]


def scored(trials: Trials, arm: int, control: int, reward_range: tuple[float, float] | None) -> Scores:
    return effect_scores(
        action=trials.action,
        reward=trials.reward,
        probabilities=trials.probabilities,
        contrast=contrast(arm, control, K),
        reward_range=reward_range,
    )


@pytest.mark.parametrize(("arm", "control"), PAIRS)
def test_scores_are_unbiased_at_every_time(arm: int, control: int) -> None:
    value = scored(COINS, arm, control, (0.0, 1.0)).value
    errors = value - (MEANS[arm] - MEANS[control])
    blocks = errors.reshape(RUNS, 10, -1).mean(-1)  # ten stretches of time
    z = blocks.mean(0) / (blocks.std(0) / np.sqrt(RUNS))
    assert np.abs(z).max() < 4.5  # ten tests: a false alarm once in 10^4 choices of the seed


@pytest.mark.parametrize(("arm", "control"), PAIRS)
def test_the_exact_band_holds_at_all_times(arm: int, control: int) -> None:
    truth = MEANS[arm] - MEANS[control]
    band = effect_band(scored(COINS, arm, control, (0.0, 1.0)), ALPHA, method="bernstein")
    assert (~band.holds(truth)).mean() <= ALPHA
    assert np.median((band.high - band.low)[:, -1]) < 0.9


@pytest.mark.parametrize(("arm", "control"), PAIRS)
@pytest.mark.parametrize("trials", [COINS, NORMAL], ids=["coins", "normal"])
def test_the_asymptotic_band_holds_at_all_times(trials: Trials, arm: int, control: int) -> None:
    truth = MEANS[arm] - MEANS[control]
    band = effect_band(scored(trials, arm, control, None), ALPHA, method="asymptotic")
    assert (~band.holds(truth)).mean() <= ALPHA
    assert np.isfinite(band.low[:, -1]).all()


@pytest.mark.parametrize("trials", [COINS, NORMAL], ids=["coins", "normal"])
def test_the_usual_interval_does_not_hold_at_all_times(trials: Trials) -> None:
    band = naive_effect(trials, 2, 0, 1.645)
    assert (~band.holds(MEANS[2] - MEANS[0])).mean() > 0.3


def test_with_a_policy_as_contrast_the_band_is_that_of_its_value() -> None:
    """The doubly robust value of a target, exact and at all times."""
    target = np.array([0.2, 0.3, 0.5])
    scores = effect_scores(
        action=COINS.action,
        reward=COINS.reward,
        probabilities=COINS.probabilities,
        contrast=target,
        reward_range=(0.0, 1.0),
    )
    band = effect_band(scores, ALPHA, method="bernstein")
    assert (~band.holds(float(MEANS @ target))).mean() <= ALPHA
    assert np.median((band.high - band.low)[:, -1]) < 0.4


def test_known_noise_narrows_the_band_and_it_still_holds() -> None:
    truth, sigma = MEANS[2] - MEANS[0], np.where(np.arange(N) >= N // 2, 1.0, 0.5)
    blind = scored(NORMAL, 2, 0, None)
    told = effect_scores(
        action=NORMAL.action,
        reward=NORMAL.reward,
        probabilities=NORMAL.probabilities,
        contrast=contrast(2, 0, K),
        sigma=np.broadcast_to(sigma[:, None], (N, K)),
    )
    narrow, wide = (effect_band(s, ALPHA, method="asymptotic") for s in (told, blind))
    assert (~narrow.holds(truth)).mean() <= ALPHA
    assert np.median((narrow.high - narrow.low)[:, -1]) < 0.95 * np.median((wide.high - wide.low)[:, -1])


def test_at_a_planned_end_the_stabilised_interval_covers() -> None:
    scores = scored(COINS, 2, 0, (0.0, 1.0))
    inside = 0
    for i in range(RUNS):
        one = Scores(scores.value[i], scores.precision[i], scores.chance[i], None, None, 1.0)
        found = effect_at_end(one, 0.95)
        inside += found.low <= MEANS[2] - MEANS[0] <= found.high
    assert inside / RUNS > 0.93  # 95% less 2.9 standard errors


def test_adaptive_weights_narrow_the_interval_where_an_arm_is_played_less_and_less() -> None:
    trials = greedy_trials(200, 1000, decay=0.5)
    s = scored(trials, 1, 0, None)
    weighted: list[float] = []
    plain: list[float] = []
    for i in range(200):
        for found, precision in ((weighted, s.precision[i]), (plain, np.ones(1000))):
            interval = effect_at_end(Scores(s.value[i], precision, s.chance[i], None, None, 1.0), 0.95)
            found.append(interval.high - interval.low)
    assert np.median(weighted) < 0.95 * np.median(plain)


def test_predictions_change_the_noise_and_not_the_mean() -> None:
    good = effect_scores(
        action=COINS.action,
        reward=COINS.reward,
        probabilities=COINS.probabilities,
        contrast=contrast(2, 0, K),
        predictions=MEANS,
    ).value
    bad = effect_scores(
        action=COINS.action,
        reward=COINS.reward,
        probabilities=COINS.probabilities,
        contrast=contrast(2, 0, K),
        predictions=MEANS + 5,
    ).value
    assert good.mean() == pytest.approx(0.2, abs=0.01)
    assert bad.mean() == pytest.approx(0.2, abs=0.1)
    assert good.std() < bad.std() / 2


def test_decisions_without_a_chance_for_the_arm_are_left_out() -> None:
    p = np.array([[0.5, 0.5], [1.0, 0.0], [0.5, 0.5]])
    s = effect_scores(action=[0, 0, 1], reward=[1.0, 1.0, 3.0], probabilities=p, contrast=contrast(1, 0, 2))
    assert s.used.tolist() == [True, False, True]
    assert s.value[1] == 0
    never = effect_scores(action=[0], reward=[1.0], probabilities=[[1.0, 0.0]], contrast=contrast(1, 0, 2))
    with pytest.raises(InputError, match="propensities cannot tell this effect"):
        effect_at_end(never, 0.95)


def test_a_control_that_is_a_lottery_is_a_contrast_too() -> None:
    assert contrast(0, [0.5, 0.5], 2).tolist() == [0.5, -0.5]
    with pytest.raises(InputError, match="arm must be from 0 to 1"):
        contrast(2, 0, 2)
    with pytest.raises(InputError, match="control must be an arm"):
        contrast(0, 5, 2)
    with pytest.raises(InputError, match="sum to 1"):
        contrast(0, [0.5, 0.2], 2)


def test_running_means_never_see_their_own_reward() -> None:
    action, reward = np.array([0, 0, 1]), np.array([1.0, 2.0, 3.0])
    changed = reward.copy()
    changed[1] = 100.0
    here, there = past_means(action, reward, 2), past_means(action, changed, 2)
    np.testing.assert_array_equal(here[:2], there[:2])
    assert here[2, 0] != there[2, 0]


def test_ranges_of_scores_hold_every_score() -> None:
    s = scored(COINS, 2, 1, (0.0, 1.0))
    assert s.low is not None
    assert s.high is not None
    assert (s.low <= s.value + 1e-9).all()
    assert (s.value <= s.high + 1e-9).all()


def test_misuse_is_refused() -> None:
    s = scored(COINS, 1, 0, None)
    with pytest.raises(ConfigError, match="needs the range of the reward"):
        effect_band(s, 0.1, method="bernstein")
    with pytest.raises(ConfigError, match="method must be"):
        effect_band(s, 0.1, method="magic")
    with pytest.raises(ShapeError, match="one run at a time"):
        effect_at_end(s, 0.95)
    with pytest.raises(InputError, match="within 0 to 1"):
        effect_scores(
            action=[0], reward=[2.0], probabilities=[[0.5, 0.5]], contrast=contrast(1, 0, 2), reward_range=(0, 1)
        )
    with pytest.raises(ShapeError, match="do not fit"):
        effect_scores(action=[0, 1], reward=[2.0], probabilities=[[0.5, 0.5]], contrast=contrast(1, 0, 2))
