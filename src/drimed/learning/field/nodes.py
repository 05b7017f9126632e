"""The positions at which estimates are averaged over uncertain variances, in units of the posterior's deviations.

They come in antithetic pairs and are the same for every trial, so that a fit depends on its data alone. A variance is
the exponential of what is averaged over, so few draws would misjudge its mean: of twelve, for seven variances, one came
out 2.7 times too large and others 0.8 times. Designed positions have the covariance that they should have, exactly, and
means of variances within a tenth.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.special import ndtri

from drimed import streams
from drimed.linear.arrays import FloatArray

SEED = 0  # of the stream "variances", which candidates come from
FEWEST = 8  # pairs of a design
CANDIDATES = 400  # from which a design is chosen
WIDE = 1.25  # the log of a variance is uncertain by so much, at most: where means are compared


@cache
def designed(metrics: int, each: int) -> FloatArray:
    """For `each` log variances and the residual's of every metric, the residuals' last: (B, metrics (each + 1)).

    Within a metric the covariance is the identity. Metrics share the positions in another order: they are coupled by
    their noise alone, so that all of them need no more positions than one.

    >>> points = designed(1, 6)
    >>> points.shape, bool(np.allclose(points.T @ points / len(points), np.eye(7)))
    ((16, 7), True)
    """
    half = _best_half(each + 1)
    n = len(half)
    turns = [np.roll(half, m, 0) * (-1.0) ** (m * np.arange(n))[:, None] for m in range(metrics)]
    first = np.concatenate([*(turn[:, :each] for turn in turns), *(turn[:, each:] for turn in turns)], -1)
    return np.concatenate([first, -first])


def _best_half(k: int) -> FloatArray:
    """Of some orthogonal candidates, (n, k), the one whose worst mean of a variance is nearest to a normal's."""
    n = max(FEWEST, k)
    normal = ndtri(streams.uniforms(SEED, "variances", 0, CANDIDATES * n, k)).reshape(CANDIDATES, n, k)
    q, r = np.linalg.qr(normal)
    candidates = np.sqrt(n) * q * np.sign(np.diagonal(r, axis1=-2, axis2=-1))[:, None, :]  # unique
    means = np.cosh(WIDE * candidates).mean(-2) / np.exp(WIDE**2 / 2)  # (CANDIDATES, k)
    # Rounded, so that another library's last digits choose the same.
    best = int(np.argmin(np.round(np.abs(means - 1).max(-1), 9)))
    return np.asarray(candidates[best])
