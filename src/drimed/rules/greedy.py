"""No exploration of its own: play the arm of largest estimated mean. The floor that exploration must beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from drimed.learning.fit import Fit
from drimed.learning.offer import Offer
from drimed.linear import pmf
from drimed.linear.arrays import FloatArray
from drimed.rules.rule import Ask, Randomisation


@final
@dataclass(frozen=True, kw_only=True)
class Greedy:
    """argmax_a <x_a, theta_hat>; ties go to the lowest index.

    >>> Greedy().randomisation
    'one arm'
    """

    reference: ClassVar[str] = "folklore"
    randomisation: ClassVar[Randomisation] = "one arm"
    normal_draws: ClassVar[bool] = False

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        index = fit.mean(offer.features)
        if ask.penalty is not None:
            index = index - ask.penalty
        return pmf.one_hot(pmf.best(index, ask.mask), index.shape[-1])
