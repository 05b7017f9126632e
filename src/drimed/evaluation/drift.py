"""Did the contexts move, or the mean itself?

`context_drift` is phase 1 of the paper's Algorithm 1, with a test and the size of the move. The paper observes the
contexts of each episode, computes the mean normalised feature of every arm, phi_bar_a = mean over users of
x_a / sigma_a (Alg. 1 l. 5), keeps the mean context (l. 17), and leaves open when to call that a drift. Here the episode
(a season) is the unit: its users may share a context, rain for instance, so that seasons differ at random. That is no
drift; a drift is what earlier seasons announce (`exchangeable.py`). Each user's context is ranked among that user's own
past, which allows for users who always differ; the scores of a season are added up, and their variance, which is 1 for
users who have nothing in common and H for users who share everything, is taken from the seasons themselves. Beside it
the season's mean is ranked among those of earlier seasons. Both take a few seasons: see `enough`.

`Monitor` watches the paper's stated limitation, one theta for the whole trial, by an e-process. Against every constant
theta it weighs one theta until an episode tau and another afterwards:

    E_l = sum_tau prior(tau) m(rows up to tau) m(rows after tau | rows up to tau) / sup_theta p_theta(rows up to l)

with m normal mixtures of the likelihood of whitened rows (closed forms in the sums V and b), the second one centred at
what was known at tau. Divided by the supremum, it is below a test martingale under every constant theta: E ever reaches
1 / alpha with probability at most alpha (universal inference, Wasserman et al., 2020; Ville's inequality), for any
policy and any number of episodes. The supremum costs about d log(n) / 2 of log evidence. With guarantee "average",
m(rows up to l) stands in its place: the alarm comes sooner, and its rate is alpha on average over theta from the normal
prior of m, not for every single one. Both assume 1-sub-Gaussian noise of the whitened rows, so noise that is larger
than claimed raises alarms too: look at the residuals first.

Shapes: leading `...` is any batch; L episodes, H users, D context coordinates, K arms, n rows, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, final

import numpy as np
from scipy.special import logsumexp, ndtri, stdtr

from drimed import streams
from drimed.errors import ConfigError, ShapeError
from drimed.evaluation import exchangeable
from drimed.learning.offer import Offer
from drimed.linear import checks
from drimed.linear.arrays import BoolArray, FloatArray, IntArray

FEWEST_SEASONS = 10  # below, hardly any drift can be told from seasons that differ at random
FEWEST_SCORES = 3  # of earlier seasons, before a single season is judged by their scatter
ROUND_OFF = 1e-10  # of the size of contexts: a spread below it is none
EDGE = 1e-12  # ranks are kept this far from 0 and 1: a normal score stays finite
GUARANTEES = ("every", "average")

# The supremum is taken over |theta| <= norm_bound by a penalty of this size, times |theta|^2 / norm_bound^2 / 2: it
# costs half of it in evidence, and keeps the fit defined before there are d rows.
PENALTY = 0.01


@final
@dataclass(frozen=True, slots=True)
class ContextDrift:
    """What each episode shows."""

    shift: FloatArray  # (..., L), distance of the mean context from that of the past, in its standard deviations
    borrowed: BoolArray  # (..., L), whether the past had none in some coordinate, so that 1 was taken for it
    scale: FloatArray  # (..., L), mean length of contexts over that of the past
    p_value: FloatArray  # (..., L), of this episode against the scatter of those before, for that episode alone
    evidence: FloatArray  # (..., L), log of an e-value against "no drift so far"
    agreement: FloatArray  # (...), share of the contexts' variance over time that users of an episode have in common
    alpha: float

    @property
    def enough(self) -> bool:
        """Whether there are enough episodes to tell a drift from episodes that differ at random."""
        return self.evidence.shape[-1] >= FEWEST_SEASONS

    @property
    def alarm(self) -> IntArray:
        """First episode, from 0, at which drift is established; -1: none. Ever false with probability alpha at most."""
        return first(self.evidence >= np.log(1 / self.alpha))


def context_drift(contexts: Any, *, alpha: float = 0.05, seed: int = 0) -> ContextDrift:
    """Test contexts (..., L, H, D) episode by episode: each coordinate, and the length.

    A coordinate in which the past does not vary, as after one episode whose users share it, counts in its own unit:
    have it such that 1 is a usual deviation.

    >>> rng = np.random.default_rng(0)
    >>> calm = rng.standard_normal((30, 10, 2))
    >>> int(context_drift(calm).alarm)
    -1
    >>> int(context_drift(np.concatenate([calm, 5 + calm])).alarm) >= 30
    True
    """
    checks.share("alpha", alpha)
    C = checks.shaped("contexts", checks.finite("contexts", contexts), (-1, -1, -1))
    L, H, _ = C.shape[-3:]
    features = np.concatenate([C, np.linalg.norm(C, axis=-1, keepdims=True)], -1)  # (..., L, H, F)
    F = features.shape[-1]
    means = features.mean(-2, keepdims=True)  # of all users of a season
    random = streams.generator(seed, "context ranks")
    own, seasons = random.random((L, H, F)), random.random((L, 1, F))
    score, u = np.zeros((*C.shape[:-3], L, H, F)), np.full((*C.shape[:-3], L, F), 0.5)
    for episode in range(1, L):  # the first has no past
        score[..., episode, :, :] = ndtri(_rank(features, episode, own))
        u[..., episode, :] = _rank(means, episode, seasons)[..., 0, :]
    total = score.sum(-2) / np.sqrt(H)
    bets = np.concatenate([exchangeable.predictable(total), exchangeable.ranked(u)], -1)
    evidence = np.asarray(logsumexp(bets, -1) - np.log(2 * F))
    return ContextDrift(*_sizes(C), _single(total), evidence, _agreement(score), alpha)


def _rank(values: FloatArray, episode: int, u: FloatArray) -> FloatArray:
    """Where the values of an episode stand among earlier ones, from 0 to 1, ties broken at random: (..., H, F)."""
    now, past = values[..., episode, None, :, :], values[..., :episode, :, :]
    below, level = (past < now).sum(-3), (past == now).sum(-3)
    return np.clip((below + u[episode] * (1 + level)) / (episode + 1), EDGE, 1 - EDGE)


def _single(total: FloatArray) -> FloatArray:
    """p-values of each episode's scores (..., L, F) against the scatter of those before: (..., L)."""
    L, F = total.shape[-2:]
    p = np.ones((*total.shape[:-2], L))
    for episode in range(1 + FEWEST_SCORES, L):  # the first episode has no score
        scatter = np.sqrt((total[..., 1:episode, :] ** 2).mean(-2))
        t = np.abs(total[..., episode, :]) / np.where(scatter > 0, scatter, 1.0)
        p[..., episode] = np.minimum(1.0, F * 2 * stdtr(episode - 1, -t).min(-1))
    return p


