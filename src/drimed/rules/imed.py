"""Indexed minimum empirical divergence on the reward scale: the deterministic twin of MED.

Source: Honda and Takemura (2015), in the linear form where sigma^2 / lev(x) is the effective number of pulls N:
the index is N KL + log N, with log(1 + N) so that an arm never seen counts 0 and not minus infinity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.offer import Fit, Offer
from drimed.linear.arrays import FloatArray
from drimed.linear.forms import NEVER_ZERO
from drimed.rules.rule import Ask, Randomisation, noise_levels, play_least


@final
@dataclass(frozen=True, kw_only=True)
class IMED:
    """argmin_a gap_a^2 / (w |x_best - x_a|^2_{V^-1}) + log(1 + sigma_a^2 / lev(x_a)).

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8): I = (1.386294, 1.290612, 1.224195).

    >>> IMED().w
    1.0
    """

    w: float = 1.0

    reference: ClassVar[str] = "Honda and Takemura 2015, linear form"
    randomisation: ClassVar[Randomisation] = "one arm"
    normal_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if not self.w > 0:
            raise ConfigError(f"w must be positive, got {self.w}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return play_least(self.index(fit, offer, ask), ask)

    def index(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        """I_a for every arm: (..., K)."""
        _, gap, distance = fit.behind_leader(offer.features, ask.mask)
        level = np.maximum(noise_levels(fit, offer), NEVER_ZERO)
        return gap**2 / (self.w * distance) + np.log1p(1 / level)
