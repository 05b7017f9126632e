"""Rules that exploration must beat: the control, a uniform lottery, the best estimate so far."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.learning.offer import Fit, Offer, control_among
from drimed.linear import pmf
from drimed.linear.arrays import FloatArray
from drimed.rules.rule import Ask, Randomisation, check_ties, every_arm, play_largest


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """p = pi_0, restricted to the allowed arms: no learning, no harm. A penalty does not change it.

    >>> Control().randomisation
    'closed form'
    """

    reference: ClassVar[str] = "the baseline policy"
    randomisation: ClassVar[Randomisation] = "closed form"

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        p = offer.control if ask.mask is None else control_among(offer, ask.mask)
        return np.broadcast_to(p, every_arm(fit, offer))


@final
@dataclass(frozen=True, kw_only=True)
class Uniform:
    """p_a = 1 / (number of allowed arms): the randomised trial. A penalty does not change it.

    >>> Uniform().reference
    'Fisher 1926'
    """

    reference: ClassVar[str] = "Fisher 1926"
    randomisation: ClassVar[Randomisation] = "closed form"

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return pmf.uniform(every_arm(fit, offer), ask.mask)


@final
@dataclass(frozen=True, kw_only=True)
class Greedy:
    """argmax_a <x_a, theta_hat>.

    >>> Greedy().randomisation
    'one arm'
    """

    ties: str = "first"  # or "shared": equal parts, which are exact propensities all the same

    reference: ClassVar[str] = "folklore"
    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        check_ties(self.ties)

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return play_largest(fit.mean(offer.features), ask, self.ties)
