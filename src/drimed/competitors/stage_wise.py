"""The guard of stage-wise conservative bandits: a little of every arm beside the control, then only certified arms.

Source: Moradipari, Thrampoulidis and Alizadeh (2020), arXiv 2010.00081, Algorithm 1. With Thompson sampling at the
confidence radius as the rule it is SCLTS, with OFUL it is SCLUCB. For a baseline of mean r_b, r_l <= r_b <= r_h, a
share alpha of it that may be lost, actions of norm at most L and |theta| <= S:

    conservative action    (1 - rho) x_b + rho zeta,  rho = alpha r_l / (S + r_h),  zeta random of mean zero and norm 1
    it is left when        an action is certified, and lambda_min(V) >= (2 L radius / (kappa_l + alpha r_b))^2

kappa_l <= <x_best - x_b, theta>. Under the second condition the best action is certified, since its margin is at least
kappa_l + alpha r_b and its width at most 2 radius L / sqrt(lambda_min(V)).

Readings. The paper was at hand as an abstract only: both formulas are from memory, and were derived again; no constant
of its experiments is known, and nothing is tuned. The lower and upper bounds of the control's mean are those of the
confidence set, cut at zero and at S |x_0|; kappa_l = 0 is always true. L is the norm of the longest arm on offer.

Departures. Arms are finitely many: zeta is an arm drawn uniformly, whose mean is at least -S L, and the mixture is a
lottery, so that rho = (alpha r_l + absolute) / (S L + r_h). The regression learns from the arm that was drawn. The
absolute tolerance is added to alpha r_b everywhere. An arm is certified jointly with the control (safe_lucb.py), whose
mean is unknown; with the control among them some action always is. The condition on V fails for thousands of
decisions at a tolerance of interest; `leave="certified"` leaves the control as soon as any other arm is certified.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, final

import numpy as np

from drimed.competitors.safe_lucb import SafeLUCB
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings, eigen
from drimed.policies.guards.base import ANYTIME, EXPLORED, AskRule, Guarded, Protects, control, only_safe, radius
from drimed.policies.guards.margin import Tolerance


@final
@dataclass(frozen=True, kw_only=True)
class StageWise:
    """The control with a share rho of the uniform lottery until V is large in every direction; then certified arms.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, relative .1, radius .2: the
    control's mean is between .247335 and .512665, and rho = .0247335 / 1.512665 = .016351.
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = "anytime"  # a level per decision, or "anytime", as in the paper
    norm_bound: float = 1.0  # S
    gap: float = 0.0  # kappa_l, by which the best arm is known to be better than the control
    leave: str = "spread"  # the control, when V is large in every direction; "certified": when another arm is certified

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def __post_init__(self) -> None:
        words = ANYTIME | {"leave": ("spread", "certified")}
        check_settings(self, words, level=("confidence",), positive=("norm_bound",), not_negative=("gap",))

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        ok = self._certified.safe(fit, offer)
        after = only_safe(ok, offer, ask)
        left, rho = self.left(fit, offer, ok), self.share(fit, offer)[..., None]
        mixed = (1 - rho) * control(offer) + rho * probability.uniform(after.probabilities.shape, offer.available)
        p = np.where(left[..., None], after.probabilities, mixed)
        share = np.where(left, 0.0 if after.share is None else after.share, 0.0)
        return Guarded(p, np.where(left, after.reason, EXPLORED), share, after.certified)

    def share(self, fit: Fit, offer: Offer) -> FloatArray:
        """rho: (...)."""
        lowest, highest = self._control_mean(fit, offer)
        room = self.norm_bound * _longest(offer) + highest
        free = self.tolerance.relative * lowest + self.tolerance.absolute
        return np.where(room > free, free / np.where(room > free, room, 1.0), 1.0)

    def left(self, fit: Fit, offer: Offer, ok: BoolArray) -> BoolArray:
        """Whether conservative play is over: (...)."""
        if self.leave == "certified":
            return np.asarray((ok & (offer.control < 1)).any(-1))
        lowest, _ = self._control_mean(fit, offer)
        widest = eigen(fit.metric, "the estimates")[0][..., -1]  # 1 / lambda_min(V)
        margin = self.gap + self.tolerance.relative * lowest + self.tolerance.absolute
        return np.asarray(2 * radius(fit, self.confidence) * _longest(offer) * np.sqrt(widest) <= margin)

    def _control_mean(self, fit: Fit, offer: Offer) -> tuple[FloatArray, FloatArray]:
        """r_l and r_h: (...) twice."""
        x0 = offer.control_features
        mean = np.vecdot(x0, fit.theta)
        half = radius(fit, self.confidence) * np.sqrt(quadratic_forms.leverages(x0[..., None, :], fit.metric)[..., 0])
        most = self.norm_bound * np.linalg.norm(x0, axis=-1)
        return np.clip(mean - half, 0.0, most), np.clip(mean + half, 0.0, most)

    @cached_property
    def _certified(self) -> SafeLUCB:
        return SafeLUCB(tolerance=self.tolerance, confidence=self.confidence)


def _longest(offer: Offer) -> FloatArray:
    """L: (...)."""
    norms = np.linalg.norm(offer.features, axis=-1)
    return np.max(norms if offer.available is None else np.where(offer.available, norms, 0.0), axis=-1)
