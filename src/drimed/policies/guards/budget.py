"""The guard `budget`: each user has an account of what exploration may cost over the whole trial.

The account holds the sum of expected margins so far, as a feature, so that it is certified with all the evidence there
is now: past choices that turn out better than feared can be spent again. An endowment lets a trial leave the control
where no tolerance would.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import FloatArray, check_settings
from drimed.policies.guards import base, margin
from drimed.policies.guards.base import AskRule, Draw, Guarded, Protects
from drimed.policies.guards.margin import Tolerance


@dataclass(frozen=True, slots=True)
class Accounts:
    """One per user."""

    balance: FloatArray  # (..., H, d), W: sum of expected margins, with the part of the tolerance that was used
    decisions: FloatArray  # (..., H), T


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """sum of expected margins + relative sum |mu_0| + absolute T + endowment >= 0 at all times, per user."""

    tolerance: Tolerance = field(default_factory=Tolerance)
    endowment: float = 0.5  # in the user's reward unit, for the whole trial
    confidence: float | str = 0.99

    protects: ClassVar[Protects] = "sum"
    promise: ClassVar[str] = "each user's summed expected shortfall is certified to stay within tolerance and endowment"

    def __post_init__(self) -> None:
        check_settings(self, base.ANYTIME, level=("confidence",), not_negative=("endowment",))

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Accounts:
        return Accounts(np.zeros((*batch, shape.H, shape.d)), np.zeros((*batch, shape.H)))

    def apply(self, state: Accounts, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        wish = ask(offer.available)
        r = base.radius(fit, self.confidence)
        (reward,) = base.constraints(offer, self.tolerance)
        ok = base.certified_arms(fit, [reward], r, offer.available)
        safe = base.safe_choice(ok, offer, ask)
        held, allowance = self._account(state, offer)
        low, high = (held + np.vecmat(p, reward.w) for p in (safe, wish))
        share = margin.largest_share(low, high, reward.x0, fit.theta, fit.metric, r, reward.relative, allowance)
        return base.mixed(wish, safe, share, ok, offer)

    def commit(self, state: Accounts, fit: Fit, offer: Offer, draw: Draw) -> Accounts:
        (reward,) = base.constraints(offer, self.tolerance)
        held, allowance = self._account(state, offer)
        moved = held + np.vecmat(draw.probabilities, reward.w)
        # |mu_0| >= t mu_0 for every |t| <= 1: the t of the certificate may be committed.
        r, relative = base.radius(fit, self.confidence), reward.relative
        _, t = margin.worst_case(moved[..., None, :], reward.x0, fit.theta, fit.metric, r, relative, allowance)
        balance, decisions = np.array(state.balance), np.array(state.decisions)
        balance[..., offer.user, :] = moved + t * relative * reward.x0
        decisions[..., offer.user] += 1
        return Accounts(balance, decisions)

    def _account(self, state: Accounts, offer: Offer) -> tuple[FloatArray, FloatArray]:
        allowance = self.tolerance.absolute * (state.decisions[..., offer.user] + 1) + self.endowment
        return state.balance[..., offer.user, :], allowance
