"""The paper's regression on whole outcome vectors, fitted again from the log where a policy has no fit of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from drimed.models.linear_regression import Learner
from drimed.models.mixed.effects import FittedModel
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome
from drimed.numerics.arrays import BoolArray, IntArray
from drimed.policies.policy import Policy
from drimed.trial.dataset import Dataset
from drimed.trial.policy import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.state import TrialState

AT_ONCE = 500  # outcomes of an episode that are learned from together
MOST_REFITTED = 5000  # outcomes that are learned from again where each of them changes the noise

Inference = Fit | FittedModel  # the source of effects: the paper's regression, or a mixed model


class Refit(NamedTuple):
    """The regression and the noise by the outcomes up to an episode."""

    fit: Fit
    noise: NoiseModel | None  # None: known


def fit_now(data: Dataset) -> Refit:
    """By all outcomes: the policy's own fit, or one from the log."""
    state = data.state
    own, learner = state.policy.inference(state.settled()), inference_learner(state)
    if own is not None and (own[1] is not None or learner.weighting != "learned"):
        return Refit(*own)
    refit = _refits(data, learner, [state.episode.number], aging=False)[-1]
    return refit if own is None else Refit(own[0], refit.noise)


def fits_after(data: Dataset, episodes: Sequence[int]) -> list[Fit] | None:
    """By the outcomes up to each of these episodes, as they are recorded now; None: too much work."""
    policy, learner = data.state.policy, inference_learner(data.state)
    aging = policy.inference(data.state.settled()) is not None
    if aging and isinstance(policy, Policy) and isinstance(policy.learner, Learner):
        learner = policy.learner
    if learner.weighting == "learned" and usable(data, learner).sum() > MOST_REFITTED:
        return None
    return [refit.fit for refit in _refits(data, learner, episodes, aging=aging)]


def _refits(data: Dataset, learner: Learner, episodes: Sequence[int], *, aging: bool) -> list[Refit]:
    shape, whole = data.state.problem.shape, usable(data, learner)
    gathered, refits = learner.start(shape), []
    for episode in range(1, int(episodes[-1]) + 1):
        if aging:
            gathered = learner.age(gathered)
        at = np.flatnonzero(whole & (data.episode == episode))
        for first in range(0, len(at), AT_ONCE):
            gathered = learner.add(gathered, *evidence(data, at[first : first + AT_ONCE]))
        if episode in episodes:
            refits.append(_refit(data, learner, gathered, episode))
    return refits or [_refit(data, learner, gathered, 0)]


def _refit(data: Dataset, learner: Learner, gathered: Any, episode: int) -> Refit:
    ready = learner.ready(gathered)
    pulls = np.bincount(data.arm[data.episode <= episode], minlength=data.state.problem.shape.K).astype(np.float64)
    fit = learner.fit(ready, pulls, int(pulls.sum()) + 1)
    return Refit(replace(fit, radius=np.asarray(fit.radius)), ready.noise)


def inference_learner(state: TrialState) -> Learner:
    """A learner with vector feedback and the trial's noise."""
    settings: dict[str, Any] = {"delta": state.spec.delta, "feedback": "vector"}
    if coefficients_are_scaled(state.spec):
        settings |= {"norm_bound": state.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    if state.spec.noise.kind == "learned":
        return Learner(weighting="learned", refits="converged", **settings)
    return Learner(weighting="known", **settings)


def usable(data: Dataset, learner: Learner) -> BoolArray:
    """Decisions with outcomes that the learner can take: (n,)."""
    return np.asarray(data.observed.all(-1) if learner.weighting == "learned" else data.has_outcome)


def evidence(data: Dataset, at: IntArray) -> tuple[Offer, IntArray, Outcome]:
    """Offers, arms and outcomes of some decisions."""
    problem, n = data.state.problem, len(at)
    profiles = [data.state.profiles[int(s)] for s in data.slot[at]]
    contexts = [None] * n if data.context is None else list(data.context[at])
    observed = data.observed[at]
    outcome = Outcome(None, data.vector[at] / problem.sizes, None if observed.all() else observed)
    return problem.offer(profiles, contexts, [None] * n), np.asarray(data.arm[at]), outcome
