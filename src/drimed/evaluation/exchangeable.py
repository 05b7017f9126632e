"""Are seasons exchangeable? Evidence that what a season brings could have been told from the seasons before.

The users of a season may share its weather, so the season is the unit: seasons that differ from each other at random,
however much, are no drift. A drift is a season that earlier ones announce: values that climb, that jump and stay, or
that come in waves. Two kinds of bets against "no drift", both of them e-processes (Ville's inequality: a bet from 1
ever reaches 1 / alpha with probability at most alpha):

`predictable` bets on scores with mean zero and an unknown variance: a normal regression of each score on a constant and
on earlier scores, against the same without coefficients. Both have the same right Haar prior on the variance, so their
ratio does not depend on it, and how far the users of a season agree needs not be known.

`ranked` bets on the rank of a season's mean among those before. If seasons are exchangeable the ranks are uniform and
independent, whatever the distribution and whatever users share (Vovk et al., 2003).

Shapes: leading `...` is any batch; L seasons, F features.
"""

from __future__ import annotations

import numpy as np
from scipy.special import logsumexp

from drimed.linear.arrays import FloatArray

LASTING = 4.0  # precision of a constant, in seasons: after so many a lasting move should be found soonest
ECHO = 4.0  # precision of the coefficients of earlier scores: about 1/2 in size
LAGS = (0, 1, 4)  # how many earlier scores a regression looks back at
ABOVE = 0.9  # share of the seasons after a jump that lie beyond those before it
CLIMB = 3.0  # exponent of the density of ranks when values climb: u^(CLIMB - 1)
ROUND_OFF = 1e-12  # what a regression leaves is at least this share of the whole


def predictable(score: FloatArray) -> FloatArray:
    """Log evidence after each season from scores (..., L, F); the first season has none: (..., L, F)."""
    s = np.moveaxis(score, -2, -1)[..., 1:]
    if not s.shape[-1]:
        return np.zeros(score.shape)
    found = logsumexp(np.stack([_regressed(s, lags) for lags in LAGS]), 0) - np.log(len(LAGS))
    return np.concatenate([np.zeros((*score.shape[:-2], 1, score.shape[-1])), np.moveaxis(found, -1, -2)], -2)


def _regressed(s: FloatArray, lags: int) -> FloatArray:
    """log m1 / m0 of the first 1, 2, ... scores (..., n), with a constant and so many earlier scores."""
    n = s.shape[-1]
    t = np.arange(1, n + 1)
    total = np.maximum(np.cumsum(s**2, -1), np.finfo(np.float64).tiny)
    size = np.sqrt(total / t)
    X = np.zeros((*s.shape, 1 + lags))
    X[..., 0] = 1.0
    for j in range(1, min(lags, n - 1) + 1):  # over the size of what came before: the unit cancels
        X[..., j:, j] = s[..., : n - j] / size[..., j - 1 : n - 1]
    prior = np.array([LASTING] + lags * [ECHO])
    V = np.diag(prior) + np.cumsum(X[..., :, None] * X[..., None, :], -3)
    b = np.cumsum(X * s[..., None], -2)
    explained = np.vecdot(b, np.linalg.solve(V, b[..., None])[..., 0]) / total
    fitted = -0.5 * t * np.log(np.maximum(1 - explained, ROUND_OFF))
    return np.asarray(fitted + 0.5 * (np.log(prior).sum() - np.linalg.slogdet(V)[1]), np.float64)


def ranked(u: FloatArray) -> FloatArray:
    """Log evidence after each season from ranks (..., L, F) that are uniform on (0, 1) if nothing drifts."""
    both = [np.moveaxis(v, -2, -1) for v in (u, 1 - u)]  # up and down: (..., F, L)
    found = np.stack([bet for v in both for bet in (_climbing(v), _jumping(v))])
    return np.moveaxis(logsumexp(found, 0) - np.log(len(found)), -1, -2)


def _climbing(u: FloatArray) -> FloatArray:
    gain = np.log(CLIMB) + (CLIMB - 1) * np.log(u)
    gain[..., 0] = 0.0
    return np.cumsum(gain, -1)


def _jumping(u: FloatArray) -> FloatArray:
    """A jump after season tau: those after it lie beyond those before, but for a few. Mean over the prior of tau."""
    L = u.shape[-1]
    number = np.arange(1, L + 1)
    found = np.broadcast_to(-np.log(number), u.shape).copy()  # no jump yet: what the prior leaves, 1 - sum 1/tau(tau+1)
    for tau in range(1, L):
        share = np.minimum((number - tau) / number, ABOVE)[tau:]  # of the seasons so far, those after tau
        gain = np.where(u[..., tau:] > 1 - share, ABOVE / share, (1 - ABOVE) / (1 - share))
        here = np.cumsum(np.log(gain), -1) - np.log(tau * (tau + 1))
        found[..., tau:] = np.logaddexp(found[..., tau:], here)
    return found
