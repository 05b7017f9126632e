"""The guards `certain` and `expected`: what is played is certified against the control (docs/safety.md).

`certain` plays certified arms only; the control, or its lottery, is always allowed. `expected` certifies the mixture
that is played: where the rule's proposal is not certified as a whole, the rule is asked again on the certified arms,
and as much of its proposal is mixed in as the certificate allows. The probabilities stay exact.

With `simultaneous` the level holds for all margins of a decision together. A margin is wrongly certified only if
<g, theta_hat - theta> > c |g| for a feature g = w_a + t rel x_0 with |t| <= 1: an arc of directions of some angle phi.
For standard normal errors that has the probability P(z > c) + phi / (2 pi) exp(-c^2 / 2) (Naiman 1986), and for errors
with nu degrees of freedom the same with Student's tail and (1 + c^2 / nu)^(-nu / 2), shared by Bonferroni's inequality.

Of a belief that is not normal, a margin is certified if it holds in enough posterior draws: in draw s that of a lottery
p is <sum_a p_a w_a, theta_s> + rel |<x_0, theta_s>| + abs, linear in the share of a proposal that is mixed in: the
certified share is a quantile of each draw's largest. Coordinates with hardly any outcomes are reckoned at their worst.
Shapes: leading `...` is any batch, its last axis the users; K arms, d coordinates, S draws.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, final

import numpy as np
from scipy.special import stdtr, stdtrit

from drimed.errors import ConfigError
from drimed.models.offer import Fit, Offer
from drimed.numerics.arrays import BoolArray, FloatArray, check_settings
from drimed.numerics.quadratic_forms import NEVER_ZERO
from drimed.policies.guards import base, margin
from drimed.policies.guards.base import UNCHANGED, AskRule, Constraint, Guarded, Guardrail, Protects
from drimed.policies.guards.margin import Tolerance

PRIOR = 3.0  # outcomes that the prior of an arm's noise counts as (models/noise_estimation.py)
MOST_FREEDOM = 1e6  # degrees of freedom that are as good as infinite
LARGEST_EXPONENT = 600.0  # beyond which a radius is as good as infinite
BEYOND_DOUBT = 8.0  # standard errors from zero: the sign of the control's mean is what it seems to be
OPPOSITE = 1e-9  # a cosine this near to -1 is of an arc through zero: two opposite points
FAR_TAIL = 1e-3  # of a margin's share: its quantile lies beyond the one that is sought, for arcs of any angle
STEPS = 12  # of the iteration from there, which contracts by an order of magnitude or more a step


@dataclass(frozen=True, kw_only=True)
class _Certified:
    """The settings of both guards."""

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = 0.99  # a level per decision, or "anytime"
    guardrails: tuple[Guardrail, ...] = ()
    simultaneous: bool = False  # a level is for all arms of a decision at once, not for each of them

    def __post_init__(self) -> None:
        check_settings(self, base.ANYTIME, level=("confidence",))


@final
@dataclass(frozen=True, kw_only=True)
class Certain(_Certified):
    """The rule is asked on the certified arms only."""

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control"

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        required = base.constraints(offer, self.tolerance, self.guardrails)
        if fit.draws is not None:
            ok = certified_by_draws(fit, offer, required, self.confidence)
        elif self.simultaneous:
            ok = _positive(lower_bounds(fit, offer, required, self.confidence, control=False), offer)
        else:
            ok = base.certified_arms(fit, required, base.radius(fit, self.confidence), offer.available)
        return base.only_safe(ok, offer, ask)


@final
@dataclass(frozen=True, kw_only=True)
class Expected(_Certified):
    """p' = rho wish + (1 - rho) safe with the largest certified rho."""

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        required = base.constraints(offer, self.tolerance, self.guardrails)
        if fit.draws is not None:
            return mixed_by_draws(fit, offer, required, self.confidence, ask)
        wish = ask(offer.available)
        if self.simultaneous and not (self.confidence == "anytime" and base.noise_is_known(fit)):
            lower = lower_bounds(fit, offer, required, self.confidence, control=True)
            return _mixed_by_bounds(wish, lower, offer, ask)
        r = base.radius(fit, self.confidence)
        ok = base.certified_arms(fit, required, r, offer.available)
        wished = [np.vecmat(wish, c.w) for c in required]
        each = (c.certified(fit, w[..., None, :], r)[..., 0] for c, w in zip(required, wished, strict=True))
        whole = reduce(np.logical_and, each)
        if not whole.all():  # mixtures of certified arms are certified; round-off must not say otherwise
            whole = whole | (ok | (wish == 0)).all(-1)
        if whole.all():
            return Guarded(wish, np.full(whole.shape, UNCHANGED), np.ones(whole.shape), ok.sum(-1))
        safe = base.safe_choice(ok, offer, ask)
        shares = [
            margin.largest_share(np.vecmat(safe, c.w), w, c.x0, fit.theta, fit.metric, r, c.relative, c.absolute)
            for c, w in zip(required, wished, strict=True)
        ]
        return base.mixed(wish, safe, np.where(whole, 1.0, reduce(np.minimum, shares)), ok, offer)


