"""Guards of conservative linear bandits: `clucb`, `safe_lucb` and `stage_wise`.

Regressions learn from the control's rounds too, and from the arm that was drawn. Controls and tolerances are each
user's own; an absolute tolerance is added to a relative one everywhere. Relative ones are of the control's mean and not
of its size: where that is negative the constraints are stricter, and the guards `budget` and `certain` treat both signs
alike. With OFUL as the rule these are the algorithms of their sources; any rule can take its place.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics import probability, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings, eigen
from drimed.policies.guards import base
from drimed.policies.guards.base import CONTROL_FIRST, EXPLORED, NOT_EARNED, UNCHANGED, AskRule, Draw, Guarded, Protects
from drimed.policies.guards.margin import Tolerance


@dataclass(frozen=True, kw_only=True)
class _Conservative:
    """The settings of all three."""

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = "anytime"  # a level per decision, or "anytime", as in the papers

    def __post_init__(self) -> None:
        check_settings(self, base.ANYTIME, level=("confidence",))

    def width(self, fit: Fit, x: FloatArray) -> FloatArray:
        """The half-width of <x, theta> in the confidence set: (..., K, d) -> (..., K)."""
        return base.radius(fit, self.confidence)[..., None] * np.sqrt(quadratic_forms.leverages(x, fit.metric))

    def safe(self, fit: Fit, offer: Offer) -> BoolArray:
        """The arms that are certified jointly with the control; a control of one arm is among them: (..., K)."""
        ok = (self.cost(fit, offer) <= self.tolerance.absolute) | (offer.control == 1)
        return ok if offer.available is None else ok & offer.available

    def cost(self, fit: Fit, offer: Offer) -> FloatArray:
        """The largest <z_a, theta> in the confidence set, z_a = (1 - relative) x_0 - x_a: (..., K)."""
        z = (1 - self.tolerance.relative) * offer.control_features[..., None, :] - offer.features
        return fit.mean(z) + self.width(fit, z)


@dataclass(frozen=True, slots=True)
class Sums:
    """One row per user."""

    z: FloatArray  # (..., H, d), features of the rule's own choices
    u: FloatArray  # (..., H, d), features of the control in the same rounds
    v: FloatArray  # (..., H, d), features of the control in the rounds when it was played
    decisions: FloatArray  # (..., H)


@final
@dataclass(frozen=True, kw_only=True)
class CLUCB(_Conservative):
    """The rule's choice x where <z + x - (1 - relative) (u + x_0) + relative v, theta> + absolute T stays >= 0.

    Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy (2017), CLUCB2: the control's mean is unknown. The sum is
    over the T rounds so far, so that credit is banked. Departures: the paper bounds z, u and v apart (`joint=False`)
    and takes v for worth no less than nothing; the errors are of one theta and cancel. A rule that randomises is
    accounted for by the mean feature of its distribution.

    One feature, V = 5, theta_hat = .8, radius .5, x = 1, x_0 = .5, relative .1, first round: w = .55, and its lower
    bound .317 is above 0. Bounded apart, .5764 against .9 times .5118.
    """

    joint: bool = True  # one bound for the whole sum; False: three, as printed

    protects: ClassVar[Protects] = "sum"
    promise: ClassVar[str] = "the summed expected reward is certified against that of the control at all times"

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Sums:
        zero = np.zeros((*batch, shape.H, shape.d))
        return Sums(zero, zero, zero, zero[..., 0])

    def apply(self, state: Sums, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        wish, control, h = ask(offer.available), base.control(offer), offer.user
        x, x0 = (np.vecmat(p, offer.features) for p in (wish, control))  # (..., d)
        held = Sums(state.z[..., h, :], state.u[..., h, :], state.v[..., h, :], state.decisions[..., h])
        earned = self.certificate(held, fit, x, x0) >= 0
        p = np.where(earned[..., None], wish, control)
        return Guarded(p, np.where(earned, UNCHANGED, NOT_EARNED), np.where(earned, 1.0, 0.0))

    def commit(self, state: Sums, fit: Fit, offer: Offer, draw: Draw) -> Sums:
        del fit
        x, x0 = (np.vecmat(p, offer.features) for p in (draw.probabilities, base.control(offer)))
        own = (draw.reason_code != NOT_EARNED)[..., None]
        new = Sums(state.z.copy(), state.u.copy(), state.v.copy(), state.decisions.copy())
        for part, feature in ((new.z, x * own), (new.u, x0 * own), (new.v, x0 * ~own)):
            part[..., offer.user, :] += feature
        new.decisions[..., offer.user] += 1
        return new

    def certificate(self, held: Sums, fit: Fit, x: FloatArray, x0: FloatArray) -> FloatArray:
        """The smallest surplus over the control's share in the confidence set, with x played next: (...)."""

        def lower(w: FloatArray) -> FloatArray:
            return np.vecdot(w, fit.theta) - self.width(fit, w[..., None, :])[..., 0]

        relative, given = self.tolerance.relative, self.tolerance.absolute * (held.decisions + 1)
        played, instead = held.z + x, held.u + x0
        if self.joint:
            return lower(played - (1 - relative) * instead + relative * held.v) + given
        return lower(played) + relative * np.maximum(lower(held.v), 0.0) + (1 - relative) * lower(-instead) + given


