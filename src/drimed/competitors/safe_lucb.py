"""The guard of Safe-LUCB: some rounds of the control first, then only arms that are certainly safe.

Source: Amani, Alizadeh and Thrampoulidis (2019). With OFUL as the rule it is their algorithm.

Departures. The paper starts from a ball of actions that are safe whatever theta is. Relative to a control there is no
such ball: its pure exploration plays the control, which is allowed by assumption, certified or not. An arm is safe if
z_a = (1 - relative) x_0 - x_a has <z_a, theta> <= absolute for every theta in the confidence set. Without a horizon or
a number of rounds there is no forced start. The paper's sets are convex, and its safe set grows from any start. With
finitely many arms it need not: a control that always plays one arm shows one direction per user.

Where a control's mean is negative, the constraint is stricter than a tolerance on its size; the guard `certain` treats
both signs alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics import quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings
from drimed.policies.guards.base import ANYTIME, CONTROL_FIRST, AskRule, Guarded, Protects, control, only_safe, radius
from drimed.policies.guards.margin import Tolerance


@final
@dataclass(frozen=True, kw_only=True)
class SafeLUCB:
    """The control for T' rounds; after that the rule is asked on the safe arms only.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, relative .1, radius .2:
    largest costs (-.043155, .315865, -.024734), so that e1 and the control are safe.
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = "anytime"  # a level per decision, or "anytime", as in the paper
    control_rounds: int | None = None  # T', counted in decisions; None: horizon^(2/3)
    horizon: int | None = None  # the number of decisions of the whole trial

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control, or the control's own"

    def __post_init__(self) -> None:
        check_settings(self, ANYTIME, level=("confidence",), not_negative=("control_rounds",), count=("horizon",))

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        ok, first = self.safe(fit, offer), self.control_rounds
        if fit.round <= (round((self.horizon or 0) ** (2 / 3)) if first is None else first):
            p = np.broadcast_to(control(offer), ok.shape)
            return Guarded(p, np.full(p.shape[:-1], CONTROL_FIRST), np.zeros(p.shape[:-1]), ok.sum(-1))
        return only_safe(ok, offer, ask)

    def safe(self, fit: Fit, offer: Offer) -> BoolArray:
        """The arms that may be played; a control of one arm is among them: (..., K)."""
        ok = (self.cost(fit, offer) <= self.tolerance.absolute) | (offer.control == 1)
        return ok if offer.available is None else ok & offer.available

    def cost(self, fit: Fit, offer: Offer) -> FloatArray:
        """The largest <z_a, theta> in the confidence set: (..., K)."""
        z = (1 - self.tolerance.relative) * offer.control_features[..., None, :] - offer.features
        return fit.mean(z) + radius(fit, self.confidence)[..., None] * np.sqrt(quadratic_forms.leverages(z, fit.metric))