def _mixed_by_bounds(wish: FloatArray, lower: list[FloatArray], offer: Offer, ask: AskRule) -> Guarded:
    """The largest certified rho where bounds on all arms' margins hold at once: their mean bounds a lottery's."""
    ok = _positive(lower, offer)
    safe = base.safe_choice(ok, offer, ask)
    shares = []
    for F in lower:
        wished, kept = np.vecdot(wish, F[..., :-1]), np.vecdot(safe, F[..., :-1])
        kept = np.maximum(np.where(ok.any(-1), kept, F[..., -1]), 0.0)
        whole = wished >= 0
        # rho wished + (1 - rho) kept = 0
        shares.append(np.where(whole, 1.0, kept / np.where(whole, 1.0, kept - wished)))
    share = np.where((ok | (wish == 0)).all(-1), 1.0, reduce(np.minimum, shares))
    return base.mixed(wish, safe, share, ok, offer)


def _positive(lower: list[FloatArray], offer: Offer) -> BoolArray:
    """The available arms whose lower bound is not negative in any constraint: (..., K + 1) each -> (..., K)."""
    ok = reduce(np.logical_and, (F[..., :-1] >= 0 for F in lower))
    return ok if offer.available is None else ok & offer.available


def lower_bounds(
    fit: Fit, offer: Offer, required: list[Constraint], confidence: float | str, *, control: bool
) -> list[FloatArray]:
    """For each constraint bounds on the margins of all arms, and last of the control: (..., K + 1).

    They hold together for the available arms, and with `control` for the control's own too. A lottery's margin is the
    mean of its arms' margins, and at least the mean of their bounds.
    """
    nu = [_freedom(fit, offer, c) for c in required]
    if isinstance(confidence, str):  # its region has every direction in it; with nu degrees of freedom it grows
        squared = np.asarray(fit.radius / fit.noise_bound)[..., None] ** 2
        own = [np.minimum(v, MOST_FREEDOM) for v in nu]
        quantiles = [np.sqrt(v * np.expm1(np.minimum(squared / v, LARGEST_EXPONENT))) for v in own]
    else:
        arcs = [_arcs(fit, offer, c, control) for c in required]
        count = reduce(np.add, (used.sum(-1, keepdims=True) for _, used in arcs))
        tail = (1 - confidence) / np.maximum(count, 1)
        nu = [np.minimum(own, np.asarray(fit.freedom)[..., None]) for own in nu]
        scale = np.sqrt(1 - 2 / np.asarray(fit.freedom))[..., None]  # of a variance of one
        quantiles = [scale * arc_quantile(angle, tail, own) for (angle, _), own in zip(arcs, nu, strict=True)]
    wide = (fit.noise_bound * np.sqrt(fit.inflation))[..., None]
    theta, metric = fit.theta[..., None, :], fit.metric[..., None, :, :]  # a radius for each arm
    lower = []
    for c, q in zip(required, quantiles, strict=True):
        w = np.concatenate((c.w, np.zeros_like(c.w[..., :1, :])), -2)[..., None, :]
        F, _ = margin.worst_case(w, c.x0[..., None, :], theta, metric, q * wide, c.relative, c.absolute)
        lower.append(F[..., 0])
    return lower


