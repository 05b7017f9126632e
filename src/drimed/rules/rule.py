"""What every rule is: a frozen configuration and one pure function to a distribution over the allowed arms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol

import numpy as np

from drimed.learning.fit import Fit
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick

Randomisation = Literal["closed form", "one arm", "sampled"]

# Arms this close to the leader (share of its squared leverage norm) are the leader's twins: gap and distance are
# both round-off, and their ratio means nothing.
TWIN = 1e-16
NEVER_ZERO = 1e-300  # keeps 0 / 0 from arising when every feature is zero


@dataclass(frozen=True, slots=True)
class Ask:
    """How a rule is asked: on which arms, against which penalty, with which draws."""

    mask: BoolArray | None = None  # (..., K), True where the rule may put mass
    penalty: FloatArray | None = None  # (..., K), >= 0, in the unit of the rule's own log weight or index
    draws: FloatArray | None = None  # (..., D), uniforms; the first is kept for choosing the arm


class Rule(Protocol):
    """A rule's `propose` returns probabilities (..., K) that vanish outside `ask.mask`."""

    reference: ClassVar[str]
    # closed form: the probabilities are exact propensities. one arm: they are 0 or 1. sampled: the rule drew its
    # own randomness, the probabilities show only that draw, and the propensity is unknown.
    randomisation: ClassVar[Randomisation]
    normal_draws: ClassVar[bool]  # whether it needs d more uniforms than the one that chooses the arm

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray: ...


@dataclass(frozen=True, slots=True)
class Gaps:
    """How far each arm is behind the empirical leader."""

    leader: IntArray  # (...)
    gap: FloatArray  # (..., K), >= 0 on the mask
    distance: FloatArray  # (..., K), |x_leader - x_a|^2 in V^-1


def gaps(fit: Fit, x: FloatArray, mask: BoolArray | None) -> Gaps:
    """The empirical leader among the allowed arms, and each arm's gap and distance to it."""
    means = fit.mean(x)
    leader = (means if mask is None else np.where(mask, means, -np.inf)).argmax(-1)
    x_leader = pick(x, leader)
    difference = x_leader[..., None, :] - x
    distance = np.vecdot(np.matmul(difference, fit.V_inv), difference)
    own = np.vecdot(np.matvec(fit.V_inv, x_leader), x_leader)
    distance = np.maximum(distance, (TWIN * own)[..., None] + NEVER_ZERO)
    return Gaps(leader, pick(means, leader)[..., None] - means, distance)


def noise_levels(fit: Fit, offer: Offer) -> FloatArray:
    """lev(x_a) / sigma_a^2, the inverse of the effective number of pulls of a's direction: (..., K)."""
    level = fit.leverage(offer.features)
    return level if offer.sigma is None else level / offer.sigma**2
