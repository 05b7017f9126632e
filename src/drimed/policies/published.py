"""Dri-MED and Dri-IMED letter by letter: Algorithm 2 of Das et al. around Algorithm 3 or the index of Dri-IMED.

Each quirk carries a comment with its I-number; docs/paper.md explains them. Nothing outside this module has them. Two
readings: what the paper prints, and the code that its authors ran. `printed` mends only what cannot run as printed:
I-16, I-17, I-20, I-21 and I-22. Both share the mended design (I-18). Hyper-parameters: Table 2 of the paper.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import InputError
from drimed.models.linear_regression import rewarded, ridge_lost
from drimed.models.offer import Fit, Offer, Outcome, Shape, check_sizes
from drimed.numerics import probability, ridge
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, check_settings, pick_shared
from drimed.numerics.ridge import Ridge
from drimed.policies.guards.base import PENALISED, UNCHANGED, Draw
from drimed.policies.guards.margin import Tolerance
from drimed.policies.guards.penalty import Penalty
from drimed.policies.protocol import AnyPolicy, Traits
from drimed.policies.rules.base import Ask
from drimed.policies.rules.med import MED, DriIMEDIndex

READINGS = ("printed", "code")


@dataclass(frozen=True, slots=True)
class PublishedState:
    """The regression, the pulls, the episode's threshold and the one dual variable of all users."""

    ridge: Ridge
    pulls: FloatArray  # (..., K)
    tau: FloatArray  # (...)
    nu: FloatArray  # (...)
    episode: int  # l, from 1 once an episode has begun
    user: int  # h of the next decision within the episode, from 1