def arc_quantile(angle: FloatArray, tail: FloatArray, nu: FloatArray) -> FloatArray:
    """c such that P(<g, z> > c |g| for any g of an arc) = tail, z with nu degrees of freedom; pi: two points."""
    normal = np.isinf(nu)
    finite = np.where(normal, MOST_FREEDOM, nu)
    points = np.where(angle == np.pi, 2.0, 1.0)
    length = np.where(angle == np.pi, 0.0, angle) / (2 * np.pi)
    c = -stdtrit(nu, FAR_TAIL * tail)
    for _ in range(STEPS):  # every step stays above the root, so that no more than the tail is beyond it
        height = np.exp(-0.5 * np.where(normal, c * c, finite * np.log1p(c * c / finite)))
        c = -stdtrit(nu, tail / (points + length * height / stdtr(nu, -c)))
    return np.asarray(c)


def _arcs(fit: Fit, offer: Offer, c: Constraint, control: bool) -> tuple[FloatArray, BoolArray]:
    """The angle of each arm's directions, and last of the control's, and which of them count: (..., K + 1) twice."""
    moves = (c.w != 0).any(-1)
    used = moves if offer.available is None else moves & offer.available
    counts = control and c.relative > 0  # with an absolute tolerance alone the control's margin is certain
    used = np.concatenate((used, np.full((*used.shape[:-1], 1), counts)), -1)
    w, x0 = np.concatenate((c.w, np.zeros_like(c.w[..., :1, :])), -2), c.relative * c.x0
    Sx0 = np.matvec(fit.metric, x0)
    E, mu0 = np.maximum(np.vecdot(x0, Sx0), 0.0), np.vecdot(x0, fit.theta)
    sure = np.abs(mu0) > BEYOND_DOUBT * np.sqrt(E * fit.inflation) * fit.noise_bound
    first = np.where(sure & (mu0 > 0), 1.0, -1.0)[..., None]  # t of the two ends
    last = np.where(sure & (mu0 < 0), -1.0, 1.0)[..., None]
    C, D, E = np.vecdot(np.matmul(w, fit.metric), w), np.matvec(w, Sx0), E[..., None]
    one, other = (np.maximum(C + 2 * t * D + t * t * E, 0.0) for t in (first, last))
    cosine = (C + (first + last) * D + first * last * E) / np.sqrt(np.maximum(one * other, NEVER_ZERO))
    return np.where(cosine < OPPOSITE - 1, np.pi, np.arccos(np.clip(cosine, -1.0, 1.0))), used


