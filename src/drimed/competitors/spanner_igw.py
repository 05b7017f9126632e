"""SpannerIGW: inverse gap weighting over a design on the arms, where arms that look worse count as shorter.

Source: Zhu, Foster, Langford and Mineiro (2022). Departures: the design, any approximate optimal one in the paper, is
uniform on an approximate barycentric spanner of the arms' *span*, begun from the arms that a pivoted Gram-Schmidt
takes. The default exploration rate is the schedule of Balagopalan and Jun (2024) with the number of the round in place
of the horizon. `variant="authors"` is their code: no root is sought, each member of the spanner has
1 / (1 + d + eta gap), the leader the rest; its swaps stop early, these do not.
Shapes: leading `...` is any batch; K arms, d features.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics import probability
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick
from drimed.numerics.compiled import kernel
from drimed.numerics.optimal_design import in_spanning_arms, span
from drimed.policies.rules.base import Ask, Randomisation

LARGEST_COEFFICIENT = 2.0  # C: every arm is a combination of the spanner with coefficients of at most this size
SWAPS = 64  # per dimension. Each swap doubles a determinant that starts within r! of its largest: this is never reached
DESIGN_COST = 4.0  # c of the schedule
NEWTON_STEPS = 60  # quadratic convergence from below needs about six


@final
@dataclass(frozen=True, kw_only=True)
class SpannerIGW:
    """p_a = q_a / (lambda + eta gap_a); q: half the leader, half uniform on a spanner of x_a / sqrt(1 + eta gap_a).

    V = diag(3, 2), theta_hat = (.5, .1), arms e1, e2, (.6, .8), eta = 10: gaps 0, .4, .12; shortened, the third arm
    reaches farther from e1 than the second, so the spanner is the first and the third, lambda^2 + .2 lambda = .9 and
    p = (.878283, 0, .121717). Without the third arm lambda^2 + 3 lambda = 3 and p = (.947822, .052178); the authors'
    variant then has (6/7, 1/7).
    """

    # Per unit of reward: 0 ignores gaps, large is greedy. "schedule" grows like the root of the round; the authors' own
    # runs have constants of 666 to 2251.
    eta: float | str = "schedule"
    variant: str = "paper"
    delta: float = 0.01  # of the schedule

    randomisation: ClassVar[Randomisation] = "closed form"

    def __post_init__(self) -> None:
        words = {"eta": ("schedule",), "variant": ("paper", "authors")}
        check_settings(self, words, not_negative=("eta",), share=("delta",))

    def propose(self, fit: Fit, offer: Offer, ask: Ask) -> FloatArray:
        x, value = offer.features, ask.penalised(fit.mean(offer.features))  # (..., K)
        leader = probability.best(value, ask.mask)
        # An arm outside the mask may lie above the leader; it gets nothing either way.
        gap = np.maximum(pick(value, leader)[..., None] - value, 0.0) * self.sharpness(fit.round, x.shape[-1])
        base = 1.0 if self.variant == "paper" else 1.0 + x.shape[-1]
        q, rank = spanner(x / np.sqrt(base + gap)[..., None], ask.mask)
        first = probability.one_hot(leader, x.shape[-2])
        if self.variant == "paper":
            return inverse_gap(0.5 * q + 0.5 * first, gap)[0]
        p = rank[..., None] * q / (base + gap)
        return p + (1 - p.sum(-1, keepdims=True)) * first

    def sharpness(self, round: int, d: int) -> float:
        """eta in this round."""
        if not isinstance(self.eta, str):
            return self.eta
        gamma = np.sqrt(DESIGN_COST * d * round / (d * np.log(round) + 32 * np.log(2 / self.delta)))
        return float(gamma) / (DESIGN_COST * d)


def spanner(W: FloatArray, mask: BoolArray | None = None) -> tuple[FloatArray, IntArray]:
    """Equal mass on r arms that span the rest with coefficients of at most 2, and r: (..., K, d) -> (..., K), (...).

    Its worst leverage is at most r^2 C^2. Arms that are all zero have rank 0 and equal mass.
    """
    allowed = np.ones(W.shape[-2], bool) if mask is None else mask
    _, arms, rank, order = span(W, allowed)
    return _swap(arms, rank, allowed, order), rank


def inverse_gap(q: FloatArray, gap: FloatArray) -> tuple[FloatArray, FloatArray]:
    """q_a / (lambda + gap_a) with the lambda in [1/2, 1] that makes it sum to 1, and lambda.

    `q` has half its mass or more where the gap is 0.
    """
    lam = np.full(np.broadcast_shapes(q.shape, gap.shape)[:-1], 0.5)
    for _ in range(NEWTON_STEPS):  # from the left end: the sum is convex and falls in lambda, so steps stay below it
        terms = q / (lam[..., None] + gap)
        step = (terms.sum(-1) - 1) / (terms / (lam[..., None] + gap)).sum(-1)
        further = np.where(step > 0, np.minimum(lam + step, 1.0), lam)
        if np.array_equal(further, lam):
            break
        lam = further
    p = q / (lam[..., None] + gap)
    return p / p.sum(-1, keepdims=True), lam


@kernel("void(f8[:,:], i8, b1[:], i8[:], f8[:])", "(k,d),(),(k),(k)->(k)")
def _swap(arms, r, allowed, order, q):  # type: ignore[no-untyped-def]
    """While a coefficient is too large, its arm replaces a chosen one, and the volume grows by the coefficient."""
    K, n = arms.shape[0], 0
    for k in range(K):
        n += allowed[k]
    for k in range(K):
        q[k] = 1.0 / n if allowed[k] and r == 0 else 0.0
    T, row, basis = in_spanning_arms(arms, order, r), np.empty(r), np.empty(r, np.int64)
    for k in range(K):
        if order[k] > 0:
            basis[order[k] - 1] = k
    for _ in range(SWAPS * r):
        arm, place, size = -1, -1, LARGEST_COEFFICIENT
        for k in range(K):
            for i in range(r):
                if abs(T[k, i]) > size:
                    arm, place, size = k, i, abs(T[k, i])
        if arm < 0:
            break
        for i in range(r):
            row[i] = T[arm, i]
        for k in range(K):
            share = T[k, place] / row[place]
            for i in range(r):
                T[k, i] = share if i == place else T[k, i] - share * row[i]
        basis[place] = arm
    for i in range(r):
        q[basis[i]] = 1.0 / r
