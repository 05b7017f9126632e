"""No guard: the rule's distribution goes through as it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.guards.decision import UNCHANGED, Guarded
from drimed.guards.guard import AskRule, Protects
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer, Shape


@final
@dataclass(frozen=True, kw_only=True)
class Off:
    """Promises nothing.

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
