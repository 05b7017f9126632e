from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, DrimedError, InputError, ShapeError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.simulation.instances import PAPER_SHAPE, Instance, authors_instance, draw_instance
from tests.examples import same

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


def test_the_authors_instance_is_the_one_of_seed_42() -> None:
    assert same(AUTHORS, draw_instance(42, PAPER_SHAPE))


def test_the_authors_instance_has_the_sizes_of_the_paper() -> None:
    assert AUTHORS.shape == PAPER_SHAPE == Shape(d=4, K=5, M=4, H=10)


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


def test_means_are_the_rewards_of_preferences() -> None:
    for h in range(10):
        for a in range(5):
            assert MEANS[h, a] == pytest.approx(float(AUTHORS.preferences[h] @ AUTHORS.maps[a] @ AUTHORS.theta))


@pytest.mark.parametrize("seed", [0, 1])
def test_a_drawn_instance_has_unit_rows_and_distributions(seed: int) -> None:
    it = draw_instance(seed, Shape(d=3, K=6, M=2, H=5), theta_norm=2.5)
    assert np.linalg.norm(it.theta) == pytest.approx(2.5)
    np.testing.assert_allclose(np.linalg.norm(it.maps, axis=-1), 1.0)
    np.testing.assert_allclose(it.preferences.sum(-1), 1.0)
    np.testing.assert_allclose(it.preference_means.sum(-1), 1.0)
    assert (np.linalg.eigvalsh(it.covariances) >= -1e-12).all()
    assert it.shape == Shape(d=3, K=6, M=2, H=5)


def test_instances_vary_with_their_seed_and_only_with_it() -> None:
    assert np.array_equal(draw_instance(3).maps, draw_instance(3).maps)
    assert not np.array_equal(draw_instance(3).maps, draw_instance(4).maps)


def test_a_large_preference_scale_leaves_users_at_their_mean() -> None:
    it = draw_instance(0, preference_scale=1e9)
    np.testing.assert_allclose(it.preferences, it.preference_means, atol=1e-3)


BAD: list[tuple[dict[str, Any], type[DrimedError], str]] = [
    ({"theta": np.full(4, np.nan)}, InputError, "theta must be finite, got nan"),
    ({"theta": np.ones(3)}, ShapeError, r"maps must have shape \(\.\.\., 5, 4, 3\), got \(5, 4, 4\)"),
    ({"theta": np.asarray(1.0)}, ShapeError, "theta"),
    ({"maps": np.ones(4)}, ShapeError, "maps"),
    ({"maps": np.full((5, 4, 4), np.inf)}, InputError, "maps must be finite, got inf"),
    (
        {"covariances": AUTHORS.covariances[:2]},
        ShapeError,
        r"covariances must have shape \(\.\.\., 5, 4, 4\), got \(2, 4, 4\)",
    ),
    ({"covariances": -AUTHORS.covariances}, InputError, "covariances must be positive semi-definite"),
    ({"covariances": np.triu(AUTHORS.covariances)}, InputError, "covariances must be symmetric"),
    ({"covariances": 0 * AUTHORS.covariances}, InputError, "covariances"),
    (
        {"preferences": AUTHORS.preferences[:, :2]},
        ShapeError,
        r"preferences must have shape \(\.\.\., 10, 4\), got \(10, 2\)",
    ),
    ({"preferences": np.full((10, 4), np.nan)}, InputError, "preferences must be finite, got nan"),
    ({"preference_means": AUTHORS.preference_means[:2]}, ShapeError, "preference_means must have shape"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_a_bad_instance_is_refused(change: dict[str, Any], error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        replace(AUTHORS, **change)


@pytest.mark.parametrize("setting", ["theta_norm", "preference_scale"])
@pytest.mark.parametrize("value", [0.0, -1.0, np.nan])
def test_scales_must_be_positive(setting: str, value: float) -> None:
    bad: dict[str, Any] = {setting: value}
    with pytest.raises(ConfigError, match=f"theta_norm and preference_scale must be positive, got .*{value}"):
        draw_instance(0, **bad)
