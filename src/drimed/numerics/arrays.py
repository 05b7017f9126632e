"""Array types, operations on batches that NumPy does not spell out, and checks of arrays and settings.

Shapes: leading `...` is any batch. Contractions go through gufuncs (matvec, vecdot, matmul), which treat
each member of a batch alone: the result of a member does not depend on its neighbours, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from drimed.errors import ConfigError, InputError, NumericalError, ShapeError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]

# Names of the axes of arrays whose lengths are not fixed.
AXES = {"maps": "arms, metrics, coefficients", "features": "arms, coefficients"}
SUM_TOLERANCE = 1e-9  # probabilities written with nine digits are accepted
SYMMETRY_TOLERANCE = 1e-9  # relative to the largest entry: a covariance printed and read back
RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "positive": ("positive and finite", lambda value: 0 < value < np.inf),
    "not_negative": ("at least 0 and finite", lambda value: 0 <= value < np.inf),
    "share": ("in (0, 1)", lambda value: 0 < value < 1),
    "discount": ("in (0, 1]", lambda value: 0 < value <= 1),
    "below_one": ("in [0, 1)", lambda value: 0 <= value < 1),
    "level": ("a level between 0.5 and 1", lambda value: 0.5 < value < 1),
    "count": ("a number from 1", lambda value: 1 <= value < np.inf),
}
LOST = (
    "{} is not positive definite any more: outcomes, covariates or variances differ in scale by more than a double can "
    "hold; look for outcomes that are far too large, or that repeat each other exactly"
)
UNCOMPUTED = "the model could not be computed: outcomes or weights differ in scale by more than a double can hold"
PSD_TOLERANCE = 1e-10  # relative to the largest eigenvalue: the round-off of computing eigenvalues


def pick(array: NDArray[Any], index: IntArray) -> NDArray[Any]:
    """array[..., index, *rest] for an index per member of the batch: (..., K, *rest), (...) -> (..., *rest)."""
    if index.ndim == 0:
        return np.asarray(array[int(index)])
    if array.shape[: index.ndim] != index.shape:
        array = np.broadcast_to(array, index.shape + array.shape[index.ndim :])
    if index.ndim == 1:
        return array[np.arange(index.shape[0]), index]
    if index.ndim == 2:
        return array[np.arange(index.shape[0])[:, None], np.arange(index.shape[1]), index]
    return array[(*np.indices(index.shape, sparse=True), index)]


def pick_shared(array: NDArray[Any], index: IntArray, core: int) -> NDArray[Any]:
    """`pick` from an array with `core` axes per member (K among them), which a whole batch may share."""
    if array.ndim - core != index.ndim:
        array = np.broadcast_to(array, index.shape + array.shape[array.ndim - core :])
    return pick(array, index)


def outer(u: FloatArray, v: FloatArray) -> FloatArray:
    """u v^T: (..., d), (..., d) -> (..., d, d)."""
    return u[..., :, None] * v[..., None, :]


def finite(name: str, value: Any) -> FloatArray:
    """`value` as an array of finite doubles."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers in a regular array, got {value!r}") from error
    if not (fine := np.isfinite(array)).all():
        bad = ~fine
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f" at index {where}" if array.ndim else ""
        raise InputError(f"{name} must be finite, got {array[where]}{place} ({int(bad.sum())} such values)")
    return array


def shaped(name: str, array: FloatArray, core: tuple[int, ...]) -> FloatArray:
    """`array` if its last axes are `core`; -1 in `core` stands for any length."""
    tail = array.shape[array.ndim - len(core) :] if array.ndim >= len(core) else None
    if tail is None or any(want not in (-1, got) for want, got in zip(core, tail, strict=True)):
        want = ", ".join("any" if n == -1 else str(n) for n in core)
        axes = AXES.get(name)
        meaning = f" ({axes})" if axes and -1 in core else ""
        raise ShapeError(f"{name} must have shape (..., {want}){meaning}, got {array.shape}")
    return array


def positive(name: str, array: FloatArray) -> FloatArray:
    """`array` if every entry is above zero."""
    if not (array > 0).all():
        raise InputError(f"{name} must be positive, got {float(array.min())}")
    return array


