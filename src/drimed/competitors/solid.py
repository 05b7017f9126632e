"""SOLID: follow the lower bound's own allocation while the best arms are in doubt, be greedy when they are not.

Source: Tirinzoni, Pirotta, Restelli and Lazaric (2020); contexts are the users here, equally likely. A round explores
unless every parameter that would change some user's best arm is refuted: the smallest gap^2 / |x_best - x_a|^2_{V^-1}
must exceed beta_t. Exploring, an arm is drawn from omega(h, .), which then moves by exponentiated gradient on the
Lagrangian of the lower bound, while its multiplier lambda moves by a step of subgradient.

Departures. The arms of the last offer to each user are remembered; users who were never offered are left out.
Alternatives are unconstrained (the paper keeps them in a ball). beta_t and gamma_t are R^2 (log t + d log log t) over
rounds, or over rounds of exploration: the authors have the horizon inside log log. omega is kept as logarithms, from
which a weight can return, and V_omega has a small ridge. Arms that no parameter tells apart do not keep the rule
exploring. Phases restart nothing, nor do steps shrink: that is for the proofs.
Shapes: leading `...` is any batch; H users, K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np
from scipy.special import log_softmax

from drimed.errors import ConfigError, InputError
from drimed.models.offer import Fit, Offer, Shape
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings
from drimed.numerics.quadratic_forms import NEVER_ZERO, TWIN, leverages
from drimed.policies.rules.base import Ask, Randomisation, every_arm, play_largest

RIDGE = 1e-6  # of V_omega, relative to its mean eigenvalue: omega may have fewer atoms than there are features


@dataclass(frozen=True, slots=True)
class Allocation:
    """The memory of SOLID: its allocation, and the arms of every user."""

    log_omega: FloatArray  # (..., H, K)
    multiplier: FloatArray  # (...), lambda
    phase: FloatArray  # (...), k
    in_phase: FloatArray  # (...), rounds of exploration in this phase
    explored: FloatArray  # (...), rounds of exploration so far
    features: FloatArray  # (..., H, K, d), as last offered
    sigma: FloatArray  # (..., H, K)
    allowed: BoolArray  # (..., H, K); nothing at all for a user who was never offered


@final
@dataclass(frozen=True, kw_only=True)
class SOLID:
    """omega(h, .) while exploring, else the empirical best arm.

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8): the ratios of the second and third arm are .192 and
    .038571, and the nearest parameter under which the third is as good as the first is (.457143, .228571).
    """

    omega_step: float = 0.5  # alpha_omega
    multiplier_step: float = 0.1  # alpha_lambda
    accuracy: float = 100.0  # z_0: in phase k the constraint is 1 / (z_0 e^k), for z_0 e^3k rounds of exploration
    first_multiplier: float = 0.0  # lambda_1
    largest_multiplier: float = 10.0  # lambda_max
    optimism: float = 1.0  # times the confidence terms of the objective and of the constraint
    norm_bound: float = 1.0  # B: bound on |theta|
    radius: str = "schedule"  # or "learner": its squared confidence radius instead of beta_t and gamma_t

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        positive = ("omega_step", "multiplier_step", "accuracy", "largest_multiplier", "norm_bound")
        check_settings(self, {"radius": ("schedule", "learner")}, positive=positive, not_negative=("optimism",))
        if not 0 <= self.first_multiplier <= self.largest_multiplier:
            raise ConfigError(
                f"first_multiplier must be between 0 and {self.largest_multiplier}, got {self.first_multiplier}"
            )

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Allocation:
        """Uniform allocations, no offers yet."""
        arms, none = (*batch, shape.H, shape.K), np.zeros(batch)
        log_omega, multiplier = np.full(arms, -np.log(shape.K)), np.full(batch, self.first_multiplier)
        offered = np.zeros((*arms, shape.d)), np.ones(arms), np.zeros(arms, bool)
        return Allocation(log_omega, multiplier, none, none, none, *offered)

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        if ask.memory is None:
            raise InputError("SOLID needs its memory: ask it through a policy, or pass what init returned")
        explore = self.explores(_seen(ask.memory, fit, offer), fit)
        log_p = ask.penalised(ask.memory.log_omega[..., offer.user, :])
        allowed = np.ones(every_arm(fit, offer)) if ask.mask is None else ask.mask.astype(np.float64)
        greedy = play_largest(fit.mean(offer.features), ask)
        return np.where(explore[..., None, None], probability.weighted(allowed, log_p), greedy)

    def commit(self, memory: Allocation, fit: Fit, offer: Offer, action: IntArray) -> Allocation:
        """Remember the offer and, where this round explored, move the allocation: one step for each user decided."""
        memory = _seen(memory, fit, offer)
        explore = self.explores(memory, fit)
        for _ in range(action.shape[-1] if explore.any() else 0):
            memory = self._step(memory, fit, explore)
        return memory

    def explores(self, memory: Allocation, fit: Fit) -> BoolArray:
        """Whether some user's best arm is still in doubt: (...), without a users' axis."""
        theta, V_inv = fit.theta[..., 0, :], fit.V_inv[..., 0, :, :]
        ratio, _ = nearest_alternative(memory.features, memory.allowed, theta, V_inv, V_inv)
        return np.asarray(ratio <= self._squared_radius(fit, np.asarray(fit.round)))

    def _step(self, memory: Allocation, fit: Fit, explore: BoolArray) -> Allocation:
        theta, V_inv = fit.theta[..., 0, :], fit.V_inv[..., 0, :, :]
        explored = memory.explored + 1
        z = self.accuracy * np.exp(memory.phase)  # z_k
        length = z * np.exp(2 * memory.phase)  # p_k
        wide = self.optimism * np.sqrt(self._squared_radius(fit, explored))
        q, constraint = lagrangian(memory, theta, V_inv, wide, self.norm_bound)
        log_omega = log_softmax(memory.log_omega + self.omega_step * q, axis=-1)
        descent = self.multiplier_step * (constraint - 1 / z)
        multiplier = np.clip(memory.multiplier - descent, 0.0, self.largest_multiplier)
        over = memory.in_phase + 1 >= length
        return replace(
            memory,
            log_omega=np.where(explore[..., None, None], log_omega, memory.log_omega),
            multiplier=np.where(explore, multiplier, memory.multiplier),
            phase=np.where(explore & over, memory.phase + 1, memory.phase),
            in_phase=np.where(explore, np.where(over, 0.0, memory.in_phase + 1), memory.in_phase),
            explored=np.where(explore, explored, memory.explored),
        )

    def _squared_radius(self, fit: Fit, rounds: FloatArray) -> FloatArray:
        if self.radius == "learner":
            return np.asarray(fit.radius[..., 0] ** 2)
        log = np.log(rounds)
        return fit.noise_bound**2 * (log + fit.theta.shape[-1] * np.log(np.maximum(log, 1.0)))


def nearest_alternative(
    x: FloatArray, allowed: BoolArray, theta: FloatArray, V_inv: FloatArray, M_inv: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The least |theta - theta'|^2_M for which some user's best arm has an equal, and theta - theta': (...), (..., d).

    Infinite, with a zero shift, where no parameter can tell any user's arms apart.
    """
    theta, V_inv, M_inv = theta[..., None, :], V_inv[..., None, :, :], M_inv[..., None, :, :]
    leader = probability.best(np.matvec(x, theta), allowed)  # (..., H)
    best = np.take_along_axis(x, leader[..., None, None], -2)
    apart = best - x  # (..., H, K, d)
    towards = np.matmul(apart, M_inv)
    gap, size = np.matvec(apart, theta), np.vecdot(towards, apart)
    differs = leverages(apart, V_inv) > TWIN * leverages(best, V_inv) + NEVER_ZERO
    told = allowed & differs & (size > 0)
    slope = np.where(told, gap, 0.0) / np.where(told, size, 1.0)
    ratio = np.where(told, slope * gap, np.inf)
    flat = ratio.reshape(*ratio.shape[:-2], -1)  # (..., H K)
    at = flat.argmin(-1)[..., None]
    least = np.take_along_axis(flat, at, -1)[..., 0]
    shifts = (slope[..., None] * towards).reshape(*flat.shape, -1)
    return least, np.take_along_axis(shifts, at[..., None], -2)[..., 0, :]