def _freedom(fit: Fit, offer: Offer, c: Constraint) -> FloatArray:
    """Degrees of freedom of the noise in each arm's margin, infinite where the noise is known: (..., K + 1).

    Two bounds, the smaller counts. The inflation is 1 + 4 / nu to first order, nu the mean degrees of freedom of an
    arm's own noise (models/noise_estimation.py), and a margin rests on two arms at least: 2 nu. And where a share f_b
    of a margin's variance comes from the n_b outcomes of arm b, Satterthwaite's 1 / sum f_b^2 / (n_b + PRIOR): an arm
    that was played once may be noisier than all others.
    """
    excess = np.asarray(fit.inflation - 1.0)[..., None]
    shape = (*np.broadcast_shapes(excess.shape[:-1], fit.pulls.shape[:-1], c.w.shape[:-2]), c.w.shape[-2] + 1)
    if base.noise_is_known(fit) or not (excess > 0).any():
        return np.full(shape, np.inf)
    w = np.concatenate((c.w, c.x0[..., None, :]), -2)
    along = np.matmul(np.matmul(w, fit.V_inv), np.swapaxes(offer.features, -1, -2))  # (..., K + 1, K), of arms b
    sigma = np.ones(fit.pulls.shape) if offer.sigma is None else offer.sigma
    variance = np.maximum(fit.leverage(w), NEVER_ZERO)[..., None]
    f = (fit.pulls / sigma**2)[..., None, :] * along**2 / variance
    f = f / np.maximum(f.sum(-1, keepdims=True), 1.0)
    scatter = np.vecdot(f * f, 1 / (fit.pulls + PRIOR)[..., None, :])
    return np.broadcast_to(1 / np.maximum(np.maximum(excess / 8, scatter), 1 / MOST_FREEDOM), shape)


def margins_in_draws(fit: Fit, c: Constraint, w: FloatArray) -> FloatArray:
    """Of choices with features w (..., r, d) against the control, with the tolerance, in each draw: (..., r, S)."""
    draws = np.swapaxes(_draws(fit), -1, -2)  # (..., d, S)
    if fit.unproven is not None and fit.bounds is not None:
        worst = np.where(w >= 0, fit.bounds[0], fit.bounds[1])
        replaced = fit.unproven[..., None, :] & np.isfinite(worst) & (w != 0)
        fixed = np.where(replaced, w * np.where(replaced, worst, 0.0), 0.0).sum(-1, keepdims=True)
        value = np.matmul(np.where(replaced, 0.0, w), draws) + fixed
    else:
        value = np.matmul(w, draws)
    return np.asarray(value + c.relative * np.abs(np.matmul(c.x0[..., None, :], draws)) + c.absolute)


def certified_by_draws(fit: Fit, offer: Offer, required: list[Constraint], confidence: float | str) -> BoolArray:
    """The available arms whose margin is certified in every constraint: (..., K)."""
    most = allowed_failures(fit, confidence)
    ok = reduce(np.logical_and, ((margins_in_draws(fit, c, c.w) < 0).sum(-1) <= most for c in required))
    return ok if offer.available is None else ok & offer.available


def allowed_failures(fit: Fit, confidence: float | str) -> int:
    """The number of draws that may break a promise at this level."""
    if isinstance(confidence, str):
        raise ConfigError(
            "confidence 'anytime' needs outcomes that are plain numbers: with yes-or-no outcomes, counts or scores a "
            "promise holds in each decision; give a level such as 0.99 instead"
        )
    return int((1 - confidence) * _draws(fit).shape[-2])


def mixed_by_draws(
    fit: Fit, offer: Offer, required: list[Constraint], confidence: float | str, ask: AskRule
) -> Guarded:
    """p' = rho wish + (1 - rho) safe with the largest certified rho."""
    wish, most = ask(offer.available), allowed_failures(fit, confidence)
    ok = certified_by_draws(fit, offer, required, confidence)
    safe = base.safe_choice(ok, offer, ask)
    shares = []
    for c in required:
        both = np.stack([np.vecmat(safe, c.w), np.vecmat(wish, c.w)], -2)
        kept, wished = np.moveaxis(margins_in_draws(fit, c, both), -2, 0)  # (..., S) twice
        falls = wished < kept
        limit = np.where(falls, kept / np.where(falls, kept - wished, 1.0), np.inf)
        limit = np.where(kept < 0, 0.0, limit)  # a draw that breaks it anyway
        shares.append(np.clip(np.partition(limit, most, -1)[..., most], 0.0, 1.0))
    return base.mixed(wish, safe, reduce(np.minimum, shares), ok, offer)


def _draws(fit: Fit) -> FloatArray:
    if fit.draws is None:
        raise ConfigError("certificates from draws need a belief that has them")
    return fit.draws
