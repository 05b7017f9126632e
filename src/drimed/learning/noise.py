"""From an outcome to whitened rows: where knowledge about the noise enters the regression.

Every weighting turns one outcome into a block of rows (Z, w) with unit noise; the regression only ever adds
Z^T Z and Z^T w. Noise that is learned (drimed.learning.learned) starts from the rows without any weight.
"""

from __future__ import annotations

import numpy as np

from drimed.errors import InputError
from drimed.learning.offer import Offer, Outcome
from drimed.linear.arrays import FloatArray, IntArray, pick_shared

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
        Z, y = np.matmul(W, Z), np.matvec(W, y)
    return Z, y
