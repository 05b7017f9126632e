"""The guards `certain` and `expected`: what is played is certified against the control, arm by arm or as a whole.

`certain` plays certified arms only; the control, or its lottery, is always allowed. With confidence "anytime" no
decision at all falls short of the promise, with probability 1 - delta. The price: where few outcomes are seen per
decision, the certified set may not grow beyond the control for a long time.

`expected` certifies the mixture that is played, so that exploration is paid for by certified arms and a trial does not
freeze on the control. Where the rule's wish is not certified as a whole, the rule is asked again on the certified arms,
and as much of its wish is mixed in as the certificate allows. The probabilities stay exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import reduce
from typing import ClassVar, final

import numpy as np

from drimed.models.offer import Fit, Offer
from drimed.numerics import quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.numerics.compiled import helper, kernel
from drimed.numerics.probability import shrunk
from drimed.numerics.quadratic_forms import WIDE, entries_of
from drimed.policies.guards import margin
from drimed.policies.guards.base import (
    UNCHANGED,
    AskRule,
    Constraint,
    Guarded,
    Guardrail,
    Protects,
    above_zero,
    certified_arms,
    certified_whole,
    check_confidence,
    constraints,
    explained,
    only_safe,
    radius,
    safe_choice,
)
from drimed.policies.guards.margin import Tolerance

# A radius at which the margins of all arms hold at once, so that whatever a guard picks among them is covered.

# Nodes and weights of Gauss and Legendre on [0, 1]: the integrals are smooth, and right to 1e-9 of themselves.
_NODES, _WEIGHTS = (np.ascontiguousarray(a) for a in np.polynomial.legendre.leggauss(16))
NODES, WEIGHTS = 0.5 * (_NODES + 1.0), 0.5 * _WEIGHTS
NOTHING = 1e-12  # a direction this short, as a share of the longest, has no error of its own: it is round-off
OPPOSITE = 1e-5  # arcs as near to half a circle as this come from features that pass through zero: two points
ENOUGH = 1e-7  # relative: the radius need not be found better than this
NEAR = 1e-9  # relative: so near, and no nearer, need Newton's steps come to it; far above round-off
LAST_STEP = 1e-5  # relative: after a step of Newton's as small as this the root is that near
NEWTON_STEPS = 20  # more than it needs
FIRST_GUESS = 2.5
PRIOR = 3.0  # outcomes that the prior of an arm's noise counts as (learning/noise_model.py)
MOST_FREEDOM = 1e6  # as good as infinite
LARGEST_EXPONENT = 600.0  # beyond which a radius is as good as infinite
BEYOND_DOUBT = 8.0  # standard errors from zero: the sign of the control's mean is what it seems to be


def lower_bounds(
    fit: Fit, offer: Offer, required: list[Constraint], confidence: float | str, *, control: bool
) -> list[FloatArray]:
    """For each constraint bounds on the margins of all arms, and last of the control: (..., K + 1).

    They hold together for the available arms, and with `control` for the control's own too. A lottery's margin is the
    mean of its arms' margins, and at least the mean of their bounds.
    """
    arcs = [_arcs(fit, offer, each, control) for each in required]
    nu = np.concatenate([freedom(fit, offer, each) for each in required], -1)
    if isinstance(confidence, str):  # its region has every direction in it
        r0 = np.asarray(fit.radius / fit.noise_bound)[..., None]
        grown = np.where(nu == np.inf, 1.0, nu)
        c = np.where(nu == np.inf, r0, np.sqrt(grown * np.expm1(np.minimum(r0 * r0 / grown, LARGEST_EXPONENT))))
    else:
        first, last = (np.concatenate([each[end] for each in arcs], -2) for end in (0, 1))
        used = np.concatenate([each[2] for each in arcs], -1)
        nu = np.minimum(nu, np.asarray(fit.freedom)[..., None])
        c = quantile(first, last, used, fit.metric, 1 - confidence, nu) * np.asarray(shrunk(fit.freedom))[..., None]
    r = c * (fit.noise_bound * np.sqrt(fit.inflation))[..., None]
    parts = np.split(r, len(required), -1)
    return [each.lower(fit, part) for each, part in zip(required, parts, strict=True)]


def noise_is_known(fit: Fit) -> bool:
    """Whether the fit rests on no estimate of the noise."""
    return isinstance(fit.inflation, float) and fit.inflation == 1.0


def freedom(fit: Fit, offer: Offer, c: Constraint) -> FloatArray:
    """Degrees of freedom of the noise in each arm's margin, infinite where the noise is known: (..., K + 1).

    Two bounds, the smaller counts. The inflation is 1 + 4 / nu to first order, nu the mean degrees of freedom of an
    arm's own noise (learning/learned.py), and a margin rests on two arms at least: 2 nu. And where a share f_b of a
    margin's variance comes from the n_b outcomes of arm b, Satterthwaite's 1 / sum f_b^2 / (n_b + PRIOR): an arm that
    was played once may be noisier than all others, and nobody knows yet.
    """
    excess = np.asarray(fit.inflation - 1.0)[..., None]
    shape = (*np.broadcast_shapes(excess.shape[:-1], fit.pulls.shape[:-1], c.w.shape[:-2]), c.w.shape[-2] + 1)
    if noise_is_known(fit) or not (excess > 0).any():
        return np.full(shape, np.inf)
    w = np.concatenate((c.w, c.x0[..., None, :]), -2)
    along = np.matmul(np.matmul(w, fit.V_inv), np.swapaxes(offer.features, -1, -2))  # (..., K + 1, K), of arms b
    sigma = np.ones(fit.pulls.shape) if offer.sigma is None else offer.sigma
    variance = np.maximum(fit.leverage(w), quadratic_forms.NEVER_ZERO)[..., None]
    f = (fit.pulls / sigma**2)[..., None, :] * along**2 / variance
    f = f / np.maximum(f.sum(-1, keepdims=True), 1.0)
    scatter = np.vecdot(f * f, 1 / (fit.pulls + PRIOR)[..., None, :])
    return np.broadcast_to(1 / np.maximum(np.maximum(excess / 8, scatter), 1 / MOST_FREEDOM), shape)


def _arcs(fit: Fit, offer: Offer, c: Constraint, control: bool) -> tuple[FloatArray, FloatArray, BoolArray]:
    """The directions of all arms' margins, and last the control's: first and last ends, and which count."""
    w = np.concatenate((c.w, np.zeros_like(c.w[..., :1, :])), -2)
    used = (c.w != 0).any(-1) if offer.available is None else (c.w != 0).any(-1) & offer.available
    used = np.concatenate((used, np.full((*used.shape[:-1], 1), control)), -1)
    x0 = c.relative * c.x0
    error = np.sqrt(quadratic_forms.leverages(x0[..., None, :], fit.metric)[..., 0] * fit.inflation) * fit.noise_bound
    mu0 = np.vecdot(x0, fit.theta)
    sure = np.abs(mu0) > BEYOND_DOUBT * error
    first = w + (np.where(sure & (mu0 > 0), 1.0, -1.0)[..., None] * x0)[..., None, :]
    last = w + (np.where(sure & (mu0 < 0), -1.0, 1.0)[..., None] * x0)[..., None, :]
    return first, last, used


def quantile(
    first: FloatArray, last: FloatArray, used: BoolArray, metric: FloatArray, tail: float, nu: FloatArray
) -> FloatArray:
    """c such that P(<g, z> > c |g| for any g) <= tail, with g on the arcs from `first` to `last`, (..., n, d).

    z has the covariance `metric`, and its noise the degrees of freedom nu: (..., q) -> (..., q), one c for each. An arc
    is a point where both ends are the same, and two points where they are opposite.

    >>> e = np.eye(2)
    >>> quantile(e, e, np.array([True, False]), np.eye(2), 0.01, np.array([np.inf, 10.0])).round(4).tolist()
    [2.3263, 2.7638]
    """
    return _quantile(first, last, used, metric, tail, nu, NODES, WEIGHTS)


@kernel(
    "void(f8[:,:], f8[:,:], b1[:], f8[:,:], f8, f8[:], f8[:], f8[:], f8[:])",
    "(n,d),(n,d),(n),(d,d),(),(q),(m),(m)->(q)",
)
def _quantile(first, last, used, S, tail, nu, nodes, weights, c):  # type: ignore[no-untyped-def]
    n, d = first.shape
    ends, Sends = np.zeros((2 * n, d)), np.zeros((2 * n, d))
    wide = d >= WIDE
    size, there = np.zeros(2 * n), np.empty(d if wide else 0, np.int64)
    longest = 0.0
    for k in range(n):
        for e in range(2):
            at = 2 * k + e
            for i in range(d):
                ends[at, i] = first[k, i] if e == 0 else last[k, i]
            m = entries_of(ends[at], there) if wide else d
            for i in range(d):
                if wide:
                    for j in there[:m]:
                        Sends[at, i] += S[i, j] * ends[at, j]
                else:
                    for j in range(d):
                        Sends[at, i] += S[i, j] * ends[at, j]
                size[at] += ends[at, i] * Sends[at, i]
            size[at] = np.sqrt(max(size[at], 0.0))
            if used[k]:
                longest = max(longest, size[at])
    angle = np.zeros((2 * n, 2 * n))
    for a in range(2 * n):
        m = entries_of(ends[a], there) if wide else d
        for b in range(a):
            product = 0.0
            if wide:
                for i in there[:m]:
                    product += ends[a, i] * Sends[b, i]
            else:
                for i in range(d):
                    product += ends[a, i] * Sends[b, i]
            scale = size[a] * size[b]
            cosine = product / (scale if scale > 0.0 else 1.0)
            angle[a, b] = math.acos(min(max(cosine, -1.0), 1.0))
            angle[b, a] = angle[a, b]
    halves, arcs = _tree(angle, size, used, NOTHING * longest)
    cosines = np.cos(halves.reshape(-1, 1) * nodes)
    for q in range(nu.shape[0]):
        known = q > 0 and nu[q] == nu[q - 1]
        guess = c[q - 1] if q > 0 and c[q - 1] > 0.0 else FIRST_GUESS
        c[q] = c[q - 1] if known else _root(halves, arcs, tail, nu[q], cosines, weights, guess)


@helper
def _tree(angle: FloatArray, size: FloatArray, used: BoolArray, least: float) -> tuple[FloatArray, float]:
    """Half the angles at which each direction joins the others, and half the summed length of the arcs."""
    n2 = size.shape[0]
    halves = np.zeros(n2)
    near = np.full(n2, np.pi)  # the first has no neighbour
    left = np.zeros(n2, np.bool_)
    for a in range(n2):
        left[a] = used[a // 2] and size[a] > least
    arcs, joined = 0.0, 0
    while True:
        nearest = -1
        for a in range(n2):
            if left[a] and (nearest < 0 or near[a] < near[nearest]):
                nearest = a
        if nearest < 0:
            break
        halves[joined] = 0.5 * near[nearest]
        joined += 1
        left[nearest] = False
        other = nearest + 1 if nearest % 2 == 0 else nearest - 1
        length = angle[nearest, other]
        if left[other] and length < np.pi - OPPOSITE:  # an arc, which brings its other end along
            left[other] = False
            arcs += 0.5 * length
            _closer(angle[other], left, near)
        _closer(angle[nearest], left, near)
    return halves[:joined], arcs


@helper
def _closer(angle: FloatArray, left: BoolArray, near: FloatArray) -> None:
    for a in range(angle.shape[0]):
        if left[a]:
            near[a] = min(near[a], angle[a])


@helper
def _root(
    halves: FloatArray, arcs: float, tail: float, nu: float, cosines: FloatArray, weights: FloatArray, guess: float
) -> float:
    """Where the bound on the probability that any direction exceeds c falls to `tail`.

    By halving, which takes some thirty steps. The bound falls with c, so that what Newton's steps have found beforehand
    answers nearly all of them: the result is that of halving alone, to the last bit.
    """
    if halves.shape[0] == 0:
        return 0.0
    below, above = _around(halves, arcs, tail, nu, cosines, weights, guess)
    low, high, c = 0.0, np.inf, 1.0
    while c > 0.0:
        beyond = c <= below
        if below < c < above:
            beyond = _bound(halves, arcs, c, nu, cosines, weights)[0] > np.pi * tail
        if beyond:
            low = c
        else:
            high = c
        if high - low <= ENOUGH * c:
            return high
        c = 2.0 * low if high == np.inf else 0.5 * (low + high)
    return 0.0


@helper
def _around(
    halves: FloatArray, arcs: float, tail: float, nu: float, cosines: FloatArray, weights: FloatArray, guess: float
) -> tuple[float, float]:
    """Two numbers that the root is between, near each other where Newton's method on the logarithm finds it."""
    below, above, c = 0.0, np.inf, guess
    for _ in range(NEWTON_STEPS):
        total, slope = _bound(halves, arcs, c, nu, cosines, weights)
        if not (total > 0.0 and slope < 0.0):  # so far out that nothing is left of it
            above = min(above, c)
            c = 0.5 * (below + above)
            continue
        if total > np.pi * tail:
            below = max(below, c)
        else:
            above = min(above, c)
        to = c - np.log(total / (np.pi * tail)) * total / slope
        if not below < to < above:
            to = 2.0 * below if above == np.inf else 0.5 * (below + above)
        done = abs(to - c) <= LAST_STEP * c
        c = to
        if done:
            break
    for side in range(2):  # just below, and just above
        end = c * (1.0 - NEAR) if side == 0 else c * (1.0 + NEAR)
        if below < end < above:
            if _bound(halves, arcs, end, nu, cosines, weights)[0] > np.pi * tail:
                below = end
            else:
                above = end
    return below, above


