from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from drimed.errors import ConfigError, DrimedError, InputError, ShapeError
from drimed.models.offer import NOISE_FLOOR, Shape, make_offer, quadratic, whiten
from tests.strategies import matrices

ARMS = [[1.0, 0.0], [0.0, 1.0]]
FIRST = [1.0, 0.0]
MAPS = np.arange(12.0).reshape(2, 3, 2) / 10
PREFERENCE = [0.2, 0.3, 0.5]
COVARIANCES = np.stack([np.eye(3), np.diag([1.0, 4.0, 9.0])])


def test_features_follow_from_maps_and_preference() -> None:
    offer = make_offer(maps=MAPS, preference=PREFERENCE, covariance=COVARIANCES, control=FIRST)
    for a in range(2):
        np.testing.assert_allclose(offer.features[0, a], MAPS[a].T @ PREFERENCE, atol=1e-15)
    assert offer.sigma is not None
    p = np.array(PREFERENCE)
    np.testing.assert_allclose(offer.sigma**2, [p @ p, p @ np.diag([1.0, 4.0, 9.0]) @ p])


def test_the_control_features_are_the_mixture_of_the_arms() -> None:
    offer = make_offer(features=ARMS, control=[0.3, 0.7])
    np.testing.assert_allclose(offer.control_features, [[0.3, 0.7]])


def test_an_offer_may_carry_any_batch() -> None:
    features = np.broadcast_to(ARMS, (4, 5, 2, 2))
    offer = make_offer(features=features, control=FIRST, sigma=np.ones((4, 5, 2)))
    assert offer.control_features.shape == (4, 5, 2)


def test_whitening_turns_the_noise_into_unit_noise() -> None:
    rng = np.random.default_rng(0)
    root = rng.standard_normal((6, 3, 3))
    covariance = root @ np.swapaxes(root, -1, -2)
    W, kept = whiten(covariance)
    np.testing.assert_allclose(kept, covariance, atol=1e-12)
    np.testing.assert_allclose(
        W @ covariance @ np.swapaxes(W, -1, -2), np.broadcast_to(np.eye(3), (6, 3, 3)), atol=1e-9
    )


@given(root=matrices(3, 2), scale=st.floats(-8.0, 8.0))
def test_a_direction_without_noise_is_lifted_to_a_floor(
    root: np.ndarray[Any, np.dtype[np.float64]], scale: float
) -> None:
    covariance = root @ root.T * 10.0**scale  # rank 2 at most
    if not covariance.any():
        return
    W, lifted = whiten(covariance)
    top = float(np.linalg.eigvalsh(covariance)[-1])
    assert np.isfinite(W).all()
    assert np.linalg.eigvalsh(lifted)[0] >= 0.5 * NOISE_FLOOR * top
    np.testing.assert_allclose(lifted, covariance, atol=2 * NOISE_FLOOR * top)
    np.testing.assert_allclose(W @ lifted @ W.T, np.eye(3), atol=1e-4)


def test_the_quadratic_form_is_the_variance_of_the_reward() -> None:
    p = np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(quadratic(COVARIANCES, p), [p @ c @ p for c in COVARIANCES])


