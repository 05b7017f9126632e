"""Looks at a batch of simulated trials after a season: what each would say of its arms.

For each user the model's estimate and likely range; for all users together the same, the model's range at all times,
and the range from the propensities alone. Shapes: S trials, H users who are looked at, K arms, M metrics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from drimed.evaluation import regression_effects
from drimed.learning.field import contrasts, many
from drimed.learning.field.confirmed import is_confirmed
from drimed.learning.field.contrasts import ALPHA, LIKELY
from drimed.learning.field.learner import Field
from drimed.learning.offer import Offer
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.policies.contract import AnyPolicy
from drimed.policies.policy import Policy

ONE_SIDE = 0.5 + LIKELY / 2
Together = tuple[FloatArray, FloatArray, FloatArray, FloatArray, BoolArray]  # mean to stands of a look: (S, K) each


@dataclass(frozen=True)
class Look:
    """After one season."""

    estimate: FloatArray  # (S, H, K), effects on the reward
    half: FloatArray  # (S, H, K), of the likely range
    mean: FloatArray  # (S, K), of all users together
    likely: FloatArray  # (S, K), half of its likely range
    low: FloatArray  # (S, K), of its range at all times
    high: FloatArray  # (S, K)
    stands: BoolArray  # (S, K), whether its likely range says the same allowing for the number of arms
    confirmed: BoolArray  # (S, K), whether enough seasons have told of arm and control for the model to say anything


def weights(offers: Offer, some: BoolArray | None = None) -> FloatArray:
    """Of each user in the mean effect of an arm: (H, K), over those who can get it, or over `some` (H,) of them."""
    control = offers.control[0]
    mine = np.ones(len(control), bool) if some is None else some
    possible = np.ones(control.shape, bool) if offers.available is None else offers.available[0]
    found = np.zeros(control.shape)
    found[mine] = contrasts.weights(possible[mine])
    return found


def look(policy: AnyPolicy, state: Any, offers: Offer) -> Look:
    """At a settled state, of offers (S, H) in a typical context; NaN and infinite where a policy estimates no effects.

    Policies of the published algorithms estimate reward over noise.
    """
    if not isinstance(policy, Policy):
        shape = offers.control.shape
        nothing, endless = np.full(shape, np.nan), np.full(shape, np.inf)
        wide = endless[:, 0]
        all_of_them = np.ones(wide.shape, bool)
        return Look(nothing, endless, nothing[:, 0], wide, -wide, wide, all_of_them, all_of_them)
    estimate, half = policy.effects(state, offers, ONE_SIDE)
    together = (_field if isinstance(policy.learner, Field) else _regression)(policy, state, offers)
    confirmed = np.broadcast_to(is_confirmed(policy.learner, state.evidence, offers), estimate.shape).all(-2)
    return Look(estimate, half, *together, np.asarray(confirmed))


def _field(policy: Policy, state: Any, offers: Offer) -> Together:
    """All users together: the mean of their rows on what lasts."""
    learner: Any = policy.learner
    possible = np.ones(offers.control.shape, bool) if offers.available is None else offers.available
    found = contrasts.together(contrasts.know(learner, state.evidence, offers), offers, possible).at((..., 0))
    low, high = found.at_all_times(ALPHA)
    arms = many.compared(offers.control, offers.available)
    return found.mean, found.beyond(ONE_SIDE), low, high, many.stands(found, None, arms, 1)


def _regression(policy: Policy, state: Any, offers: Offer) -> Together:
    """The same for the paper's model: its guaranteed range, as a report has it."""
    fit = policy.fit(state)
    found = regression_effects.group_effects(fit, offers, range(offers.control.shape[-2]))
    share = np.asarray(ndtri(ONE_SIDE) * fit.noise_bound / fit.radius)[..., None]
    half = share * (found.estimate - found.low)
    return found.estimate, half, found.low, found.high, np.ones(half.shape, bool)
