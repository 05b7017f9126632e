"""The guard `certain`: every arm that is played is certified; the control, or its lottery, is always allowed.

With confidence "anytime" no decision at all falls short of the promise, with probability 1 - delta. The price: where
few outcomes are seen per decision, the certified set may not grow beyond the control for a long time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

from drimed.guards.constraint import Guardrail, certified_arms, check_confidence, constraints, radius
from drimed.guards.decision import Guarded
from drimed.guards.fallback import only_safe
from drimed.guards.guard import AskRule, Protects
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer, Shape


@final
@dataclass(frozen=True, kw_only=True)
class Certain:
    """The rule is asked on the certified arms only.

    >>> Certain(confidence="anytime").promise
    'every arm played is certified against the control'
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = 0.99  # a level per decision, or "anytime"
    guardrails: tuple[Guardrail, ...] = ()

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def init(self, shape: Shape, batch: tuple[int, ...]) -> None:
        del shape, batch

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        required = constraints(offer, self.tolerance, self.guardrails)
        ok = certified_arms(fit, required, radius(fit, self.confidence), offer.available)
        return only_safe(ok, offer, ask)

    def commit(self, state: None, fit: Fit, offer: Offer, decision: object) -> None:
        del state, fit, offer, decision