def _agreement(score: FloatArray) -> FloatArray:
    """Intraclass correlation of the scores (..., L, H, F), from 0 to 1: the largest over features."""
    H = score.shape[-2]
    if H == 1:
        return np.zeros(score.shape[:-3])
    square = (score**2).sum((-3, -2))
    shared = (score.sum(-2) ** 2).sum(-2) - square
    found = shared / ((H - 1) * np.where(square > 0, square, 1.0))
    return np.clip(found, 0.0, 1.0).max(-1)


def mean_features(offers: Offer) -> FloatArray:
    """phi_bar_a: the mean over users of x_a / sigma_a; the users are the last batch axis: (..., K, d)."""
    x = offers.features
    phi = x if offers.sigma is None else x / offers.sigma[..., None]
    return phi.mean(-3)


def first(crossed: Any) -> IntArray:
    """Index of the first True along the last axis; -1: none."""
    hit = np.asarray(crossed)
    return np.where(hit.any(-1), hit.argmax(-1), -1)


def _sizes(C: FloatArray) -> tuple[FloatArray, BoolArray, FloatArray]:
    L = C.shape[-3]
    length = np.linalg.norm(C, axis=-1).mean(-1)  # (..., L)
    size = np.abs(C).max((-3, -2))[..., None, :]  # (..., 1, D)
    C = C - C[..., :1, :1, :]  # neither distances nor spreads change, and less of them is round-off
    mean = C.mean(-2)  # (..., L, D)
    earlier = np.arange(1, L)
    past_mean = np.cumsum(mean, -2)[..., :-1, :] / earlier[:, None]
    past_square = np.cumsum((C**2).mean(-2), -2)[..., :-1, :] / earlier[:, None]
    variance = np.maximum(past_square - past_mean**2, 0.0)
    varies = np.sqrt(variance) > ROUND_OFF * size
    past_length = np.cumsum(length, -1)[..., :-1] / earlier
    moved = np.linalg.norm(mean[..., 1:, :] - past_mean, axis=-1)
    shift, borrowed, scale = np.zeros(length.shape), np.zeros(length.shape, bool), np.ones(length.shape)
    shift[..., 1:] = moved / np.sqrt(np.where(varies, variance, 1.0).sum(-1))
    borrowed[..., 1:] = ~varies.all(-1)
    scale[..., 1:] = length[..., 1:] / np.where(past_length > 0, past_length, 1.0)
    return shift, borrowed, scale


