"""Batches of worlds: each member meets what its seed says, whatever its neighbours and blocks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, DrimedError, InputError, ShapeError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.simulation.instances import authors_instance, draw_instance, given_control, quantile_control
from drimed.simulation.worlds import Setting, World
from tests.worlds import SMALL, world

ARRAYS = ("sigma", "scale", "contexts", "noise", "means")  # (n, H, S, ...)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"drift_by": "mean"},
    {"rotation": 1.0, "tails": 3.0},
    {"drift": "none", "context_dim": 1},
]


def arrays(it: World, episodes_per_block: int | None = None) -> dict[str, FloatArray]:
    """Everything that happens in a world, whatever its blocks: name -> (L, H, S, ...)."""
    blocks = list(it.blocks(episodes_per_block))
    assert [b.start for b in blocks] == np.cumsum([0, *[b.episodes for b in blocks[:-1]]]).tolist()
    return {name: np.concatenate([getattr(b, name) for b in blocks]) for name in ARRAYS}


def assert_equal(one: dict[str, FloatArray], other: dict[str, FloatArray]) -> None:
    for name in ARRAYS:
        assert np.array_equal(one[name], other[name]), name


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("episodes_per_block", [1, 7, 20])
def test_the_cut_into_blocks_changes_nothing(setting: dict[str, Any], episodes_per_block: int) -> None:
    it = world(episodes=20, seeds=range(3), **setting)
    assert_equal(arrays(it, episodes_per_block), arrays(it))


@pytest.mark.parametrize("setting", SETTINGS)
def test_what_a_member_meets_depends_on_its_seed_alone(setting: dict[str, Any]) -> None:
    instances = [draw_instance(s, SMALL) for s in range(5)]
    whole = arrays(world(episodes=6, seeds=range(5), instances=instances, **setting))
    for s in range(5):
        alone = arrays(world(episodes=6, seeds=[s], instances=[instances[s]], **setting))
        assert_equal(alone, {name: array[:, :, s : s + 1] for name, array in whole.items()})


def test_contexts_and_noise_are_streams_of_their_own() -> None:
    one, wider = arrays(world(episodes=5)), arrays(world(episodes=5, context_dim=5))
    assert np.array_equal(one["noise"], wider["noise"])
    assert np.array_equal(one["contexts"], arrays(world(episodes=5, tails=3.0, rotation=1.0))["contexts"])


def test_the_drift_scales_the_contexts_as_coded() -> None:
    still, moved = (
        arrays(world(episodes=10, drift=d, magnitude=100.0, context_noise=0.5)) for d in ("none", "gradual")
    )
    f = 100.0 * np.arange(10) / 10
    np.testing.assert_allclose(moved["contexts"], (1 + f)[:, None, None, None] * still["contexts"], rtol=1e-12)
    np.testing.assert_allclose(moved["scale"], 0.1 * (1 + np.linalg.norm(moved["contexts"], axis=-1)), rtol=1e-12)


def test_the_drift_moves_the_mean_as_printed() -> None:
    seeds = range(4)
    still = arrays(world(episodes=10, seeds=seeds, drift="none", drift_by="mean"))
    moved = arrays(world(episodes=10, seeds=seeds, drift="gradual", drift_by="mean"))
    shift = moved["contexts"] - still["contexts"]  # (L, H, S, D)
    f = 100.0 * np.arange(10) / 10
    np.testing.assert_allclose(np.linalg.norm(shift, axis=-1), np.broadcast_to(f[:, None, None], (10, 3, 4)), atol=1e-9)
    directions = shift[1:] / f[1:, None, None, None]
    np.testing.assert_allclose(directions, np.broadcast_to(directions[:1, :1], directions.shape), atol=1e-9)
    assert len(np.unique(directions[0, 0].round(6), axis=0)) == 4  # one direction per seed


def test_sigma_is_the_spread_of_the_reward_under_the_users_preference() -> None:
    it = world(episodes=3, seeds=range(2))
    block = next(it.blocks())
    instance = it.instances[0]
    for at in np.ndindex(3, SMALL.H, 2):
        p = it.preferences[at[1:]]
        for a in range(SMALL.K):
            want = np.sqrt(block.scale[at] * (p @ instance.covariances[a] @ p))
            assert block.sigma[(*at, a)] == pytest.approx(want, rel=1e-8)
            assert it.features[(*at[1:], a)].tolist() == pytest.approx((instance.maps[a].T @ p).tolist())
            assert block.means[(*at, a)] == pytest.approx(float(p @ instance.maps[a] @ instance.theta))


def test_outcomes_have_the_stated_mean_and_covariance() -> None:
    """Standardised by its scale, the noise of arm a has covariance Sigma_a.

    n = 30,000 draws per arm. An entry of the sample covariance has a standard error of at most
    sqrt(2 / n) max Sigma_ii = .0082 max Sigma_ii; 5 of them are allowed, in 27 entries: a false alarm in 60,000 seeds.
    """
    shape = Shape(d=3, K=3, M=3, H=3)
    it = world(episodes=1000, seeds=range(10), shape=shape)
    instance = it.instances[0]
    for a in range(shape.K):
        noise = []
        for block in it.blocks():
            for episode in range(block.episodes):
                for h in range(shape.H):
                    outcome = block.respond(episode, np.full((10, 1), a), slice(h, h + 1))
                    assert outcome.vector is not None
                    assert outcome.reward is not None
                    residual = outcome.vector[:, 0] - instance.maps[a] @ instance.theta
                    noise.append(residual / np.sqrt(block.scale[episode, h])[:, None])
                    np.testing.assert_allclose(
                        outcome.reward[:, 0], (it.preferences[h] * outcome.vector[:, 0]).sum(-1), atol=1e-12
                    )
        draws = np.concatenate(noise)
        assert draws.shape == (30_000, 3)
        largest = float(instance.covariances[a].diagonal().max())
        assert np.abs(draws.mean(0)).max() < 5 * np.sqrt(largest / 30_000)
        assert np.abs(draws.T @ draws / 30_000 - instance.covariances[a]).max() < 5 * largest * np.sqrt(2 / 30_000)


def test_the_noise_does_not_depend_on_the_arm_that_is_played() -> None:
    """Paired comparisons: the same standardised draw serves whichever arm a policy chooses."""
    it = world()
    block = next(it.blocks())
    z = block.noise[0, 0, 0]
    for a in range(SMALL.K):
        outcome = block.respond(0, np.array([[a]]), slice(0, 1))
        assert outcome.vector is not None
        mean = it.instances[0].maps[a] @ it.instances[0].theta
        want = mean + np.sqrt(block.scale[0, 0, 0]) * it.noise_roots[a] @ z
        np.testing.assert_allclose(outcome.vector[0, 0], want, atol=1e-12)


def test_offers_of_an_episode_are_the_offers_of_its_users() -> None:
    it = world(seeds=range(4))
    block = next(it.blocks())
    together = block.offers(2)
    for h in range(SMALL.H):
        one = block.offers(2, slice(h, h + 1))
        assert one.user == h
        for name in ("features", "control", "sigma", "scale", "preference", "context"):
            assert np.array_equal(getattr(together, name)[:, h : h + 1], getattr(one, name)), name
        for name in ("maps", "whitening"):
            assert np.array_equal(
                np.broadcast_to(getattr(together, name), (4, SMALL.H, 4, 3, 3))[:, h : h + 1], getattr(one, name)
            )


INSTANCE, OTHER = authors_instance(), draw_instance(0, Shape(d=3, K=5, M=4, H=10))
SOUND: dict[str, Any] = {"instances": [INSTANCE], "seeds": [0], "controls": [quantile_control(INSTANCE)]}
SOUND["setting"] = Setting(episodes=3)
BAD: list[tuple[dict[str, Any], type[DrimedError], str]] = [
    ({"seeds": []}, ConfigError, "seeds must be a list of at least one number"),
    ({"seeds": 20}, ConfigError, r"such as range\(20\), got 20"),
    ({"instances": [INSTANCE] * 2, "seeds": [0, 1, 2]}, ConfigError, r"one instance, or one per seed \(3\), got 2"),
    ({"controls": []}, ConfigError, r"one control per instance \(1\), got 0"),
    ({"controls": [np.full(5, 0.2)]}, ShapeError, r"control must have shape \(\.\.\., 10, 5\), got \(5,\)"),
    ({"controls": [np.ones((10, 5))]}, InputError, "control must sum to 1 over the arms, got a sum of 5.0"),
    ({"controls": [np.full((10, 5), np.nan)]}, InputError, "control"),
    ({"instances": [INSTANCE, OTHER], "seeds": [0, 1], "controls": [quantile_control(INSTANCE)] * 2}, ShapeError,
     r"all instances must have the shape Shape\(d=4"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_a_bad_world_is_refused(change: dict[str, Any], error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        World(**(SOUND | change))


def test_a_mixed_control_reaches_the_offers() -> None:
    control = given_control([0.2, 0.3, 0.5, 0.0, 0.0], INSTANCE)
    offer = next(World(**(SOUND | {"controls": [control]})).blocks()).offers(0, slice(3, 4))
    assert offer.control[0, 0].tolist() == [0.2, 0.3, 0.5, 0.0, 0.0]
    np.testing.assert_allclose(offer.control_features[0, 0], [0.2, 0.3, 0.5] @ offer.features[0, 0, :3])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"drift_by": "angle"}, "drift_by must be 'scale' or 'mean', got 'angle'"),
        ({"context_dim": 0}, "context_dim must be a number from 1, got 0"),
        ({"episodes": 0}, "number of episodes must be at least 1, got 0"),
        ({"magnitude": -1.0}, "magnitude must be at least 0 and finite, got -1.0"),
        ({"reward_noise": 0.0}, "reward_noise must be positive.*, got 0.0"),
        ({"reward_noise": np.nan}, "reward_noise must be positive.*, got nan"),
        ({"context_noise": -1.0}, "context_noise must be at least 0.*got -1.0"),
        ({"context_noise": np.inf}, "context_noise must be at least 0.*got inf"),
        ({"tails": 2.0}, "tails must be above 2 degrees of freedom.*got 2.0"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Setting(**settings)
