"""The guard of Conservative LinUCB: what was played so far, as a whole, certainly earned its share of the control.

Source: Kazerouni, Ghavamzadeh, Abbasi-Yadkori and Van Roy (2017), CLUCB2: the control's mean is unknown. With OFUL as
the rule it is their algorithm; any rule can take its place. The constraint is on running sums, so that it banks credit:
it is weaker than one on every draw.

For a user let z and u sum the mean features of what was played and of the control over the rounds that were the rule's
own, and v those of the control over the others. The rule's next choice x is accepted if, for w = z + x -
(1 - relative) (u + x_0) + relative v and T rounds with this one,

    <w, theta> + absolute T >= 0 for every theta in the confidence set

and the control is played otherwise.

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
from drimed.numerics.arrays import FloatArray, IntArray, check_settings
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

    def of(self, row: int | IntArray) -> Sums:
        """The sums of some users."""
        return Sums(self.z[..., row, :], self.u[..., row, :], self.v[..., row, :], self.decisions[..., row])


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
        rows = (*batch, shape.H)
        zero = np.zeros((*rows, shape.d))
        return Sums(zero, zero, zero, np.zeros(rows))

    def apply(self, state: Sums, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        wish = ask(offer.available)
        x, x0 = np.vecmat(wish, offer.features), self._control(offer)  # (..., d)
        earned = self.certificate(state.of(offer.user), fit, x, x0) >= 0
        p = np.where(earned[..., None], wish, base.control(offer))
        return Guarded(p, np.where(earned, UNCHANGED, NOT_EARNED), np.where(earned, 1.0, 0.0))

    def commit(self, state: Sums, fit: Fit, offer: Offer, draw: Draw) -> Sums:
        del fit
        x, x0 = np.vecmat(draw.probabilities, offer.features), self._control(offer)
        own, row = (draw.reason_code != NOT_EARNED)[..., None], offer.user
        new = Sums(np.array(state.z), np.array(state.u), np.array(state.v), np.array(state.decisions))
        new.z[..., row, :] += np.where(own, x, 0.0)
        new.u[..., row, :] += np.where(own, x0, 0.0)
        new.v[..., row, :] += np.where(own, 0.0, x0)
        new.decisions[..., row] += 1
        return new

    def certificate(self, held: Sums, fit: Fit, x: FloatArray, x0: FloatArray) -> FloatArray:
        """The smallest surplus over the control's share in the confidence set, with x played next: (...)."""
        relative = self.tolerance.relative
        given = self.tolerance.absolute * (held.decisions + 1)
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
