"""The composition: learner x rule x guard, as pure functions over any batch.

    init(shape, batch)                          -> State
    begin_episode(state, offers)                -> State     offers carry the users as their last batch axis
    settle(state)                               -> State     before a decision
    decide(state, offer, draws)                 -> Decision
    update(state, offer, decision, outcome)     -> State     = observe(commit(...), ...)

`commit` is the part of `update` that belongs to giving a decision out; `observe` the part that belongs to its
outcome, which may come late and in any order, and be taken back with `forget`. `decide_together` and `commit_together`
serve many users from one state, for outcomes that only come later.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, final

import numpy as np

from drimed.errors import ConfigError, ShapeError
from drimed.guards import constraint
from drimed.guards.decision import Decision
from drimed.guards.guard import Guard
from drimed.guards.margin import Tolerance
from drimed.learning import learned
from drimed.learning.learned import Noise
from drimed.learning.learner import Learner
from drimed.learning.offer import Fit, Offer, Outcome, Shape
from drimed.linear import forms, pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.ridge import Ridge
from drimed.policies.registry import guard_name
from drimed.rules.rule import Ask, RemembersRounds, Rule

# A sum that keeps less than this share of itself when something is taken out has lost its digits: what is left of a
# mistyped 1e12 among fives is round-off.
LOST_SHARE = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What a policy is, for those who set it up and describe it."""

    learner: str  # learner, rule and guard in a few words
    rule: str
    guard: str
    settings: frozenset[str]  # what `make` accepts besides the policy's name
    feedback: str  # "reward" or "vector": what it learns from
    weighting: str  # "none", "known" or "learned": what it must be told, or learns, about the noise
    noise_bound: float
    promise: str
    protects: str  # how strong that is: see drimed.guards.guard
    tolerance: Tolerance | None  # None: it does not compare with the control
    confidence: float | str | None  # of the promise, where it has one


