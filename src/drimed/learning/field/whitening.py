"""Standardised residuals of a field model: independent and standard normal if the model is right.

All outcomes together are normal with a covariance that the model knows, the long-lasting effects integrated out. Its
Cholesky factor takes out of each outcome what those before it tell of it, and divides by what is left of its deviation.
The variances are the most plausible ones, from the same outcomes. A discount makes old outcomes count less in these,
but they do not scatter more: here they count in full.

Shapes: n outcomes, M metrics.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import solve_triangular

from drimed.errors import InputError
from drimed.learning.field.cells import Rows
from drimed.learning.field.learner import Field, FieldEvidence
from drimed.linear.arrays import FloatArray, IntArray

MOST = 2000  # values whose covariance is taken apart


def evenly(n: int, metrics: int) -> IntArray:
    """Which of n outcomes are looked at: all, or evenly spaced ones."""
    most = max(1, MOST // metrics)
    return np.arange(n) if n <= most else np.linspace(0, n - 1, most).round().astype(np.intp)


def residuals(learner: Field, evidence: FieldEvidence, rows: Rows) -> FloatArray:
    """Of single outcomes, in the order of the rows: (n, M). NaN where a metric is missing, or was never seen before."""
    evidence = learner.ready(evidence)
    structure, learned = learner.structure(evidence), evidence.learned
    n, c, M = len(rows.pattern), structure.covariates, structure.metrics
    if n * M > MOST:
        raise InputError(f"at most {MOST} values at a time, got {n * M}; take some, as `evenly` does")
    there = ((rows.pattern[:, None] >> np.arange(M)) & 1).astype(bool)
    if not n or not learned.scale.known.all():
        return np.full((n, M), np.nan)
    standard = (rows.values - learned.scale.centre) / learned.scale.unit
    z, y = standard[:, :c], standard[:, c:]
    x = learned.mode
    v, R = structure.parameters.variances(x), structure.parameters.residual(x)
    X, Z = structure.common.rows(rows.keys, z), structure.own.rows(rows.keys, z)
    cluster = rows.keys[:, structure.cluster_place]
    same = cluster[:, None] == cluster
    C = np.zeros((n, M, n, M))
    for m in range(M):
        C[:, m, :, m] = (X * v[m, structure.common.family]) @ X.T
        C[:, m, :, m] += same * ((Z * v[m, structure.own.family]) @ Z.T)
    at = np.arange(n)
    C[at, :, at, :] += R[structure.noise.of(rows.keys)]
    flat = there.ravel()
    L = np.linalg.cholesky(C.reshape(n * M, n * M)[np.ix_(flat, flat)])
    found = np.full((n, M), np.nan)
    found[there] = solve_triangular(L, y[there], lower=True)
    for m in range(M):  # the overall level is as good as unknown before its first outcome, which is no surprise then
        if there[:, m].any():
            found[there[:, m].argmax(), m] = np.nan
    return found
