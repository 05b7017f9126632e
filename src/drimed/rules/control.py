"""Always the control group's policy pi_0: no learning, no harm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import InputError
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer
from drimed.linear.arrays import FloatArray
from drimed.rules.rule import Ask, Randomisation, every_arm


@final
@dataclass(frozen=True, kw_only=True)
class Control:
    """p = pi_0, restricted to the allowed arms. A penalty does not change it.

    >>> Control().randomisation
    'closed form'
    """

    reference: ClassVar[str] = "the baseline policy"
    randomisation: ClassVar[Randomisation] = "closed form"
    normal_draws: ClassVar[bool] = False

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        p = np.broadcast_to(offer.control, every_arm(fit, offer))
        if ask.mask is None:
            return p
        kept = np.where(ask.mask, p, 0.0)
        total = kept.sum(-1, keepdims=True)
        if not (total > 0).all():
            raise InputError("the control plays only arms that are not available; give another control for this offer")
        return kept / total
