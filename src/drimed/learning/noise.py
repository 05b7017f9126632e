"""From an outcome to whitened rows: where knowledge about the noise enters the regression.

Every weighting turns one outcome into a block of rows (Z, w) with unit noise; the regression only ever adds
Z^T Z and Z^T w. Noise that is learned (drimed.learning.learned) starts from the rows without any weight.
"""

from __future__ import annotations

import numpy as np

from drimed.errors import InputError
from drimed.learning.offer import Offer, Outcome
from drimed.linear.arrays import BoolArray, FloatArray, IntArray, pick_shared

WEIGHTINGS = ("none", "known", "learned")
FEEDBACKS = ("reward", "vector")


def rows(
    weighting: str, feedback: str, offer: Offer, action: IntArray, outcome: Outcome
) -> tuple[FloatArray, FloatArray]:
    """Z (..., m, d) and w (..., m): one row for reward feedback, M for vector feedback."""
    if feedback == "reward":
        if outcome.reward is None:
            raise InputError("reward feedback needs outcome.reward, got none")
        x, r = pick_shared(offer.features, action, 2), outcome.reward
        if weighting == "known":
            if offer.sigma is None:
                raise InputError("weighting 'known' needs the noise: give the offer sigma, or use weighting 'none'")
            s = pick_shared(offer.sigma, action, 1)
            x, r = x / s[..., None], r / s
        return x[..., None, :], np.asarray(r)[..., None]

    if outcome.vector is None:
        raise InputError("vector feedback needs outcome.vector (all metrics), got none; or use feedback 'reward'")
    if offer.maps is None:
        raise InputError("vector feedback needs the offer's maps Phi(a); or use feedback 'reward'")
    Z, y = pick_shared(offer.maps, action, 3), outcome.vector
    if weighting == "known":
        if offer.whitening is None:
            raise InputError("weighting 'known' needs the noise: give the offer a covariance, or use weighting 'none'")
        W = pick_shared(offer.whitening, action, 3)
        if offer.scale is not None:
            W = W / np.sqrt(offer.scale)[..., None, None]
        if outcome.observed is not None:
            W = marginal(W, outcome.observed)
        return np.matmul(W, Z), np.matvec(W, y)
    if outcome.observed is not None:
        return Z * outcome.observed[..., None], y * outcome.observed
    return Z, y


def marginal(W: FloatArray, observed: BoolArray) -> FloatArray:
    """A whitening of the observed metrics alone, with rows and columns of zeros for the others: (..., M, M).

    >>> W = np.linalg.inv(np.linalg.cholesky(np.array([[4.0, 1.0], [1.0, 2.0]])))
    >>> marginal(W, np.array([True, False])).tolist()
    [[0.5, 0.0], [0.0, 0.0]]
    """
    both = observed[..., :, None] & observed[..., None, :]
    covariance = np.linalg.inv(np.matmul(np.swapaxes(W, -1, -2), W))
    # A metric that is not there stands alone with unit variance: it then leaves the factor of the others as it is.
    alone = np.where(both, covariance, np.eye(W.shape[-1]))
    return np.where(both, np.linalg.inv(np.linalg.cholesky(alone)), 0.0)
