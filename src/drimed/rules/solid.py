"""SOLID: follow the lower bound's own allocation while the best arms are in doubt, be greedy when they are not.

Source: Tirinzoni, Pirotta, Restelli and Lazaric (2020); the contexts of the paper are the users here, equally likely.

A round explores unless every parameter that would change some user's best arm is refuted: for each user and arm the
nearest such parameter has gap^2 / |x_best - x_a|^2_{V^-1}, and the smallest of these must exceed beta_t. Exploring, an
arm is drawn from omega(h, .), which then moves by a step of exponentiated gradient on the Lagrangian of the lower
bound, while its multiplier lambda moves by a step of subgradient.

Departures.
* The program needs the arms of every user. Features, noise and availability of each user are remembered from the last
  time they were offered; users who were never offered are left out.
* The alternatives are unconstrained, which gives the nearest one in closed form (the paper keeps them in a ball).
* beta_t and gamma_t are R^2 (log t + d log log t) over rounds, or over rounds of exploration: the authors' experiments
  have the horizon inside log log. `radius="learner"` takes the squared confidence radius for both.
* omega is kept as logarithms: in doubles an arm's weight would vanish and never return.
* V_omega is given a ridge of 1e-6 of its mean eigenvalue, because omega may have fewer atoms than there are features.
* Arms of equal features have no parameter that tells them apart, and do not keep the rule exploring.

Shapes: leading `...` is any batch; H users, K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError
from drimed.learning.fit import Fit
from drimed.learning.offer import Offer, Shape
from drimed.linear import pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.forms import NEVER_ZERO, TWIN
from drimed.linear.kernel import kernel
from drimed.rules.rule import Ask, Randomisation, every_arm

RADII = ("schedule", "learner")
RIDGE = 1e-6  # of V_omega, relative to its mean eigenvalue


@dataclass(frozen=True, slots=True)
class Allocation:
    """What SOLID remembers: its allocation, and the arms of every user."""

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

    >>> SOLID().omega_step
    0.5
    """

    omega_step: float | None = 0.5  # alpha_omega; None: 1 / sqrt(length of the phase), as in the theory
    multiplier_step: float | None = 0.1  # alpha_lambda; None: the same
    accuracy: float = 100.0  # z_0: in phase k the constraint is 1 / (z_0 e^k), for z_0 e^3k rounds of exploration
    first_multiplier: float = 0.0  # lambda_1
    largest_multiplier: float = 10.0  # lambda_max
    restart: bool = True  # omega and lambda start afresh in each phase
    optimism: float = 1.0  # times the confidence terms of the objective and of the constraint
    norm_bound: float = 1.0  # B: bound on |theta|
    radius: str = "schedule"

    reference: ClassVar[str] = "Tirinzoni et al. 2020"
    randomisation: ClassVar[Randomisation] = "closed form"
    normal_draws: ClassVar[bool] = False

    def __post_init__(self) -> None:
        for name in ("omega_step", "multiplier_step", "accuracy", "largest_multiplier", "norm_bound"):
            value = getattr(self, name)
            if value is None and name.endswith("_step"):
                continue
            if not 0 < value < np.inf:
                raise ConfigError(f"{name} must be positive and finite, got {value}")
        if not 0 <= self.first_multiplier <= self.largest_multiplier:
            raise ConfigError(
                f"first_multiplier must be between 0 and {self.largest_multiplier}, got {self.first_multiplier}"
            )
        if not 0 <= self.optimism < np.inf:
            raise ConfigError(f"optimism must be at least 0 and finite, got {self.optimism}")
        if self.radius not in RADII:
            raise ConfigError(f"radius must be one of {RADII}, got {self.radius!r}")

    def init(self, shape: Shape, batch: tuple[int, ...]) -> Allocation:
        """Uniform allocations, nobody offered yet."""
        H, K, d = shape.H, shape.K, shape.d
        return Allocation(
            np.full((*batch, H, K), -np.log(K)),
            np.full(batch, self.first_multiplier),
            np.zeros(batch),
            np.zeros(batch),
            np.zeros(batch),
            np.zeros((*batch, H, K, d)),
            np.ones((*batch, H, K)),
            np.zeros((*batch, H, K), bool),
        )

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        memory: Allocation | None = ask.memory
        if memory is None:
            raise InputError("SOLID needs its memory: ask it through a policy, or pass what init returned")
        explore = self.explores(_seen(memory, fit, offer), fit, offer)
        value, log_p = fit.mean(offer.features), memory.log_omega[..., offer.user, :]
        if ask.penalty is not None:
            value, log_p = value - ask.penalty, log_p - ask.penalty
        allowed = np.ones(every_arm(fit, offer)) if ask.mask is None else ask.mask.astype(np.float64)
        greedy = pmf.one_hot(pmf.best(value, ask.mask), value.shape[-1])
        return np.where(
            explore[(..., None, None) if _many(offer) else (..., None)], pmf.weighted(allowed, log_p), greedy
        )

    def commit(self, memory: Allocation, fit: Fit, offer: Offer, action: IntArray) -> Allocation:
        """Remember the offer and, where this round explored, move the allocation: one step for each user decided."""
        memory = _seen(memory, fit, offer)
        explore = self.explores(memory, fit, offer)
        if explore.any():
            for _ in range(action.shape[-1] if _many(offer) else 1):
                memory = self._step(memory, fit, offer, explore)
        return memory

    def explores(self, memory: Allocation, fit: Fit, offer: Offer) -> BoolArray:
        """Whether some user's best arm is still in doubt: (...), without an axis of users."""
        theta, V_inv, radius = _one_state(fit, offer)
        ratio, _ = nearest_alternative(memory.features, memory.allowed, theta, V_inv, V_inv)
        return np.asarray(ratio <= self._squared_radius(fit, radius, np.asarray(fit.round)))

    def _step(self, memory: Allocation, fit: Fit, offer: Offer, explore: BoolArray) -> Allocation:
        theta, V_inv, radius = _one_state(fit, offer)
        x, sigma, allowed = memory.features, memory.sigma, memory.allowed
        explored = memory.explored + 1
        z = self.accuracy * np.exp(memory.phase)  # z_k
        length = z * np.exp(2 * memory.phase)  # p_k
        theory = 1 / np.sqrt(length)
        wide = self.optimism * np.sqrt(self._squared_radius(fit, radius, explored))
        omega, V_omega_inv, longest = _design(x, sigma, allowed, memory.log_omega)
        ratio, shift = nearest_alternative(x, allowed, theta, V_inv, V_omega_inv)
        q, hope = _gradient(x, sigma, allowed, theta, V_inv, shift, memory.multiplier, wide, self.norm_bound * longest)
        log_omega = exponentiated(memory.log_omega, q, theory if self.omega_step is None else self.omega_step)
        constraint = _constraint(ratio, omega, hope, allowed) - 1 / z
        step = theory if self.multiplier_step is None else self.multiplier_step
        multiplier = np.clip(memory.multiplier - step * constraint, 0.0, self.largest_multiplier)
        over = memory.in_phase + 1 >= length
        if self.restart:
            log_omega = np.where(over[..., None, None], -np.log(log_omega.shape[-1]), log_omega)
            multiplier = np.where(over, self.first_multiplier, multiplier)
        return replace(
            memory,
            log_omega=np.where(explore[..., None, None], log_omega, memory.log_omega),
            multiplier=np.where(explore, multiplier, memory.multiplier),
            phase=np.where(explore & over, memory.phase + 1, memory.phase),
            in_phase=np.where(explore, np.where(over, 0.0, memory.in_phase + 1), memory.in_phase),
            explored=np.where(explore, explored, memory.explored),
        )

    def _squared_radius(self, fit: Fit, radius: FloatArray, rounds: FloatArray) -> FloatArray:
        if self.radius == "learner":
            return radius**2
        log = np.log(rounds)
        return fit.noise_bound**2 * (log + fit.theta.shape[-1] * np.log(np.maximum(log, 1.0)))


