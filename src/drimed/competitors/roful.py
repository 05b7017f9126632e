"""ROFUL: optimism about the direction, caution about how far to go in it.

Source: Hutchinson, Turan and Alizadeh (2024), arXiv 2308.15006, and their code (github.com/shutch1/
Directional-Optimism-for-Safe-Linear-Bandits). Of scaled directions with a cost <a, x> <= b, where 0 is safe, the one of
largest optimistic reward is scaled down by max(b / (S |x|), the pessimistic limit), at most 1. Here 0 is the control, a
direction is w_a = x_a - x_0, and its scaled action the lottery that plays the arm with this share and the control
otherwise. The cost is the shortfall, -<w_a, theta>, and b = relative |<x_0, theta>| + absolute.

Departures. Reward and cost have one theta and one regression. A direction that costs anything under optimism then has a
negative optimistic reward: the optimistic limit never binds, and is left out. b is unknown: the pessimistic share is
the largest that is certified jointly with the control's mean (guards/margin.py), and the ball has the smallest b of the
confidence set. The regression learns from the arm that was drawn. Their radius is replaced by the learner's, which has
the same form, level and penalty for unit noise. Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics.arrays import FloatArray, check_settings, pick, pick_shared
from drimed.numerics.probability import best, one_hot
from drimed.policies.guards import margin
from drimed.policies.rules.base import Ask, Randomisation, widths


@final
@dataclass(frozen=True, kw_only=True)
class ROFUL:
    """The arm of largest <w_a, theta_hat> + width(w_a), with the largest share that is surely near the control.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8) with the third as control, absolute .05, relative 0,
    squared width 1: optimistic advantages .731010, .094166 and 0. The share s of e1 has s (.12 - .611010) + .05 = 0,
    s = .101831; the ball gives .05 / |(.4, -.8)| = .055902.
    """

    relative: float = 0.1  # epsilon
    absolute: float = 0.05  # on top of it, in the user's reward unit
    norm_bound: float = 1.0  # S
    width_squared: float | None = None  # None: the learner's radius

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        check_settings(
            self, below_one=("relative",), not_negative=("absolute", "width_squared"), positive=("norm_bound",)
        )

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x0 = offer.control_features
        w = offer.features - x0[..., None, :]
        value = ask.penalised(fit.mean(w) + widths(fit, w, self.width_squared))
        arm = best(value, ask.mask)
        share = np.where(pick(value, arm) > 0, self.share(fit, pick_shared(w, arm, 2), x0), 0.0)
        allowed = offer.control if ask.mask is None else np.where(ask.mask, offer.control, 0.0)
        kept = allowed.sum(-1)  # where the control is not allowed, the arm is all there is
        share = np.where(kept > 0, share, 1.0)[..., None]
        rest = allowed / np.where(kept > 0, kept, 1.0)[..., None]
        return share * one_hot(arm, value.shape[-1]) + (1 - share) * rest

    def share(self, fit: Fit, w: FloatArray, x0: FloatArray) -> FloatArray:
        """The share of the direction w (..., d) that is surely near the control: (...)."""
        r = fit.radius if self.width_squared is None else np.broadcast_to(self.width_squared**0.5, fit.radius.shape)
        sure = margin.largest_share(np.zeros_like(w), w, x0, fit.theta, fit.metric, r, self.relative, self.absolute)
        mean, half = np.vecdot(x0, fit.theta), widths(fit, x0[..., None, :], self.width_squared)[..., 0]
        b = self.relative * np.maximum(np.abs(mean) - half, 0.0) + self.absolute
        most = self.norm_bound * np.linalg.norm(w, axis=-1)
        return np.maximum(sure, np.where(most > b, b / np.where(most > b, most, 1.0), 1.0))
