"""The paper's regression on whole outcome vectors, fitted again from the log where a policy has no fit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from drimed.models.linear_regression import Learner
from drimed.models.mixed.effects import Known
from drimed.models.noise_estimation import Noise
from drimed.models.offer import Fit, Offer, Outcome
from drimed.numerics.arrays import BoolArray, IntArray
from drimed.policies.policy import Policy
from drimed.trial.dataset import Dataset
from drimed.trial.policy import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.state import TrialState

AT_ONCE = 500  # outcomes of an episode that are learned from together
MOST_REFITTED = 5000  # outcomes that are learned from again where each of them changes the noise

Inference = Fit | Known  # the source of effects: the paper's regression, or a mixed model


class Refit(NamedTuple):
    """The regression and the noise by the outcomes up to an episode."""

    fit: Fit
    noise: Noise | None  # None: known


def fit_now(seen: Dataset) -> Refit:
    """By all outcomes: the policy's own fit, or one from the log."""
    state = seen.state
    own, learner = state.policy.inference(state.settled()), inference_learner(state)
    if own is not None and (own[1] is not None or learner.weighting != "learned"):
        return Refit(*own)
    refit = _refits(seen, learner, [state.episode.number], aging=False)[-1]
    return refit if own is None else Refit(own[0], refit.noise)


def fits_after(seen: Dataset, episodes: Sequence[int]) -> list[Fit] | None:
    """By the outcomes up to each of these episodes, as they are recorded now; None: too much work."""
    policy, learner = seen.state.policy, inference_learner(seen.state)
    aging = policy.inference(seen.state.settled()) is not None
    if aging and isinstance(policy, Policy) and isinstance(policy.learner, Learner):
        learner = policy.learner
    if learner.weighting == "learned" and usable(seen, learner).sum() > MOST_REFITTED:
        return None
    return [refit.fit for refit in _refits(seen, learner, episodes, aging=aging)]


def _refits(seen: Dataset, learner: Learner, episodes: Sequence[int], *, aging: bool) -> list[Refit]:
    shape, whole = seen.state.problem.shape, usable(seen, learner)
    gathered, refits = learner.start(shape), []
    for episode in range(1, int(episodes[-1]) + 1):
        if aging:
            gathered = learner.age(gathered)
        at = np.flatnonzero(whole & (seen.episode == episode))
        for first in range(0, len(at), AT_ONCE):
            gathered = learner.add(gathered, *evidence(seen, at[first : first + AT_ONCE]))
        if episode in episodes:
            refits.append(_refit(seen, learner, gathered, episode))
    return refits or [_refit(seen, learner, gathered, 0)]


def _refit(seen: Dataset, learner: Learner, gathered: Any, episode: int) -> Refit:
    ready = learner.ready(gathered)
    pulls = np.bincount(seen.arm[seen.episode <= episode], minlength=seen.state.problem.shape.K).astype(np.float64)
    fit = learner.fit(ready.ridge, ready.noise, pulls, int(pulls.sum()) + 1)
    return Refit(replace(fit, radius=np.asarray(fit.radius)), ready.noise)


def inference_learner(state: TrialState) -> Learner:
    """A learner with vector feedback and the trial's noise."""
    settings: dict[str, Any] = {"delta": state.spec.delta, "feedback": "vector"}
    if coefficients_are_scaled(state.spec):
        settings |= {"norm_bound": state.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    if state.spec.noise.kind == "learned":
        return Learner(weighting="learned", refits="converged", **settings)
    return Learner(weighting="known", **settings)


def usable(seen: Dataset, learner: Learner) -> BoolArray:
    """Decisions with outcomes that the learner can take: (n,)."""
    return np.asarray(seen.observed.all(-1) if learner.weighting == "learned" else seen.has_outcome)


def evidence(seen: Dataset, at: IntArray) -> tuple[Offer, IntArray, Outcome]:
    """Offers, arms and outcomes of some decisions."""
    problem, n = seen.state.problem, len(at)
    profiles = [seen.state.profiles[int(s)] for s in seen.slot[at]]
    contexts = [None] * n if seen.context is None else list(seen.context[at])
    observed = seen.observed[at]
    outcome = Outcome(None, seen.vector[at] / problem.sizes, None if observed.all() else observed)
    return problem.offer(profiles, contexts, [None] * n), np.asarray(seen.arm[at]), outcome