class AnyPolicy(Protocol):
    """What a simulation or a trial needs of a policy; the published algorithms have it too.

    A state is a dataclass of arrays and numbers (`policies/state.py` stores it). The methods are pure.
    """

    @property
    def traits(self) -> Traits: ...

    @property
    def needs_contexts_at_opening(self) -> bool:
        """Whether `begin_episode` looks at the offers of all users."""

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> Any: ...

    def aged_start(self, shape: Shape, episodes: int) -> Any:
        """The state without any outcome after so many episodes: older outcomes are added with `late`."""

    def begin_episode(self, state: Any, offers: Offer) -> Any: ...

    def decide(self, state: Any, offer: Offer, draws: FloatArray) -> Decision: ...

    def decide_together(self, state: Any, offers: Offer, draws: FloatArray) -> Decision: ...

    def commit(self, state: Any, offer: Offer, decision: Decision) -> Any: ...

    def commit_together(self, state: Any, offers: Offer, decision: Decision) -> Any: ...

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether it can learn from outcomes of which these metrics were observed: (..., M) -> (...)."""

    def observe(self, state: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def forget(self, state: Any, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> Any: ...

    def settle(self, state: Any) -> Any: ...

    def update(self, state: Any, offer: Offer, decision: Decision, outcome: Outcome) -> Any: ...

    def lost_digits(self, before: Any, after: Any) -> bool:
        """Whether `forget` left round-off: then the evidence has to be added up again from `aged_start`."""

    def with_evidence(self, state: Any, evidence: Any) -> Any:
        """The first state, with what the second one has learned from outcomes."""

    def theta(self, state: Any) -> FloatArray: ...

    def effects(self, state: Any, offer: Offer, confidence: float | str) -> tuple[FloatArray, FloatArray] | None:
        """Each arm's expected reward minus the control's, and the half-width of its interval: (..., K) twice.

        None where the policy estimates something else.
        """

    def inference(self, state: Any) -> tuple[Fit, Noise | None] | None:
        """The regression on whole outcome vectors and its noise model; None where it learns from less."""

    def draws_needed(self, shape: Shape) -> int: ...


@dataclass(frozen=True, slots=True)
class State:
    """Everything a policy knows; arrays only."""

    ridge: Ridge
    pulls: FloatArray  # (..., K)
    guard: Any  # the guard's own memory, or None
    rule: Any  # the rule's own memory, or None
    noise: Noise | None  # what is learned about the noise, or None
    round: int  # number of the next decision, from 1


@final
@dataclass(frozen=True, kw_only=True)
class Policy:
    """One learner, one rule, one guard."""

    learner: Learner
    rule: Rule
    guard: Guard

    needs_contexts_at_opening: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.learner.discount < 1 and getattr(self.guard, "confidence", None) == "anytime":
            raise ConfigError(
                "confidence 'anytime' needs discount 1: with forgetting the radius holds in each episode, not in all "
                "at once; give a level such as 0.99 instead"
            )

    @cached_property
    def traits(self) -> Traits:
        """What it is made of."""
        learner, level = self.learner, getattr(self.guard, "confidence", None)
        aged = f", discount {learner.discount:g}" if learner.discount < 1 else ""
        dial = "" if level in (None, 0.99) else f" at {level}"
        return Traits(
            learner=f"{learner.feedback}, {learner.weighting} noise{aged}",
            rule=type(self.rule).__name__,
            guard=guard_name(self.guard) + dial,
            settings=settings_of(Learner, type(self.rule), type(self.guard)),
            feedback=learner.feedback,
            weighting=learner.weighting,
            noise_bound=learner.noise_bound,
            promise=self.guard.promise,
            protects=self.guard.protects,
            tolerance=getattr(self.guard, "tolerance", None),
            confidence=level,
        )

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> State:
        """The state before any data, for a batch of independent runs."""
        memory = self._remembering.init(shape, batch) if self._remembering else None
        pulls = np.zeros((*batch, shape.K))
        noise = self.learner.init_noise(shape, batch)
        return State(self.learner.init(shape, batch), pulls, self.guard.init(shape, batch), memory, noise, 1)

    def aged_start(self, shape: Shape, episodes: int) -> State:
        """Only evidence ages, so that this is the first state."""
        del episodes
        return self.init(shape)

    def begin_episode(self, state: State, offers: Offer) -> State:
        """Let the evidence age; these policies need nothing from the offers."""
        del offers
        return replace(state, ridge=self.learner.begin_episode(state.ridge))

    def decide(self, state: State, offer: Offer, draws: FloatArray) -> Decision:
        """Choose an arm for one user: draws are uniforms (..., draws_needed)."""
        if draws.shape[:-1] != state.ridge.theta.shape[:-1]:
            batch = state.ridge.theta.shape[:-1]
            raise ShapeError(f"draws must have shape {batch} and one axis more, got {draws.shape}")
        return self._decide(state, self.fit(state), offer, draws)

    def decide_together(self, state: State, offers: Offer, draws: FloatArray) -> Decision:
        """Choose for all users of an episode from one state: offers and draws have the users as last batch axis."""
        return self._decide(state, _for_each_user(self.fit(state)), offers, draws)

    def commit(self, state: State, offer: Offer, decision: Decision) -> State:
        """Remember that the decision was given out."""
        guard, memory = self._commit(state, self.fit, offer, decision)
        pulls = state.pulls + pmf.one_hot(decision.action, state.pulls.shape[-1])
        return State(state.ridge, pulls, guard, memory, state.noise, state.round + 1)

    def commit_together(self, state: State, offers: Offer, decision: Decision) -> State:
        """Remember the decisions of a whole episode."""
        guard, memory = self._commit(state, lambda s: _for_each_user(self.fit(s)), offers, decision)
        pulls = state.pulls + pmf.one_hot(decision.action, state.pulls.shape[-1]).sum(-2)
        return State(state.ridge, pulls, guard, memory, state.noise, state.round + decision.action.shape[-1])

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Rewards need every metric that counts; vectors need one metric, or all while their noise is learned."""
        if self.learner.feedback == "reward":
            return rewarded(observed, preference)
        return np.asarray(observed.all(-1) if self.learner.weighting == "learned" else observed.any(-1))

    def observe(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Learn from the outcome of one decision, or of a whole episode where offer and action have a users' axis.

        The decision belongs to the present episode, or to the one `late` episodes ago: only a discount sees that.
        """
        outcome.check(offer)
        ridge, noise = self.learner.observe(state.ridge, state.noise, offer, action, outcome, late)
        return State(ridge, state.pulls, state.guard, state.rule, noise, state.round)

    def forget(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Take back what `observe` learned from the outcome of one decision."""
        outcome.check(offer)
        ridge, noise = self.learner.forget(state.ridge, state.noise, offer, action, outcome, late)
        return State(ridge, state.pulls, state.guard, state.rule, noise, state.round)

    def settle(self, state: State) -> State:
        """The state to decide on: before each decision, whatever the learner had put off is done."""
        ridge, noise = self.learner.settle(state.ridge, state.noise)
        if ridge is state.ridge:
            return state
        return State(ridge, state.pulls, state.guard, state.rule, noise, state.round)

    def update(self, state: State, offer: Offer, decision: Decision, outcome: Outcome) -> State:
        """Give out and learn at once."""
        return self.observe(self.commit(state, offer, decision), offer, decision.action, outcome)

    def lost_digits(self, before: State, after: State) -> bool:
        """Of sums of squares where the noise is learned, since V and b follow from them; else of V and b."""
        if before.noise is None or after.noise is None:
            return ridge_lost(before.ridge, after.ridge)
        there = after.noise.n[..., None] > 0
        square, left = learned.squares(learned.absorb(before.noise)), learned.squares(after.noise)
        return bool((there & (left < LOST_SHARE * square)).any())

    def with_evidence(self, state: State, evidence: State) -> State:
        """The regression and the noise of `evidence`."""
        return replace(state, ridge=evidence.ridge, noise=evidence.noise)

    def effects(self, state: State, offer: Offer, confidence: float | str) -> tuple[FloatArray, FloatArray]:
        """Each arm against the control; a state without a batch may be asked about many users at once."""
        fit = self.fit(state)
        w = offer.features - offer.control_features[..., None, :]
        half = constraint.radius(fit, confidence)[..., None] * np.sqrt(forms.leverages(w, fit.metric))
        return fit.mean(w), half

    def inference(self, state: State) -> tuple[Fit, Noise | None] | None:
        """Its own regression, where that is weighted and on vectors."""
        if self.learner.feedback != "vector" or self.learner.weighting == "none":
            return None
        return self.fit(state), state.noise

    def fit(self, state: State) -> Fit:
        """What rule and guard see."""
        return self.learner.fit(state.ridge, state.noise, state.pulls, state.round)

    def theta(self, state: State) -> FloatArray:
        """The estimate: (..., d)."""
        return state.ridge.theta

    def draws_needed(self, shape: Shape) -> int:
        """How many uniforms a decision consumes."""
        return 1 + (shape.d if self.rule.normal_draws else 0)

    @cached_property
    def _remembering(self) -> RemembersRounds | None:
        return self.rule if isinstance(self.rule, RemembersRounds) else None

    def _decide(self, state: State, fit: Fit, offer: Offer, draws: FloatArray) -> Decision:
        seen = self.learner.view(offer, state.noise)

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            return self.rule.propose(fit, seen, Ask(mask, penalty, draws, state.rule))

        guarded = self.guard.apply(state.guard, fit, seen, ask)
        action = pmf.sample(guarded.probabilities, draws[..., 0])
        exact = self.rule.randomisation != "sampled"
        return Decision(action, guarded.probabilities, guarded.reason, exact, guarded.share, guarded.certified)

    def _commit(self, state: State, fit: Callable[[State], Fit], offer: Offer, decision: Decision) -> tuple[Any, Any]:
        guard, memory = state.guard, state.rule
        if guard is None and memory is None:
            return None, None
        now, seen = fit(state), self.learner.view(offer, state.noise)
        if guard is not None:
            guard = self.guard.commit(guard, now, seen, decision)
        if self._remembering is not None:
            memory = self._remembering.commit(memory, now, seen, decision.action)
        return guard, memory


def _for_each_user(fit: Fit) -> Fit:
    """The same fit for every user of an episode: an axis before the core axes."""
    return Fit(
        fit.theta[..., None, :],
        fit.V_inv[..., None, :, :],
        fit.radius[..., None],
        None if fit.spread is None else fit.spread[..., None, :, :],
        fit.pulls[..., None, :],
        fit.round,
        fit.noise_bound,
        fit.inflation[..., None] if isinstance(fit.inflation, np.ndarray) else fit.inflation,
    )


def settings_of(learner: Any, rule: Any, guard: Any) -> frozenset[str]:
    """The settings of a policy that is made of these: a tolerance is given by its own fields."""
    found = {"rule", "guard"} | {f.name for part in (learner, rule, guard) for f in fields(part)}
    if "tolerance" in found:
        found = found - {"tolerance"} | {f.name for f in fields(Tolerance)}
    return frozenset(found)


def rewarded(observed: BoolArray, preference: FloatArray) -> BoolArray:
    """Whether the reward is known: every metric with a weight was observed. (..., M) -> (...)"""
    return np.asarray((observed | (preference == 0)).all(-1))


def ridge_lost(before: Ridge, after: Ridge) -> bool:
    """Whether so much was taken out of V or b that what is left is round-off, in any member of the batch."""
    gone = LOST_SHARE * np.linalg.norm(before.b - after.b, axis=-1) > np.linalg.norm(after.b, axis=-1)
    left, diagonal = np.diagonal(after.V, axis1=-2, axis2=-1), np.diagonal(before.V, axis1=-2, axis2=-1)
    return bool(gone.any() or (left < LOST_SHARE * diagonal).any())
