"""OPLB: optimistic about the reward, pessimistic about the cost, over distributions of arms.

Source: Pacchiano, Ghavamzadeh, Bartlett and Jiang (2021), for finitely many arms: a linear program with one constraint,
whose optimum has at most two atoms and is found by enumeration; a single draw of them may fall short of the promise.

Departures. The paper's cost has a parameter of its own. Here the cost of an arm is its shortfall against the control,
(1 - relative) <x_0, theta> - <x_a, theta>: one regression serves reward and cost, and the errors of both sides cancel.
The price: the control is certified only once its mean is certainly not negative, and is played by assumption before;
where it is negative, the constraint is stricter than a tolerance on its size. Widths are at the learner's radius. The
theory's optimism, 1 + 2 / slack, explores without end at any tolerance of interest (67.7 at relative .1 and a control
of .3): the default is 1. Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings, pick
from drimed.numerics.probability import best, one_hot
from drimed.policies.rules.base import Ask, Randomisation, widths

LEAST_SLACK = 1e-6  # an optimism of 2e6 already ranks arms by width alone: no slack at all need not be infinite


@final
@dataclass(frozen=True, kw_only=True)
class OPLB:
    """max E U over distributions with E C <= absolute; U = mean + optimism width, C the cost's upper bound.

    Two arms with U = (1, .6) and C = (.3, -.2), absolute 0: p = (.4, .6), of value .76. V = diag(3, 2),
    theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, relative .1, squared width .04: costs
    (-.043155, .315865, -.024734), optimistic rewards (.615470, .241421, .512665), and e1 is played.
    """

    relative: float = 0.1  # epsilon
    absolute: float = 0.05  # on top of it, in the user's reward unit
    optimism: float | str = 1.0  # alpha_r, times the radius; "theory": 1 + 2 / slack
    safe_policy: bool = False  # OPLB-SP: play the control while its own width exceeds half its slack
    slack: float | None = None  # xi, by which the control is known to keep the constraint; None: its certified part
    width_squared: float | None = None  # None: the learner's radius

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        words, least = {"optimism": ("theory",)}, ("absolute", "optimism", "width_squared")
        check_settings(self, words, below_one=("relative",), not_negative=least, positive=("slack",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x, x0 = offer.features, offer.control_features
        width = widths(fit, x, self.width_squared)  # (..., K)
        slack = self._slack(fit, x0)  # (...)
        optimism = 1 + 2 / slack[..., None] if isinstance(self.optimism, str) else self.optimism
        U = ask.penalised(fit.mean(x) + optimism * width)
        hold = np.zeros(slack.shape, bool)
        if self.safe_policy:  # C_u beta_{pi_sf} > xi / 2
            hold = np.vecdot(np.broadcast_to(offer.control, width.shape), width) > slack / 2
        return mixture(U, self.cost(fit, offer), self.absolute, offer.control, ask.mask, hold)

    def cost(self, fit: Fit, offer: Offer) -> FloatArray:
        """C, the largest cost in the confidence set: (..., K)."""
        z = (1 - self.relative) * offer.control_features[..., None, :] - offer.features
        return fit.mean(z) + widths(fit, z, self.width_squared)

    def _slack(self, fit: Fit, x0: FloatArray) -> FloatArray:
        """Certain slack of the control in the constraint: (...)."""
        z0 = -self.relative * x0[..., None, :]
        certified = self.absolute - (fit.mean(z0) + widths(fit, z0, self.width_squared))[..., 0]
        return np.maximum(certified, LEAST_SLACK) if self.slack is None else np.full(certified.shape, self.slack)


def mixture(
    U: FloatArray, C: FloatArray, limit: float, control: FloatArray, mask: BoolArray | None = None,
    hold: BoolArray | bool = False,
) -> FloatArray:  # fmt: skip
    """The distribution of largest E U with E C <= limit; the control where there is none, or where `hold` says so.

    An allowed arm of the control must be left for that; else the cheapest arm is played.
    """
    allowed = np.ones(U.shape[-1], bool) if mask is None else mask
    keeps = allowed & (limit >= C)
    # The optimum is an arm i that keeps the constraint, with a share of one j that does not, as large as it allows.
    mixes = keeps[..., :, None] & (allowed & (limit < C))[..., None, :] & (U[..., None, :] > U[..., :, None])
    room, cost = limit - C[..., :, None], C[..., None, :] - C[..., :, None]
    share = np.where(mixes, room, 0.0) / np.where(mixes, cost, 1.0)  # (..., K, K)
    value = np.where(keeps[..., :, None], U[..., :, None] + share * (U[..., None, :] - U[..., :, None]), -np.inf)
    flat = value.reshape(*value.shape[:-2], -1)
    K, at = U.shape[-1], flat.argmax(-1)
    rest = pick(share.reshape(flat.shape), at)[..., None]
    mixed = (1 - rest) * one_hot(at // K, K) + rest * one_hot(at % K, K)
    played = np.where(allowed, control, 0.0)
    total = played.sum(-1, keepdims=True)
    instead = np.where(total > 0, played / np.where(total > 0, total, 1.0), one_hot(best(-C, allowed), K))
    return np.where((keeps.any(-1) & ~np.asarray(hold))[..., None], mixed, instead)
