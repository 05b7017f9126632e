"""A trial's decisions and outcomes as arrays, and the regression that inference rests on.

Shapes: n decisions in order, K arms, M metrics, D context fields, H users as they are now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, TypeGuard

import numpy as np

from drimed.errors import InputError
from drimed.evaluation.log import Log, make_log
from drimed.learning.fit import Fit
from drimed.learning.learned import Noise
from drimed.learning.learner import Learner
from drimed.learning.offer import Offer, Outcome
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.ridge import Ridge
from drimed.policies.policy import AnyPolicy, Policy
from drimed.trial.build import PRIOR_DEVIATION, coefficients_are_scaled
from drimed.trial.events import AMENDMENT, DECISION, MISSING, OUTCOME
from drimed.trial.memory import Memory
from drimed.trial.outcomes import Story
from drimed.trial.trial import Trial


@dataclass(frozen=True)
class Gathered:
    """Everything that was decided and told."""

    memory: Memory
    number: IntArray  # (n,)
    episode: IntArray  # (n,), from 1
    slot: IntArray  # (n,), profile
    arm: IntArray  # (n,)
    probabilities: FloatArray  # (n, K)
    propensity: FloatArray  # (n,), NaN: unknown
    held: BoolArray  # (n,), the guard changed the wish
    context: FloatArray | None  # (n, D)
    vector: FloatArray  # (n, M), in the metrics' units, against the control plot where there is one; 0 if not there
    observed: BoolArray  # (n, M)
    reward: FloatArray  # (n,), NaN: not told in full
    missing: BoolArray  # (n,), given up
    amended: IntArray  # (n,)

    @property
    def told(self) -> BoolArray:
        """Decisions with any outcome: (n,)."""
        return np.asarray(self.observed.any(-1))

    @property
    def users(self) -> list[str]:
        """Whom each decision was for."""
        return [self.memory.profiles[s].user for s in self.slot]

    def log(self) -> Log:
        """Decisions with a whole reward, for off-policy evaluation."""
        done = ~np.isnan(self.reward)
        if not done.any():
            raise InputError("no decision has a whole outcome yet: there is nothing to evaluate")
        return make_log(
            arms=self.memory.problem.arms,
            action=self.arm[done],
            reward=self.reward[done],
            propensity=self.propensity[done],
            probabilities=None if np.isnan(self.propensity[done]).any() else self.probabilities[done],
            user=np.array(self.users)[done],
            episode=self.episode[done],
        )


def gather(trial: Trial, before: Gathered | None = None) -> Gathered:
    """Read a trial: the whole of it, or what has changed since it was gathered before."""
    memory = trial.memory()
    if before is None:
        return _gathered(memory, trial.stories(memory))
    kinds = (DECISION, OUTCOME, AMENDMENT, MISSING)
    changed = {int(e.decision or 0) for e in trial.log(after=before.memory.seq, kinds=kinds) if e.seq <= memory.seq}
    return _joined(before, _gathered(memory, trial.stories(memory, list(changed))))


def _joined(before: Gathered, changed: Gathered) -> Gathered:
    """What was gathered before, with the decisions that were taken or told since. Decision i is in row i - 1."""
    known = changed.number <= len(before.number)
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(Gathered) if f.name != "memory"):
        old, new = getattr(before, name), getattr(changed, name)
        if new is None:
            columns[name] = None
            continue
        if new.ndim == 2 and (wider := new.shape[1] - old.shape[1]):  # an arm was added
            old = np.pad(old, ((0, 0), (0, wider)))
        columns[name] = np.concatenate([old, new[~known]])
        columns[name][changed.number[known] - 1] = new[known]
    return Gathered(changed.memory, **columns)


def _gathered(memory: Memory, stories: Iterable[Story]) -> Gathered:
    problem, K = memory.problem, len(memory.problem.arms)
    rows: list[tuple[Any, ...]] = []
    for story in stories:
        body = story.event.body
        p = body["probabilities"]
        outcome = story.outcome or {"metrics": {}, "control": None}
        y, there = problem.outcome(outcome["metrics"])
        if memory.spec.feedback == "difference":
            y0, there0 = problem.outcome(outcome["control"] or {})
            y, there = y - y0, there & there0
        worth = None if story.outcome is None else memory.reward(memory.profiles[body["profile"]], outcome)
        rows.append(
            (
                story.decision,
                body["episode"],
                body["profile"],
                problem.arm(body["arm"]),
                p + [0.0] * (K - len(p)),
                np.nan if body["propensity"] is None else body["propensity"],
                body["share"] is not None and body["share"] < 1,
                body["context"] or [],
                np.where(there, y, 0.0) * problem.sizes,
                there,
                np.nan if worth is None else worth,
                story.missing and story.outcome is None,
                story.amendments,
            )
        )
    columns = list(zip(*rows, strict=True)) if rows else [()] * 13
    n, M = len(rows), len(problem.metrics)
    return Gathered(
        memory,
        np.array(columns[0], np.intp),
        np.array(columns[1], np.intp),
        np.array(columns[2], np.intp),
        np.array(columns[3], np.intp),
        np.array(columns[4], np.float64).reshape(n, K),
        np.array(columns[5], np.float64),
        np.array(columns[6], bool),
        np.array(columns[7], np.float64).reshape(n, len(problem.fields)) if problem.fields else None,
        np.array(columns[8], np.float64).reshape(n, M),
        np.array(columns[9], bool).reshape(n, M),
        np.array(columns[10], np.float64),
        np.array(columns[11], bool),
        np.array(columns[12], np.intp),
    )


def offers_now(memory: Memory) -> tuple[list[str], Offer]:
    """What every user would be offered in a typical context: names, and arrays with the users as first axis."""
    names = list(memory.users)
    if not names:
        raise InputError("there are no users yet")
    typical = np.array([f.typical for f in memory.spec.context.values()]) if memory.problem.fields else None
    profiles = [memory.profile(name) for name in names]
    masks = [memory.problem.available(p, memory.retired) for p in profiles]
    return names, memory.problem.offers(profiles, [typical] * len(names), masks)


def inference_fit(seen: Gathered) -> Fit:
    """The regression on whole outcome vectors, whatever the policy itself learns from."""
    policy = seen.memory.policy
    if _infers(policy):
        return policy.fit(seen.memory.settled())
    learner = inference_learner(seen.memory)
    ridge, noise = _learned(seen, learner)
    K = seen.memory.problem.shape.K
    fit = learner.fit(ridge, noise, np.bincount(seen.arm, minlength=K).astype(np.float64), len(seen.arm) + 1)
    return replace(fit, radius=np.asarray(fit.radius))


def inference_noise(seen: Gathered, learner: Learner) -> Noise | None:
    """The noise as it is estimated now, where it is learned."""
    if learner.weighting != "learned":
        return None
    policy = seen.memory.policy
    if _infers(policy) and policy.learner.weighting == "learned":
        noise: Noise | None = seen.memory.settled().noise
        return noise
    return _learned(seen, learner)[1]


def _infers(policy: AnyPolicy) -> TypeGuard[Policy]:
    """Whether the policy itself learns from vectors and weighs them: then it has everything; else the past is read."""
    return isinstance(policy, Policy) and policy.learner.feedback == "vector" and policy.learner.weighting != "none"


def _learned(seen: Gathered, learner: Learner) -> tuple[Ridge, Noise | None]:
    shape = seen.memory.problem.shape
    ridge, noise = learner.init(shape), learner.init_noise(shape)
    for i in np.flatnonzero(usable(seen, learner)):
        ridge, noise = learner.observe(ridge, noise, *evidence(seen, int(i)))
    return learner.settle(ridge, noise)


def inference_learner(memory: Memory) -> Learner:
    """Vector feedback, with the noise known or learned as the trial says."""
    settings: dict[str, Any] = {"delta": memory.spec.delta, "feedback": "vector"}
    if coefficients_are_scaled(memory.spec):
        settings |= {"norm_bound": memory.problem.shape.d**0.5, "regularisation": PRIOR_DEVIATION**-2}
    if memory.spec.noise.kind == "learned":
        return Learner(weighting="learned", refits="converged", **settings)
    return Learner(weighting="known", **settings)


def usable(seen: Gathered, learner: Learner) -> BoolArray:
    """Decisions whose outcomes this learner can take: (n,)."""
    return np.asarray(seen.observed.all(-1) if learner.weighting == "learned" else seen.told)


def evidence(seen: Gathered, i: int | IntArray) -> tuple[Offer, IntArray, Outcome]:
    """A decision's outcome, or those of several decisions at once, as a learner takes them."""
    problem, profiles = seen.memory.problem, seen.memory.profiles
    context = None if seen.context is None else seen.context[i]
    if isinstance(i, int):
        offer = problem.offer(profiles[seen.slot[i]], context, None)
    else:
        asked = [profiles[s] for s in seen.slot[i]]
        offer = problem.offers(asked, [None] * len(i) if context is None else list(context), [None] * len(i))
    there = seen.observed[i]
    return offer, np.asarray(seen.arm[i]), Outcome(None, seen.vector[i] / problem.sizes, None if there.all() else there)
