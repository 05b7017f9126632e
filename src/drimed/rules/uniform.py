"""Every allowed arm with the same probability: the randomised trial that adaptive designs are compared with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from drimed.learning.fit import Fit
from drimed.learning.offer import Offer
from drimed.linear import pmf
from drimed.linear.arrays import FloatArray
from drimed.rules.rule import Ask, Randomisation, every_arm


@final
@dataclass(frozen=True, kw_only=True)
class Uniform:
    """p_a = 1 / (number of allowed arms). A penalty does not change it.

    >>> Uniform().reference
    'Fisher 1926'
    """

    reference: ClassVar[str] = "Fisher 1926"
    randomisation: ClassVar[Randomisation] = "closed form"
    normal_draws: ClassVar[bool] = False

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return pmf.uniform(every_arm(fit, offer), ask.mask)