def lagrangian(
    memory: Allocation, theta: FloatArray, V_inv: FloatArray, wide: FloatArray, norm_bound: float
) -> tuple[FloatArray, FloatArray]:
    """The gradient in omega, (..., H, K), and the optimistic left side of the constraint, (...).

    Optimism adds `wide` |x|_{V^-1} to the mean of an arm, and 2 B L / sigma^2 times that to its information, where L is
    the largest |x| and B = `norm_bound`. Users who were never offered count for nothing.
    """
    x, sigma, d = memory.features, memory.sigma, memory.features.shape[-1]
    offered = memory.allowed.any(-1, keepdims=True)  # (..., H, 1)
    users = np.maximum(offered.sum((-2, -1)), 1)
    omega = probability.weighted((memory.allowed | ~offered).astype(np.float64), memory.log_omega) * offered
    z = (x / sigma[..., None]).reshape(*x.shape[:-3], -1, d)  # (..., H K, d)
    V = np.matmul(np.swapaxes(z * omega.reshape(*z.shape[:-1], 1), -1, -2), z) / users[..., None, None]
    trace = np.trace(V, axis1=-2, axis2=-1)[..., None, None]
    scale = np.where(trace > 0, trace, 1.0)  # without any features the inverse is not used
    V_omega_inv = np.linalg.inv(V / scale + RIDGE / d * np.eye(d)) / scale
    ratio, shift = nearest_alternative(x, memory.allowed, theta, V_inv, V_omega_inv)
    longest = np.sqrt(np.vecdot(x, x) * offered).max((-2, -1))[..., None, None]
    width = wide[..., None, None] * np.sqrt(leverages(x, V_inv[..., None, :, :]))
    hope = 2 * norm_bound * longest / sigma**2 * width  # 2 B L / sigma^2 sqrt(gamma) |x|
    moved = np.matvec(x, shift[..., None, :]) / sigma
    q = np.matvec(x, theta[..., None, :]) + width + memory.multiplier[..., None, None] * (0.5 * moved**2 + hope)
    # Without alternatives a round does not explore, and the constraint is not used.
    left = np.where(ratio == np.inf, 0.0, 0.5 * ratio + (omega * hope).sum((-2, -1)) / users)
    return q * offered, left


def _seen(memory: Allocation, fit: Fit, offer: Offer) -> Allocation:
    """The memory with this offer in it."""
    features, sigma, allowed = memory.features.copy(), memory.sigma.copy(), memory.allowed.copy()
    features[..., offer.user, :, :] = offer.features
    sigma[..., offer.user, :] = fit.noise_bound if offer.sigma is None else offer.sigma
    allowed[..., offer.user, :] = True if offer.available is None else offer.available
    return replace(memory, features=features, sigma=sigma, allowed=allowed)