@final
@dataclass(frozen=True, slots=True)
class EpisodeSums:
    """What the monitor needs of each episode: sums over its whitened rows (z, w)."""

    gram: FloatArray  # (..., L, d, d), sum of z z^T
    moment: FloatArray  # (..., L, d), sum of z w
    square: FloatArray  # (..., L), sum of w^2

    @classmethod
    def of(cls, Z: Any, w: Any) -> EpisodeSums:
        """From rows Z (..., L, n, d) and w (..., L, n), as a learner with known noise whitens them."""
        z = checks.shaped("Z", checks.finite("Z", Z), (-1, -1, -1))
        y = checks.finite("w", w)
        if y.shape != z.shape[:-1]:
            raise ShapeError(f"w must have shape {z.shape[:-1]}, got {y.shape}")
        gram = np.matmul(np.swapaxes(z, -1, -2), z)
        return cls(gram, np.vecmat(y, z), np.vecdot(y, y))


@final
@dataclass(frozen=True, slots=True)
class MeanDrift:
    """The evidence after each episode."""

    evidence: FloatArray  # (..., L), log E
    likeliest: IntArray  # (..., L), the episode after which the change is most plausible; 0 while there is none
    alpha: float

    @property
    def alarm(self) -> IntArray:
        """First episode, from 0, at the end of which the alarm is raised; -1: none."""
        return first(self.evidence >= np.log(1 / self.alpha))


@final
@dataclass(frozen=True, kw_only=True)
class Monitor:
    """How the mean is watched.

    >>> Monitor(alpha=0.01).jumps
    (1.0, 0.3, 0.1)
    """

    alpha: float = 0.01  # the chance that a trial without drift ever raises the alarm
    norm_bound: float = 1.0  # S: bound on |theta|
    every: int = 5  # episodes between the candidate change-points
    jumps: tuple[float, ...] = (1.0, 0.3, 0.1)  # lengths of change to look for, in norm bounds; equally weighted
    guarantee: str = "every"  # alpha holds for every constant theta, or on average over its prior

    def __post_init__(self) -> None:
        checks.share("alpha", self.alpha)
        if not self.norm_bound > 0 or self.every < 1 or not self.jumps or not min(self.jumps) > 0:
            raise ConfigError("norm_bound, every and jumps must be positive")
        if self.guarantee not in GUARANTEES:
            raise ConfigError(f"guarantee must be one of {GUARANTEES}, got {self.guarantee!r}")

    def watch(self, sums: EpisodeSums) -> MeanDrift:
        """The evidence after each of L episodes."""
        A, b, s = (np.cumsum(v, axis) for v, axis in ((sums.gram, -3), (sums.moment, -2), (sums.square, -1)))
        L, d = b.shape[-2:]
        S2 = self.norm_bound**2
        before, theta = _log_mixture(A, b, d / S2)  # (..., L) and (..., L, d)
        before = before - _half_logdet(A, d / S2)
        constant = before
        if self.guarantee == "every":  # at least the supremum, less the -s/2 that cancels
            constant = _log_mixture(A, b, PENALTY / S2)[0] + PENALTY / 2
        evidence = np.full(s.shape, -np.inf)
        likeliest = np.zeros(s.shape, np.intp)
        best = np.full(s.shape, -np.inf)
        for j, tau in enumerate(range(self.every, L, self.every), start=1):
            first_rows = tau - 1  # sums up to and including episode tau - 1
            centre = theta[..., first_rows, None, :]
            more_A = A[..., tau:, :, :] - A[..., first_rows, None, :, :]
            new_b = b[..., tau:, :] - b[..., first_rows, None, :]
            more_b = new_b - np.matvec(more_A, centre)
            # The rows after tau are rows of theta - centre, up to terms that the supremum has too.
            shift = np.vecdot(centre, new_b) - 0.5 * np.vecdot(centre, np.matvec(more_A, centre))
            penalties = [d / (S2 * jump**2) for jump in self.jumps]
            after = [_log_mixture(more_A, more_b, p)[0] - _half_logdet(more_A, p) for p in penalties]
            gain = logsumexp(np.stack(after), 0) - np.log(len(self.jumps)) + shift
            here = before[..., first_rows, None] + gain - constant[..., tau:] - np.log(j * (j + 1))
            evidence[..., tau:] = np.logaddexp(evidence[..., tau:], here)
            likeliest[..., tau:] = np.where(here > best[..., tau:], tau, likeliest[..., tau:])
            best[..., tau:] = np.maximum(best[..., tau:], here)
        return MeanDrift(evidence, likeliest, self.alpha)


def _log_mixture(A: FloatArray, b: FloatArray, penalty: float) -> tuple[FloatArray, FloatArray]:
    """b^T (A + penalty I)^-1 b / 2, and the ridge estimate."""
    theta: FloatArray = np.linalg.solve(A + penalty * np.eye(A.shape[-1]), b[..., None])[..., 0].astype(np.float64)
    return 0.5 * np.vecdot(b, theta), theta


def _half_logdet(A: FloatArray, penalty: float) -> FloatArray:
    """log det(A / penalty + I) / 2."""
    return 0.5 * np.linalg.slogdet(A / penalty + np.eye(A.shape[-1]))[1]
