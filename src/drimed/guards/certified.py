"""The guards `certain` and `expected`: what is played is certified against the control, arm by arm or as a whole.

`certain` plays certified arms only; the control, or its lottery, is always allowed. With confidence "anytime" no
decision at all falls short of the promise, with probability 1 - delta. The price: where few outcomes are seen per
decision, the certified set may not grow beyond the control for a long time.

`expected` certifies the mixture that is played, so that exploration is paid for by certified arms and a trial does not
freeze on the control. Where the rule's wish is not certified as a whole, the rule is asked again on the certified arms,
and as much of its wish is mixed in as the certificate allows. The probabilities stay exact.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, final

import numpy as np

from drimed.guards import margin, simultaneous
from drimed.guards.constraint import (
    Guardrail,
    above_zero,
    certified_arms,
    certified_whole,
    check_confidence,
    constraints,
    radius,
)
from drimed.guards.fallback import explained, only_safe, safe_choice
from drimed.guards.guard import UNCHANGED, AskRule, Guarded, Protects
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer
from drimed.linear.arrays import FloatArray


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
    simultaneous: bool = False  # a level is for all arms of a decision at once, not for each of them

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        required = constraints(offer, self.tolerance, self.guardrails)
        if self.simultaneous:
            lower = simultaneous.lower_bounds(fit, offer, required, self.confidence, control=False)
            return only_safe(above_zero(lower, offer.available), offer, ask)
        r = radius(fit, self.confidence)
        return only_safe(certified_arms(fit, required, r, offer.available), offer, ask)


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
    simultaneous: bool = False  # a level is for all arms of a decision at once, not for each of them

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        wish = ask(offer.available, None)
        required = constraints(offer, self.tolerance, self.guardrails)
        if self.simultaneous and not (self.confidence == "anytime" and simultaneous.noise_is_known(fit)):
            lower = simultaneous.lower_bounds(fit, offer, required, self.confidence, control=True)
            return _mixed(wish, lower, offer, ask)
        r = radius(fit, self.confidence)
        ok, whole = certified_arms(fit, required, r, offer.available), certified_whole(fit, required, wish, r)
        if not whole.all():  # mixtures of certified arms are certified; round-off must not say otherwise
            whole = whole | (ok | (wish == 0)).all(-1)
        if whole.all():
            return Guarded(wish, np.full(whole.shape, UNCHANGED), np.ones(whole.shape), ok.sum(-1))
        safe = safe_choice(ok, offer, ask)
        shares = [
            margin.largest_share(fit, c.mixed(safe), c.mixed(wish), c.x0, c.relative, c.absolute, r) for c in required
        ]
        share = np.where(whole, 1.0, reduce(np.minimum, shares))
        p = share[..., None] * wish + (1 - share)[..., None] * safe
        return explained(p, share, ok, offer)


def _mixed(wish: FloatArray, lower: list[FloatArray], offer: Offer, ask: AskRule) -> Guarded:
    """The largest certified rho where bounds on all arms' margins hold at once: their mean bounds a lottery's."""
    ok = above_zero(lower, offer.available)
    safe = safe_choice(ok, offer, ask)
    shares = []
    for F in lower:
        wished, kept = np.vecdot(wish, F[..., :-1]), np.vecdot(safe, F[..., :-1])
        kept = np.maximum(np.where(ok.any(-1), kept, F[..., -1]), 0.0)
        whole = wished >= 0
        shares.append(
            np.where(whole, 1.0, kept / np.where(whole, 1.0, kept - wished))
        )  # rho wished + (1 - rho) kept = 0
    share = np.where((ok | (wish == 0)).all(-1), 1.0, reduce(np.minimum, shares))
    p = share[..., None] * wish + (1 - share)[..., None] * safe
    return explained(p, share, ok, offer)
