"""Logged decisions as arrays, checked once: everything in this package may trust a `Log`.

Shapes: n decisions, K arms, M metrics. A log may be one piece of a longer one; `start` says where the piece begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError, ShapeError
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

# Logs are often written as single precision or rounded for print; drimed's own are exact to 1e-12.
SUM_TOLERANCE = 1e-6

UNKNOWN_PROPENSITY = (
    "the propensity is unknown (NaN) for {count} of {n} decisions, first in row {row}: no weighting can undo an "
    "unknown choice; log the probability of the arm played, or use the direct method, which needs predictions only"
)


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """n decisions with their outcomes, taken as they are: `make_log` checks them.

    The propensity is that of the arm played; NaN says that it is unknown.
    """

    arms: tuple[str, ...]  # the names of the K arms
    action: IntArray  # (n,), index into arms
    reward: FloatArray  # (n,)
    propensity: FloatArray  # (n,)
    probabilities: FloatArray | None = None  # (n, K), of all arms
    predictions: FloatArray | None = None  # (n, K), a model's mean reward q of each arm
    available: BoolArray | None = None  # (n, K); None: every arm
    user: NDArray[Any] | None = None  # (n,), labels of any kind
    episode: IntArray | None = None  # (n,)
    metrics: FloatArray | None = None  # (n, M)
    targets: Mapping[str, FloatArray] = field(default_factory=dict)  # prefix -> (n, K), probabilities of other policies
    start: int = 0  # how many decisions of the whole log come before
    top: int = 1  # what its first row is called: 2 in a file whose first row names the columns

    def __len__(self) -> int:
        return len(self.action)

    @property
    def K(self) -> int:
        """How many arms there are, played or not."""
        return len(self.arms)

    def row(self, i: int) -> int:
        """Where decision i of this piece stands in the whole log, as a person counts rows."""
        return self.top + self.start + i

    def rows(self, begin: int, end: int) -> Log:
        """The decisions begin, ..., end - 1 of this piece."""
        cut = {f.name: getattr(self, f.name) for f in fields(self)}
        cut = {name: value[begin:end] if isinstance(value, np.ndarray) else value for name, value in cut.items()}
        cut["targets"] = {name: p[begin:end] for name, p in self.targets.items()}
        cut["start"] = self.start + begin
        return Log(**cut)

    def valued(self, outcome: FloatArray) -> Log:
        """The same decisions judged by another outcome, a metric say; predictions of the reward do not carry over."""
        return replace(
            self, reward=checks.shaped("outcome", checks.finite("outcome", outcome), (len(self),)), predictions=None
        )


def make_log(
    *,
    action: Any,
    reward: Any,
    propensity: Any = None,
    probabilities: Any = None,
    predictions: Any = None,
    arms: Sequence[str] | int | None = None,
    available: Any = None,
    user: Any = None,
    episode: Any = None,
    metrics: Any = None,
    targets: Mapping[str, Any] | None = None,
    start: int = 0,
    top: int = 1,
) -> Log:
    """A log from plain arrays, checked. Actions are indices into `arms`.

    Without `propensity` it is read off `probabilities`, those of all arms. Errors name a row as a person counts it:
    the first row of the whole log is row `top`.

    >>> log = make_log(action=[0, 1], reward=[1.0, 0.0], propensity=[0.5, 0.5], arms=["old", "new"])
    >>> log.K
    2
    """
    first = top + start
    r = _finite("reward", reward, (-1,), first)
    n = len(r)
    names = _names(arms, probabilities, predictions, action)
    K = len(names)
    a = _actions(action, n, names, first)
    p_all = None if probabilities is None else _distributions("probabilities", probabilities, (n, K), first)
    return Log(
        arms=names,
        action=a,
        reward=r,
        propensity=_propensity(propensity, p_all, a, first),
        probabilities=p_all,
        predictions=None if predictions is None else _finite("predictions", predictions, (n, K), first),
        available=None if available is None else _mask(available, (n, K), a, first),
        user=None if user is None else _shaped("user", np.asarray(user), (n,)),
        episode=None if episode is None else _finite("episode", episode, (n,), first).astype(np.intp),
        metrics=None if metrics is None else _finite("metrics", metrics, (n, -1), first),
        targets={name: _distributions(f"target {name}", t, (n, K), first) for name, t in (targets or {}).items()},
        start=start,
        top=top,
    )


def unknown_propensity(log: Log) -> str | None:
    """Why this log cannot be weighted, or None if every propensity is known."""
    if not np.isnan(log.propensity.sum()):  # a NaN never leaves a sum
        return None
    unknown = np.isnan(log.propensity)
    return UNKNOWN_PROPENSITY.format(count=int(unknown.sum()), n=len(log), row=log.row(int(unknown.argmax())))


def _shaped(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """`array` if it has this shape, decisions first; -1 stands for any length."""
    if array.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, array.shape, strict=True)):
        want = ", ".join("any" if n == -1 else str(n) for n in shape)
        raise ShapeError(f"{name} must have one row for each decision, shape ({want}), got {array.shape}")
    return array


def _numbers(name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} must be numbers, got {np.asarray(value).dtype} data") from error
    return _shaped(name, array, shape)


def _finite(name: str, value: Any, shape: tuple[int, ...], first: int) -> FloatArray:
    array = _numbers(name, value, shape)
    with np.errstate(invalid="ignore", over="ignore"):
        total = array.sum()
    if not np.isfinite(total):  # a NaN or an infinity never leaves a sum: the common case costs one pass
        bad = ~np.isfinite(array)
        if bad.any():
            where = np.argwhere(bad)[0]
            raise InputError(
                f"{name} must be finite, got {array[tuple(where)]} in row {first + int(where[0])} "
                f"({int(bad.sum())} such values); drop or correct those decisions"
            )
    return array


def _distributions(name: str, value: Any, shape: tuple[int, int], first: int) -> FloatArray:
    array = _finite(name, value, shape, first)
    if array.size and array.min() < 0:
        row = int(np.argwhere(array < 0)[0][0])
        raise InputError(f"{name} must not be negative, got {float(array.min())}, first in row {first + row}")
    total = array.sum(-1)
    off = np.abs(total - 1)
    if off.size and off.max() > SUM_TOLERANCE:
        row = int((off > SUM_TOLERANCE).argmax())
        raise InputError(f"{name} must sum to 1 over the arms, got {float(total[row])} in row {first + row}")
    return array


def _names(arms: Sequence[str] | int | None, probabilities: Any, predictions: Any, action: Any) -> tuple[str, ...]:
    if arms is None:
        table = predictions if probabilities is None else probabilities
        arms = int(np.max(np.asarray(action), initial=0)) + 1 if table is None else int(np.shape(table)[-1])
    if isinstance(arms, int):
        return tuple(str(k) for k in range(arms))
    if len(set(arms)) != len(arms) or not len(arms):
        raise InputError(f"arms must be different names, at least one, got {list(arms)}")
    return tuple(arms)


def _actions(value: Any, n: int, names: tuple[str, ...], first: int) -> IntArray:
    array = _shaped("action", np.asarray(value), (n,))
    if array.dtype.kind not in "iu" and (array.dtype.kind != "f" or not (array == np.floor(array)).all()):
        raise InputError(f"action must be the index of an arm, got {array.dtype} data")
    a = array.astype(np.intp, copy=False)
    if n and (a.min() < 0 or a.max() >= len(names)):
        row = int(((a < 0) | (a >= len(names))).argmax())
        raise InputError(
            f"action must be an arm from 0 to {len(names) - 1}, got {int(a[row])} in row {first + row}; "
            "give `arms` if the log has more of them"
        )
    return a


def _propensity(value: Any, probabilities: FloatArray | None, action: IntArray, first: int) -> FloatArray:
    drawn = None if probabilities is None else np.asarray(pick(probabilities, action))
    if value is not None:
        p = _numbers("propensity", value, action.shape)
    elif drawn is not None:
        p = drawn
    else:
        raise InputError(
            "a log needs the propensity of the arm played, or the probabilities of all arms; "
            "write NaN where it is unknown"
        )
    fine = bool(len(p) and p.min() > 0 and p.max() <= 1 + SUM_TOLERANCE)  # the common case; false where one is NaN
    wrong = np.zeros(0, bool) if fine else ~((p > 0) & (p <= 1 + SUM_TOLERANCE)) & ~np.isnan(p)
    if wrong.any():
        row = int(wrong.argmax())
        why = "an arm that was played had some probability" if p[row] <= 0 else "it is a probability"
        raise InputError(
            f"propensity must be above 0 and at most 1, got {float(p[row])} in row {first + row} "
            f"({int(wrong.sum())} such values): {why}"
        )
    if value is not None and drawn is not None and (np.abs(drawn - p) > SUM_TOLERANCE).any():
        row = int((np.abs(drawn - p) > SUM_TOLERANCE).argmax())
        raise InputError(
            f"propensity and probabilities disagree in row {first + row}: {float(p[row])} and {float(drawn[row])}"
        )
    return p


def _mask(value: Any, shape: tuple[int, int], action: IntArray, first: int) -> BoolArray:
    array: BoolArray = _shaped("available", np.asarray(value, dtype=bool), shape)
    played = pick(array, action)
    if not played.all():
        row = int((~played).argmax())
        raise InputError(f"arm {int(action[row])} was played in row {first + row} although it was not available")
    return array