def check_settings(owner: Any, words: Mapping[str, tuple[Any, ...]] | None = None, **ranges: tuple[str, ...]) -> None:
    """Refuse settings that are neither in their range (of RANGES) nor one of their `words` nor a default of None."""
    of_number = {name: RANGES[kind] for kind, names in ranges.items() for name in names}
    for name in [*of_number, *(words or {})]:
        value, allowed = getattr(owner, name), (words or {}).get(name, ())
        text, within = of_number.get(name, ("", lambda _: False))
        if value is None:
            accepted = getattr(type(owner), name, ...) is None
        else:
            accepted = value in allowed or (not isinstance(value, str) and within(value))
        if not accepted:
            expected = filter(None, [text, " or ".join(map(repr, allowed))])
            raise ConfigError(f"{name} must be {', or '.join(expected)}, got {value!r}")


def share(name: str, value: float) -> float:
    """`value` if it is strictly between 0 and 1."""
    if not 0 < value < 1:
        raise ConfigError(f"{name} must be in (0, 1), got {value}")
    return value


def probabilities(name: str, array: FloatArray) -> FloatArray:
    """`array` if its last axis is a probability distribution."""
    finite(name, array)
    if (array < 0).any():
        raise InputError(f"{name} must be probabilities, got a negative one: {float(array.min())}")
    total = array.sum(-1)
    worst = float(np.abs(total - 1).max()) if total.size else 0.0
    if worst > SUM_TOLERANCE:
        came = float(np.ravel(total)[int(np.abs(np.ravel(total) - 1).argmax())])
        raise InputError(f"{name} must sum to 1 over the arms, got a sum of {came}")
    return array


def covariance(name: str, array: FloatArray) -> FloatArray:
    """`array` if its last two axes are symmetric, positive semi-definite and not 0, which would count infinitely."""
    if array.shape[-1] != array.shape[-2]:
        raise ShapeError(f"{name} must be square in its last two axes, got {array.shape}")
    largest = np.abs(array).max((-2, -1))
    skew = np.abs(array - np.swapaxes(array, -1, -2)).max((-2, -1))
    if (skew > SYMMETRY_TOLERANCE * largest).any():
        raise InputError(f"{name} must be symmetric, got entries that differ by {float(skew.max())}")
    eigenvalues = np.linalg.eigvalsh(array)  # ascending
    if (eigenvalues[..., 0] < -PSD_TOLERANCE * np.abs(eigenvalues[..., -1])).any():
        raise InputError(
            f"{name} must be positive semi-definite, got a smallest eigenvalue of {float(eigenvalues.min())}"
        )
    if not (largest > 0).all():
        raise InputError(f"{name} must not be zero: arm {int(np.argwhere(~(largest > 0))[0][-1])} has no noise")
    return array


def batched(name: str, array: NDArray[Any], core: int, batch: tuple[int, ...]) -> NDArray[Any]:
    """`array` if its axes before the last `core` ones fit the batch."""
    try:
        np.broadcast_shapes(array.shape[: array.ndim - core], batch)
    except ValueError:
        raise ShapeError(f"{name} must fit the batch {batch}, got shape {array.shape}") from None
    return array


@contextmanager
def computing() -> Iterator[None]:
    """Computations from any outcomes: NumericalError where there is no answer, no warnings; infinity and NaN pass."""
    with np.errstate(all="ignore"):
        try:
            yield
        except (ArithmeticError, np.linalg.LinAlgError, MemoryError) as error:
            raise NumericalError(UNCOMPUTED) from error


def log_determinant(matrix: FloatArray, what: str) -> FloatArray:
    """Log determinant of a positive definite matrix: (..., d, d) -> (...). `what` names it in the error."""
    sign, log = np.linalg.slogdet(matrix) if np.isfinite(matrix).all() else (np.zeros(1), np.zeros(1))
    if not ((sign > 0) & np.isfinite(log)).all():
        raise NumericalError(LOST.format(what))
    return np.asarray(log)


def inverse_root(matrix: FloatArray, what: str) -> FloatArray:
    """Symmetric inverse square root of a positive definite matrix: (..., d, d) -> (..., d, d)."""
    values, vectors = eigen(matrix, what)
    if not (values > 0).all():
        raise NumericalError(LOST.format(what))
    return np.matmul(vectors / np.sqrt(values)[..., None, :], np.swapaxes(vectors, -1, -2))


def eigen(matrix: FloatArray, what: str) -> tuple[FloatArray, FloatArray]:
    """Eigenvalues, ascending, and eigenvectors of a symmetric matrix; `what` names it in the error."""
    if not np.isfinite(matrix).all():
        raise NumericalError(LOST.format(what))
    try:
        values, vectors = np.linalg.eigh(matrix)
    except np.linalg.LinAlgError as error:
        raise NumericalError(LOST.format(what)) from error
    return values, vectors