SOUND: dict[str, Any] = {"features": ARMS, "control": FIRST}
BAD: list[tuple[dict[str, Any], type[DrimedError], str]] = [
    ({"features": [[np.nan, 0], [0, 1]]}, InputError, r"features must be finite, got nan at index \(0, 0\)"),
    ({"features": [[1, 0], [0, np.inf]]}, InputError, r"features must be finite, got inf at index \(1, 1\)"),
    ({"features": [[1, 0], [0]]}, InputError, "features must be numbers in a regular array"),
    ({"features": [1.0, 0.0]}, ShapeError, r"features must have shape .* \(arms, coefficients\), got \(2,\)"),
    ({"control": [1.0, 0.0, 0.0]}, ShapeError, r"control must have shape \(\.\.\., 2\), got \(3,\)"),
    ({"control": [0.5, 0.6]}, InputError, "control must sum to 1 over the arms, got a sum of 1.1"),
    ({"control": [1.5, -0.5]}, InputError, "control must be probabilities, got a negative one: -0.5"),
    ({"control": [np.nan, 1.0]}, InputError, "control must be finite, got nan"),
    ({"sigma": [0.0, 1.0]}, InputError, "sigma must be positive, got 0.0"),
    ({"sigma": [-1.0, 1.0]}, InputError, "sigma must be positive, got -1.0"),
    ({"sigma": [np.inf, 1.0]}, InputError, "sigma must be finite, got inf"),
    ({"sigma": [1.0, 1.0, 1.0]}, ShapeError, r"sigma must have shape \(\.\.\., 2\), got \(3,\)"),
    ({"available": [True]}, ShapeError, r"available must have shape \(\.\.\., 2\), got \(1,\)"),
    ({"available": [False, False]}, InputError, "available must leave at least one arm"),
    ({"context": [np.nan]}, InputError, "context must be finite, got nan"),
    ({"features": None}, ConfigError, "an offer needs maps with a preference, or features"),
    # Noise that would be silently ignored: features do not say how the metrics make the reward.
    ({"covariance": COVARIANCES}, ConfigError, "covariance"),
    ({"sigma": np.ones((5, 2)), "features": np.ones((7, 2, 2))}, ShapeError, "sigma"),
    ({"user": -1}, DrimedError, "user"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD)
def test_a_bad_offer_of_features_is_refused(change: dict[str, Any], error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        make_offer(**(SOUND | change))


SOUND_MAPS: dict[str, Any] = {"maps": MAPS, "preference": PREFERENCE, "covariance": COVARIANCES, "control": FIRST}
BAD_MAPS: list[tuple[dict[str, Any], type[DrimedError], str]] = [
    ({"preference": None}, ConfigError, "with maps, give preference and covariance"),
    ({"features": ARMS}, ConfigError, "features and sigma follow from them"),
    ({"sigma": [1.0, 1.0]}, ConfigError, "features and sigma follow from them"),
    ({"maps": MAPS[0]}, ShapeError, r"maps must have shape .* \(arms, metrics, coefficients\), got \(3, 2\)"),
    ({"maps": np.full((2, 3, 2), np.nan)}, InputError, "maps must be finite, got nan"),
    ({"preference": [1.0, 0.0]}, ShapeError, r"preference must have shape \(\.\.\., 3\), got \(2,\)"),
    ({"preference": [np.nan, 0.0, 1.0]}, InputError, "preference must be finite, got nan"),
    ({"preference": [0.0, 0.0, 0.0]}, InputError, "sigma must be positive, got 0.0"),
    ({"covariance": np.eye(3)}, ShapeError, r"covariance must have shape \(\.\.\., 2, 3, 3\), got \(3, 3\)"),
    ({"covariance": np.stack([np.eye(3), np.diag([1.0, 1.0, -1.0])])}, InputError, "semi-definite, got .* -1.0"),
    ({"covariance": np.stack([np.eye(3), np.triu(np.ones((3, 3)))])}, InputError, "covariance must be symmetric"),
    ({"covariance": np.stack([np.eye(3), np.zeros((3, 3))])}, InputError, "must not be zero: arm 1 has no noise"),
    ({"covariance": np.full((2, 3, 3), np.inf)}, InputError, "covariance must be finite, got inf"),
]


@pytest.mark.parametrize(("change", "error", "message"), BAD_MAPS)
def test_a_bad_offer_of_maps_is_refused(change: dict[str, Any], error: type[DrimedError], message: str) -> None:
    with pytest.raises(error, match=message):
        make_offer(**(SOUND_MAPS | change))


@pytest.mark.parametrize("field", ["d", "K", "M", "H"])
def test_a_shape_without_something_is_refused(field: str) -> None:
    with pytest.raises(ConfigError, match=f"{field} must be a number from 1"):
        Shape(**({"d": 2, "K": 2, "M": 2, "H": 2} | {field: 0}))
