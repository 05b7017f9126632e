"""Fields and mobile health: what is drawn has the sizes that were asked for, and belongs to its seed alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from drimed.errors import ConfigError
from drimed.simulation.trial_world import BASELINE, HEALTH, THETA, Deviations, FieldSetting, FieldWorld, HealthSetting


def test_deviations_are_those_asked_for() -> None:
    """400 fields; each deviation rests on at least 2000 draws: 5 standard errors are below 8 %."""
    world = FieldWorld(FieldSetting(seasons=5), range(400))
    d = Deviations()
    means, block_effects = world.rewards, world.truth.block_effects[..., 0]
    both = means - means.mean(-1, keepdims=True) - means.mean(-2, keepdims=True) + means.mean((-1, -2), keepdims=True)
    assert both.std() / np.sqrt(4 / 5 * 5 / 6) == pytest.approx(d.site_arm, rel=0.08)
    arms = means.mean(1)
    assert (arms - arms.mean(-1, keepdims=True)).std() / np.sqrt(4 / 5) == pytest.approx(
        np.sqrt(d.arm**2 + d.site_arm**2 / 6), rel=0.08
    )
    assert block_effects.std() == pytest.approx(d.block, rel=0.08)
    level, by_arm = world.truth.season_effects
    assert level.std() == pytest.approx(d.season, rel=0.08)
    assert by_arm.std() == pytest.approx(d.season_arm, rel=0.08)
    assert world.truth.noise(0)[0].std() == pytest.approx(d.residual, rel=0.08)


def test_a_field_belongs_to_its_seed() -> None:
    one, many = FieldWorld(FieldSetting(), [7]), FieldWorld(FieldSetting(), [3, 7])
    action = np.zeros((1, 12), np.intp)
    np.testing.assert_array_equal(one.respond(4, action)[0], many.respond(4, np.repeat(action, 2, 0))[1])


def test_an_outcome_is_mean_season_and_noise() -> None:
    world = FieldWorld(FieldSetting(metrics=2, advantage=100.0), [1])
    truth, plain = world.truth, FieldWorld(FieldSetting(metrics=2), [1])
    level, by_arm = truth.season_effects
    expected = truth.lasting[0, :, 4] + level[0, 3] + by_arm[0, 3, 4] + truth.block_effects[0, 3, 0]
    y = world.respond(3, np.full((1, 12), 4))
    np.testing.assert_allclose(y[0] - truth.noise(3)[0][0], np.repeat(expected, 2, 0))
    np.testing.assert_allclose(world.rewards - plain.rewards, np.eye(5)[4] * 100.0 * np.ones((1, 6, 5)))


def test_scores_near_the_end_of_their_range_have_their_mean() -> None:
    """12,000 of them; normal ones cut off at the end have a mean of 8.6."""
    alike = Deviations(residual=2.5, block=0.0, season=0.0, site=0.0, arm=0.0, site_arm=0.0, season_arm=0.0)
    truth = FieldWorld(FieldSetting(level=9.0, deviations=alike), range(1000)).truth
    scores = replace(truth.setting, bounds=np.array([[0.0, 10.0]]), kinds=("score",))
    world = replace(truth, setting=scores)
    y = world.respond(0, np.zeros((1000, 12), np.intp), world.means(0), np.zeros(12, np.intp)).y
    assert ((y >= 0) & (y <= 10)).all()
    assert y.mean() == pytest.approx(9.0, abs=0.1)
    assert y.std() == pytest.approx(2.5, rel=0.05)


def test_a_shortfall_is_taken_from_every_arm_but_the_control() -> None:
    short, plain = (FieldWorld(FieldSetting(shortfall=s), [1]).rewards for s in (6.5, 0.0))
    np.testing.assert_allclose(plain - short, np.broadcast_to([0.0, 6.5, 6.5, 6.5, 6.5], (1, 6, 5)))


def test_noise_of_two_metrics_is_correlated() -> None:
    """24,000 plots: 5 standard errors of a correlation are below 0.03."""
    truth = FieldWorld(FieldSetting(metrics=2, correlation=0.5), range(200)).truth
    noise = np.stack([truth.noise(season)[0] for season in range(10)]).reshape(-1, 2)
    assert float(np.asarray(np.corrcoef(noise.T))[0, 1]) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("setting", HEALTH)
def test_mobile_health_responds_with_baseline_effect_and_noise(setting: str) -> None:
    world = HealthSetting(kind=setting, stages=20).world([1, 2])
    states = world.states(19)
    effect = world.effects(19, states)
    *_, last = world.blocks()
    acted, idle = (np.asarray(last.outcomes(np.full((2, 20), a)).reward) for a in (1, 0))
    np.testing.assert_allclose(acted - idle, effect)
    linear = np.asarray(BASELINE[0] + states @ np.asarray(BASELINE[1:]))
    same = np.concatenate([np.ones((2, 20, 1)), states], -1) @ np.asarray(THETA)
    assert np.allclose(effect, same) == (setting == "homogeneous")
    # 40 residuals of a linear baseline: their mean square is 1, or well above where there are bumps.
    assert (((idle - linear) ** 2).mean() < 2.0) == (setting != "nonlinear")


def test_the_control_keeps_its_floor_in_every_decision() -> None:
    sites = np.arange(6)
    kept, none = (FieldWorld(FieldSetting(floor=floor), [1]).offers(sites).floor for floor in (0.05, 0.0))
    assert none is None
    assert kept is not None
    assert np.all(kept.control == 0.05)
    assert not kept.arms.any()


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="sites must be a number from 1"):
        FieldSetting(sites=0)
    with pytest.raises(ConfigError, match=r"floor must be in \[0, 1\), got 1"):
        FieldSetting(floor=1.0)
    with pytest.raises(ConfigError, match=r"block must be at least 0 and finite, got -1\.0"):
        Deviations(block=-1.0)
    with pytest.raises(ConfigError, match="kind must be 'homogeneous' or"):
        HealthSetting(kind="other")
