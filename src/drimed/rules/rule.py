"""What every rule is: a frozen configuration and one pure function to a distribution over the allowed arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, runtime_checkable

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.offer import Fit, Offer, Shape
from drimed.linear import pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

Randomisation = Literal["closed form", "one arm", "sampled"]
TIES = ("first", "shared")
# Arms whose values differ by less than this share of the largest one differ by round-off: it is far above what sums of
# a few thousand terms lose, and far below any difference that data can show.
SAME = 1e-9


@dataclass(frozen=True, slots=True)
class Ask:
    """How a rule is asked: on which arms, against which penalty, with which draws."""

    mask: BoolArray | None = None  # (..., K), True where the rule may put mass
    penalty: FloatArray | None = None  # (..., K), >= 0, in the unit of the rule's own log weight or index
    draws: FloatArray | None = None  # (..., D), uniforms; the first is kept for choosing the arm
    memory: Any = None  # of a rule that has one


class Rule(Protocol):
    """A rule's `propose` returns probabilities (..., K) that vanish outside `ask.mask`."""

    reference: ClassVar[str]
    # closed form: the probabilities are exact propensities. one arm: they are 0 or 1. sampled: the rule drew its
    # own randomness, from d more uniforms: the probabilities show only that draw, and the propensity is unknown.
    randomisation: ClassVar[Randomisation]

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray: ...


@runtime_checkable
class RemembersRounds(Protocol):
    """A rule with a memory of its own besides the regression, moved when a decision is given out."""

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Any: ...

    def commit(self, memory: Any, fit: Fit, offer: Offer, action: IntArray) -> Any: ...


def every_arm(fit: Fit, offer: Offer) -> tuple[int, ...]:
    """The shape (..., K) of a decision: one state may serve many offers, and one offer many states."""
    return (*np.broadcast_shapes(fit.theta.shape[:-1], offer.features.shape[:-2]), offer.features.shape[-2])


def noise_levels(fit: Fit, offer: Offer) -> FloatArray:
    """lev(x_a) / sigma_a^2, the inverse of the effective number of pulls of a's direction: (..., K)."""
    level = fit.leverage(offer.features)
    return level if offer.sigma is None else level / offer.sigma**2


def widths(fit: Fit, x: FloatArray, squared: float | None) -> FloatArray:
    """The half-width of each arm's interval: at the learner's radius, or at this squared radius: (..., K)."""
    return fit.width(x) if squared is None else np.sqrt(squared * fit.leverage(x))


def check_width(squared: float | None) -> None:
    """At least 0 and finite; None is the learner's own."""
    if squared is not None and not 0 <= squared < np.inf:
        raise ConfigError(f"width_squared must be at least 0 and finite, got {squared}")


def check_ties(ties: str) -> None:
    """first: the lowest index; shared: equal parts."""
    if ties not in TIES:
        raise ConfigError(f"ties must be one of {TIES}, got {ties!r}")


def play_largest(value: FloatArray, ask: Ask, ties: str = "first") -> FloatArray:
    """All mass on the allowed arm of largest value after its penalty: (..., K)."""
    value = value if ask.penalty is None else value - ask.penalty
    if ties == "shared":
        return shared(tied(value, ask.mask))
    return pmf.one_hot(pmf.best(value, ask.mask), value.shape[-1])


def play_least(index: FloatArray, ask: Ask, ties: str = "first") -> FloatArray:
    """All mass on the allowed arm of smallest index, its penalty added: (..., K)."""
    index = index if ask.penalty is None else index + ask.penalty
    if ties == "shared":
        return shared(tied(-index, ask.mask))
    return pmf.one_hot(pmf.least(index, ask.mask), index.shape[-1])


def tied(value: FloatArray, mask: BoolArray | None) -> BoolArray:
    """The allowed arms of largest value, up to round-off: (..., K).

    >>> tied(np.array([0.3, 0.1 + 0.2, 0.2]), None).tolist()
    [True, True, False]
    """
    held = value if mask is None else np.where(mask, value, -np.inf)
    scale = np.abs(value if mask is None else np.where(mask, value, 0.0)).max(-1, keepdims=True)
    return np.asarray(held >= held.max(-1, keepdims=True) - SAME * scale)


def shared(among: BoolArray) -> FloatArray:
    """Equal mass on these arms, none where there are none: (..., K)."""
    return among / np.maximum(among.sum(-1, keepdims=True), 1)