def nearest_alternative(
    x: FloatArray, allowed: BoolArray, theta: FloatArray, V_inv: FloatArray, M_inv: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The least |theta - theta'|^2_M for which some user's best arm has an equal, and theta - theta': (...), (..., d).

    Infinite, with a zero shift, where no parameter can tell any user's arms apart.

    >>> x, all_arms = np.array([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]]), np.ones((1, 3), bool)
    >>> theta, V_inv = np.array([0.5, 0.1]), np.diag([1 / 3, 1 / 2])
    >>> ratio, shift = nearest_alternative(x, all_arms, theta, V_inv, V_inv)
    >>> round(float(ratio), 6), (theta - shift).round(6).tolist()
    (0.038571, [0.457143, 0.228571])
    """
    ratio, shift = _nearest(x, allowed, theta, V_inv, M_inv)
    return ratio, shift


def exponentiated(log_omega: FloatArray, q: FloatArray, step: FloatArray | float) -> FloatArray:
    """log omega after omega <- omega exp(step q), normalised over arms: (..., H, K).

    >>> np.exp(exponentiated(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]]), 0.5)).round(6).tolist()
    [[0.622459, 0.377541]]
    """
    return _exponentiated(log_omega, q, step)


def _many(offer: Offer) -> bool:
    """Whether all users of an episode are decided from one state."""
    return np.ndim(offer.user) > 0


def _one_state(fit: Fit, offer: Offer) -> tuple[FloatArray, FloatArray, FloatArray]:
    """theta, V^-1 and the radius without the axis that repeats them for each user."""
    if _many(offer):
        return fit.theta[..., 0, :], fit.V_inv[..., 0, :, :], fit.radius[..., 0]
    return fit.theta, fit.V_inv, fit.radius


def _seen(memory: Allocation, fit: Fit, offer: Offer) -> Allocation:
    """The memory with this offer in it."""
    features, sigma, allowed = memory.features.copy(), memory.sigma.copy(), memory.allowed.copy()
    features[..., offer.user, :, :] = offer.features
    sigma[..., offer.user, :] = fit.noise_bound if offer.sigma is None else offer.sigma
    allowed[..., offer.user, :] = True if offer.available is None else offer.available
    return replace(memory, features=features, sigma=sigma, allowed=allowed)


@kernel("void(f8[:,:,:], b1[:,:], f8[:], f8[:,:], f8[:,:], f8[:], f8[:])", "(h,k,d),(h,k),(d),(d,d),(d,d)->(),(d)")
def _nearest(x, allowed, theta, A, M_inv, ratio, shift):  # type: ignore[no-untyped-def]
    H, K, d = x.shape
    D = np.zeros(d)
    direction = np.zeros(d)
    ratio[0] = np.inf
    for i in range(d):
        shift[i] = 0.0
    for h in range(H):
        best, top = -1, -np.inf
        for k in range(K):
            if allowed[h, k]:
                s = 0.0
                for i in range(d):
                    s += x[h, k, i] * theta[i]
                if best < 0 or s > top:
                    best, top = k, s
        if best < 0:
            continue
        own = 0.0
        for i in range(d):
            s = 0.0
            for j in range(d):
                s += A[i, j] * x[h, best, j]
            own += s * x[h, best, i]
        for k in range(K):
            if not allowed[h, k] or k == best:
                continue
            gap, apart, size = 0.0, 0.0, 0.0
            for i in range(d):
                D[i] = x[h, best, i] - x[h, k, i]
                gap += D[i] * theta[i]
            for i in range(d):
                direction[i] = 0.0
                for j in range(d):
                    direction[i] += M_inv[i, j] * D[j]
                size += direction[i] * D[i]
            if not (size > 0.0 and gap * gap < ratio[0] * size):
                continue
            for i in range(d):
                s = 0.0
                for j in range(d):
                    s += A[i, j] * D[j]
                apart += s * D[i]
            if apart > TWIN * own + NEVER_ZERO:
                ratio[0] = gap * gap / size
                for i in range(d):
                    shift[i] = gap / size * direction[i]


@kernel(
    "void(f8[:,:,:], f8[:,:], b1[:,:], f8[:,:], f8[:,:], f8[:,:], f8[:])", "(h,k,d),(h,k),(h,k),(h,k)->(h,k),(d,d),()"
)
def _design(x, sigma, allowed, log_omega, omega, V_inv, longest):  # type: ignore[no-untyped-def]
    """omega on the arms that are there, the inverse of V_omega = E_h sum_a omega x x^T / sigma^2, and max |x|."""
    H, K, d = x.shape
    V = np.zeros((d, d))
    users, trace = 0, 0.0
    longest[0] = 0.0
    for h in range(H):
        top, total = -np.inf, 0.0
        for k in range(K):
            omega[h, k] = 0.0
            if allowed[h, k]:
                top = max(top, log_omega[h, k])
        for k in range(K):
            if allowed[h, k]:
                omega[h, k] = np.exp(log_omega[h, k] - top)
                total += omega[h, k]
        if total == 0.0:  # never offered
            continue
        users += 1
        for k in range(K):
            omega[h, k] /= total
            length = 0.0
            for i in range(d):
                length += x[h, k, i] * x[h, k, i]
                for j in range(d):
                    V[i, j] += omega[h, k] * (x[h, k, i] / sigma[h, k]) * (x[h, k, j] / sigma[h, k])
            longest[0] = max(longest[0], np.sqrt(length))
    for i in range(d):
        trace += V[i, i]
    size = max(trace, NEVER_ZERO)  # without any features the inverse is not used
    for i in range(d):
        for j in range(d):
            V[i, j] /= size
        V[i, i] += (RIDGE if trace > NEVER_ZERO else 1.0) / d
    inverse = np.linalg.inv(V)
    for i in range(d):
        for j in range(d):
            V_inv[i, j] = inverse[i, j] * (users / size if trace > NEVER_ZERO else 1.0)


@kernel(
    "void(f8[:,:,:], f8[:,:], b1[:,:], f8[:], f8[:,:], f8[:], f8, f8, f8, f8[:,:], f8[:,:])",
    "(h,k,d),(h,k),(h,k),(d),(d,d),(d),(),(),()->(h,k),(h,k)",
)
def _gradient(x, sigma, allowed, theta, A, shift, multiplier, wide, BL, q, hope):  # type: ignore[no-untyped-def]
    """q, and the optimism in the constraint, 2 B L / sigma^2 sqrt(gamma) |x|; both 0 for users never offered."""
    H, K, d = x.shape
    for h in range(H):
        offered = False
        for k in range(K):
            offered = offered or allowed[h, k]
        for k in range(K):
            q[h, k], hope[h, k] = 0.0, 0.0
            if not offered:
                continue
            mean, moved, lev = 0.0, 0.0, 0.0
            for i in range(d):
                s = 0.0
                for j in range(d):
                    s += A[i, j] * x[h, k, j]
                lev += s * x[h, k, i]
                mean += x[h, k, i] * theta[i]
                moved += x[h, k, i] / sigma[h, k] * shift[i]
            width = wide * np.sqrt(max(lev, 0.0))
            hope[h, k] = 2.0 * BL / sigma[h, k] / sigma[h, k] * width
            q[h, k] = mean + width + multiplier * (0.5 * moved * moved + hope[h, k])


@kernel("void(f8, f8[:,:], f8[:,:], b1[:,:], f8[:])", "(),(h,k),(h,k),(h,k)->()")
def _constraint(ratio, omega, hope, allowed, value):  # type: ignore[no-untyped-def]
    """Half the nearest alternative's distance, plus the mean optimism: what should be at least 1 / z."""
    H, K = omega.shape
    users = 0
    value[0] = 0.0
    if ratio == np.inf:  # no alternatives: such a round does not explore, and the value is not used
        return
    for h in range(H):
        offered = False
        for k in range(K):
            offered = offered or allowed[h, k]
            value[0] += omega[h, k] * hope[h, k]
        users += offered
    value[0] = 0.5 * ratio + value[0] / max(users, 1)


@kernel("void(f8[:,:], f8[:,:], f8, f8[:,:])", "(h,k),(h,k),()->(h,k)")
def _exponentiated(log_omega, q, step, new):  # type: ignore[no-untyped-def]
    H, K = log_omega.shape
    for h in range(H):
        top, total = -np.inf, 0.0
        for k in range(K):
            new[h, k] = log_omega[h, k] + step * q[h, k]
            top = max(top, new[h, k])
        for k in range(K):
            total += np.exp(new[h, k] - top)
        for k in range(K):
            new[h, k] = new[h, k] - top - np.log(total)
