"""Effects from propensities: unbiased, and valid at all times under adaptive allocation; the usual interval is not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.evaluation.confidence_sequences import Band
from drimed.evaluation.propensity_effects import (
    Scores,
    asymptotic_band,
    calibration_p_value,
    effect_scores,
    exact_band,
    running_predictions,
)
from drimed.numerics.arrays import FloatArray
from tests.evaluation.adaptive import MEANS, K, Trials, contrast, greedy_trials, holds, naive_effect
from tests.evaluation.logs import drawn

RUNS, N, ALPHA = 300, 600, 0.1
COINS = greedy_trials(RUNS, N, decay=0.25)
NORMAL = greedy_trials(RUNS, N, decay=0.25, sd=0.5, seed=1)  # its noise doubles half-way
PAIRS = [(1, 0), (2, 0)]


def scored(trials: Trials, weights: Any, **more: Any) -> Scores:
    given: dict[str, Any] = {"action": trials.action, "reward": trials.reward, "probabilities": trials.probabilities}
    return effect_scores(**given, contrast=weights, **more)


def looked_at(s: Scores) -> Band:
    """The exact band after every 30th decision."""
    parts = [replace(s, value=s.value[:, :t], used=s.used[:, :t], share=s.share[:, :t]) for t in range(30, N + 1, 30)]
    bands = [exact_band(part, ALPHA) for part in parts]
    return Band(np.stack([b.low for b in bands], -1), np.stack([b.high for b in bands], -1))


@pytest.mark.parametrize(("arm", "control"), PAIRS)
def test_scores_are_unbiased_at_every_time(arm: int, control: int) -> None:
    value = scored(COINS, contrast(arm, control, K), reward_range=(0.0, 1.0)).value
    errors = value[:, 60:] - (MEANS[arm] - MEANS[control])
    blocks = errors.reshape(RUNS, 9, -1).mean(-1)  # nine stretches of time
    z = blocks.mean(0) / (blocks.std(0) / np.sqrt(RUNS))
    assert np.abs(z).max() < 4.5  # nine tests: a false alarm once in 10^4 choices of the seed


@pytest.mark.parametrize(("arm", "control"), PAIRS)
def test_the_exact_band_holds_at_all_times(arm: int, control: int) -> None:
    band = looked_at(scored(COINS, contrast(arm, control, K), reward_range=(0.0, 1.0)))
    assert (~holds(band, MEANS[arm] - MEANS[control])).mean() <= ALPHA
    assert np.median((band.high - band.low)[:, -1]) < 2.0


def test_an_arm_against_itself_has_no_effect_for_sure() -> None:
    trials: dict[str, Any] = {"action": [0, 1, 0], "reward": [0.0, 1.0, 1.0], "probabilities": np.full((3, 2), 0.5)}
    s = effect_scores(**trials, contrast=[0.0, 0.0], reward_range=(0.0, 1.0))
    band = exact_band(s, ALPHA)
    assert float(band.low) == float(band.high) == 0.0


@pytest.mark.parametrize(("arm", "control"), PAIRS)
@pytest.mark.parametrize("trials", [COINS, NORMAL], ids=["coins", "normal"])
def test_the_asymptotic_band_holds_at_all_times(trials: Trials, arm: int, control: int) -> None:
    truth = MEANS[arm] - MEANS[control]
    band = asymptotic_band(scored(trials, contrast(arm, control, K)), ALPHA)
    assert (~holds(band, truth)).mean() <= ALPHA
    assert np.isfinite(band.low[:, -1]).all()


@pytest.mark.parametrize("trials", [COINS, NORMAL], ids=["coins", "normal"])
def test_the_usual_interval_does_not_hold_at_all_times(trials: Trials) -> None:
    band = naive_effect(trials, 2, 0, 1.645)
    assert (~holds(band, MEANS[2] - MEANS[0])).mean() > 0.3


def test_with_a_policy_as_contrast_the_band_is_that_of_its_value() -> None:
    """The doubly robust value of a target, exact and at all times."""
    target = np.array([0.2, 0.3, 0.5])
    band = looked_at(scored(COINS, target, reward_range=(0.0, 1.0)))
    assert (~holds(band, float(MEANS @ target))).mean() <= ALPHA
    assert np.median((band.high - band.low)[:, -1]) < 0.9


def test_predictions_change_the_noise_and_not_the_mean() -> None:
    good, bad = (scored(COINS, contrast(2, 0, K), predictions=q).value for q in (MEANS, MEANS + 5))
    assert good.mean() == pytest.approx(0.2, abs=0.01)
    assert bad.mean() == pytest.approx(0.2, abs=0.1)
    assert good.std() < bad.std() / 2


def test_decisions_without_a_chance_for_the_arm_are_left_out() -> None:
    p = np.array([[0.5, 0.5], [0.5, 0.5], [1.0, 0.0], [0.991, 0.009], [0.5, 0.5]])
    s = effect_scores(action=[0, 1, 0, 0, 1], reward=[1.0, 3.0, 1.0, 1.0, 3.0], probabilities=p, contrast=[-1.0, 1.0])
    assert s.used.tolist() == [False, True, False, False, True]  # nothing predicted the first
    assert s.value[[0, 2, 3]].tolist() == [0, 0, 0]
    assert s.plays.tolist() == [0, 0.5, 0.5, 0.5, 1.0]


def test_predictions_never_see_their_own_reward() -> None:
    action, reward, user, season = [0, 0, 1, 1], np.array([1.0, 2.0, 3.0, 4.0]), [0, 1, 0, 1], [0, 0, 1, 1]
    for i in range(4):
        changed = reward.copy()
        changed[i] = 100.0
        here, there = (running_predictions(action, r, 2, user=user, season=season) for r in (reward, changed))
        np.testing.assert_array_equal(here[: i + 1], there[: i + 1])
        assert i == 3 or (here[i + 1] != there[i + 1]).any()


def test_predictions_learn_levels_of_users_and_seasons() -> None:
    rng = np.random.default_rng(3)
    user, season = np.tile(np.arange(6), 40), np.repeat(np.arange(40), 6)
    level = rng.normal(50.0, 20.0, 6)[user] + rng.normal(0.0, 20.0, 40)[season]
    action = rng.integers(0, 2, 240)
    reward = level + 5.0 * action + rng.standard_normal(240)
    left = {}
    cases: dict[str, dict[str, Any]] = {"plain": {}, "levels": {"user": user, "season": season}}
    for name, given in cases.items():
        q = running_predictions(action, reward, 2, **given)
        left[name] = np.std(reward[60:] - np.take_along_axis(q, action[:, None], 1)[60:, 0])
    assert left["levels"] < 0.55 * left["plain"]


def test_some_arms_are_predicted_as_among_all() -> None:
    rng = np.random.default_rng(0)
    action, reward, user = rng.integers(0, 4, 50), rng.standard_normal(50), rng.integers(0, 3, 50)
    every = running_predictions(action, reward, 4, user=user)
    some = running_predictions(action, reward, 4, user=user, arms=[3, 1])
    np.testing.assert_array_equal(some[:, :2], every[:, [3, 1]])
    np.testing.assert_array_equal(some[:, 2], every[np.arange(50), action])


# Effects that differ


def changing(effects: FloatArray, *, runs: int = 400, floor: float = 0.1) -> tuple[Trials, FloatArray]:
    """A control and one arm whose effect changes along the n decisions (n,); greedy with a floor under both."""
    rng, n = np.random.default_rng(11), len(effects)
    p, total = np.full((runs, n, 2), 0.5), np.zeros((runs, 2))
    action, reward = np.zeros((runs, n), np.intp), np.zeros((runs, n))
    for t in range(n):
        if t >= 20:
            p[:, t] = np.where(total.argmax(-1)[:, None] == [0, 1], 1 - floor, floor)
        action[:, t] = rng.random(runs) < p[:, t, 1]
        reward[:, t] = action[:, t] * effects[t] + rng.standard_normal(runs)
        each = np.arange(runs)
        total[each, action[:, t]] += reward[:, t] / p[each, t, action[:, t]]
    return Trials(action, reward, p), np.cumsum(effects) / np.arange(1, n + 1)


@pytest.mark.parametrize("shape", ["two clinics", "trend"])
def test_the_average_effect_so_far_is_held_where_effects_change(shape: str) -> None:
    n = 500
    effects = np.where(np.arange(n) < n // 2, -0.5, 1.5) if shape == "two clinics" else np.linspace(-1.0, 1.0, n)
    trials, truth = changing(effects)
    band = asymptotic_band(scored(trials, [-1.0, 1.0], predictions=np.zeros(2)), ALPHA)
    inside = (band.low <= truth) & (truth <= band.high)
    assert inside.all(-1).mean() >= 1 - ALPHA
    assert np.median((band.high - band.low)[:, -1]) < 1.7


def test_users_with_different_controls_average_over_all_of_them() -> None:
    """Half of the users have arm 1 as their control: for these its effect is zero, and for the others it is 2."""
    rng, runs, n = np.random.default_rng(2), 300, 400
    mine = np.tile([False, True], n // 2)
    p = np.where(mine[:, None], [0.0, 1.0, 0.0], [0.1, 0.9, 0.0])  # the first never play their alternatives
    p = np.broadcast_to(p, (runs, n, 3))
    action = (rng.random((runs, n)) < p[..., 1]).astype(np.intp)
    reward = 2.0 * action + rng.standard_normal((runs, n))
    g = np.where(mine[:, None], 0.0, [-1.0, 1.0, 0.0])
    s = effect_scores(action=action, reward=reward, probabilities=p, contrast=g)
    assert s.plays[:, -1] == pytest.approx(19.9)  # of the rarer arm, where there is something to compare; not the first
    band = asymptotic_band(s, ALPHA)
    assert np.median(band.low[:, -1] + band.high[:, -1]) / 2 == pytest.approx(1.0, abs=0.1)
    assert holds(band, np.ones(runs)).mean() >= 1 - ALPHA


def test_no_plays_give_no_range() -> None:
    """Decisions without a contrast are not plays."""
    g = np.where(np.arange(200)[:, None] < 195, 0.0, [-1.0, 1.0])
    rng = np.random.default_rng(0)
    action = rng.integers(0, 2, 200)
    given: dict[str, Any] = {
        "action": action,
        "reward": rng.standard_normal(200),
        "probabilities": np.full((200, 2), 0.5),
    }
    assert not np.isfinite(asymptotic_band(effect_scores(**given, contrast=g), ALPHA).low).any()


def test_an_arm_with_louder_noise_that_is_seldom_played_is_allowed_for() -> None:
    rng, runs, n = np.random.default_rng(4), 1000, 480
    p = np.broadcast_to([0.05, 0.95], (runs, n, 2))
    action = (rng.random((runs, n)) < 0.95).astype(np.intp)
    reward = np.where(action == 0, 3.0, 1.0) * rng.standard_normal((runs, n))
    band = asymptotic_band(effect_scores(action=action, reward=reward, probabilities=p, contrast=[-1.0, 1.0]), 0.05)
    assert holds(band, np.zeros(runs)).mean() >= 0.93  # 95% less 2.9 standard errors


@pytest.mark.parametrize("p_event", [0.02, 0.1])
def test_rare_events_are_waited_for(p_event: float) -> None:
    rng, runs, n = np.random.default_rng(5), 500, 600
    p = np.broadcast_to([0.1, 0.9], (runs, n, 2))
    action = (rng.random((runs, n)) < 0.9).astype(np.intp)
    reward = (rng.random((runs, n)) < p_event).astype(np.float64)
    band = asymptotic_band(effect_scores(action=action, reward=reward, probabilities=p, contrast=[-1.0, 1.0]), 0.05)
    assert holds(band, np.zeros(runs)).mean() >= 0.95


def test_misuse_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the range of the reward"):
        exact_band(scored(COINS, contrast(1, 0, K)), 0.1)
    with pytest.raises(InputError, match="within 0 to 1"):
        effect_scores(
            action=[0], reward=[2.0], probabilities=[[0.5, 0.5]], contrast=contrast(1, 0, 2), reward_range=(0, 1)
        )
    with pytest.raises(ShapeError, match="do not fit"):
        effect_scores(action=[0, 1], reward=[2.0], probabilities=[[0.5, 0.5]], contrast=contrast(1, 0, 2))


def test_wrong_propensities_are_found() -> None:
    """The same choices, with probabilities written down as if a fifth of each went to the first arm."""
    log, _ = drawn(2000)
    assert log.probabilities is not None
    wrong = 0.8 * log.probabilities
    wrong[:, 0] += 0.2
    assert calibration_p_value(log.action, wrong) < 1e-6
    assert calibration_p_value(log.action, log.probabilities) > 1e-3
    assert calibration_p_value(np.array([0, 1]), np.eye(2)) == 1.0, "a deterministic log has nothing to test"


def test_betting_is_not_fooled_by_rare_arms_and_many_looks_but_finds_what_is_wrong() -> None:
    """At 1 %: one draw of a rare arm is no evidence, at whatever decision one looks; 60 of 100 heads is, in time."""
    rng = np.random.default_rng(5)

    def alarms(said: list[float], true: list[float], n: int, runs: int) -> float:
        p = np.tile(said, (n, 1))
        drawn = (rng.choice(len(true), n, p=true) for _ in range(runs))
        return float(np.mean([calibration_p_value(a, p) < 0.01 for a in drawn]))  # the largest stake ever: any look

    for n in (4, 20, 144):
        assert alarms([0.97, 0.015, 0.015], [0.97, 0.015, 0.015], n, 200) <= 0.03
    assert alarms([0.5, 0.5], [0.5, 0.5], 600, 100) <= 0.04
    assert alarms([0.5, 0.5], [0.6, 0.4], 1000, 30) > 0.85
