"""The regression that inference rests on, whatever the policy itself learns from."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from drimed.learning.field.contrasts import Known
from drimed.learning.learned import Noise
from drimed.learning.learner import Learner
from drimed.learning.offer import Fit, Offer, Outcome
from drimed.linear.arrays import BoolArray, IntArray
from drimed.linear.ridge import Ridge
from drimed.policies.policy import Policy
from drimed.trial.build import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.gather import Gathered
from drimed.trial.state import TrialState

AT_ONCE = 500  # outcomes of an episode that are learned from together
MOST_ONE_BY_ONE = 5000  # outcomes that are learned from again where each of them changes the noise

Inference = Fit | Known  # what effects are computed from: the paper's regression, or a model of the field


def inference_fit(seen: Gathered) -> Fit:
    """The regression on whole outcome vectors, whatever the policy itself learns from."""
    state = seen.state
    own = state.policy.inference(state.settled())
    if own is not None:
        return own[0]
    learner = inference_learner(state)
    ridge, noise = _learned(seen, learner)
    K = state.problem.shape.K
    fit = learner.fit(ridge, noise, np.bincount(seen.arm, minlength=K).astype(np.float64), len(seen.arm) + 1)
    return replace(fit, radius=np.asarray(fit.radius))


def fits_after(seen: Gathered, episodes: IntArray) -> list[Inference] | None:
    """The regression by the outcomes up to each of these episodes, as they are known now; None: too much work."""
    state = seen.state
    shape, policy = state.problem.shape, state.policy
    learner, own = inference_learner(state), policy.inference(state.settled()) is not None
    if own and isinstance(policy, Policy) and isinstance(policy.learner, Learner):
        learner = policy.learner
    whole = usable(seen, learner)
    if learner.weighting == "learned" and whole.sum() > MOST_ONE_BY_ONE:
        return None
    found: list[Inference] = []
    gathered = learner.start(shape)
    for episode in range(1, int(episodes[-1]) + 1):
        if own:
            gathered = learner.age(gathered)
        at = np.flatnonzero(whole & (seen.episode == episode))
        for first in range(0, len(at), AT_ONCE):
            gathered = learner.add(gathered, *evidence(seen, at[first : first + AT_ONCE]))
        if episode in episodes:
            ready = learner.ready(gathered)
            pulls = np.bincount(seen.arm[seen.episode <= episode], minlength=shape.K).astype(np.float64)
            fit = learner.fit(ready.ridge, ready.noise, pulls, int(pulls.sum()) + 1)
            found.append(replace(fit, radius=np.asarray(fit.radius)))
    return found


def inference_noise(seen: Gathered, learner: Learner) -> Noise | None:
    """The noise as it is estimated now, where it is learned."""
    if learner.weighting != "learned":
        return None
    own = seen.state.policy.inference(seen.state.settled())
    return _learned(seen, learner)[1] if own is None or own[1] is None else own[1]


def _learned(seen: Gathered, learner: Learner) -> tuple[Ridge, Noise | None]:
    shape = seen.state.problem.shape
    ridge, noise = learner.init(shape), learner.init_noise(shape)
    for i in np.flatnonzero(usable(seen, learner)):
        ridge, noise = learner.observe(ridge, noise, *evidence(seen, int(i)))
    return learner.settle(ridge, noise)


def inference_learner(state: TrialState) -> Learner:
    """Vector feedback, with the noise known or learned as the trial says."""
    settings: dict[str, Any] = {"delta": state.spec.delta, "feedback": "vector"}
    if coefficients_are_scaled(state.spec):
        settings |= {"norm_bound": state.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    if state.spec.noise.kind == "learned":
        return Learner(weighting="learned", refits="converged", **settings)
    return Learner(weighting="known", **settings)


def usable(seen: Gathered, learner: Learner) -> BoolArray:
    """Decisions whose outcomes this learner can take: (n,)."""
    return np.asarray(seen.observed.all(-1) if learner.weighting == "learned" else seen.told)


def evidence(seen: Gathered, i: int | IntArray) -> tuple[Offer, IntArray, Outcome]:
    """A decision's outcome, or those of several decisions at once, as a learner takes them."""
    problem, profiles = seen.state.problem, seen.state.profiles
    context = None if seen.context is None else seen.context[i]
    if isinstance(i, int):
        offer = problem.offer(profiles[int(seen.slot[i])], context, None)
    else:
        asked = [profiles[int(s)] for s in seen.slot[i]]
        offer = problem.offers(asked, [None] * len(i) if context is None else list(context), [None] * len(i))
    there = seen.observed[i]
    return offer, np.asarray(seen.arm[i]), Outcome(None, seen.vector[i] / problem.sizes, None if there.all() else there)
