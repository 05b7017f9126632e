"""Optimism: play the arm whose mean could be largest.

Source: Abbasi-Yadkori, Pal and Szepesvari (2011). With weighting "known" it is the weighted OFUL of Kirschner and
Krause (2018); with a discount below 1 it is D-LinUCB (Russac, Vernade and Cappe, 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from drimed.learning.offer import Fit, Offer
from drimed.linear.arrays import FloatArray
from drimed.rules.rule import Ask, Randomisation, check_width, play_largest, widths


@final
@dataclass(frozen=True, kw_only=True)
class OFUL:
    """argmax_a <x_a, theta_hat> + width(x_a).

    Three arms, V = diag(3, 2), theta_hat = (.5, .1), radius 4.316941: indices 2.992387, 3.152538, 3.243535.

    >>> OFUL().width_squared is None
    True
    """

    width_squared: float | None = None  # None: the learner's radius; 2 measures well and promises nothing

    reference: ClassVar[str] = "Abbasi-Yadkori et al. 2011"
    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        check_width(self.width_squared)

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return play_largest(self.index(fit, offer), ask)

    def index(self, fit: Fit, offer: Offer) -> FloatArray:
        """The upper confidence bounds: (..., K)."""
        return fit.mean(offer.features) + widths(fit, offer.features, self.width_squared)
