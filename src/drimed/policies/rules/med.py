"""Minimum empirical divergence: play each arm in proportion to how plausibly it is best.

Source: Balagopalan and Jun (2024); the step of Dri-MED (Alg. 3). Defaults: what measured best on the reward scale.
Symbols: docs/notation.md. Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings
from drimed.numerics.optimal_design import approx
from drimed.policies.rules.base import TIES, Ask, Randomisation, behind_leaders, every_arm, noise_levels, shared, tied


@final
@dataclass(frozen=True, kw_only=True)
class MED:
    """Weight exp(-gap^2 / (temperature |x_best - x|^2_{V^-1})), times a design.

    The rule `lin_med` is LinMED of Balagopalan and Jun: temperature "radius", .99 on the empirical best arm, .005 on a
    G-optimal design, no saturation (their paper has "one arm", their code never runs it). The Dri-MED paper's
    comparison swaps the two masses (docs/paper.md, I-8). V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8):
    p = (.993374, .003299, .003327).
    """

    temperature: float | str = 2.0  # 2 is the Gaussian divergence; "radius": the squared confidence radius
    empirical: float = 0.9  # mass on the empirical best arm, alpha_emp
    optimal: float = 0.0  # mass on a design of the arms scaled by sqrt(weight) / sigma, alpha_opt; the rest is uniform
    # Half the mass goes to arms whose direction is unexplored, lev(x) > sigma^2: to the least explored one, or
    # spread over all of them as published (Alg. 3 l. 11, normalised).
    saturation: str = "one arm"
    # Arms that tie, for the lead or for the least explored: the first of them, or equal shares, so that the order of
    # arms does not matter (but to the design approx, which picks among equals by order).
    ties: str = "first"
    opening: bool = False  # the first round, which has no leader, mixes the design with uniform: as in LinMED

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        words = {"temperature": ("radius",), "saturation": ("one arm", "every arm", "off")}
        check_settings(self, words | TIES, positive=("temperature",), not_negative=("empirical", "optimal"))
        if self.empirical + self.optimal > 1:
            raise ConfigError(f"empirical and optimal must sum to at most 1, got {self.empirical} and {self.optimal}")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x, mask = offer.features, ask.mask
        if self.opening and fit.round == 1:
            p = (1 - self.optimal) * probability.uniform(every_arm(fit, offer), mask)
            return p + self.optimal * approx(x, mask) if self.optimal else p
        if self.ties == "shared":
            p = np.zeros(every_arm(fit, offer))
            for share, leader, gap, distance in behind_leaders(fit, x, mask):
                p = p + share * self.weigh(leader, gap, distance, fit, offer, ask)
        else:
            p = self.weigh(*fit.behind_leader(x, mask), fit, offer, ask)
        return p if self.saturation == "off" else self.saturate(p, fit, offer, mask)

    def weigh(
        self, leader: IntArray, gap: FloatArray, distance: FloatArray, fit: Fit, offer: Offer, ask: Ask
    ) -> FloatArray:
        """The distribution with this leader, before saturation: (..., K)."""
        temperature = fit.radius[..., None] ** 2 if isinstance(self.temperature, str) else self.temperature
        log_f = -(gap**2) / (temperature * distance)  # f_h, Eq. (7)
        log_f = ask.penalised(log_f)  # f~_h, Eq. (8)
        # q = alpha_opt q_opt + alpha_emp 1[leader] + the rest, uniform (Alg. 3 l. 8).
        first = probability.one_hot(leader, offer.features.shape[-2])
        q = self.empirical * first + (1 - self.empirical - self.optimal) * probability.uniform(log_f.shape, ask.mask)
        if self.optimal:
            held = log_f if ask.mask is None else np.where(ask.mask, log_f, -np.inf)
            scale = np.exp(0.5 * (held - held.max(-1, keepdims=True)))
            if offer.sigma is not None:
                scale = scale / offer.sigma
            q = q + self.optimal * approx(scale[..., None] * offer.features, ask.mask)
        return probability.weighted(q, log_f)

    def saturate(self, p: FloatArray, fit: Fit, offer: Offer, mask: BoolArray | None) -> FloatArray:
        """Half the mass to unexplored arms, where there are any."""
        level = noise_levels(fit, offer)
        unexplored = level > 1 if mask is None else (level > 1) & mask
        if not unexplored.any():
            return p
        if self.saturation == "one arm" and self.ties == "first":
            share = probability.one_hot(np.where(unexplored, level, 0.0).argmax(-1), p.shape[-1])
        else:
            share = shared(unexplored if self.saturation == "every arm" else tied(level, unexplored) & unexplored)
        return np.where(unexplored.any(-1, keepdims=True), 0.5 * p + 0.5 * share, p)
