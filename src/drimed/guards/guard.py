"""What every guard is: it asks the rule, may change the answer, and may remember something of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, final

import numpy as np

from drimed.guards.decision import UNCHANGED, Decision, Guarded
from drimed.learning.offer import Fit, Offer, Shape
from drimed.linear.arrays import BoolArray, FloatArray

# What is certified against the control: each arm that is played; the expected reward of each decision; the sum of
# expected rewards so far; nothing, but shortfalls are discouraged; nothing at all.
Protects = Literal["every arm", "expected reward", "sum", "discourages", "nothing"]

# Asks the rule: allowed arms and penalty in, probabilities out.
AskRule = Callable[[BoolArray | None, FloatArray | None], FloatArray]


class Guard(Protocol):
    """`apply` decides, `commit` remembers. Both happen when a decision is given out, never when its outcome comes.

    A guard without memory has the state None. `offer.user` says whose memory is meant.
    """

    protects: ClassVar[Protects]
    promise: ClassVar[str]  # the same in a sentence

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Any: ...

    def apply(self, state: Any, fit: Fit, offer: Offer, ask: AskRule) -> Guarded: ...

    def commit(self, state: Any, fit: Fit, offer: Offer, decision: Decision) -> Any: ...


@final
@dataclass(frozen=True, kw_only=True)
class Off:
    """No guard: the rule's distribution goes through as it is.

    >>> Off().promise
    'nothing'
    """

    protects: ClassVar[Protects] = "nothing"
    promise: ClassVar[str] = "nothing"

    def init(self, shape: Shape, batch: tuple[int, ...]) -> None:
        del shape, batch

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state, fit
        p = ask(offer.available, None)
        return Guarded(p, np.full(p.shape[:-1], UNCHANGED))

    def commit(self, state: None, fit: Fit, offer: Offer, decision: object) -> None:
        del state, fit, offer, decision
