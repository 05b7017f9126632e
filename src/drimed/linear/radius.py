"""Confidence radii: how far theta may be from theta_hat, in the norm of V.

Each function returns sqrt(beta). Sources are named per function; the table that compares them is in
docs/paper.md. Shapes: `logdet` and `round` may carry any batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.linear.arrays import FloatArray


def oful(logdet: Any, *, noise: float, norm: float, regularisation: float, delta: float) -> FloatArray:
    """Abbasi-Yadkori et al. (2011), Thm 2: holds for all rounds at once with probability 1 - delta.

    `logdet` is log det V - d log lambda; on whitened data `noise` is 1 (Kirschner and Krause, 2018).

    >>> round(float(oful(np.log(6.0), noise=1, norm=1, regularisation=1, delta=0.01)), 6)
    4.316941
    """
    return noise * np.sqrt(logdet + 2 * np.log(1 / delta)) + np.sqrt(regularisation) * norm


def oful_trace(
    round: Any, d: int, *, noise: float, norm: float, longest: Any, regularisation: float, delta: float
) -> FloatArray:
    """The same bound with the determinant replaced by its largest value after `round` rows; looser."""
    spread = np.log((1 + round * longest**2 / regularisation) / delta)
    return noise * np.sqrt(d * spread) + np.sqrt(regularisation) * norm


def lin_imed_experiments(round: Any, d: int, *, noise: float) -> FloatArray:
    """What the LinIMED comparison of Balagopalan and Jun (2024) runs: a heuristic without a guarantee."""
    return np.asarray(noise * np.sqrt(3 * d * np.log(1 + round)) + np.sqrt(2))


def thompson_2013(round: Any, d: int, *, noise: float, delta: float) -> FloatArray:
    """The inflation of Agrawal and Goyal (2013): sqrt(9 d log(t / delta)) times the noise."""
    return np.asarray(noise * np.sqrt(9 * d * np.log(np.maximum(round, 1) / delta)))
