"""The index of Dri-IMED as its authors define it: optimistic gaps, counted pulls, no exploration term.

Source: Das et al., Algorithm Dri-IMED. Despite its name it is not an IMED index (docs/paper.md, I-12): an unpenalised
leader has index 0 and every pulled rival a positive one, so it plays greedily after one pull of each arm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.offer import Fit, Offer
from drimed.linear import pmf
from drimed.linear.arrays import FloatArray, pick
from drimed.rules.rule import Ask, Randomisation

VARIANCES = ("unit", "smallest")


@final
@dataclass(frozen=True, kw_only=True)
class DriIMEDIndex:
    """I = penalty for the leader; N_a (UCB_a - mean_best)^2 / (2 sigma^2) + penalty where UCB_a >= mean_best; else inf.

    Ties are shared equally, which makes the choice a distribution in closed form.

    >>> DriIMEDIndex().variance
    'unit'
    """

    variance: str = "unit"  # sigma^2 in the index: 1 on normalised features; "smallest": min_a sigma_a^2, as printed

    reference: ClassVar[str] = "Das et al., Alg. Dri-IMED"
    randomisation: ClassVar[Randomisation] = "closed form"
    normal_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.variance not in VARIANCES:
            raise ConfigError(f"variance must be one of {VARIANCES}, got {self.variance!r}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x = offer.features
        means = fit.mean(x)
        leader = pmf.best(means, ask.mask)
        top = pick(means, leader)[..., None]
        rise = means + fit.width(x) - top  # UCB_a - mean_best
        variance: FloatArray | float = 1.0
        if self.variance == "smallest" and offer.sigma is not None:
            variance = (offer.sigma**2).min(-1, keepdims=True)
        index = np.where(rise >= 0, fit.pulls * rise**2 / (2 * variance), np.inf)
        index = np.where(leader[..., None] == np.arange(x.shape[-2]), 0.0, index)
        if ask.penalty is not None:
            index = index + ask.penalty
        if ask.mask is not None:
            index = np.where(ask.mask, index, np.inf)
        ties = index == index.min(-1, keepdims=True)
        return ties / ties.sum(-1, keepdims=True)
