"""The guard `expected`: the mixture that is played is certified, so that exploration is paid for by certified arms.

Certifying every arm by itself can freeze a trial on the control; certifying the distribution does not. Where the
rule's wish is not certified as a whole, the rule is asked again on the certified arms, and as much of its wish is mixed
in as the certificate allows. The probabilities stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.guards import margin
from drimed.guards.constraint import (
    Constraint,
    Guardrail,
    certified_choice,
    check_confidence,
    constraints,
    radius,
)
from drimed.guards.decision import Guarded
from drimed.guards.fallback import explained, safe_choice, unchanged
from drimed.guards.guard import AskRule, Protects
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer, Shape
from drimed.linear.arrays import FloatArray


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """p' = rho wish + (1 - rho) safe with the largest certified rho.

    >>> Expected().confidence
    0.99
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = 0.99  # a level per decision, or "anytime"
    guardrails: tuple[Guardrail, ...] = ()

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def init(self, shape: Shape, batch: tuple[int, ...]) -> None:
        del shape, batch

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        wish = ask(offer.available, None)
        r = radius(fit, self.confidence)
        required = constraints(offer, self.tolerance, self.guardrails)
        ok, whole = certified_choice(fit, required, wish, r, offer.available)
        if not whole.all():  # mixtures of certified arms are certified; round-off must not say otherwise
            whole = whole | (ok | (wish == 0)).all(-1)
        if whole.all():
            return unchanged(wish, ok)
        safe = safe_choice(ok, offer, ask)
        share = np.where(whole, 1.0, mixing_share(fit, required, safe, wish, r))
        p = share[..., None] * wish + (1 - share)[..., None] * safe
        return explained(p, share, ok, offer)

    def commit(self, state: None, fit: Fit, offer: Offer, decision: object) -> None:
        del state, fit, offer, decision


def mixing_share(fit: Fit, required: list[Constraint], safe: FloatArray, wish: FloatArray, r: FloatArray) -> FloatArray:
    """The largest rho that every constraint certifies: for each the certified part of the segment is an interval."""
    share = np.ones(wish.shape[:-1])
    for c in required:
        rho = margin.largest_share(fit, c.mixed(safe), c.mixed(wish), c.x0, c.relative, c.absolute, r)
        share = np.minimum(share, rho)
    return share
