"""Every arm against the control, for every user, as the trial knows it now.

The same numbers that a decision would record, from the same state; pages and reports may put better intervals here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from drimed.guards import constraint
from drimed.linear import forms
from drimed.linear.arrays import FloatArray
from drimed.policies.policy import Policy
from drimed.service.answers import ArmNow, UserEffects
from drimed.trial.memory import Memory
from drimed.trial.problem import Profile
from drimed.trial.records import Effect


def effects(memory: Memory, users: Sequence[str]) -> list[UserEffects]:
    """Estimate and interval at the trial's confidence, for each of these users and each arm."""
    if not users:
        return []
    profiles = [memory.profile(u) for u in users]
    numbers = _intervals(memory, profiles)
    arms = memory.problem.arms
    found = []
    for i, (user, profile) in enumerate(zip(users, profiles, strict=True)):
        pulls = memory.pulls.get(user, [])
        pulls = pulls + [0] * (len(arms) - len(pulls))
        excluded = set(memory.excluded(user))
        found.append(
            UserEffects(
                user,
                profile.group,
                {arm: float(share) for arm, share in zip(arms, profile.control, strict=False) if share > 0},
                {
                    arm: ArmNow(
                        pulls[a],
                        arm not in excluded and (profile.allowed is None or bool(profile.allowed[a])),
                        None if numbers is None else _effect(numbers[0][i, a], numbers[1][i, a]),
                    )
                    for a, arm in enumerate(arms)
                },
            )
        )
    return found


def _intervals(memory: Memory, profiles: Sequence[Profile]) -> tuple[FloatArray, FloatArray] | None:
    """Estimates and half widths: (n, K) twice; None where the policy estimates something else."""
    if not isinstance(memory.policy, Policy):
        return None
    fit = memory.policy.fit(memory.settled())
    offers = [memory.problem.offer(profile, None, None) for profile in profiles]  # features know no context
    w = np.stack([o.features - o.control_features[None, :] for o in offers])  # (n, K, d)
    half = constraint.radius(fit, memory.spec.confidence) * np.sqrt(forms.leverages(w, fit.metric))
    return fit.mean(w), half


def _effect(estimate: float, half: float) -> Effect:
    return Effect(float(estimate), float(estimate - half), float(estimate + half))
