"""The composition: learner x rule x guard, as pure functions over any batch.

    init(shape, batch)                          -> State
    begin_episode(state, offers)                -> State     offers carry the users as their last batch axis
    decide(state, offer, draws)                 -> Decision
    update(state, offer, decision, outcome)     -> State     = observe(commit(...), ...)

`commit` is the part of `update` that belongs to giving a decision out; `observe` the part that belongs to its
outcome, which may come late and in any order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol, final

import numpy as np

from drimed.errors import ShapeError
from drimed.guards.decision import Decision
from drimed.guards.guard import Guard, GuardState
from drimed.learning.fit import Fit
from drimed.learning.learner import Learner
from drimed.learning.offer import Offer, Outcome, Shape
from drimed.linear import pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.linear.ridge import Ridge
from drimed.rules.rule import Ask, Rule


class AnyPolicy(Protocol):
    """What a simulation or a trial needs of a policy; the published algorithms have it too."""

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> Any: ...

    def begin_episode(self, state: Any, offers: Offer) -> Any: ...

    def decide(self, state: Any, offer: Offer, draws: FloatArray) -> Decision: ...

    def commit(self, state: Any, offer: Offer, decision: Decision) -> Any: ...

    def observe(self, state: Any, offer: Offer, action: IntArray, outcome: Outcome) -> Any: ...

    def update(self, state: Any, offer: Offer, decision: Decision, outcome: Outcome) -> Any: ...

    def theta(self, state: Any) -> FloatArray: ...

    def draws_needed(self, shape: Shape) -> int: ...


@dataclass(frozen=True, slots=True)
class State:
    """Everything a policy knows; arrays only."""

    ridge: Ridge
    pulls: FloatArray  # (..., K)
    guard: GuardState | None
    round: int  # number of the next decision, from 1


@final
@dataclass(frozen=True, kw_only=True)
class Policy:
    """One learner, one rule, one guard."""

    learner: Learner
    rule: Rule
    guard: Guard

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> State:
        """The state before any data, for a batch of independent runs."""
        return State(self.learner.init(shape, batch), np.zeros((*batch, shape.K)), self.guard.init(shape, batch), 1)

    def begin_episode(self, state: State, offers: Offer) -> State:
        """Let the evidence age; these policies need nothing from the offers."""
        del offers
        return replace(state, ridge=self.learner.begin_episode(state.ridge))

    def decide(self, state: State, offer: Offer, draws: FloatArray) -> Decision:
        """Choose an arm for one user: draws are uniforms (..., draws_needed)."""
        if draws.shape[:-1] != state.ridge.theta.shape[:-1]:
            raise ShapeError(
                f"draws must have shape {state.ridge.theta.shape[:-1]} and one axis more, got {draws.shape}"
            )
        fit, seen = self.fit(state), self.learner.view(offer)

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            return self.rule.propose(fit, seen, Ask(mask, penalty, draws))

        guarded = self.guard.apply(state.guard, fit, seen, ask)
        action = pmf.sample(guarded.probabilities, draws[..., 0])
        return Decision(action, guarded.probabilities, guarded.reason, self.rule.randomisation != "sampled")

    def commit(self, state: State, offer: Offer, decision: Decision) -> State:
        """Remember that the decision was given out."""
        guard = state.guard
        if guard is not None:
            guard = self.guard.commit(guard, self.fit(state), self.learner.view(offer), decision.action)
        pulls = state.pulls + pmf.one_hot(decision.action, state.pulls.shape[-1])
        return State(state.ridge, pulls, guard, state.round + 1)

    def observe(self, state: State, offer: Offer, action: IntArray, outcome: Outcome) -> State:
        """Learn from the outcome of one decision."""
        ridge = self.learner.observe(state.ridge, offer, action, outcome)
        return State(ridge, state.pulls, state.guard, state.round)

    def update(self, state: State, offer: Offer, decision: Decision, outcome: Outcome) -> State:
        """Give out and learn at once."""
        return self.observe(self.commit(state, offer, decision), offer, decision.action, outcome)

    def fit(self, state: State) -> Fit:
        """What rule and guard see."""
        return self.learner.fit(state.ridge, state.pulls, state.round)

    def theta(self, state: State) -> FloatArray:
        """The estimate: (..., d)."""
        return state.ridge.theta

    def draws_needed(self, shape: Shape) -> int:
        """How many uniforms a decision consumes."""
        return 1 + (shape.d if self.rule.normal_draws else 0)
