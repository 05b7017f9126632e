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
        return [_body(memory, asked[0], first, _row(one, ...), _effects(memory, state, offer))]
    if isinstance(memory.policy, Policy):
        offers = memory.problem.offers(*zip(*((a.profile, a.context, a.available) for a in asked), strict=True))
        many = memory.policy.decide_together(state, offers, draws)
        effects = _effects(memory, state, offers)
        each = [None if effects is None else (effects[0][i], effects[1][i]) for i in range(len(asked))]
        return [_body(memory, a, first + i, _row(many, i), each[i]) for i, a in enumerate(asked)]
    bodies = []  # the published algorithms know one user after the other only
    for i, a in enumerate(asked):
        offer = memory.problem.offer(a.profile, a.context, a.available)
        one = memory.policy.decide(state, offer, draws[i])
        state = memory.policy.commit(state, offer, one)
        bodies.append(_body(memory, a, first + i, _row(one, ...), None))
    return bodies


def _row(decision: Decision, i: Any) -> dict[str, Any]:
    """One decision of a batch, as plain numbers."""
    return {
        "arm": int(decision.action[i]),
        "probabilities": decision.probabilities[i].tolist(),
        "propensity": float(decision.propensity[i]) if decision.exact else None,
        "reason": REASONS[int(decision.reason[i])],
        "share": None if decision.share is None else float(decision.share[i]),
        "certified": None if decision.certified is None else int(decision.certified[i]),
    }


def _body(
    memory: Memory, asked: Asked, number: int, row: dict[str, Any], effects: tuple[FloatArray, FloatArray] | None
) -> dict[str, Any]:
    arms = len(memory.problem.arms)
    return {
        "episode": memory.episode.number,
        "profile": asked.profile.slot,
        "context": None if asked.context is None else asked.context.tolist(),
        "unavailable": asked.excluded,
        "state": memory.seq,
        "draw": number,
        **row,
        "arm": memory.problem.arms[row["arm"]],
        "probabilities": row["probabilities"][:arms],
        "estimate": None if effects is None else effects[0][:arms].tolist(),
        "half": None if effects is None else effects[1][:arms].tolist(),
    }


def _effects(memory: Memory, state: Any, offer: Offer) -> tuple[FloatArray, FloatArray] | None:
    """Each arm's reward against the control's, and half its interval at the trial's confidence: (..., K) twice."""
    if not isinstance(memory.policy, Policy):
        return None  # the published algorithms estimate reward over noise
    fit = memory.policy.fit(state)
    w = offer.features - offer.control_features[..., None, :]
    half = constraint.radius(fit, memory.spec.confidence) * np.sqrt(forms.leverages(w, fit.metric))
    return fit.mean(w), half