@helper
def _bound(
    halves: FloatArray, arcs: float, c: float, nu: float, cosines: FloatArray, weights: FloatArray
) -> tuple[float, float]:
    """Pi times the bound, and its derivative."""
    total = arcs * _h(c, nu)
    slope = total * _fall(c, nu)
    for e in range(halves.shape[0]):
        for m in range(weights.shape[0]):
            x = c / cosines[e, m]
            each = halves[e] * weights[m] * _h(x, nu)
            total += each
            slope += each * _fall(x, nu) / cosines[e, m]
    return total, slope


@helper
def _fall(x: float, nu: float) -> float:
    """The derivative of log h."""
    return -x if nu == np.inf else -x / (1.0 + x * x / nu)


@helper
def _h(x: float, nu: float) -> float:
    return np.exp(-0.5 * x * x) if nu == np.inf else np.exp(-0.5 * nu * np.log1p(x * x / nu))


@final
@dataclass(frozen=True, kw_only=True)
class Certain:
    """The rule is asked on the certified arms only.

    >>> Certain(confidence="anytime").promise
    'every arm played is certified against the control'
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = 0.99  # a level per decision, or "anytime"
    guardrails: tuple[Guardrail, ...] = ()
    simultaneous: bool = False  # a level is for all arms of a decision at once, not for each of them

    protects: ClassVar[Protects] = "every arm"
    promise: ClassVar[str] = "every arm played is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        required = constraints(offer, self.tolerance, self.guardrails)
        if self.simultaneous:
            lower = lower_bounds(fit, offer, required, self.confidence, control=False)
            return only_safe(above_zero(lower, offer.available), offer, ask)
        r = radius(fit, self.confidence)
        return only_safe(certified_arms(fit, required, r, offer.available), offer, ask)


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """p' = rho wish + (1 - rho) safe with the largest certified rho.

    >>> Expected().confidence
    0.99
    """

    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))
    confidence: float | str = 0.99  # a level per decision, or "anytime"
    guardrails: tuple[Guardrail, ...] = ()
    simultaneous: bool = False  # a level is for all arms of a decision at once, not for each of them

    protects: ClassVar[Protects] = "expected reward"
    promise: ClassVar[str] = "the expected reward of each decision is certified against the control"

    def __post_init__(self) -> None:
        check_confidence(self.confidence)

    def apply(self, state: None, fit: Fit, offer: Offer, ask: AskRule) -> Guarded:
        del state
        wish = ask(offer.available, None)
        required = constraints(offer, self.tolerance, self.guardrails)
        if self.simultaneous and not (self.confidence == "anytime" and noise_is_known(fit)):
            lower = lower_bounds(fit, offer, required, self.confidence, control=True)
            return _mixed(wish, lower, offer, ask)
        r = radius(fit, self.confidence)
        ok, whole = certified_arms(fit, required, r, offer.available), certified_whole(fit, required, wish, r)
        if not whole.all():  # mixtures of certified arms are certified; round-off must not say otherwise
            whole = whole | (ok | (wish == 0)).all(-1)
        if whole.all():
            return Guarded(wish, np.full(whole.shape, UNCHANGED), np.ones(whole.shape), ok.sum(-1))
        safe = safe_choice(ok, offer, ask)
        shares = [
            margin.largest_share(fit, c.mixed(safe), c.mixed(wish), c.x0, c.relative, c.absolute, r) for c in required
        ]
        share = np.where(whole, 1.0, reduce(np.minimum, shares))
        p = share[..., None] * wish + (1 - share)[..., None] * safe
        return explained(p, share, ok, offer)


def _mixed(wish: FloatArray, lower: list[FloatArray], offer: Offer, ask: AskRule) -> Guarded:
    """The largest certified rho where bounds on all arms' margins hold at once: their mean bounds a lottery's."""
    ok = above_zero(lower, offer.available)
    safe = safe_choice(ok, offer, ask)
    shares = []
    for F in lower:
        wished, kept = np.vecdot(wish, F[..., :-1]), np.vecdot(safe, F[..., :-1])
        kept = np.maximum(np.where(ok.any(-1), kept, F[..., -1]), 0.0)
        whole = wished >= 0
        shares.append(
            np.where(whole, 1.0, kept / np.where(whole, 1.0, kept - wished))
        )  # rho wished + (1 - rho) kept = 0
    share = np.where((ok | (wish == 0)).all(-1), 1.0, reduce(np.minimum, shares))
    p = share[..., None] * wish + (1 - share)[..., None] * safe
    return explained(p, share, ok, offer)
