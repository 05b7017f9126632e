"""Looks at a field trial after each season: do the ranges of effects by site hold, how wide are they, what is said.

Effects are those of every arm but the control, at every site, in an average season. `likely` ranges hold at one look,
those "at all times" at all looks together (drimed.models.mixed.effects). An arm is called better where the lower end
of a range is above 0, likely (95 %) or certainly (at all times, 99 %), and where more than one season has told of it
and of the control (drimed.models.mixed.effects); likely only where that stands among all arms and sites
(drimed.models.mixed.effects). Policies that are told the variances need neither.
"""

from __future__ import annotations

from typing import Any, final

import numpy as np
from scipy.special import ndtri

from drimed.models.mixed import effects
from drimed.models.mixed.effects import EffectPosterior, anytime_range, has_enough_seasons
from drimed.models.mixed.learner import Field
from drimed.models.offer import Offer
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.simulation.trial_world import FieldWorld
from drimed.simulation.worlds import AnyWorld

LOOKS = "look."  # how the names of its metrics begin
LEVELS = (0.95, 0.99)
LIKELY, CERTAIN = 0.95, 0.99  # levels at which an arm is called better
Z_LIKELY = float(ndtri(0.5 + LIKELY / 2))


@final
class Looks:
    """The looks at one batch of fields."""

    def __init__(self, offers: Offer, effects: FloatArray) -> None:
        self._offers = offers  # (S, I)
        self._true = effects  # (S, I, K - 1)
        self._held = np.ones(effects.shape, bool)  # at all looks so far, by the ranges at all times
        self._certain = np.zeros(len(effects), bool)  # whether a wrong "certainly better" was ever said

    @staticmethod
    def at(world: AnyWorld) -> Looks | None:
        """Looks at a field; other worlds have none."""
        if not isinstance(world, FieldWorld):
            return None
        means = world.rewards
        return Looks(world.offers(np.arange(world.setting.sites)), means[..., 1:] - means[..., :1])

    def taken(self, policy: AnyPolicy, state: Any) -> dict[str, FloatArray]:
        """One look, at a state that was settled: name -> (S, 1), none from a policy that learns no noise."""
        if not isinstance(policy, Policy) or policy.learner.weighting != "learned":
            return {}
        own = own_effects(policy.learner, state.evidence, self._offers) if hasattr(policy.learner, "beliefs") else None
        found = self._likely(policy, state, own)
        if own is not None:
            found |= self._at_all_times(policy.learner, state.evidence, own)
        return {LOOKS + name: np.asarray(values, np.float64)[:, None] for name, values in found.items()}

    def _likely(self, policy: Policy, state: Any, own: EffectPosterior | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for level in LEVELS:
            mean, half = policy.effects(state, self._offers, 0.5 + level / 2)
            mean, half = mean[..., 1:], half[..., 1:]
            found[f"holds.{level:g}"] = _share(np.abs(mean - self._true) <= half)
            found[f"width.{level:g}"] = (2 * half).reshape(len(half), -1).mean(-1)
            if level == LIKELY:
                found |= self._called(policy.learner, state.evidence, own, mean - half > 0)
        return found

    def _called(self, learner: Any, evidence: Any, own: EffectPosterior | None, beyond: BoolArray) -> dict[str, Any]:
        """What is said by likely ranges, at a site and of all sites together, allowing for many comparisons."""
        true, confirmed = self._true, self._confirmed(learner, evidence)
        said = beyond & confirmed
        if own is None or not isinstance(learner, Field):
            return _judged("likely", said, true)
        sites, arms = true.shape[-2], effects.compared_arms(self._offers.control)
        known = effects.extend_to(learner, evidence, self._offers)
        everywhere = np.ones(self._offers.control.shape, bool)
        together = effects.effects_together(known, self._offers, everywhere).at((slice(None), None, slice(1, None), 0))
        stands = effects.is_significant(own, together, arms, sites)
        at_sites = _judged("likely", said & stands, true)
        of_all = (together.likely[0] > 0) & effects.is_significant(together, None, arms, 1) & confirmed[:, :1]
        return at_sites | _judged("likely_together", of_all, true.mean(-2, keepdims=True))

    def _at_all_times(self, learner: Any, evidence: Any, own: EffectPosterior) -> dict[str, Any]:
        mean, variance, prior = own.mean, own.deviation**2, own.prior**2
        low, high = anytime_range(mean, variance, prior, 1 - LIKELY)
        self._held &= (low <= self._true) & (self._true <= high)
        surely = (anytime_range(mean, variance, prior, 1 - CERTAIN)[0] > 0) & self._confirmed(learner, evidence)
        wrong, right = _judged("certainly", surely, self._true).values()
        self._certain |= wrong
        told = np.isfinite(low) & np.isfinite(high)
        ratio = np.where(told, high - low, 0.0) / (2 * Z_LIKELY * own.deviation)
        pairs = zip(ratio, told, strict=True)
        middle = np.array([np.median(r[there]) if there.any() else np.nan for r, there in pairs])
        return {
            "held_at_all_times": _share(self._held),
            "times_as_wide": middle,
            "certainly.wrong": self._certain,
            "certainly.right": right,
        }

    def _confirmed(self, learner: Any, evidence: Any) -> BoolArray:
        """Of which arms something may be said: (S, I, K - 1)."""
        found = np.broadcast_to(has_enough_seasons(learner, evidence, self._offers), self._offers.control.shape)
        return np.broadcast_to(found[..., 1:], self._true.shape)


def own_effects(learner: Any, evidence: Any, offers: Offer) -> EffectPosterior:
    """Effects on the reward against the first arm: (S, I, K - 1)."""
    field = learner if isinstance(learner, Field) else learner.inner
    return effects.effects_of_users(effects.extend_to(field, evidence, offers), offers).at((..., slice(1, None), 0))


def _share(held: BoolArray) -> FloatArray:
    return np.asarray(held.reshape(len(held), -1).mean(-1))


def _judged(claim: str, said: BoolArray, true: FloatArray) -> dict[str, BoolArray]:
    """Whether any arm was called better wrongly, and rightly, anywhere: (S,) twice."""
    wrong, right = said & (true <= 0), said & (true > 0)
    return {f"{claim}.wrong": np.asarray(wrong.any((-2, -1))), f"{claim}.right": np.asarray(right.any((-2, -1)))}
