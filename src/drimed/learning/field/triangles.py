"""Triangular factors of positive definite matrices, compiled: A = U'U, its inverse, and what is carried along.

Everything goes row by row, in sums that the compiler vectorises, and a zero of the factor costs nothing: for sizes up
to some hundreds a library call costs more than the work, and its threads get in each other's way. Matrices are given
with the number of rows and columns that are in use; what lies below the diagonal of U is never read.
"""

from __future__ import annotations

import numpy as np

from drimed.linear.arrays import FloatArray
from drimed.linear.kernel import helper

LEAST_PIVOT = 1e-13  # relative to its diagonal: what is left of a row that depends on those before it is round-off


@helper
def add_row(x: FloatArray, share: float, y: FloatArray) -> None:
    """x += share y."""
    for h in range(x.shape[0]):
        x[h] += share * y[h]


@helper
def triangulated(A: FloatArray, n: int, width: int, least: float, floor: float) -> float:
    """U in the place of the first n columns of A = U'U, U'^-1 B in that of the further ones, B; log det of A.

    A matrix with a pivot that is not above `least` has no factor: its log det is NaN. Pivots below `floor` are raised
    to it: those of I + X'X are 1 at least, and less is round-off.
    """
    log_det = 0.0
    for a in range(n):
        for k in range(a):
            share = A[k, a]
            if share != 0.0:
                add_row(A[a, a:width], -share, A[k, a:width])
        if A[a, a] < floor:
            A[a, a] = floor
        pivot = A[a, a]
        if not pivot > least:
            return np.nan
        log_det += np.log(pivot)
        row, by = A[a, a:width], 1.0 / np.sqrt(pivot)
        for h in range(row.shape[0]):
            row[h] *= by
    return log_det


@helper
def rooted(A: FloatArray, n: int) -> None:
    """U in the place of A = U'U, which may be singular; zeros below its diagonal."""
    for a in range(n):
        least = LEAST_PIVOT * A[a, a]
        for k in range(a):
            A[a, k] = 0.0
            share = A[k, a]
            if share != 0.0:
                add_row(A[a, a:n], -share, A[k, a:n])
        row = A[a, a:n]
        by = 1.0 / np.sqrt(row[0]) if row[0] > least else 0.0
        for h in range(row.shape[0]):
            row[h] *= by


@helper
def inverse_root(U: FloatArray, n: int) -> FloatArray:
    """U'^-1, lower triangular."""
    Y = np.zeros((n, n))
    for a in range(n):
        Y[a, a] = 1.0
        for k in range(a):
            share = U[k, a]
            if share != 0.0:
                add_row(Y[a, : k + 1], -share, Y[k, : k + 1])
        row, by = Y[a, : a + 1], 1.0 / U[a, a]
        for h in range(row.shape[0]):
            row[h] *= by
    return Y


@helper
def squared(Y: FloatArray, n: int) -> FloatArray:
    """Y'Y of a lower triangle: the inverse of U'U."""
    V = np.zeros((n, n))
    for a in range(n):
        for k in range(a, n):
            share = Y[k, a]
            if share != 0.0:
                add_row(V[a, : a + 1], share, Y[k, : a + 1])
        for h in range(a):
            V[h, a] = V[a, h]
    return V


@helper
def solved(U: FloatArray, n: int, X: FloatArray, first: int, end: int) -> None:
    """U^-1 X in the place of the columns of X from `first` to `end`."""
    for back in range(n):
        a = n - 1 - back
        for k in range(a + 1, n):
            share = U[a, k]
            if share != 0.0:
                add_row(X[a, first:end], -share, X[k, first:end])
        row, by = X[a, first:end], 1.0 / U[a, a]
        for h in range(row.shape[0]):
            row[h] *= by


@helper
def turned(X: FloatArray, rows: int, columns: int, found: FloatArray) -> None:
    """The transpose of the first rows and columns of X, written to `found`."""
    for a in range(rows):
        for h in range(columns):
            found[h, a] = X[a, h]


@helper
def product(A: FloatArray, first: int, rows: int, inner: int, B: FloatArray, width: int, found: FloatArray) -> None:
    """A B, of the columns of A from `first` on, written to `found`."""
    for a in range(rows):
        found[a, :width] = 0.0
        for k in range(inner):
            share = A[a, first + k]
            if share != 0.0:
                add_row(found[a, :width], share, B[k, :width])
