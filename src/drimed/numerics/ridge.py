"""Ridge regression as a sum that can be added to, discounted and refreshed, and its confidence radii.

    V = lambda I + sum_s g_s z_s z_s^T,   b = sum_s g_s z_s w_s,   theta_hat = V^-1 b

over whitened rows (z_s, w_s) with discount weights g_s. Learners with known weights change V here only; learned noise
(models/noise_estimation) and the published algorithms replace it and `refresh` the rest. A radius sqrt(beta) says how
far theta may be from theta_hat in the norm of V; docs/paper.md compares those of several sources.
Symbols: docs/notation.md. Shapes: leading `...` is any batch; d features, m rows at a time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from drimed.errors import NumericalError
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.numerics.compiled import kernel

REFRESH_EVERY = 128  # rank-one steps between factorisations: keeps V V^-1 - I near round-off for ever
LOST = (
    "the regression matrix V is not positive definite any more: the rows differ in scale by more than a double can "
    "hold; rescale the features or raise the regularisation"
)
SMALLEST_PIVOT = 64 * np.finfo(np.float64).eps  # below this share of the largest entry a factor is round-off
STEEP = 1e6  # a rank-one step that shrinks V^-1 by more than this loses too many digits: factorise instead


@dataclass(frozen=True, slots=True)
class Ridge:
    """The regression after any number of rows.

    `V2` weighs every row by g_s^2 (the V-tilde of D-LinUCB); it is None while nothing is discounted,
    because then it equals V.
    """

    V: FloatArray  # (..., d, d)
    b: FloatArray  # (..., d)
    V_inv: FloatArray  # (..., d, d)
    theta: FloatArray  # (..., d)
    logdet: FloatArray  # (...), log det V - d log lambda
    V2: FloatArray | None  # (..., d, d)
    age: int  # rank-one steps since the last factorisation


def init(d: int, regularisation: float, batch: tuple[int, ...] = (), *, discounted: bool = False) -> Ridge:
    """No data: V = lambda I."""
    eye = np.broadcast_to(np.eye(d), (*batch, d, d))
    zero = np.zeros((*batch, d))
    V = eye * regularisation
    V2 = V.copy() if discounted else None
    return Ridge(V, zero, eye / regularisation, zero, np.zeros(batch), V2, 0)


def observe(ridge: Ridge, Z: FloatArray, w: FloatArray, regularisation: float, weight: float = 1.0) -> Ridge:
    """Add m whitened rows: Z (..., m, d), w (..., m), which count `weight` as much as rows of this episode."""
    if weight != 1.0:
        V2 = None if ridge.V2 is None else ridge.V2 + (weight**2 - weight) * _gram(Z)  # the rest comes below
        ridge, Z, w = replace(ridge, V2=V2), np.sqrt(weight) * Z, np.sqrt(weight) * w
    V, V_inv, b = ridge.V.copy(), ridge.V_inv.copy(), ridge.b.copy()
    theta, logdet, gain = _add_rows(V, V_inv, b, ridge.logdet, Z, w)
    V2 = None if ridge.V2 is None else ridge.V2 + _gram(Z)
    new = Ridge(V, b, V_inv, theta, logdet, V2, ridge.age + Z.shape[-2])
    if new.age > REFRESH_EVERY:
        return refresh(new, regularisation)
    if gain.max() > STEEP:
        return _refresh_where(new, gain > STEEP, regularisation)
    return new


def remove(ridge: Ridge, Z: FloatArray, w: FloatArray, regularisation: float, weight: float = 1.0) -> Ridge:
    """Take rows out again that were added with this weight, or with the one that has since become it."""
    V, b = ridge.V - weight * _gram(Z), ridge.b - weight * np.vecmat(w, Z)
    V2 = None if ridge.V2 is None else ridge.V2 - weight**2 * _gram(Z)
    return refresh(replace(ridge, V=V, b=b, V2=V2), regularisation)


def roll(ridge: Ridge, discount: float, regularisation: float) -> Ridge:
    """Start an episode: all evidence loses a factor `discount`; the regulariser keeps its size.

    V <- g V + (1-g) lambda I and b <- g b together, so that V^-1 b stays the minimiser of the
    discounted loss. Discounting V alone inflates theta_hat without bound (docs/paper.md, I-1).
    """
    if discount == 1.0:
        return ridge
    eye = np.eye(ridge.V.shape[-1])
    V = discount * ridge.V + (1 - discount) * regularisation * eye
    V2 = None if ridge.V2 is None else discount**2 * ridge.V2 + (1 - discount**2) * regularisation * eye
    return refresh(replace(ridge, V=V, V2=V2, b=discount * ridge.b), regularisation)


def refresh(ridge: Ridge, regularisation: float) -> Ridge:
    """Recompute everything that follows from V and b, so that no round-off is carried on."""
    logdet = logdet_of(ridge.V, regularisation)
    try:
        V_inv = np.asarray(np.linalg.inv(ridge.V), np.float64)
    except np.linalg.LinAlgError as error:
        raise NumericalError(LOST) from error
    V_inv = 0.5 * (V_inv + np.swapaxes(V_inv, -1, -2))
    return replace(ridge, V_inv=V_inv, logdet=logdet, theta=np.matvec(V_inv, ridge.b), age=0)


def logdet_of(V: FloatArray, regularisation: float) -> FloatArray:
    """log det V - d log lambda: (..., d, d) -> (...)."""
    try:
        diagonal = np.diagonal(np.linalg.cholesky(V), axis1=-2, axis2=-1)
    except np.linalg.LinAlgError as error:
        raise NumericalError(LOST) from error
    if not (diagonal.min(-1) ** 2 > SMALLEST_PIVOT * np.diagonal(V, axis1=-2, axis2=-1).max(-1)).all():
        raise NumericalError(LOST)
    return 2.0 * np.log(diagonal).sum(-1) - V.shape[-1] * np.log(regularisation)


def oful_radius(logdet: Any, *, noise: float, norm: float, regularisation: float, delta: float) -> FloatArray:
    """Abbasi-Yadkori et al. (2011), Thm 2: holds for all rounds at once with probability 1 - delta.

    `logdet` is log det V - d log lambda; on whitened data `noise` is 1 (Kirschner and Krause, 2018).
    """
    return noise * np.sqrt(logdet + 2 * np.log(1 / delta)) + np.sqrt(regularisation) * norm


def lin_imed_radius(round: Any, d: int, *, noise: float) -> FloatArray:
    """The radius of the LinIMED comparison of Balagopalan and Jun (2024): a heuristic without a guarantee."""
    return np.asarray(noise * np.sqrt(3 * d * np.log(1 + round)) + np.sqrt(2))


def thompson_radius(round: Any, d: int, *, noise: float, delta: float) -> FloatArray:
    """The inflation of Agrawal and Goyal (2013): sqrt(9 d log(t / delta)) times the noise."""
    return np.asarray(noise * np.sqrt(9 * d * np.log(np.maximum(round, 1) / delta)))


def _gram(Z: FloatArray) -> FloatArray:
    return np.matmul(np.swapaxes(Z, -1, -2), Z)


def _refresh_where(ridge: Ridge, steep: BoolArray, regularisation: float) -> Ridge:
    fresh = refresh(ridge, regularisation)
    return replace(
        ridge,
        V_inv=np.where(steep[..., None, None], fresh.V_inv, ridge.V_inv),
        theta=np.where(steep[..., None], fresh.theta, ridge.theta),
        logdet=np.where(steep, fresh.logdet, ridge.logdet),
    )


@kernel(
    "void(f8[:,:], f8[:,:], f8[:], f8, f8[:,:], f8[:], f8[:], f8[:], f8[:])",
    "(d,d),(d,d),(d),(),(m,d),(m)->(d),(),()",
    in_place=("V", "V_inv", "b"),
)
def _add_rows(V, V_inv, b, logdet, Z, w, theta, logdet_new, gain):  # type: ignore[no-untyped-def]
    """Sherman-Morrison, one row after the other; `gain` is the largest factor by which a row shrank V^-1."""
    d, m = b.shape[0], w.shape[0]
    logdet_new[0] = logdet
    gain[0] = 1.0
    for r in range(m):
        factor = 1.0
        for i in range(d):
            u = 0.0
            for j in range(d):
                u += V_inv[i, j] * Z[r, j]
            theta[i] = u  # theta serves as scratch for V^-1 z
            factor += Z[r, i] * u
        lost = not factor >= 1.0  # round-off has eaten V^-1: leave it to a factorisation
        if lost:
            factor = 1.0
        for i in range(d):
            b[i] += Z[r, i] * w[r]
            for j in range(d):
                V[i, j] += Z[r, i] * Z[r, j]
                if not lost:
                    V_inv[i, j] -= theta[i] * theta[j] / factor
        logdet_new[0] += np.log(factor)
        gain[0] = np.inf if lost else max(gain[0], factor)
    for i in range(d):
        s = 0.0
        for j in range(d):
            s += V_inv[i, j] * b[j]
        theta[i] = s
