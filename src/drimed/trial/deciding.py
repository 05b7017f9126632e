"""From what is known to decisions, for one user or for many at once: what is written, and later replayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed import streams
from drimed.guards import constraint
from drimed.guards.decision import REASONS, Decision
from drimed.learning.offer import Offer
from drimed.linear import forms
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.policies.policy import Policy
from drimed.trial.memory import Memory
from drimed.trial.problem import Profile


@dataclass(frozen=True)
class Asked:
    """One user's question."""

    profile: Profile
    context: FloatArray | None  # (D,), as it was given
    excluded: list[str]  # arms that are unavailable
    available: BoolArray | None  # (K,), the same as a mask


def decide(memory: Memory, asked: Sequence[Asked]) -> list[dict[str, Any]]:
    """The decisions, as they are written down: all from the present state, numbered on from the last one."""
    first, shape = memory.counts.decisions, memory.problem.shape
    draws = streams.uniforms(memory.seed, "policy", first, len(asked), memory.policy.draws_needed(shape))
    state = memory.settled()
    if len(asked) == 1:
        offer = memory.problem.offer(asked[0].profile, asked[0].context, asked[0].available)
        one = memory.policy.decide(state, offer, draws[0])
        return _bodies(memory, asked, first, one, _effects(memory, state, offer))
    if isinstance(memory.policy, Policy):
        offers = memory.problem.offers(*zip(*((a.profile, a.context, a.available) for a in asked), strict=True))
        many = memory.policy.decide_together(state, offers, draws)
        return _bodies(memory, asked, first, many, _effects(memory, state, offers))
    bodies = []  # the published algorithms know one user after the other only
    for i, a in enumerate(asked):
        offer = memory.problem.offer(a.profile, a.context, a.available)
        one = memory.policy.decide(state, offer, draws[i])
        state = memory.policy.commit(state, offer, one)
        bodies += _bodies(memory, [a], first + i, one, None)
    return bodies


def _bodies(
    memory: Memory,
    asked: Sequence[Asked],
    first: int,
    decision: Decision,
    effects: tuple[FloatArray, FloatArray] | None,
) -> list[dict[str, Any]]:
    """What is written down of n decisions: arrays with a user's axis, or without one for a single decision."""
    n, arms = len(asked), memory.problem.arms

    def numbers(values: Any, *core: int) -> list[Any]:
        return [None] * n if values is None else np.reshape(values, (n, *core)).tolist()

    action, reason = numbers(decision.action), numbers(decision.reason)
    probabilities = numbers(decision.probabilities, -1)
    propensity = numbers(decision.propensity if decision.exact else None)
    share, certified = numbers(decision.share), numbers(decision.certified)
    estimate, half = (numbers(values, -1) for values in effects or (None, None))
    return [
        {
            "episode": memory.episode.number,
            "profile": a.profile.slot,
            "context": None if a.context is None else a.context.tolist(),
            "unavailable": a.excluded,
            "state": memory.seq,
            "draw": first + i,
            "arm": arms[action[i]],
            "probabilities": probabilities[i][: len(arms)],
            "propensity": propensity[i],
            "reason": REASONS[reason[i]],
            "share": share[i],
            "certified": certified[i],
            "estimate": None if effects is None else estimate[i][: len(arms)],
            "half": None if effects is None else half[i][: len(arms)],
        }
        for i, a in enumerate(asked)
    ]


def _effects(memory: Memory, state: Any, offer: Offer) -> tuple[FloatArray, FloatArray] | None:
    """Each arm's reward against the control's, and half its interval at the trial's confidence: (..., K) twice."""
    if not isinstance(memory.policy, Policy):
        return None  # the published algorithms estimate reward over noise
    fit = memory.policy.fit(state)
    w = offer.features - offer.control_features[..., None, :]
    half = constraint.radius(fit, memory.spec.confidence) * np.sqrt(forms.leverages(w, fit.metric))
    return fit.mean(w), half
