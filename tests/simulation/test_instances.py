"""Instances, controls and drifts: the authors' draws, and what is wrong with their instance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, DrimedError, InputError, ShapeError, UnknownNameError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.simulation.instances import (
    DRIFTS,
    PAPER_SHAPE,
    Instance,
    authors_instance,
    draw_instance,
    given_control,
    levels,
    quantile_control,
)

AUTHORS = authors_instance()
MEANS = AUTHORS.means(AUTHORS.preferences)  # (H, K), what the users really get


def sigmas(instance: Instance) -> FloatArray:
    """sqrt(p^T Sigma p) at context 0, where the scale of the noise is .1: (H, K)."""
    variance = np.einsum("hm,kmn,hn->hk", instance.preferences, instance.covariances, instance.preferences)
    return np.asarray(np.sqrt(0.1 * variance))


@pytest.mark.parametrize(("seed", "shape"), [(42, PAPER_SHAPE), (5, Shape(d=3, K=6, M=2, H=7))])
def test_an_instance_is_drawn_in_the_authors_order(seed: int, shape: Shape) -> None:
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(shape.d)
    theta = theta / np.sqrt((theta**2).sum())
    Phi = rng.standard_normal((shape.K, shape.M, shape.d))
    raw = rng.standard_normal((shape.K, shape.M, shape.M))
    P = [rng.dirichlet([1.0] * shape.M) for _ in range(shape.H)]
    drawn = [rng.dirichlet(2 * P[h]) for h in range(shape.H)]
    found = draw_instance(seed, shape)
    np.testing.assert_allclose(found.theta, theta, rtol=1e-14)
    for a in range(shape.K):
        for m in range(shape.M):
            np.testing.assert_allclose(found.maps[a, m], Phi[a, m] / np.sqrt((Phi[a, m] ** 2).sum()), rtol=1e-14)
        np.testing.assert_allclose(found.covariances[a], raw[a] @ raw[a].T / shape.M, rtol=1e-13)
    np.testing.assert_allclose(found.preference_means, P, rtol=1e-14)
    np.testing.assert_allclose(found.preferences, drawn, rtol=1e-14)
    np.testing.assert_allclose(draw_instance(seed, shape, theta_norm=2.5).theta, 2.5 * theta)


def test_the_authors_oracle_is_wrong_for_two_users_and_hides_a_third_of_a_reward() -> None:
    """I-4: they rank arms by E[p_h] instead of p_h."""
    believed = AUTHORS.means(AUTHORS.preference_means).argmax(-1)
    lost = MEANS.max(-1) - MEANS[np.arange(10), believed]
    assert np.count_nonzero(lost) == 2
    assert lost.sum() == pytest.approx(0.319, abs=5e-4)


def test_the_best_ratio_of_signal_to_noise_is_another_arm_for_one_user() -> None:
    """I-2: .072 of reward per episode."""
    chosen = (MEANS / sigmas(AUTHORS)).argmax(-1)
    lost = MEANS.max(-1) - MEANS[np.arange(10), chosen]
    assert np.count_nonzero(lost) == 1
    assert lost.sum() == pytest.approx(0.072, abs=5e-4)


def test_normalised_features_are_up_to_ten_times_as_long_as_assumed() -> None:
    """I-24: the paper assumes |x / sigma| <= 1; at context 0 it is 9.7."""
    x = np.einsum("hm,kmd->hkd", AUTHORS.preferences, AUTHORS.maps)
    assert (np.linalg.norm(x, axis=-1) / sigmas(AUTHORS)).max() == pytest.approx(9.7, abs=0.05)


def test_one_arm_is_best_for_nine_of_ten_users() -> None:
    assert np.bincount(MEANS.argmax(-1)).max() == 9


BAD_INSTANCES: list[tuple[dict[str, Any], type[DrimedError], str]] = [
    ({"theta": np.full(4, np.nan)}, InputError, "theta must be finite, got nan"),
    ({"theta": np.ones(3)}, ShapeError, r"maps must have shape \(\.\.\., 5, 4, 3\), got \(5, 4, 4\)"),
    ({"maps": np.ones(4)}, ShapeError, "maps"),
    ({"covariances": AUTHORS.covariances[:2]}, ShapeError, r"covariances must .* 5, 4, 4\), got \(2, 4, 4\)"),
    ({"covariances": -AUTHORS.covariances}, InputError, "covariances must be positive semi-definite"),
    ({"covariances": np.triu(AUTHORS.covariances)}, InputError, "covariances must be symmetric"),
    ({"covariances": 0 * AUTHORS.covariances}, InputError, "covariances"),
    ({"preferences": AUTHORS.preferences[:, :2]}, ShapeError, r"preferences must .* 10, 4\), got \(10, 2\)"),
    ({"preference_means": AUTHORS.preference_means[:2]}, ShapeError, "preference_means must have shape"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_INSTANCES)
def test_a_bad_instance_is_refused(change: dict[str, Any], error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        replace(AUTHORS, **change)


@pytest.mark.parametrize("setting", [{"theta_norm": 0.0}, {"theta_norm": np.nan}, {"preference_scale": -1.0}])
def test_scales_must_be_positive(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="theta_norm and preference_scale must be positive"):
        draw_instance(0, **setting)


@pytest.mark.parametrize("quantile", [0.0, 0.25, 0.5, 0.75, 1.0])
def test_the_control_is_the_arm_nearest_the_quantile_of_each_users_means(quantile: float) -> None:
    control, means = quantile_control(AUTHORS, quantile), AUTHORS.means(AUTHORS.preferences)
    assert control.shape == (10, 5)
    for h in range(10):
        arm = int(control[h].argmax())
        assert control[h].tolist() == np.eye(5)[arm].tolist()
        rank = sorted(means[h]).index(means[h, arm])
        assert rank == round(4 * quantile)  # five arms: these quantiles are arms


def test_two_users_of_the_authors_have_a_control_of_negative_mean() -> None:
    """The sixth and the tenth: there (1 - eps) mu_0 lies above mu_0."""
    mu0 = (quantile_control(AUTHORS, judged_by="preference_means") * AUTHORS.means(AUTHORS.preferences)).sum(-1)
    assert [h + 1 for h in range(10) if mu0[h] < 0] == [6, 10]


def test_a_given_control_serves_all_users_or_each() -> None:
    mixed = [0.2, 0.3, 0.5, 0.0, 0.0]
    assert given_control(mixed, AUTHORS).tolist() == [mixed] * 10
    each = np.random.default_rng(0).dirichlet(np.ones(5), size=10)
    assert given_control(each, AUTHORS).tolist() == each.tolist()


BAD_CONTROLS: list[tuple[Any, type[DrimedError], str]] = [
    ([0.5, 0.6, 0.0, 0.0, 0.0], InputError, "control must sum to 1 over the arms, got a sum of 1.1"),
    ([1.5, -0.5, 0.0, 0.0, 0.0], InputError, "control must be probabilities, got a negative one"),
    ([np.nan, 1.0, 0.0, 0.0, 0.0], InputError, "control must be finite, got nan"),
    ([1.0], ShapeError, r"control must have shape \(\.\.\., 5\), got \(1,\)"),
    (np.full((3, 5), 0.2), ShapeError, r"control .*\(3, 5\)"),
]


@pytest.mark.parametrize(("control", "error", "message"), BAD_CONTROLS)
def test_a_bad_control_is_refused(control: Any, error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        given_control(control, AUTHORS)


@pytest.mark.parametrize("setting", [{"quantile": -0.1}, {"quantile": np.nan}, {"judged_by": "rewards"}])
def test_a_quantile_or_judgement_that_is_not_one_is_refused(setting: dict[str, Any]) -> None:
    ((name, value),) = setting.items()
    with pytest.raises(ConfigError, match=f"{name} must be .*, got '?{value}"):
        quantile_control(draw_instance(0), **setting)


L, KAPPA = 1000, 100.0

POINTS = {
    "none": {0: 0.0, 999: 0.0},
    "gradual": {0: 0.0, 500: 50.0, 999: 99.9},
    "abrupt": {332: 0.0, 333: 100.0, 999: 100.0},
    "abrupt_growing": {332: 0.0, 333: 100.0, 665: 100.0, 666: 300.0, 999: 300.0},
    "decaying": {0: 100.0, 200: 100.0 * np.exp(-1.0)},
    "burst": {200: 100.0, 500: 100.0, 800: 100.0},
    "sawtooth": {0: 0.0, 199: 99.5, 200: 0.0, 800: 0.0},
}


@pytest.mark.parametrize("name", POINTS)
def test_drifts_have_the_stated_shapes(name: str) -> None:
    f = levels(name, L, KAPPA)
    for episode, value in POINTS[name].items():
        assert f[episode] == pytest.approx(value, abs=0.01)


def test_periodic_has_fifty_waves_between_zero_and_the_magnitude() -> None:
    f = levels("periodic", L, KAPPA)
    assert f[0] == pytest.approx(50.0)
    assert f[5] == pytest.approx(100.0)  # a quarter of 20 episodes
    assert f[15] == pytest.approx(0.0, abs=1e-9)
    np.testing.assert_allclose(f[20:], f[:-20], atol=1e-9)
    # The wavelength is L // 50 in whole episodes, and 1 where there are fewer than 50.
    np.testing.assert_allclose(levels("periodic", 149, KAPPA)[2:], levels("periodic", 149, KAPPA)[:-2], atol=1e-9)
    np.testing.assert_allclose(levels("periodic", 30, KAPPA), 50.0, atol=1e-9)


def test_regime_shift_has_five_levels_that_belong_to_the_definition() -> None:
    f = levels("regime_shift", L, KAPPA)
    want = 100 * np.random.default_rng(0).uniform(0, 1, size=5)
    np.testing.assert_allclose(f, np.repeat(want, 200))


@pytest.mark.parametrize("name", DRIFTS)
def test_every_drift_is_not_negative_and_grows_with_its_magnitude(name: str) -> None:
    for episodes in (1, 2, 7, 60):
        f = levels(name, episodes, 1.0)
        assert np.isfinite(f).all()
        assert (f >= 0).all()
        np.testing.assert_allclose(levels(name, episodes, 3.0), 3 * f, atol=1e-12)
        np.testing.assert_allclose(levels(lambda e, n, m: m * DRIFTS[name](e, n, 1.0), episodes, 1.0), f)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("gradul", 10, 1.0), UnknownNameError, "unknown drift 'gradul'; did you mean 'gradual'"),
        (("gradual", 0, 1.0), ConfigError, "number of episodes must be at least 1, got 0"),
        (("gradual", 10, -1.0), ConfigError, "magnitude must be at least 0 and finite, got -1.0"),
        (("gradual", 10, np.nan), ConfigError, "magnitude must be at least 0 and finite, got nan"),
        ((lambda e, *_: e[:3], 10, 1.0), ShapeError, r"drift must have shape \(\.\.\., 10\), got \(3,\)"),
        ((lambda e, *_: np.nan * e, 10, 1.0), InputError, "drift must be finite, got nan"),
        ((lambda e, *_: -e, 10, 1.0), ConfigError, "a drift must not be negative, got -9.0 at episode 9"),
    ],
)
def test_a_bad_drift_is_refused(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        levels(*arguments)
