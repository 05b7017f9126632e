"""Indexed rules: play the arm of least index, which grows with the divergence from the leader and with past pulls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics import probability, ridge
from drimed.numerics.arrays import FloatArray, check_settings, pick
from drimed.numerics.quadratic_forms import NEVER_ZERO
from drimed.policies.rules.base import TIES, Ask, Randomisation, behind_leaders, noise_levels, play_largest, shared

NEVER_ZERO_SHARE = 1e-290


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
        return play_largest(-self.index(fit, offer, ask), ask, self.ties)

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
        return play_largest(-self.index(fit, offer, ask), ask)

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
