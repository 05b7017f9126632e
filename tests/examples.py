"""Small problems whose numbers are worked out by hand, shared by the tests.

R1: two features, lambda = S = R = 1, delta = .01. Arms e1, e2 and (.6, .8). Data: e1 twice (rewards 1 and .5), e2 once
(reward .2). Then V = diag(3, 2), b = (1.5, .2), theta_hat = (.5, .1) and log det V = log 6.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np

from drimed.models.linear_regression import Learner, for_each_user
from drimed.models.offer import Fit, Offer, make_offer
from drimed.numerics import ridge
from drimed.numerics.arrays import FloatArray
from drimed.numerics.ridge import Ridge
from drimed.policies.guards.base import Off
from drimed.policies.policy import Policy
from drimed.policies.rules.simple import Greedy

ARMS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
E1, E2, E3 = np.eye(3)


def r1_ridge() -> Ridge:
    """The regression of R1."""
    state = ridge.init(2, 1.0)
    for x, r in (((1.0, 0.0), 1.0), ((1.0, 0.0), 0.5), ((0.0, 1.0), 0.2)):
        state = ridge.observe(state, np.array([x]), np.array([r]), 1.0)
    return state


def r1_fit(*, round: int = 4, batch: tuple[int, ...] = ()) -> Fit:
    """R1 as a rule sees it, with sqrt(beta) = 4.316941; the same for every member of a batch."""
    state = r1_ridge()
    beta = ridge.oful_radius(state.logdet, noise=1.0, norm=1.0, regularisation=1.0, delta=0.01)
    return Fit(
        np.broadcast_to(state.theta, (*batch, 2)),
        np.broadcast_to(state.V_inv, (*batch, 2, 2)),
        np.broadcast_to(np.asarray(beta), batch),
        None,
        np.broadcast_to(np.array([2.0, 1.0, 0.0]), (*batch, 3)),
        round,
        1.0,
    )


def r1_offer(
    *, control: FloatArray = E3, sigma: Sequence[float] | None = None, available: Sequence[bool] | None = None
) -> Offer:
    """The three arms of R1, by default with the third as the control."""
    return unbatched(features=ARMS, control=control, sigma=sigma, available=available)


def unbatched(**arrays: Any) -> Offer:
    """An offer without a users' axis where its arrays have none: rules and guards take any batch."""
    offer = make_offer(**arrays)
    if "features" in arrays:
        alone = np.ndim(arrays["features"]) == 2
    else:
        alone = np.ndim(arrays["maps"]) == 3 and np.ndim(arrays["preference"]) == 1
    number = np.asarray(arrays.get("user", 0), np.intp)
    return replace(offer, features=offer.features[0], user=number) if alone else offer


def with_users(fit: Fit) -> Fit:
    """The fit with a users' axis, as policies show it to rules and guards."""
    return for_each_user(fit)


def fit_of(V: FloatArray, theta: FloatArray, *, radius: float = 1.0, K: int = 1, round: int = 2) -> Fit:
    """A fit with this V and this estimate."""
    V_inv = np.linalg.inv(V)
    return Fit(
        np.asarray(theta, dtype=np.float64),
        0.5 * (V_inv + V_inv.T),
        np.asarray(radius),
        None,
        np.zeros(K),
        round,
        1.0,
    )


def learning(learner: Learner) -> Policy:
    """A policy that is all learner: greedy and unguarded."""
    return Policy(learner=learner, rule=Greedy(), guard=Off())


def exact_solution(V: Any, b: Any) -> FloatArray:
    """V^-1 b by Gaussian elimination over the rationals: right for any condition number."""
    n = len(b)
    rows = [[Fraction(v) for v in V[i]] + [Fraction(b[i])] for i in range(n)]
    for i in range(n):
        pivot = next(k for k in range(i, n) if rows[k][i] != 0)
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [v / rows[i][i] for v in rows[i]]
        for k in range(n):
            if k != i:
                rows[k] = [v - rows[k][i] * w for v, w in zip(rows[k], rows[i], strict=True)]
    return np.array([float(rows[i][n]) for i in range(n)])


def same(one: Any, other: Any) -> bool:
    """Whether two dataclasses of arrays are equal to the last bit; NaN equals NaN."""
    if hasattr(one, "live") and hasattr(other, "live"):  # room for more is no part of a value
        one, other = one.live(), other.live()
    if is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(same(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))
    if isinstance(one, np.ndarray | np.generic):
        exact = one.dtype.kind in "biu"
        return np.shape(one) == np.shape(other) and np.array_equal(one, other, equal_nan=not exact)
    return bool(one == other)
