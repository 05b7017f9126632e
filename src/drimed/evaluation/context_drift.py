"""Did the contexts move? Phase 1 of the paper's Algorithm 1, with a test and the size of the move.

The paper observes the contexts of each episode and computes the mean normalised feature of every arm,
phi_bar_a = mean over users of x_a / sigma_a (Alg. 1 l. 5), and keeps the mean context (l. 17); it leaves open when to
call that a drift. Here each user's context is ranked among that user's own past. If nothing drifts the ranks are
uniform and independent, whatever the distribution of contexts, so the test is exact for contexts that are independent
over users and exchangeable over episodes (a conformal test; Vovk et al., 2003). Users who move together in an episode
are a drift of that episode.

Shapes: leading `...` is any batch; L episodes, H users, D context coordinates, K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import logsumexp, ndtr, ndtri

from drimed import streams
from drimed.errors import ConfigError
from drimed.learning.offer import Offer
from drimed.linear import checks
from drimed.linear.arrays import FloatArray, IntArray

LASTING = 4.0  # rho: episodes after which a lasting move should be found soonest
SWINGING = 1.0  # variance of the shift in each episode that the test for swings is made for
EDGE = 1e-12  # ranks are kept this far from 0 and 1: a normal score stays finite


@final
@dataclass(frozen=True, slots=True)
class ContextDrift:
    """What each episode shows."""

    shift: FloatArray  # (..., L), distance of the mean context from that of the past, in its standard deviations
    scale: FloatArray  # (..., L), mean length of contexts over that of the past
    p_value: FloatArray  # (..., L), of this episode against the past, for that episode alone
    evidence: FloatArray  # (..., L), log of an e-value against "no drift so far"
    alpha: float

    @property
    def alarm(self) -> IntArray:
        """First episode, from 0, at which drift is established; -1: none. Ever false with probability alpha at most."""
        return first(self.evidence >= np.log(1 / self.alpha))


def context_drift(contexts: Any, *, alpha: float = 0.05, seed: int = 0) -> ContextDrift:
    """Test contexts (..., L, H, D) episode by episode: each coordinate, and the length.

    >>> rng = np.random.default_rng(0)
    >>> calm = rng.standard_normal((30, 10, 2))
    >>> int(context_drift(calm).alarm)
    -1
    >>> int(context_drift(np.concatenate([calm, 5 + calm])).alarm) >= 30
    True
    """
    if not 0 < alpha < 1:
        raise ConfigError(f"alpha must be in (0, 1), got {alpha}")
    C = checks.shaped("contexts", checks.finite("contexts", contexts), (-1, -1, -1))
    L, H, _ = C.shape[-3:]
    features = np.concatenate([C, np.linalg.norm(C, axis=-1, keepdims=True)], -1)  # (..., L, H, F)
    F = features.shape[-1]
    u = streams.generator(seed, "context ranks").random((L, H, F))
    score = np.zeros((*C.shape[:-3], L, F))
    for episode in range(1, L):  # the first has no past
        now, past = features[..., episode, None, :, :], features[..., :episode, :, :]
        below, level = (past < now).sum(-3), (past == now).sum(-3)  # (..., H, F)
        rank = (below + u[episode] * (1 + level)) / (episode + 1)
        score[..., episode, :] = ndtri(np.clip(rank, EDGE, 1 - EDGE)).sum(-2) / np.sqrt(H)
    single = np.minimum(1.0, F * 2 * ndtr(-np.abs(score)).min(-1))
    single[..., 0] = 1.0
    shift, scale = _sizes(C)
    return ContextDrift(shift, scale, single, _evidence(score), alpha)


def mean_features(offers: Offer) -> FloatArray:
    """phi_bar_a: the mean over users of x_a / sigma_a; the users are the last batch axis: (..., K, d)."""
    x = offers.features
    phi = x if offers.sigma is None else x / offers.sigma[..., None]
    return phi.mean(-3)


def first(crossed: Any) -> IntArray:
    """Index of the first True along the last axis; -1: none."""
    hit = np.asarray(crossed)
    return np.where(hit.any(-1), hit.argmax(-1), -1)


def _sizes(C: FloatArray) -> tuple[FloatArray, FloatArray]:
    L = C.shape[-3]
    mean = C.mean(-2)  # (..., L, D)
    length = np.linalg.norm(C, axis=-1).mean(-1)  # (..., L)
    earlier = np.arange(1, L)
    past_mean = np.cumsum(mean, -2)[..., :-1, :] / earlier[:, None]
    past_square = np.cumsum((C**2).mean(-2), -2)[..., :-1, :] / earlier[:, None]
    spread = np.sqrt(np.maximum(past_square - past_mean**2, 0.0).sum(-1))
    past_length = np.cumsum(length, -1)[..., :-1] / earlier
    moved = np.linalg.norm(mean[..., 1:, :] - past_mean, axis=-1)
    shift, scale = np.zeros(length.shape), np.ones(length.shape)
    shift[..., 1:] = moved / np.where(spread > 0, spread, 1.0)
    scale[..., 1:] = length[..., 1:] / np.where(past_length > 0, past_length, 1.0)
    return shift, scale


def _evidence(score: FloatArray) -> FloatArray:
    """Log of the mean of two martingales per feature, for lasting moves and for swings: (..., L, F) -> (..., L)."""
    t = np.arange(score.shape[-2])[:, None]  # the first episode scores 0 and counts for nothing
    total = np.cumsum(score, -2)
    lasting = total**2 / (2 * (t + LASTING)) - 0.5 * np.log((t + LASTING) / LASTING)
    swing = score**2 * SWINGING / (2 * (1 + SWINGING)) - 0.5 * np.log(1 + SWINGING)
    swing[..., 0, :] = 0.0
    each = np.concatenate([lasting, np.cumsum(swing, -2)], -1)
    return np.asarray(logsumexp(each, -1) - np.log(each.shape[-1]))