@final
@dataclass(frozen=True, kw_only=True)
class SafeLUCB(_Conservative):
    """The control for T' rounds; after that the rule is asked on the safe arms only.

    Source: Amani, Alizadeh and Thrampoulidis (2019). Departures: relative to a control there is no ball of actions that
    are safe whatever theta is, so that pure exploration plays the control, which is allowed by assumption. Without a
    horizon or a number of rounds there is no forced start. Arms are finitely many, and a safe set need not grow: a
    control that always plays one arm shows one direction per user.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, relative .1, radius .2:
    largest costs (-.043155, .315865, -.024734), so that e1 and the control are safe.
    """

    control_rounds: int | None = None  # T', counted in decisions; None: horizon^(2/3)
    horizon: int | None = None  # the number of decisions of the whole trial

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control, or the control's own"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, not_negative=("control_rounds",), count=("horizon",))

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        ok, first = self.safe(fit, offer), self.control_rounds
        if fit.round <= (round((self.horizon or 0) ** (2 / 3)) if first is None else first):
            p = np.broadcast_to(base.control(offer), ok.shape)
            return Guarded(p, np.full(p.shape[:-1], CONTROL_FIRST), np.zeros(p.shape[:-1]), ok.sum(-1))
        return base.only_safe(ok, offer, ask)


@final
@dataclass(frozen=True, kw_only=True)
class StageWise(_Conservative):
    """The control with a share rho of the uniform lottery until V is large in every direction; then certified arms.

    Source: Moradipari, Thrampoulidis and Alizadeh (2020), arXiv 2010.00081, Alg. 1: SCLUCB, or with Thompson sampling
    at the confidence radius SCLTS. rho = alpha r_l / (S + r_h) for a control of mean r_l <= r_b <= r_h of which alpha
    may be lost; it is left when lambda_min(V) >= (2 L radius / (gap + alpha r_b))^2: the best arm is certified
    then. Readings: the paper was at hand as an abstract only; both formulas are from memory, and were derived again.
    r_l and r_h are those of the confidence set, cut at zero and at S |x_0|, L the norm of the longest arm on offer.
    Departures: the random action beside the control is an arm drawn uniformly, whose mean is at least -S L, so that
    rho = (alpha r_l + absolute) / (S L + r_h). The condition on V fails for thousands of decisions at a tolerance of
    interest; `leave="certified"` leaves the control as soon as another arm is certified.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, relative .1, radius .2: the
    control's mean is between .247335 and .512665, and rho = .0247335 / 1.512665 = .016351.
    """

    norm_bound: float = 1.0  # S
    gap: float = 0.0  # kappa_l, by which the best arm is known to be better than the control
    leave: str = "spread"  # the control, when V is large in every direction; "certified": when another arm is certified

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_settings(self, {"leave": ("spread", "certified")}, positive=("norm_bound",), not_negative=("gap",))

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        ok = self.safe(fit, offer)
        after = base.only_safe(ok, offer, ask)
        left, rho = self.left(fit, offer, ok), self.share(fit, offer)[..., None]
        mixed = (1 - rho) * base.control(offer) + rho * probability.uniform(after.probabilities.shape, offer.available)
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
        return np.asarray(2 * base.radius(fit, self.confidence) * _longest(offer) * np.sqrt(widest) <= margin)

    def _control_mean(self, fit: Fit, offer: Offer) -> tuple[FloatArray, FloatArray]:
        """r_l and r_h: (...) twice."""
        x0 = offer.control_features
        mean, half = np.vecdot(x0, fit.theta), self.width(fit, x0[..., None, :])[..., 0]
        most = self.norm_bound * np.linalg.norm(x0, axis=-1)
        return np.clip(mean - half, 0.0, most), np.clip(mean + half, 0.0, most)


def _longest(offer: Offer) -> FloatArray:
    """L: (...)."""
    norms = np.linalg.norm(offer.features, axis=-1)
    return np.max(norms if offer.available is None else np.where(offer.available, norms, 0.0), axis=-1)
