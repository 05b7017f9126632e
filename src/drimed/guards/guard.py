"""What every guard is: it asks the rule, may change the answer, and may remember something of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from drimed.guards.decision import Decision, Guarded
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer, Shape
from drimed.linear.arrays import BoolArray, FloatArray

# Asks the rule: allowed arms and penalty in, probabilities out.
AskRule = Callable[[BoolArray | None, FloatArray | None], FloatArray]


class Guard(Protocol):
    """`apply` decides, `commit` remembers. Both happen when a decision is given out, never when its outcome comes.

    A guard without memory has the state None. `offer.user` says whose memory is meant.
    """

    promise: ClassVar[str]

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Any: ...

    def apply(self, state: Any, fit: Fit, offer: Offer, ask: AskRule) -> Guarded: ...

    def commit(self, state: Any, fit: Fit, offer: Offer, decision: Decision) -> Any: ...
