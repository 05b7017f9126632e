"""What the regression would have predicted for each outcome, from those before it alone.

Shapes: n outcomes in order, of m rows each, d features.
"""

from __future__ import annotations

import numpy as np

from drimed.linear.arrays import FloatArray
from drimed.linear.kernel import kernel

BLOCK = 256  # outcomes after which the regression is factorised anew, so that no round-off is carried on


def one_step_ahead(regularisation: float, Z: FloatArray, w: FloatArray, X: FloatArray) -> tuple[FloatArray, FloatArray]:
    """<x, theta> and x^T V^-1 x of every row x of X (n, m, d); theta and V come from the whitened rows (Z, w) before.

    >>> mean, leverage = one_step_ahead(1.0, np.ones((3, 1, 1)), np.full((3, 1), 6.0), np.ones((3, 1, 1)))
    >>> mean[:, 0].tolist(), leverage[:, 0].round(3).tolist()
    ([0.0, 3.0, 4.0], [1.0, 0.5, 0.333])
    """
    n, m, d = Z.shape
    V, b = regularisation * np.eye(d), np.zeros(d)
    mean, leverage = np.empty((n, m)), np.empty((n, m))
    for first in range(0, n, BLOCK):
        at = slice(first, first + BLOCK)
        mean[at], leverage[at] = _ahead(np.linalg.inv(V), b, Z[at], w[at], X[at])
        rows = Z[at].reshape(-1, d)
        V, b = V + rows.T @ rows, b + rows.T @ w[at].ravel()
    return mean, leverage


@kernel(
    "void(f8[:,:], f8[:], f8[:,:,:], f8[:,:], f8[:,:,:], f8[:,:], f8[:,:])",
    "(d,d),(d),(n,m,d),(n,m),(n,m,d)->(n,m),(n,m)",
)
def _ahead(V_inv, b, Z, w, X, mean, leverage):  # type: ignore[no-untyped-def]
    """Sherman-Morrison, one row after the other."""
    n, m, d = Z.shape
    P, moment, u = V_inv.copy(), b.copy(), np.empty(d)
    for t in range(n):
        for r in range(m):
            mean[t, r] = 0.0
            leverage[t, r] = 0.0
            for i in range(d):
                s, along = 0.0, 0.0
                for j in range(d):
                    s += P[i, j] * moment[j]
                    along += P[i, j] * X[t, r, j]
                mean[t, r] += X[t, r, i] * s
                leverage[t, r] += X[t, r, i] * along
        for r in range(m):
            factor = 1.0
            for i in range(d):
                s = 0.0
                for j in range(d):
                    s += P[i, j] * Z[t, r, j]
                u[i] = s
                factor += Z[t, r, i] * s
            for i in range(d):
                moment[i] += Z[t, r, i] * w[t, r]
                for j in range(d):
                    P[i, j] -= u[i] * u[j] / factor
