"""What every guard is: it asks the rule, may change the answer, and may remember something of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from drimed.guards.decision import Guarded
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer, Shape
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

# Asks the rule: allowed arms and penalty in, probabilities out.
AskRule = Callable[[BoolArray | None, FloatArray | None], FloatArray]


@dataclass(frozen=True, slots=True)
class GuardState:
    """What a guard remembers of each user."""

    nu: FloatArray  # (..., H), the dual variables


class Guard(Protocol):
    """`apply` decides, `commit` remembers. Both happen when a decision is given out, never when its outcome comes."""

    promise: ClassVar[str]

    def init(self, shape: Shape, batch: tuple[int, ...]) -> GuardState | None: ...

    def apply(self, state: GuardState | None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded: ...

    def commit(self, state: GuardState | None, fit: Fit, offer: Offer, action: IntArray) -> GuardState | None: ...
