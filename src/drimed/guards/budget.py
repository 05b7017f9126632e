"""The guard `budget`: each user has an account of what exploration may cost over the whole trial.

The account holds the sum of expected margins so far, as a feature, so that it is certified with all the evidence there
is now: past choices that turn out better than feared can be spent again. An endowment lets a trial leave the control
where no tolerance would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.guards import margin
from drimed.guards.constraint import certified_arms, check_confidence, constraints, radius
from drimed.guards.fallback import explained, safe_choice
from drimed.guards.guard import AskRule, Draw, Guarded, Protects
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Fit, Offer, Shape
from drimed.linear.arrays import FloatArray


@dataclass(frozen=True, slots=True)
class Accounts:
    """One per user."""

    balance: FloatArray  # (..., H, d), W: sum of expected margins, with the part of the tolerance that was used
    decisions: FloatArray  # (..., H), T


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """sum of expected margins + relative sum |mu_0| + absolute T + endowment >= 0 at all times, per user.

    >>> Budget(endowment=0.5).endowment
    0.5
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    endowment: float = 0.5  # in the user's reward unit, for the whole trial
    confidence: float | str = 0.99

    protects: ClassVar[Protects] = "sum"
    promise: ClassVar[str] = "each user's summed expected shortfall is certified to stay within tolerance and endowment"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)
        if not 0 <= self.endowment < np.inf:
            raise ConfigError(f"endowment must be at least 0 and finite, got {self.endowment}")

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Accounts:
        return Accounts(np.zeros((*batch, shape.H, shape.d)), np.zeros((*batch, shape.H)))

    def apply(self, state: Accounts, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        wish = ask(offer.available, None)
        r = radius(fit, self.confidence)
        (reward,) = constraints(offer, self.tolerance, ())
        ok = certified_arms(fit, [reward], r, offer.available)
        safe = safe_choice(ok, offer, ask)
        held, allowance = self._account(state, offer)
        share = margin.largest_share(
            fit, held + reward.mixed(safe), held + reward.mixed(wish), reward.x0, reward.relative, allowance, r
        )
        p = share[..., None] * wish + (1 - share)[..., None] * safe
        return explained(p, share, ok, offer)

    def commit(self, state: Accounts, fit: Fit, offer: Offer, draw: Draw) -> Accounts:
        (reward,) = constraints(offer, self.tolerance, ())
        held, allowance = self._account(state, offer)
        moved = held + reward.mixed(draw.probabilities)
        # |mu_0| >= t mu_0 for every |t| <= 1: the t of the certificate may be committed.
        _, t = margin.worst_case(
            fit, moved[..., None, :], reward.x0, reward.relative, allowance, radius(fit, self.confidence)
        )
        balance, decisions = np.array(state.balance), np.array(state.decisions)
        balance[..., offer.user, :] = moved + t * reward.relative * reward.x0
        decisions[..., offer.user] += 1
        return Accounts(balance, decisions)

    def _account(self, state: Accounts, offer: Offer) -> tuple[FloatArray, FloatArray]:
        allowance = self.tolerance.absolute * (state.decisions[..., offer.user] + 1) + self.endowment
        return state.balance[..., offer.user, :], allowance
