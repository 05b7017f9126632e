"""Generalised linear bandits for yes-or-no outcomes: Thompson sampling by Laplace's approximation, and OFUGLB.

Sources: GLM-TSL of Kveton et al. (2020), arXiv 1906.08947. OFUGLB of Lee, Yun and Jun (2024), arXiv 2407.13977, and
their code (github.com/nick-jhlee/logistic_bandit). Both estimate theta by logistic regression on features x with
|x| <= 1, here of a constant, the arm and the place, over sqrt(3).

    GLM-TSL    theta ~ N(theta_hat, spread^2 H^-1), H the curvature at theta_hat
    OFUGLB     the largest <x, theta> with log L(theta_hat) - log L(theta) <= beta_t^2 and |theta| <= S,
               beta_t^2 = log(1 / delta) + d log(max(e, 2 e S L_t / d)),   L_t = (1 + S / 2) (t - 1)

delta and S are those of their experiments. Departures: the ball enters as the ridge (1 + S) / (2 S^2) of their
ellipsoidal version, and caps <x, theta> at S. Both learn again when there is an eighth more outcomes, take no guard,
and have no seasons. Draws of theta are a fixed set, so that GLM-TSL has exact propensities.
Shapes: leading `...` is any batch; K arms, G places, d = 1 + K + G features, S draws.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
from scipy.special import expit

from drimed.competitors.field_learners import Wrapper
from drimed.models.mixed.generalised import standard_draws
from drimed.models.mixed.learner import PEOPLE, Field, FieldEvidence
from drimed.models.mixed.posterior_draws import SHARE_OF_NEW
from drimed.models.mixed.terms import FACTORS
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape
from drimed.numerics.arrays import FloatArray, IntArray, check_settings

STEPS, AGAIN, HALVINGS = 15, 4, 24  # of Newton at first and from nearby, and of a search for a multiplier
LEAST, MOST = -6.0, 12.0  # logarithms of the multiplier of <x, theta>
LONGEST = 2.0  # step in the logit


@dataclass(frozen=True)
class LogisticEvidence:
    """Outcomes, in the cells of the mixed model, and what was learned from them."""

    field: FieldEvidence
    means: FloatArray  # (..., S, G, K), draws of the arms' means at each place, or their optimistic means alone
    count: int  # outcomes that are in it, of the member that had most


@final
@dataclass(frozen=True, kw_only=True)
class Logistic(Wrapper):
    """Logistic regression on arm and place: with the rule `thompson` GLM-TSL; `optimistic`, with `greedy`, OFUGLB.

    beta_t^2 with t = 1001 and d = 11 is log 20 + 11 log(20 e 6000 / 11) = 2.9957 + 11 * 10.2974 = 116.27.
    """

    inner: Field = field(default_factory=lambda: PEOPLE)
    what: str = "logistic regression"
    places: int = 1
    optimistic: bool = False
    spread: float = 1.0  # of GLM-TSL's draws
    delta: float = 0.05
    norm_bound: float = 10.0  # S

    ridge = property(lambda self: (1 + self.norm_bound) / (2 * self.norm_bound**2))

    def __post_init__(self) -> None:
        check_settings(self, positive=("spread", "norm_bound"), share=("delta",), count=("places",))

    def start(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> LogisticEvidence:
        return self._learned(self.inner.start(shape, batch, episodes), shape.K)

    def age(self, evidence: LogisticEvidence) -> LogisticEvidence:
        return replace(evidence, field=self.inner.age(evidence.field))

    def add(
        self, evidence: LogisticEvidence, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> LogisticEvidence:
        return replace(evidence, field=self.inner.add(evidence.field, offer, action, outcome, late))

    def ready(self, evidence: LogisticEvidence) -> LogisticEvidence:
        count = int(evidence.field.cells.count.max(initial=0))
        due = count - evidence.count > SHARE_OF_NEW * evidence.count
        return self._learned(evidence.field, evidence.means.shape[-1]) if due else evidence

    def see(self, evidence: LogisticEvidence, offer: Offer, pulls: FloatArray, round: int) -> Seen:
        at = self._place(self.inner.features.prediction_rows(offer, 0)[0][..., 0, :])
        draws = np.moveaxis(evidence.means[..., at.reshape(-1, at.shape[-1])[0], :], -3, -2)  # (..., n, S, K)
        K, theta = draws.shape[-1], draws.mean(-2)
        V_inv = np.matmul(np.swapaxes(draws, -1, -2), draws) / draws.shape[-2] - theta[..., None] * theta[..., None, :]
        fit = Fit(theta, V_inv, np.zeros(theta.shape[:-1]), None, pulls[..., None, :], round, 1.0, draws=draws)
        view = replace(offer, features=np.broadcast_to(np.eye(K), (*theta.shape, K)), unit=None, maps=None)
        return Seen(fit, view, view)

    def radius_squared(self, count: FloatArray, d: int) -> FloatArray:
        """beta_t^2 after so many outcomes."""
        lipschitz = (1 + self.norm_bound / 2) * count
        return np.log(1 / self.delta) + d * np.log(np.maximum(math.e, 2 * math.e * self.norm_bound * lipschitz / d))

    def _place(self, keys: IntArray) -> IntArray:  # a category, where there is one, or the group
        return np.asarray(keys[..., len(FACTORS) if self.inner.features.categories else FACTORS.index("group")])

    def _learned(self, evidence: FieldEvidence, arms: int) -> LogisticEvidence:
        cells, G = evidence.cells.live(), self.places
        cell = self._place(cells.keys) * arms + cells.keys[..., FACTORS.index("arm")]
        here = (cell[..., None, :] == np.arange(G * arms)[:, None]).astype(np.float64)  # (..., G K, N)
        n, total = (np.matvec(here, y) for y in (cells.n, cells.n * cells.mean[..., self.inner.features.width]))
        place, arm = np.divmod(np.arange(G * arms), arms)
        x = np.concatenate([np.ones((G * arms, 1)), np.eye(arms)[arm], np.eye(G)[place]], -1) / np.sqrt(3)
        theta = self._newton(x, n, total, np.zeros((*cells.batch, x.shape[-1])), 0.0, STEPS)
        if self.optimistic:
            eta = self._optimistic(x, n[..., None, :], total[..., None, :], theta[..., None, :])[..., None, :]
        else:
            root = np.linalg.cholesky(np.linalg.inv(self._curvature(x, n, theta)))
            normal = standard_draws(x.shape[-1], "logistic regression")
            eta = (theta[..., None, :] + self.spread * np.matmul(normal, np.swapaxes(root, -1, -2))) @ x.T
        means = expit(eta).reshape(*eta.shape[:-1], G, arms)
        return LogisticEvidence(evidence, means, int(cells.count.max(initial=0)))

    def _optimistic(self, x: FloatArray, n: FloatArray, total: FloatArray, theta: FloatArray) -> FloatArray:
        """The largest <x_i, theta> of the confidence set for each row i of x: (..., G K)."""
        most, best = self.radius_squared(n.sum(-1), x.shape[-1]), self._loss(x, n, total, theta)
        low, high = (np.full((*n.shape[:-2], len(x)), end) for end in (LEAST, MOST))
        at = np.broadcast_to(theta, (*n.shape[:-2], len(x), x.shape[-1]))
        for _ in range(HALVINGS):  # the further along x, the larger the loss
            c = 0.5 * (low + high)
            at = self._newton(x, n, total, at, np.exp(c)[..., None] * x, AGAIN)
            inside = (self._loss(x, n, total, at) - best <= most) & (np.vecdot(at, x) < self.norm_bound)
            low, high = np.where(inside, c, low), np.where(inside, high, c)
        return np.minimum(np.vecdot(at, x), self.norm_bound)

    def _newton(
        self, x: FloatArray, n: FloatArray, total: FloatArray, theta: FloatArray, pull: Any, steps: int
    ) -> FloatArray:
        """The least loss less <pull, theta>, from theta (..., d) on."""
        for _ in range(steps):
            gradient = (total - n * expit(theta @ x.T)) @ x - self.ridge * theta + pull
            step = np.linalg.solve(self._curvature(x, n, theta), gradient[..., None])[..., 0]
            far = np.abs(step @ x.T).max(-1, keepdims=True)
            theta = theta + step * np.minimum(1.0, LONGEST / np.maximum(far, LONGEST))
        return theta

    def _curvature(self, x: FloatArray, n: FloatArray, theta: FloatArray) -> FloatArray:
        p = expit(theta @ x.T)
        return np.matmul(x.T * (n * p * (1 - p))[..., None, :], x) + self.ridge * np.eye(x.shape[-1])

    def _loss(self, x: FloatArray, n: FloatArray, total: FloatArray, theta: FloatArray) -> FloatArray:
        eta = theta @ x.T
        return np.asarray((n * np.logaddexp(0.0, eta) - total * eta).sum(-1) + 0.5 * self.ridge * (theta**2).sum(-1))
