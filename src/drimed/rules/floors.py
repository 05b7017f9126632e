"""Floors: least probabilities of the control and of every available arm, put into a lottery before it is certified.

A floor under the control costs what the control costs, and is safe under every guard. A floor under every arm explores
without end; a guard that cannot certify it keeps less of it, and says so. What is drawn stays exact.
Shapes: leading `...` is any batch; K arms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np

from drimed.errors import ConfigError
from drimed.learning.offer import Floor, Offer
from drimed.linear.arrays import BoolArray, FloatArray

KEPT = 1 - 1e-9  # of a floor: less than this is below it, not round-off


@final
@dataclass(frozen=True, kw_only=True)
class Floors:
    """How high, and how they shrink: after n decisions a floor is its first height times (n + 1) ** -shrink.

    >>> floor = Floors(control=0.5, shrink=0.24).after(np.array([0, 99]))
    >>> floor.control.round(3).tolist(), floor.arms.tolist()
    ([0.5, 0.166], [0.0, 0.0])
    """

    control: float = 0.0
    arms: float = 0.0
    shrink: float = 0.0  # 0: constant
    count: Literal["all", "user"] = "all"  # which decisions count: all of the trial's, or those of this user

    def __post_init__(self) -> None:
        for name in ("control", "arms"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"a floor must be at least 0 and below 1, got {getattr(self, name)} for {name}")
        if not 0 <= self.shrink < 1:
            raise ConfigError(f"shrink must be at least 0 and below 1, got {self.shrink}")
        if self.count not in ("all", "user"):
            raise ConfigError(f"count must be 'all' or 'user', got {self.count!r}")

    def check(self, K: int) -> None:
        """Whether so many arms leave room for a choice."""
        if self.control + K * self.arms >= 1:
            most = (1 - self.control) / K
            raise ConfigError(
                f"a floor of {self.control} for the control and {self.arms} for each of {K} arms leaves nothing to "
                f"choose; a floor for the arms must be below {most:.3g}"
            )

    def after(self, decisions: Any) -> Floor:
        """The floors of the next decision after so many: (...)."""
        left = (np.asarray(decisions, np.float64) + 1.0) ** -self.shrink
        return Floor(control=self.control * left, arms=self.arms * left)


def raised(p: FloatArray, offer: Offer, mask: BoolArray | None) -> FloatArray:
    """The lottery with the floors of the offer; those of arms outside the mask go to the rest. (..., K)"""
    if offer.floor is None:
        return p
    K = p.shape[-1]
    allowed = np.ones(p.shape, bool) if mask is None else np.broadcast_to(mask, p.shape)
    under_control = np.asarray(offer.floor.control)[..., None]
    if offer.available is not None and (~offer.available & (offer.control > 0)).any():
        raise ConfigError("a floor for the control needs all arms of the control to be available")
    least = np.asarray(offer.floor.arms)[..., None] * allowed + under_control * offer.control
    taken = least.sum(-1, keepdims=True)
    if (taken > 1).any():
        raise ConfigError(
            f"floors for {K} arms take {float(taken.max()):.3g} of the lottery; they must leave some of it"
        )
    return np.asarray((1 - taken) * p + least)


def short(p: FloatArray, offer: Offer) -> BoolArray:
    """Where an available arm got less than its floor: (..., K)."""
    if offer.floor is None:
        return np.zeros(p.shape, bool)
    least = np.broadcast_to(np.asarray(offer.floor.arms)[..., None], p.shape)
    return np.asarray((p < KEPT * least) & (True if offer.available is None else offer.available))
