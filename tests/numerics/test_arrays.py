from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import InputError, ShapeError
from drimed.numerics import arrays


def test_sound_arrays_go_through_unchanged() -> None:
    array = np.array([[0.25, 0.75], [1.0, 0.0]])
    assert arrays.finite("a", array) is array
    assert arrays.shaped("a", array, (2,)) is array
    assert arrays.shaped("a", array, (-1, 2)) is array
    assert arrays.probabilities("a", array) is array
    assert arrays.positive("a", array + 1).min() == 1.0
    assert arrays.covariance("a", np.eye(2)).tolist() == np.eye(2).tolist()


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.0, np.nan], r"weights must be finite, got nan at index \(1,\) \(1 such values\)"),
        ([[1.0, -np.inf], [np.inf, 0.0]], r"weights must be finite, got -inf at index \(0, 1\) \(2 such values\)"),
        (np.nan, r"weights must be finite, got nan \(1 such values\)"),
        ([[1.0], [1.0, 2.0]], "weights must be numbers in a regular array, got"),
        ("many", "weights must be numbers in a regular array, got 'many'"),
        ([1j], "weights must be numbers in a regular array"),
    ],
)
def test_what_is_not_a_finite_number_is_refused(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        arrays.finite("weights", value)


@pytest.mark.parametrize("core", [(3,), (3, 2), (-1, 3), (2, 2, 2), (-1, -1, -1)])
def test_another_shape_is_refused_with_both_shapes_named(core: tuple[int, ...]) -> None:
    want = ", ".join("any" if n == -1 else str(n) for n in core)
    with pytest.raises(ShapeError, match=rf"weights must have shape \(\.\.\., {want}\), got \(2, 2\)"):
        arrays.shaped("weights", np.zeros((2, 2)), core)


@pytest.mark.parametrize("value", [0.0, -1.0])
def test_what_is_not_positive_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=f"sigma must be positive, got {value}"):
        arrays.positive("sigma", np.array([1.0, value]))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([0.5, 0.6], "control must sum to 1 over the arms, got a sum of 1.1"),
        ([[1.0, 0.0], [0.5, 0.4]], "control must sum to 1 over the arms, got a sum of 0.9"),
        ([1.5, -0.5], "control must be probabilities, got a negative one: -0.5"),
        ([], "control must sum to 1 over the arms, got a sum of 0.0"),
    ],
)
def test_what_is_not_a_distribution_is_refused(value: list[float], message: str) -> None:
    with pytest.raises(InputError, match=message):
        arrays.probabilities("control", np.array(value))


def test_probabilities_written_with_nine_digits_are_accepted() -> None:
    thirds = np.array([0.333333333, 0.333333333, 0.333333334])
    assert arrays.probabilities("control", thirds) is thirds


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((2, 3)), ShapeError, r"covariance must be square in its last two axes, got \(2, 3\)"),
        (
            np.array([[1.0, 0.5], [0.0, 1.0]]),
            InputError,
            "covariance must be symmetric, got entries that differ by 0.5",
        ),
        (np.diag([1.0, -0.1]), InputError, "positive semi-definite, got a smallest eigenvalue of -0.1"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), InputError, "positive semi-definite, got a smallest eigenvalue of -"),
    ],
)
def test_what_is_not_a_covariance_is_refused(value: Any, error: type[InputError], message: str) -> None:
    with pytest.raises(error, match=message):
        arrays.covariance("covariance", value)


def test_a_covariance_is_judged_by_its_own_size_and_not_by_its_neighbours() -> None:
    loud, skewed = 1e12 * np.eye(2), np.array([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(InputError, match="covariance must be symmetric"):
        arrays.covariance("covariance", np.stack([loud, skewed]))
