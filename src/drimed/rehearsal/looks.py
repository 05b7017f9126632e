"""Looks at a batch of simulated trials after a season: what each would say of its arms.

For each user the model's estimate and likely range; for all users together the same, the model's range at all times,
and the range from the propensities alone. Shapes: S trials, H users who are looked at, K arms, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.special import ndtri

from drimed.evaluation import effects as linear
from drimed.learning.field import tails
from drimed.learning.field.confirmed import is_confirmed
from drimed.learning.field.contrasts import ALPHA, LIKELY, NORMAL, Found
from drimed.learning.field.design import UNKNOWN
from drimed.learning.field.learner import Field
from drimed.learning.field.model import standardised
from drimed.learning.offer import Offer
from drimed.linear import student
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.policies.contract import AnyPolicy
from drimed.policies.policy import Policy

ONE_SIDE = 0.5 + LIKELY / 2
Together = tuple[FloatArray, FloatArray, FloatArray, FloatArray]  # mean, likely, low and high of a look: (S, K) each


@dataclass(frozen=True)
class Look:
    """After one season."""

    estimate: FloatArray  # (S, H, K), effects on the reward
    half: FloatArray  # (S, H, K), of the likely range
    mean: FloatArray  # (S, K), of all users together
    likely: FloatArray  # (S, K), half of its likely range
    low: FloatArray  # (S, K), of its range at all times
    high: FloatArray  # (S, K)
    confirmed: BoolArray  # (S, K), whether enough seasons have told of arm and control for the model to say anything


def weights(offers: Offer, some: BoolArray | None = None) -> FloatArray:
    """Of each user in the mean effect of an arm: (H, K), over those who can get it, or over `some` (H,) of them."""
    control = offers.control[0]
    mine = np.ones(len(control), bool) if some is None else some
    possible = np.broadcast_to(mine[:, None], control.shape).astype(np.float64)
    if offers.available is not None:
        possible *= offers.available[0]
    possible[:, ~possible.any(0)] = mine[:, None]
    return np.asarray(possible / possible.sum(0))


def look(policy: AnyPolicy, state: Any, offers: Offer) -> Look:
    """At a settled state, of offers (S, H) in a typical context; NaN and infinite where a policy estimates no effects.

    Policies of the published algorithms estimate reward over noise.
    """
    if not isinstance(policy, Policy):
        shape = offers.control.shape
        nothing, endless = np.full(shape, np.nan), np.full(shape, np.inf)
        wide = endless[:, 0]
        return Look(nothing, endless, nothing[:, 0], wide, -wide, wide, np.ones(wide.shape, bool))
    estimate, half = policy.effects(state, offers, ONE_SIDE)
    together = (_field if isinstance(policy.learner, Field) else _regression)(policy, state, offers)
    confirmed = np.broadcast_to(is_confirmed(policy.learner, state.evidence, offers), estimate.shape).all(-2)
    return Look(estimate, half, *together, np.asarray(confirmed))


def _field(policy: Policy, state: Any, offers: Offer) -> Together:
    """All users together: the mean of their rows on what lasts."""
    learner: Any = policy.learner
    evidence = state.evidence
    structure, learned = learner.structure(evidence), evidence.learned
    keys, z = learner._reading.asked(offers, max(evidence.season, 0), structure.arms, together=True)
    scale = learned.scale
    wide = replace(scale, centre=scale.centre[..., None, :], unit=scale.unit[..., None, :])
    X = structure.common.rows(keys, standardised(structure, wide, z))  # (..., H, K, P)
    control, M = offers.control[0], structure.metrics
    X = X - np.einsum("hk,...hkp->...hp", control, X)[..., None, :]
    unit = scale.unit[..., structure.covariates :]  # (S, M)
    p = np.ones((len(control), M)) if offers.preference is None else offers.preference[0]
    X = np.broadcast_to(X, (len(unit), *X.shape[-3:]))
    rows = np.einsum("hk,hm,sm,shkp->skmp", weights(offers), p, unit, X)
    size = rows.shape[-2] * rows.shape[-1]
    flat = rows.reshape(*rows.shape[:-2], size)
    mean = np.einsum("ski,si->sk", flat, learned.theta.reshape(-1, size))
    variance = np.einsum("ski,sij,skj->sk", flat, learned.covariance.reshape(-1, size, size), flat, optimize=True)
    prior = learned.variance.mean(-3)[..., structure.common.family].reshape(-1, size)
    before = np.sqrt(np.einsum("ski,si->sk", flat**2, prior))
    known = scale.known.reshape(-1, 1) > 0
    blank = np.where(before > 0, UNKNOWN, 0.0)
    deviation = np.where(known, np.sqrt(np.maximum(variance, 0.0)), blank)
    freedom = NORMAL
    if learner.tails:
        found = tails.of_sums(tails.by_family(structure.common, rows**2), learned.variance, variance)
        freedom = np.where(known, found, np.inf)
    low, high = Found(mean, deviation, np.where(known, before, blank), freedom).at_all_times(ALPHA)
    return mean, student.quantile(ONE_SIDE, freedom) * deviation, low, high


def _regression(policy: Policy, state: Any, offers: Offer) -> Together:
    """The same for the paper's model: its guaranteed range, as a report has it."""
    fit = policy.fit(state)
    found = linear.group_effects(fit, offers, {"": range(offers.control.shape[-2])})[""]
    share = np.asarray(ndtri(ONE_SIDE) * fit.noise_bound / fit.radius)[..., None]
    return found.estimate, share * (found.estimate - found.low), found.low, found.high
