"""Minimum empirical divergence: arms in proportion to how plausibly they are best, and the indexed forms.

Symbols: docs/notation.md. Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability, ridge
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick
from drimed.numerics.optimal_design import approx
from drimed.numerics.quadratic_forms import NEVER_ZERO
from drimed.policies.rules import base
from drimed.policies.rules.base import TIES, Ask, Randomisation, behind_leaders, every_arm, noise_levels, shared

NEVER_ZERO_SHARE = 1e-290


@final
@dataclass(frozen=True, kw_only=True)
class MED:
    """Weight exp(-gap^2 / (temperature |x_best - x|^2_{V^-1})), times a design.

    Source: Balagopalan and Jun (2024); the step of Dri-MED (Alg. 3). Defaults: what measured best on the reward scale.
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
            share = shared(unexplored if self.saturation == "every arm" else base.tied(level, unexplored) & unexplored)
        return np.where(unexplored.any(-1, keepdims=True), 0.5 * p + 0.5 * share, p)


@final
@dataclass(frozen=True, kw_only=True)
class IMED:
    """The deterministic twin of MED on the reward scale: Honda and Takemura (2015) in linear form.

    argmin_a gap_a^2 / (w |x_best - x_a|^2_{V^-1}) + log(1 + sigma_a^2 / lev(x_a)): N KL + log N, where sigma^2 / lev(x)
    is the effective number of pulls N, and log(1 + N) lets an arm never seen count 0 and not minus infinity.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8): I = (1.386294, 1.290612, 1.224195).
    """

    w: float = 1.0
    ties: str = "first"  # or "shared": equal parts, which are exact propensities all the same

    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        check_settings(self, TIES, positive=("w",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return base.play_largest(-self.index(fit, offer, ask), ask, self.ties)

    def index(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        """I_a for every arm, behind the mean of the leaders where several share the lead: (..., K)."""
        level = np.maximum(noise_levels(fit, offer), NEVER_ZERO)
        if self.ties == "shared":
            divergence = np.zeros(level.shape)
            for share, _, gap, distance in behind_leaders(fit, offer.features, ask.mask):
                divergence = divergence + share * gap**2 / (self.w * distance)
        else:
            _, gap, distance = fit.behind_leader(offer.features, ask.mask)
            divergence = gap**2 / (self.w * distance)
        return divergence + np.log1p(1 / level)


@final
@dataclass(frozen=True, kw_only=True)
class LinIMED:
    """Bian and Tan (2024), versions 1, 2 and 3.

    I_a = gap_a^2 / w_a - log w_a with w_a = beta lev(x_a); the leader's index is capped in versions 2 and 3.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8): version 1 has I = (-1.826482, -2.214776, -2.102358).
    """

    version: int = 3  # 1, 2: gaps of means; 3: gaps of upper confidence bounds
    cap: float = 30.0  # C of version 3
    horizon: int | None = None  # T of version 2: the number of decisions, L times H
    radius: str = "learner"  # or that of the authors' "experiments": R sqrt(3 d log(1 + t)) + sqrt(2)

    randomisation: ClassVar[Randomisation] = "one arm"

    def __post_init__(self) -> None:
        words = {"version": (1, 2, 3), "radius": ("learner", "experiments")}
        check_settings(self, words, count=("horizon", "cap"))
        if self.version == 2 and self.horizon is None:
            raise ConfigError("version 2 needs a horizon (number of decisions), got None")

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        return base.play_largest(-self.index(fit, offer, ask), ask)

    def index(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        """I_a for every arm: (..., K)."""
        x, value, radius = offer.features, fit.mean(offer.features), fit.radius[..., None]
        if self.radius == "experiments":
            radius = ridge.lin_imed_radius(fit.round, x.shape[-1], noise=fit.noise_bound)
        w = np.maximum(radius**2 * fit.leverage(x), NEVER_ZERO)
        value = value + np.sqrt(w) if self.version == 3 else value
        leader = probability.best(value, ask.mask)
        gap = pick(value, leader)[..., None] - value
        w = np.maximum(w, NEVER_ZERO_SHARE * gap**2)  # an arm of no width and any gap: a large index, not an overflow
        explored = -np.log(w)
        if self.version == 1:
            return gap**2 / w + explored
        widest = (gap if ask.mask is None else np.where(ask.mask, gap, 0.0)).max(-1)
        # One arm, or all alike: no gap, and nothing to cap.
        most = np.log(self.horizon or self.cap / np.maximum(widest**2, NEVER_ZERO))[..., None]
        is_leader = leader[..., None] == np.arange(x.shape[-2])
        return np.where(is_leader, np.minimum(most, explored), gap**2 / w + explored)


@final
@dataclass(frozen=True, kw_only=True)
class DriIMEDIndex:
    """The index of Dri-IMED as its authors define it: optimistic gaps, counted pulls, no exploration term.

    I = penalty for the leader; N_a (UCB_a - mean_best)^2 / (2 sigma^2) + penalty where UCB_a >= mean_best; else inf.

    Source: Das et al., Algorithm Dri-IMED. Despite its name it is not an IMED index (docs/paper.md, I-12): an
    unpenalised leader has index 0 and every pulled rival a positive one, so it plays greedily after one pull of each
    arm. Ties are shared equally, which makes the choice a distribution in closed form.
    """

    variance: str = "unit"  # sigma^2 in the index: 1 on normalised features; "smallest": min_a sigma_a^2, as printed

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        check_settings(self, {"variance": ("unit", "smallest")})

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x = offer.features
        means = fit.mean(x)
        leader = probability.best(means, ask.mask)
        top = pick(means, leader)[..., None]
        rise = means + fit.width(x) - top  # UCB_a - mean_best
        variance: FloatArray | float = 1.0
        if self.variance == "smallest" and offer.sigma is not None:
            variance = (offer.sigma**2).min(-1, keepdims=True)
        index = np.where(rise >= 0, fit.pulls * rise**2 / (2 * variance), np.inf)
        index = np.where(leader[..., None] == np.arange(x.shape[-2]), 0.0, index)
        index = -ask.penalised(-index)
        if ask.mask is not None:
            index = np.where(ask.mask, index, np.inf)
        return shared(index == index.min(-1, keepdims=True))
