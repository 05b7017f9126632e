"""Offers to users and outcomes of decisions: the arms as features, their noise, the control, and a learner's fit.

Shapes: leading `...` is any batch; K arms, M metrics, d features. Policies take offers and outcomes whose last batch
axis is that of users, (..., n): one user is an axis of length 1. Symbols: docs/notation.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.numerics import arrays, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray

NOISE_FLOOR = 1e-10  # a direction without noise is given this share of the arm's largest variance: weights stay finite
OPEN, NEVER = 0.05, 2.0  # probabilities of the control that guarantee it a plot: the default; more than any, for none


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a problem: d features, K arms, M metrics, H users."""

    d: int
    K: int
    M: int
    H: int

    def __post_init__(self) -> None:
        arrays.check_settings(self, count=("d", "K", "M", "H"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """The place of a decision: numbers from 0 in the order of appearance, -1 if unknown; one each, or of all users."""

    user: int | IntArray  # the person or place, whatever its preference and control are now
    group: int | IntArray  # the site, farm or clinic; a site of a field that has none is a group of its own
    member: int | IntArray = 0  # the user's number within the group
    block: int | IntArray = 0  # of the user: plots of one block share its luck in a season; 0 where there are none
    levels: IntArray | None = None  # (..., n), of the categorical attributes and context fields
    covariates: FloatArray | None = None  # (..., c), of the numerical ones: (value - typical) / spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """Least probabilities, one for each offer of a batch."""

    control: FloatArray  # (...), of the control, which is always safe
    arms: FloatArray  # (...), of each available arm
    # (...), a chance of the control: while the rule gives it that, a user with as many plots as arms has it on one.
    plot: FloatArray | float = OPEN

    def where(self, holds: BoolArray) -> Floor:
        """The floors where they hold, and none elsewhere."""
        return Floor(control=self.control * holds, arms=self.arms * holds, plot=np.where(holds, self.plot, NEVER))


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """The choices of n users, taken as they are: build it with `make_offer` unless the arrays are known to be sound.

    The covariance of arm a's outcome is scale * (whitening_a^T whitening_a)^-1, so that a context that only
    scales the noise costs one number instead of K matrices.
    """

    features: FloatArray  # (..., K, d), x_a = Phi(a)^T p: the mean reward is <x_a, theta>
    control: FloatArray  # (..., K), pi_0
    sigma: FloatArray | None = None  # (..., K), standard deviation of the reward; None: unit noise
    maps: FloatArray | None = None  # (..., K, M, d), Phi(a)
    whitening: FloatArray | None = None  # (..., K, M, M)
    scale: FloatArray | None = None  # (...)
    preference: FloatArray | None = None  # (..., M), p
    context: FloatArray | None = None  # (..., D)
    available: BoolArray | None = None  # (..., K); None: every arm
    user: int | IntArray = field(default_factory=lambda: np.zeros(1, np.intp))  # (n,), whose memory a guard consults
    unit: Unit | None = None  # for learners of the field; None: the user is a group of its own, without covariates
    attributes: FloatArray | None = None  # (..., K, r), of the arms, standardised; for learners of the field
    floor: Floor | None = None  # least probabilities that the rule's lottery must keep

    @property
    def control_features(self) -> FloatArray:
        """x_0 = sum_a pi_0(a) x_a: (..., d)."""
        return np.vecmat(self.control, self.features)

    @property
    def batch(self) -> tuple[int, ...]:
        """The shape before the arms, with the users last: (..., n)."""
        return np.broadcast_shapes(self.features.shape[:-2], self.control.shape[:-1], np.shape(self.user))

    def with_noise(self, sigma: FloatArray | None) -> Offer:
        """The same with this noise of the reward, no other, and nothing for learners of the field."""
        return replace(self, sigma=sigma, whitening=None, scale=None, unit=None, attributes=None)

    def take(self, at: slice | IntArray | Sequence[int]) -> Offer:
        """The offers to some of the users; arrays that all users share stay as they are.

        >>> offer = make_offer(features=[[[1.0, 0.0], [0.0, 1.0]]] * 3, control=[1.0, 0.0], user=[4, 5, 6])
        >>> offer.take([0, 2]).user.tolist()
        [4, 6]
        """
        n = self.batch[-1]

        def cut(array: Any, core: int) -> Any:
            axis = array.ndim - core - 1
            return array if axis < 0 or array.shape[axis] != n else array[(..., at, *[slice(None)] * core)]

        return self._each(cut)

    def expand(self) -> Offer:
        """The same with each user alone, on a users' axis of length 1 behind the present batch: (...) -> (..., 1)."""
        return self._each(lambda array, core: np.expand_dims(array, array.ndim - core))

    def broadcast(self, batch: tuple[int, ...]) -> Offer:
        """The same offers in every member of a batch (..., n)."""
        arrays = {name: getattr(self, name) for name in AXES if name not in ("user", "attributes")}
        wide: dict[str, Any] = {
            name: np.broadcast_to(array, (*batch, *array.shape[array.ndim - AXES[name] :]))
            for name, array in arrays.items()
            if array is not None
        }
        return replace(self, **wide)

    def _each(self, change: Callable[[Any, int], Any]) -> Offer:
        """Every array changed, given its number of axes behind the batch."""
        unit, floor = self.unit, self.floor
        return replace(
            self,
            **_changed(self, AXES, change),
            unit=None if unit is None else replace(unit, **_changed(unit, _UNIT_AXES, change)),
            floor=None if floor is None else replace(floor, **_changed(floor, _FLOOR_AXES, change)),
        )


# The number of axes that each array has behind the batch.
AXES = {
    "features": 2, "control": 1, "sigma": 1, "maps": 3, "whitening": 3, "scale": 0, "preference": 1, "context": 1,
    "available": 1, "user": 0, "attributes": 2,
}  # fmt: skip
_UNIT_AXES = {"user": 0, "group": 0, "member": 0, "block": 0, "levels": 1, "covariates": 1}
_FLOOR_AXES = {"control": 0, "arms": 0, "plot": 0}


def _changed(owner: Any, axes: dict[str, int], change: Callable[[Any, int], Any]) -> dict[str, Any]:
    arrays = {name: getattr(owner, name) for name in axes}
    return {name: change(array, axes[name]) for name, array in arrays.items() if isinstance(array, np.ndarray)}


@dataclass(frozen=True, slots=True)
class Fit:
    """A learner's estimate. Features x (..., K, d) are on the scale of V's rows: reward scale, V weighted or not."""

    theta: FloatArray  # (..., d), theta_hat
    V_inv: FloatArray  # (..., d, d)
    radius: FloatArray  # (...), sqrt(beta)
    spread: FloatArray | None  # (..., d, d), V^-1 V2 V^-1 while discounting; None: V^-1 itself
    pulls: FloatArray  # (..., K), how often each arm was chosen so far
    round: int  # 1 for the first decision
    noise_bound: float  # R, in the units of V's rows
    inflation: FloatArray | float = 1.0  # (...), by which squared radii grow while the noise itself is uncertain
    # Degrees of freedom of Student's distribution, which has the variances of V^-1 and the tails of theta: (...).
    freedom: FloatArray | float = np.inf
    # Where the posterior is not normal, equally likely draws of theta; theta and V_inv are their mean and covariance.
    draws: FloatArray | None = None  # (..., S, d)
    unproven: BoolArray | None = None  # (..., d), coordinates with so few outcomes that a guard reckons with the worst
    bounds: FloatArray | None = None  # (2, d), the least and the largest possible value of each coordinate

    def mean(self, x: FloatArray) -> FloatArray:
        """<x_a, theta_hat>: (..., K, d) -> (..., K)."""
        return np.matvec(x, self.theta)

    def leverage(self, x: FloatArray) -> FloatArray:
        """x_a^T V^-1 x_a: (..., K, d) -> (..., K)."""
        return quadratic_forms.leverages(x, self.V_inv)

    def width(self, x: FloatArray) -> FloatArray:
        """Half the width of the confidence interval of <x_a, theta>: (..., K, d) -> (..., K)."""
        return self.radius[..., None] * np.sqrt(quadratic_forms.leverages(x, self.metric))

    def behind_leader(self, x: FloatArray, mask: BoolArray | None) -> tuple[IntArray, FloatArray, FloatArray]:
        """The empirical best allowed arm, each arm's gap to it, and |x_best - x_a|^2 in V^-1."""
        allowed = np.ones(x.shape[-2], bool) if mask is None else mask
        return quadratic_forms.behind_leader(x, self.theta, self.V_inv, allowed)

    @property
    def metric(self) -> FloatArray:
        """The matrix whose norm, times the radius, is the width: (..., d, d)."""
        return self.V_inv if self.spread is None else self.spread


@dataclass(frozen=True, slots=True)
class Seen:
    """An offer as a learner sees it: what rules and guards decide on."""

    fit: Fit
    offer: Offer  # features on the coefficients of the fit, and the noise as the learner knows it
    compared: Offer  # the same for rules, which compare arms: without what the arms have in common, where that is many


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of a decision: the reward p.Y, and the vector Y where it was recorded."""

    reward: FloatArray | None = None  # (...)
    vector: FloatArray | None = None  # (..., M); anything finite where a metric was not observed
    observed: BoolArray | None = None  # (..., M), which metrics of the vector are there; None: all
    control: FloatArray | None = None  # (..., M), of the control plot beside it, for learners of the field
    control_observed: BoolArray | None = None  # (..., M)
    size: FloatArray | None = None  # (..., s), of metrics with sizes: 20 in "7 of 20", or an exposure; None: 1 each

    def check(self, offer: Offer) -> None:
        """Refuse NaN, infinities and a wrong number of metrics: in the sums of a regression they would never leave."""
        if self.reward is not None:
            arrays.finite("outcome.reward", self.reward)
        if self.vector is not None:
            M = -1 if offer.maps is None else offer.maps.shape[-2]
            arrays.shaped("outcome.vector", arrays.finite("outcome.vector", self.vector), (M,))
            if self.observed is not None and self.observed.shape != self.vector.shape:
                raise ShapeError(f"outcome.observed must have shape {self.vector.shape}, got {self.observed.shape}")


def make_offer(
    *,
    control: Any,
    features: Any = None,
    sigma: Any = None,
    maps: Any = None,
    preference: Any = None,
    covariance: Any = None,
    context: Any = None,
    available: Any = None,
    user: Any = None,
) -> Offer:
    """An offer from plain arrays, checked.

    Give either `maps` (Phi) with `preference` (p) and, where it is known, `covariance` (Sigma per arm), or the
    reward-scale `features` (x) with `sigma`. Arrays of one user get a users' axis of length 1; those of n users have
    it before the arms, and are numbered from 0 unless `user` has their numbers.

    >>> offer = make_offer(features=[[1.0, 0.0], [0.0, 1.0]], sigma=[1.0, 2.0], control=[1.0, 0.0])
    >>> offer.control_features.tolist()
    [[1.0, 0.0]]
    """
    whitening = None
    if maps is not None:
        if preference is None or features is not None or sigma is not None:
            raise ConfigError("with maps, give preference and covariance; features and sigma follow from them")
        maps = arrays.shaped("maps", arrays.finite("maps", maps), (-1, -1, -1))
        preference = arrays.shaped("preference", arrays.finite("preference", preference), (maps.shape[-2],))
        features = np.matvec(np.swapaxes(maps, -1, -2), preference[..., None, :])
        if covariance is not None:
            core = (maps.shape[-3], maps.shape[-2], maps.shape[-2])
            covariance = arrays.shaped("covariance", arrays.finite("covariance", covariance), core)
            arrays.covariance("covariance", covariance)
            whitening, covariance = whiten(covariance)
            sigma = np.sqrt(quadratic(covariance, preference))
    elif features is None:
        raise ConfigError("an offer needs maps with a preference, or features")
    elif covariance is not None or preference is not None:
        raise ConfigError("covariance and preference need maps; with features, give sigma")
    features = arrays.shaped("features", arrays.finite("features", features), (-1, -1))
    K, batch = features.shape[-2], features.shape[:-2]
    if sigma is not None:
        sigma = arrays.positive("sigma", arrays.shaped("sigma", arrays.finite("sigma", sigma), (K,)))
        arrays.batched("sigma", sigma, 1, batch)
    control = arrays.probabilities("control", arrays.shaped("control", arrays.finite("control", control), (K,)))
    arrays.batched("control", control, 1, batch)
    user = np.arange(batch[-1] if batch else 1) if user is None else np.atleast_1d(np.asarray(user, np.intp))
    if (user < 0).any():
        raise InputError(f"user must be the number of a user, from 0, got {user.min()}")
    if available is not None:
        available = np.asarray(available, dtype=bool)
        if available.shape[-1:] != (K,):
            raise ShapeError(f"available must have shape (..., {K}), got {available.shape}")
        if not available.any(-1).all():
            raise InputError("available must leave at least one arm; every arm is marked unavailable")
        arrays.batched("available", available, 1, batch)
    return Offer(
        features=features if batch else features[None],
        control=control,
        sigma=sigma,
        maps=maps,
        whitening=whitening,
        preference=preference,
        context=None if context is None else arrays.finite("context", context),
        available=available,
        user=user,
    )


def control_among(offer: Offer, allowed: BoolArray) -> FloatArray:
    """pi_0 on the allowed arms, (..., K): the mass of the others is shared in proportion."""
    kept = np.where(allowed, offer.control, 0.0)
    total = kept.sum(-1, keepdims=True)
    if not (total > 0).all():
        text = "every arm of the control is unavailable: there is nothing to fall back on"
        raise InputError(f"{text}; give this offer another control")
    return kept / total


def whiten(covariance: FloatArray) -> tuple[FloatArray, FloatArray]:
    """W with W Sigma W^T = I, and Sigma with directions without noise lifted to NOISE_FLOOR: (..., M, M) twice."""
    values, vectors = np.linalg.eigh(covariance)
    values = np.maximum(values, NOISE_FLOOR * values[..., -1:])
    root = np.swapaxes(vectors, -1, -2)
    return root / np.sqrt(values)[..., None], np.matmul(vectors * values[..., None, :], root)


def quadratic(covariance: FloatArray, preference: FloatArray) -> FloatArray:
    """p^T Sigma_a p for each arm: (..., K, M, M), (..., M) -> (..., K)."""
    p = preference[..., None, :]
    return np.vecdot(np.matvec(covariance, p), p)


def check_sizes(pulls: tuple[int, ...], d: int | None, offer: Offer, draws: FloatArray) -> None:
    """Refuse an offer that is not of the problem that a state was made for, and draws that are not for its users."""
    *batch, K = pulls
    *lead, arms, width = offer.features.shape
    if lead[:-1] == batch and arms == K and d in (None, width) and draws.shape[:-1] == (*lead,):
        return  # as in every step of a simulation
    if not lead:
        raise ShapeError(
            f"features must have a users' axis before arms and features, (..., n, K, d), got {offer.features.shape}; "
            "make_offer adds it for one user"
        )
    fits = len(lead) <= len(batch) + 1 and all(a in (1, b) for a, b in zip(lead[-2::-1], batch[::-1], strict=False))
    if not fits or arms != K or d not in (None, width):
        features = "" if d is None else f" with {d} features each"
        runs = f", batch {tuple(batch)}" if batch else ""
        raise ShapeError(
            f"the state is of another problem than the offer: the state has {K} arms{features}{runs}, and the offer's "
            f"features have shape {offer.features.shape}; begin with policy.init(Shape(...)) of the offer's own sizes"
        )
    wanted = (*batch, offer.batch[-1])
    if draws.ndim == 0 or draws.shape[:-1] != wanted:
        raise ShapeError(f"draws must have shape {wanted} and one axis more, got {draws.shape}")
