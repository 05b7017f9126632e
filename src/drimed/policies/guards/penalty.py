"""Guards with a memory of each user: the dual variable of `penalty`, the account of `budget`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics.arrays import FloatArray, check_settings, pick
from drimed.policies.guards import base, margin
from drimed.policies.guards.base import PENALISED, UNCHANGED, AskRule, Draw, Guarded, Protects
from drimed.policies.guards.margin import Tolerance


@dataclass(frozen=True, slots=True)
class Duals:
    """One dual variable per user."""

    nu: FloatArray  # (..., H)


@final
@dataclass(frozen=True, kw_only=True)
class Penalty:
    """Each arm loses nu_h max(0, -F_a) of its log weight, where F_a is its certified margin: nothing is excluded.

    Source: Das et al., Alg. 2 and 3, in the consistent reading: a margin per user instead of one threshold for all
    (docs/paper.md, I-3, I-13, I-14).
    After each decision nu_h <- [nu_h - step m_A / sqrt(t)]_+ with m_A the estimated margin ("margin"), or
    [nu_h + step (1{m_A < 0} - rate) / sqrt(t)]_+ ("indicator").
    """

    tolerance: Tolerance = field(default_factory=Tolerance)
    update: str = "margin"
    step: float = 1.0  # eta_0
    rate: float = 0.0  # rho, the share of estimated violations that the indicator update settles at
    initial: float = 0.0  # nu_0

    protects: ClassVar[Protects] = "discourages"
    promise: ClassVar[str] = "violations are discouraged; none is excluded"

    def __post_init__(self) -> None:
        words = {"update": ("margin", "indicator")}
        check_settings(self, words, positive=("step",), below_one=("rate",), not_negative=("initial",))

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Duals:
        return Duals(np.full((*batch, shape.H), self.initial))

    def apply(self, state: Duals, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        penalty = state.nu[..., offer.user][..., None] * self.shortfall(fit, offer)
        p = ask(offer.available, penalty)
        return Guarded(p, np.where((penalty > 0).any(-1), PENALISED, UNCHANGED))

    def shortfall(self, fit: Fit, offer: Offer) -> FloatArray:
        """Amount by which each arm's certified margin is below zero: (..., K)."""
        (reward,) = base.constraints(offer, self.tolerance)
        F, _ = margin.worst_case(
            reward.w, reward.x0, fit.theta, fit.metric, fit.radius, reward.relative, reward.absolute
        )
        return np.maximum(-F, 0.0)

    def commit(self, state: Duals, fit: Fit, offer: Offer, draw: Draw) -> Duals:
        mean, mu0 = fit.mean(offer.features), np.vecdot(offer.control_features, fit.theta)
        m = pick(mean, draw.action) - mu0 + self.tolerance.allowed(mu0)  # the margin at theta_hat
        push = -m if self.update == "margin" else (m < 0) - self.rate
        nu = np.array(state.nu)
        nu[..., offer.user] = np.maximum(nu[..., offer.user] + self.step / np.sqrt(fit.round) * push, 0.0)
        return Duals(nu)


@dataclass(frozen=True, slots=True)
class Accounts:
    """One per user."""

    balance: FloatArray  # (..., H, d), W: sum of expected margins, with the part of the tolerance that was used
    decisions: FloatArray  # (..., H), T


@final
@dataclass(frozen=True, kw_only=True)
class Budget:
    """sum of expected margins + relative sum |mu_0| + absolute T + endowment >= 0 at all times, per user.

    The account holds the sum of expected margins as a feature, certified with all the evidence there is now: past
    choices that turn out better than feared can be spent again. An endowment lets a trial leave the control at once.
    """

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
