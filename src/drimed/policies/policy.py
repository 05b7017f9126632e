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
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError, ShapeError
from drimed.guards import constraint
from drimed.guards.guard import Decision, Guard, RemembersDecisions
from drimed.guards.margin import Tolerance
from drimed.learning import learned
from drimed.learning.learned import Noise
from drimed.learning.learner import Learner
from drimed.learning.offer import Fit, Offer, Outcome, Shape
from drimed.linear import forms, pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.ridge import Ridge
from drimed.policies.contract import Traits
from drimed.policies.registry import guard_name
from drimed.rules.rule import Ask, RemembersRounds, Rule

# A sum that keeps less than this share of itself when something is taken out has lost its digits: what is left of a
# mistyped 1e12 among fives is round-off.
LOST_SHARE = 1e-6


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
        ridge, noise = self.learner.init(shape, batch), self.learner.init_noise(shape, batch)
        guard, rule = (part.init(shape, batch) if part else None for part in self._remembering)
        return State(ridge, np.zeros((*batch, shape.K)), guard, rule, noise, 1)

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
        return 1 + (shape.d if self.rule.randomisation == "sampled" else 0)

    @cached_property
    def _remembering(self) -> tuple[RemembersDecisions | None, RemembersRounds | None]:
        """Guard and rule, where they have a memory."""
        return (
            self.guard if isinstance(self.guard, RemembersDecisions) else None,
            self.rule if isinstance(self.rule, RemembersRounds) else None,
        )

    def _decide(self, state: State, fit: Fit, offer: Offer, draws: FloatArray) -> Decision:
        seen = self.learner.view(offer, state.noise)

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            return self.rule.propose(fit, seen, Ask(mask, penalty, draws, state.rule))

        guarded = self.guard.apply(state.guard, fit, seen, ask)
        action = pmf.sample(guarded.probabilities, draws[..., 0])
        exact = self.rule.randomisation != "sampled"
        return Decision(action, guarded.probabilities, guarded.reason, exact, guarded.share, guarded.certified)

    def _commit(self, state: State, fit: Callable[[State], Fit], offer: Offer, decision: Decision) -> tuple[Any, Any]:
        if state.guard is None and state.rule is None:
            return None, None
        now, seen = fit(state), self.learner.view(offer, state.noise)
        guard, rule = self._remembering
        return (
            guard.commit(state.guard, now, seen, decision) if guard and state.guard is not None else None,
            rule.commit(state.rule, now, seen, decision.action) if rule and state.rule is not None else None,
        )


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
