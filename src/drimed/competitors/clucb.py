"""The guard of Conservative LinUCB: what was played so far, as a whole, certainly earned its share of the control.

Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy (2017), CLUCB2: the control's mean is unknown. With OFUL as
the rule it is their algorithm; any rule can take its place. The constraint is on running sums, so that it banks credit:
it is weaker than one on every draw.

For a user let z and u sum the mean features of what was played and of the control over the rounds that were the rule's
own, and v those of the control over the others. The rule's next choice x is accepted, and else the control played, if
<z + x - (1 - relative) (u + x_0) + relative v, theta> + absolute T >= 0 for every theta in the confidence set, with T
rounds so far.

Departures. The paper bounds the three sums apart (`joint=False`) and takes v for worth no less than nothing; the errors
are of one theta and cancel, so that the joint form accepts more at the same confidence. Budgets are per user. The
regression learns from the control's rounds too. An absolute tolerance pays into the account of every round. A rule that
randomises is certified, and accounted for, by the mean feature of its distribution.

Where a control's mean is negative, its rounds draw on the account instead of filling it; the guard `budget` treats both
signs alike.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics import quadratic_forms
from drimed.numerics.arrays import FloatArray, check_settings
from drimed.policies.guards import base
from drimed.policies.guards.base import NOT_EARNED, UNCHANGED, AskRule, Draw, Guarded, Protects
from drimed.policies.guards.margin import Tolerance


@dataclass(frozen=True, slots=True)
class Sums:
    """One row per user."""

    z: FloatArray  # (..., H, d), features of the rule's own choices
    u: FloatArray  # (..., H, d), features of the control in the same rounds
    v: FloatArray  # (..., H, d), features of the control in the rounds when it was played
    decisions: FloatArray  # (..., H)


@final
@dataclass(frozen=True, kw_only=True)
class CLUCB:
    """The rule's choice where the running sum stays certified, else the control.

    One feature, V = 5, theta_hat = .8, radius .5, x = 1, x_0 = .5, relative .1, first round: w = .55, and its lower
    bound .317 is above 0. Bounded apart, .5764 against .9 times .5118.
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = "anytime"  # a level per decision, or "anytime", as in the paper
    joint: bool = True  # one bound for the whole sum; False: three, as printed

    protects: ClassVar[Protects] = "sum"
    promise: ClassVar[str] = "the summed expected reward is certified against that of the control at all times"

    def __post_init__(self) -> None:
        check_settings(self, base.ANYTIME, level=("confidence",))

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Sums:
        zero = np.zeros((*batch, shape.H, shape.d))
        return Sums(zero, zero, zero, zero[..., 0])

    def apply(self, state: Sums, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        wish, h = ask(offer.available), offer.user
        x, x0 = np.vecmat(wish, offer.features), self._control(offer)  # (..., d)
        held = Sums(state.z[..., h, :], state.u[..., h, :], state.v[..., h, :], state.decisions[..., h])
        earned = self.certificate(held, fit, x, x0) >= 0
        p = np.where(earned[..., None], wish, base.control(offer))
        return Guarded(p, np.where(earned, UNCHANGED, NOT_EARNED), np.where(earned, 1.0, 0.0))

    def commit(self, state: Sums, fit: Fit, offer: Offer, draw: Draw) -> Sums:
        del fit
        x, x0 = np.vecmat(draw.probabilities, offer.features), self._control(offer)
        own = (draw.reason_code != NOT_EARNED)[..., None]
        new = Sums(state.z.copy(), state.u.copy(), state.v.copy(), state.decisions.copy())
        for part, feature in ((new.z, x * own), (new.u, x0 * own), (new.v, x0 * ~own)):
            part[..., offer.user, :] += feature
        new.decisions[..., offer.user] += 1
        return new

    def certificate(self, held: Sums, fit: Fit, x: FloatArray, x0: FloatArray) -> FloatArray:
        """The smallest surplus over the control's share in the confidence set, with x played next: (...)."""
        relative, given = self.tolerance.relative, self.tolerance.absolute * (held.decisions + 1)
        r = base.radius(fit, self.confidence)
        played, instead = held.z + x, held.u + x0
        if self.joint:
            return _lower(fit, played - (1 - relative) * instead + relative * held.v, r) + given
        credit = relative * np.maximum(_lower(fit, held.v, r), 0.0)
        return _lower(fit, played, r) + credit + (1 - relative) * _lower(fit, -instead, r) + given

    def _control(self, offer: Offer) -> FloatArray:
        """The mean feature of the control on the arms that are there: what it would have given. (..., d)"""
        return np.vecmat(base.control(offer), offer.features)


def _lower(fit: Fit, w: FloatArray, r: FloatArray) -> FloatArray:
    """The smallest <w, theta> in the confidence set: (..., d) -> (...)."""
    return np.vecdot(w, fit.theta) - r * np.sqrt(quadratic_forms.leverages(w[..., None, :], fit.metric)[..., 0])