@final
@dataclass(frozen=True, kw_only=True)
class PublishedDri(AnyPolicy):
    """The published algorithm, randomised (`step="med"`) or indexed (`step="imed"`)."""

    step: str = "med"
    reading: str = "code"
    tolerance: float = 0.1  # epsilon
    discount: float = 0.99  # gamma_decay
    noise_bound: float = 1.92  # sigma-bar; lambda = sigma-bar^2 / S^2
    norm_bound: float = 1.0  # S
    delta: float = 0.01
    optimal: float = 0.99  # alpha_opt; I-8: LinMED's authors put this mass on the empirical best
    empirical: float = 0.005  # alpha_emp
    initial_dual: float | None = None  # nu_0; I-15: 1 in Table 2, 0 in every script

    needs_contexts_at_opening: ClassVar[bool] = True  # the threshold is one for all users of an episode

    def __post_init__(self) -> None:
        check_settings(
            self, {"step": ("med", "imed"), "reading": READINGS}, positive=("noise_bound", "norm_bound"),
            not_negative=("initial_dual",), below_one=("tolerance",), share=("delta",), discount=("discount",),
        )  # fmt: skip
        self._rule  # noqa: B018  checks the masses

    @cached_property
    def ridge_penalty(self) -> float:
        """lambda."""
        return (self.noise_bound / self.norm_bound) ** 2

    @cached_property
    def traits(self) -> Traits:
        return Traits(
            learner=f"published ({self.reading})", rule="Dri-MED" if self.step == "med" else "Dri-IMED",
            guard="published", settings=frozenset(f.name for f in fields(self)) - {"step"}, feedback="reward",
            weighting="known", noise_bound=self.noise_bound, promise=Penalty.promise, protects=Penalty.protects,
            tolerance=Tolerance(relative=self.tolerance), confidence=None,
        )  # fmt: skip

    def init(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> PublishedState:
        """l. 1 of Alg. 2; the prior is discounted with the evidence."""
        start, zero = ridge.init(shape.d, self.ridge_penalty, batch), np.zeros(batch)
        for _ in range(episodes):
            start = self.aged(start)
        nu = zero + (float(self._printed) if self.initial_dual is None else self.initial_dual)  # I-15
        return PublishedState(start, np.zeros((*batch, shape.K)), zero, nu, 0, 1)

    def begin_episode(self, state: PublishedState, offer: Offer) -> PublishedState:
        """Alg. 2 l. 3 to 8: the threshold from the statistics so far, then the discount."""
        u = offer.features / _noise(offer)[..., None]  # (..., H, K, d)
        # I-3: one threshold for all users, in normalised units. I-17: the mean over users, not the printed sum.
        each = np.vecmat(offer.control, u)  # (..., H, d)
        base = np.vecmat(np.full(each.shape[-2], 1 / each.shape[-2]), each)  # (..., d)
        lev = np.maximum(np.vecdot(np.matvec(state.ridge.V_inv, base), base), 0)
        optimistic = np.vecdot(base, state.ridge.theta) + self.radius(state.ridge, indexed=False) * np.sqrt(lev)
        tau = (1 - self.tolerance) * optimistic  # I-22: before the discount
        return replace(state, tau=tau, ridge=self.aged(state.ridge), episode=state.episode + 1, user=1)

    def decide(self, state: PublishedState, offer: Offer, draws: FloatArray) -> Draw:
        """Alg. 3, or the index of Dri-IMED: one user after the other, because the dual variable moves with each."""
        if state.episode == 0:
            raise InputError("the published algorithms set their threshold per episode: call begin_episode first")
        check_sizes(state.pulls.shape, state.ridge.theta.shape[-1], offer, draws)
        actions: list[IntArray] = []
        probabilities, reasons = [], []
        for h in range(draws.shape[-2]):
            if actions:
                state = self._commit(state, _of_user(offer, h - 1), actions[-1])
            p, reason = self._propose(state, _of_user(offer, h), draws[..., h, :])
            actions.append(probability.sample(p, draws[..., h, 0]))
            probabilities.append(p)
            reasons.append(reason)
        return Draw(np.stack(actions, axis=-1), np.stack(probabilities, axis=-2), np.stack(reasons, axis=-1))

    def commit(self, state: PublishedState, offer: Offer, draw: Draw) -> PublishedState:
        """Alg. 2 l. 12 to 14, one user after the other."""
        for h in range(draw.action.shape[-1]):
            state = self._commit(state, _of_user(offer, h), draw.action[..., h])
        return state

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        return rewarded(observed, preference)

    def observe(
        self, state: PublishedState, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> PublishedState:
        """Alg. 2 l. 14 and 15, with all the data of the text's estimator (I-21), one user after the other."""
        if late > 0:
            return self._shifted(state, offer, action, outcome, late, 1.0)
        z, w = self._rows(offer, action, outcome)
        learned = state.ridge
        for h in range(action.shape[-1]):
            learned = ridge.observe(learned, z[..., h : h + 1, :], w[..., h : h + 1], self.ridge_penalty)
        return replace(state, ridge=learned)

    def forget(
        self, state: PublishedState, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> PublishedState:
        return self._shifted(state, offer, action, outcome, late, -1.0)

    def lost_digits(self, before: PublishedState, after: PublishedState) -> bool:
        return ridge_lost(before.ridge, after.ridge)

    def with_evidence(self, state: PublishedState, evidence: PublishedState) -> PublishedState:
        return replace(state, ridge=evidence.ridge)

    def theta(self, state: PublishedState) -> FloatArray:
        return state.ridge.theta

    def aged(self, r: Ridge) -> Ridge:
        """One episode later.

        I-1: V is discounted and b is not, so theta_hat grows by 1 / gamma. I-20: by gamma, not gamma^(L-l).
        """
        g = self.discount
        logdet = r.logdet + r.theta.shape[-1] * np.log(g)
        return replace(r, V=g * r.V, V_inv=r.V_inv / g, theta=r.theta / g, logdet=logdet)

    def radius(self, r: Ridge, *, indexed: bool) -> FloatArray:
        """sqrt(beta), where r.logdet is log det V - d log lambda; `indexed` for Dri-IMED, which has its own formula."""
        confidence = 2 * np.log(1 / self.delta)
        bias = np.sqrt(self.ridge_penalty) * self.norm_bound
        if self._printed and indexed:
            # I-12: as printed, 2 log(1/alpha) stands outside the root.
            return np.sqrt(np.maximum(r.logdet, 0)) + confidence + bias
        # I-6: as coded, d log lambda is taken off a second time: the tracked log-determinant starts at 0 already.
        logdet = r.logdet if self._printed else r.logdet - r.theta.shape[-1] * np.log(self.ridge_penalty)
        # I-6: V holds lambda gamma^(l-1) I and is compared with lambda I, so this can be negative; clipped, as coded.
        return np.sqrt(np.maximum(logdet + confidence, 0)) + bias

    @property
    def _printed(self) -> bool:
        return self.reading == "printed"

    @cached_property
    def _rule(self) -> MED | DriIMEDIndex:
        # I-18: the design is the mended one. I-16: the saturation step is normalised.
        med = MED(temperature="radius", empirical=self.empirical, optimal=self.optimal, saturation="every arm")
        # I-12: sigma^2 of the index.
        return med if self.step == "med" else DriIMEDIndex(variance="smallest" if self._printed else "unit")

    def _propose(self, state: PublishedState, offer: Offer, draws: FloatArray) -> tuple[FloatArray, IntArray]:
        """Probabilities for one user, without a users' axis, and the reason."""
        # I-2: means, gaps and bounds on u = x / sigma: the arm of best signal-to-noise ratio, not of best reward.
        u, sigma = offer.features / _noise(offer)[..., None], None if self.step == "med" else offer.sigma
        seen = Offer(features=u, control=offer.control, sigma=sigma)
        r, wide = state.ridge, self.radius(state.ridge, indexed=self.step == "imed")
        fit = Fit(r.theta, r.V_inv, wide, None, state.pulls, state.user, 1.0)
        lower = fit.mean(seen.features) - fit.width(seen.features)
        penalty = state.nu[..., None] * np.maximum(state.tau[..., None] - lower, 0)
        p = self._rule.propose(fit, seen, Ask(offer.available, draws, penalty))
        return p, np.where((penalty > 0).any(-1), PENALISED, UNCHANGED)

    def _commit(self, state: PublishedState, offer: Offer, action: IntArray) -> PublishedState:
        """Alg. 2 l. 12 to 14: the dual variable, with the estimate from before the outcome (I-22)."""
        violation = np.vecdot(_normalised_arm(offer, action), state.ridge.theta) < state.tau
        # I-14: eta = (l h)^-1/2 as printed; as coded it restarts in each episode.
        eta = (state.user * (state.episode if self._printed else 1)) ** -0.5
        # I-13: settles where a share epsilon / (1 - epsilon) of the decisions is estimated to violate.
        push = violation - self.tolerance / (1 - self.tolerance)
        nu = np.maximum(state.nu + eta * push, 0)
        pulls = state.pulls + probability.one_hot(action, state.pulls.shape[-1])
        return PublishedState(state.ridge, pulls, state.tau, nu, state.episode, state.user + 1)

    def _rows(self, offer: Offer, action: IntArray, outcome: Outcome) -> tuple[FloatArray, FloatArray]:
        outcome.check(offer)
        if outcome.reward is None:
            raise InputError("the published algorithms learn from outcome.reward, got none")
        return _normalised_arm(offer, action), outcome.reward / pick_shared(_noise(offer), action, 1)

    def _shifted(
        self, state: PublishedState, offer: Offer, action: IntArray, outcome: Outcome, late: int, sign: float
    ) -> PublishedState:
        """Rows of `late` episodes ago in or out: discounted in V since then, and not in b (I-1)."""
        z, w = self._rows(offer, action, outcome)
        r = state.ridge
        V = r.V + sign * self.discount**late * np.matmul(np.swapaxes(z, -1, -2), z)
        moved = replace(r, V=V, b=r.b + sign * np.vecmat(w, z))
        return replace(state, ridge=ridge.refresh(moved, self.ridge_penalty))


def _of_user(offer: Offer, h: int) -> Offer:
    """The offer to user h, without a users' axis: what these algorithms look at."""

    def own(array: Any, core: int) -> Any:
        if array is None or array.ndim == core:
            return array
        return array[(..., h if array.shape[-core - 1] > 1 else 0, *[slice(None)] * core)]  # a view

    parts = {name: own(getattr(offer, name), 1) for name in ("control", "available")}
    return Offer(features=own(offer.features, 2), sigma=own(_noise(offer), 1), **parts)


def _normalised_arm(offer: Offer, action: IntArray) -> FloatArray:
    x, sigma = pick_shared(offer.features, action, 2), pick_shared(_noise(offer), action, 1)
    return x / sigma[..., None]


def _noise(offer: Offer) -> FloatArray:
    if offer.sigma is None:
        raise InputError("the published algorithms need sigma, the noise of each arm's reward")
    return offer.sigma
