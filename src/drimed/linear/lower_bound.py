"""The program behind the asymptotic lower bound of a linear bandit with several users, and its Lagrangian.

An allocation omega(h, .) says how user h's rounds are spread over arms. It is informative enough if every parameter
theta' that would make another arm some user's best is distinguished from theta:

    max_omega E_h sum_a omega(h, a) <x, theta>   subject to   min_theta' 1/2 |theta - theta'|^2_{V_omega} >= 1 / z

with V_omega = E_h sum_a omega x x^T / sigma^2. Source: Tirinzoni et al. (2020). Here theta' ranges over all of R^d,
where the nearest one has a closed form: for the best arm b and a rival a of one user, with D = x_b - x_a,

    theta' = theta - <D, theta> M^-1 D / |D|^2_{M^-1},   |theta - theta'|^2_M = <D, theta>^2 / |D|^2_{M^-1}

Shapes: leading `...` is any batch; H users, K arms, d features. `allowed` is False for all arms of a user who is not
known yet: such users are left out of every mean.
"""

from __future__ import annotations

import numpy as np

from drimed.linear.arrays import BoolArray, FloatArray
from drimed.linear.forms import NEVER_ZERO, TWIN, dot, quadratic
from drimed.linear.kernel import helper, kernel

RIDGE = 1e-6  # of V_omega, relative to its mean eigenvalue: omega may have fewer atoms than there are features


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
    return _nearest(x, allowed, theta, V_inv, M_inv)


def exponentiated(log_omega: FloatArray, q: FloatArray, step: FloatArray | float) -> FloatArray:
    """log omega after omega <- omega exp(step q), normalised over arms: (..., H, K).

    >>> np.exp(exponentiated(np.log([[0.5, 0.5]]), np.array([[1.0, 0.0]]), 0.5)).round(6).tolist()
    [[0.622459, 0.377541]]
    """
    return _exponentiated(log_omega, q, step)


def lagrangian(
    x: FloatArray,
    sigma: FloatArray,
    allowed: BoolArray,
    theta: FloatArray,
    V_inv: FloatArray,
    *,
    log_omega: FloatArray,
    multiplier: FloatArray,
    wide: FloatArray,
    norm_bound: float,
) -> tuple[FloatArray, FloatArray]:
    """The gradient in omega, (..., H, K), and the optimistic left side of the constraint, (...).

    Optimism adds `wide` |x|_{V^-1} to the mean of an arm, and 2 B L / sigma^2 times that to its information, where L is
    the largest |x| and B = `norm_bound`.
    """
    numbers = np.empty((*np.broadcast_shapes(np.shape(multiplier), np.shape(wide)), 3))
    numbers[..., 0], numbers[..., 1], numbers[..., 2] = multiplier, wide, norm_bound
    return _lagrangian(x, sigma, allowed, theta, V_inv, log_omega, numbers)


@kernel("void(f8[:,:,:], b1[:,:], f8[:], f8[:,:], f8[:,:], f8[:], f8[:])", "(h,k,d),(h,k),(d),(d,d),(d,d)->(),(d)")
def _nearest(x, allowed, theta, A, M_inv, ratio, shift):  # type: ignore[no-untyped-def]
    ratio[0] = _shift_to_nearest(x, allowed, theta, A, M_inv, shift)


@helper
def _shift_to_nearest(
    x: FloatArray, allowed: BoolArray, theta: FloatArray, A: FloatArray, M_inv: FloatArray, shift: FloatArray
) -> float:
    """The squared distance of the nearest alternative; fills `shift` (d,)."""
    H, K, d = x.shape
    D, direction = np.zeros(d), np.zeros(d)
    ratio = np.inf
    shift[:] = 0.0
    for h in range(H):
        best, top = -1, -np.inf
        for k in range(K):
            if allowed[h, k]:
                s = dot(x[h, k], theta)
                if best < 0 or s > top:
                    best, top = k, s
        if best < 0:
            continue
        least = TWIN * quadratic(A, x[h, best]) + NEVER_ZERO
        for k in range(K):
            if not allowed[h, k] or k == best:
                continue
            for i in range(d):
                D[i] = x[h, best, i] - x[h, k, i]
            for i in range(d):
                direction[i] = dot(M_inv[i], D)
            gap, size = dot(D, theta), dot(direction, D)
            if not (size > 0.0 and gap * gap < ratio * size):
                continue
            if quadratic(A, D) > least:
                ratio = gap * gap / size
                for i in range(d):
                    shift[i] = gap / size * direction[i]
    return ratio


@kernel(
    "void(f8[:,:,:], f8[:,:], b1[:,:], f8[:], f8[:,:], f8[:,:], f8[:], f8[:,:], f8[:])",
    "(h,k,d),(h,k),(h,k),(d),(d,d),(h,k),(q)->(h,k),()",
)
def _lagrangian(x, sigma, allowed, theta, A, log_omega, numbers, q, constraint):  # type: ignore[no-untyped-def]
    """`numbers` are the multiplier, the width and the bound on |theta|. q is 0 for users never offered."""
    H, K, d = x.shape
    multiplier, wide = numbers[0], numbers[1]
    omega, V_omega_inv, shift = np.zeros((H, K)), np.zeros((d, d)), np.zeros(d)
    longest = _design(x, sigma, allowed, log_omega, omega, V_omega_inv)
    ratio = _shift_to_nearest(x, allowed, theta, A, V_omega_inv, shift)
    BL = numbers[2] * longest
    users, optimism = 0, 0.0
    for h in range(H):
        known = allowed[h].any()
        users += known
        for k in range(K):
            q[h, k] = 0.0
            if not known:
                continue
            mean, moved = dot(x[h, k], theta), dot(x[h, k], shift) / sigma[h, k]
            width = wide * np.sqrt(max(quadratic(A, x[h, k]), 0.0))
            hope = 2.0 * BL / sigma[h, k] / sigma[h, k] * width  # 2 B L / sigma^2 sqrt(gamma) |x|
            q[h, k] = mean + width + multiplier * (0.5 * moved * moved + hope)
            optimism += omega[h, k] * hope
    # Without alternatives a round does not explore, and the constraint is not used.
    constraint[0] = 0.0 if ratio == np.inf else 0.5 * ratio + optimism / max(users, 1)


@helper
def _design(
    x: FloatArray, sigma: FloatArray, allowed: BoolArray, log_omega: FloatArray, omega: FloatArray, V_inv: FloatArray
) -> float:
    """omega on the arms that are there, the inverse of V_omega = E_h sum_a omega x x^T / sigma^2; returns max |x|."""
    H, K, d = x.shape
    V, z = np.zeros((d, d)), np.zeros(d)
    users, trace, longest = 0, 0.0, 0.0
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
            for i in range(d):
                z[i] = x[h, k, i] / sigma[h, k]
                for j in range(i + 1):
                    V[i, j] += omega[h, k] * z[i] * z[j]
            longest = max(longest, np.sqrt(dot(x[h, k], x[h, k])))
    for i in range(d):
        trace += V[i, i]
        for j in range(i):
            V[j, i] = V[i, j]
    size = max(trace, NEVER_ZERO)  # without any features the inverse is not used
    for i in range(d):
        for j in range(d):
            V[i, j] /= size
        V[i, i] += (RIDGE if trace > NEVER_ZERO else 1.0) / d
    inverse = np.linalg.inv(V)
    for i in range(d):
        for j in range(d):
            V_inv[i, j] = inverse[i, j] * (users / size if trace > NEVER_ZERO else 1.0)
    return longest


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
