"""A policy that learns with the field model: the same rules and guards, with a belief of each user's own.

An episode is a season. A user's group is given once; a decision's block is its group's part of the season; the offer's
context holds the covariates. Rules compare arms, so they see features relative to the control's: how well the level of
a site is known is not exploration of its arms. Guards see the features themselves.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.guards import constraint
from drimed.guards.guard import Decision, Guard, RemembersDecisions
from drimed.learning.field.cells import FACTORS, Rows
from drimed.learning.field.model import Belief, Field, FieldState
from drimed.learning.field.terms import Sizes, field_families
from drimed.learning.offer import Fit, Offer, Outcome, Shape, quadratic
from drimed.linear import forms, pmf
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.contract import Traits
from drimed.policies.policy import LOST_SHARE, settings_of
from drimed.policies.registry import guard_name
from drimed.rules.rule import Ask, RemembersRounds, Rule


@dataclass(frozen=True, slots=True)
class FieldPolicyState:
    """Everything a field policy knows; arrays and numbers only."""

    field: FieldState
    pulls: FloatArray  # (..., K)
    guard: Any  # the guard's own memory, or None
    users: int  # H
    season: int  # of the present episode, from 0; -1 before the first
    round: int  # number of the next decision, from 1


@final
@dataclass(frozen=True, kw_only=True)
class FieldPolicy:
    """The field model with one rule and one guard.

    >>> from drimed.guards.guard import Off
    >>> from drimed.rules.med import MED
    >>> FieldPolicy(rule=MED(), guard=Off()).init(Shape(d=1, K=3, M=1, H=2)).pulls.shape
    (3,)
    """

    rule: Rule
    guard: Guard
    groups: tuple[int, ...] | None = None  # the group of each user; None: each user is a group
    covariates: int = 0  # the length of the offers' contexts; 0: contexts are not used
    noise: str = "common"  # see Field
    pairs: int = 6
    growth: float = 1.1

    needs_contexts_at_opening: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if isinstance(self.rule, RemembersRounds):
            raise ConfigError(
                f"the rule {type(self.rule).__name__} keeps sums on features, which the field model lacks"
            )

    @cached_property
    def traits(self) -> Traits:
        """What it is made of."""
        return Traits(
            learner=f"field model, {self.noise} noise",
            rule=type(self.rule).__name__,
            guard=guard_name(self.guard),
            settings=settings_of(type(self), type(self.rule), type(self.guard)),
            feedback="vector",
            weighting="learned",
            noise_bound=1.0,
            promise=self.guard.promise,
            protects=self.guard.protects,
            tolerance=getattr(self.guard, "tolerance", None),
            confidence=getattr(self.guard, "confidence", None),
        )

    def init(self, shape: Shape, batch: tuple[int, ...] = ()) -> FieldPolicyState:
        """The state before any data."""
        model = self.model(shape.K, shape.M, shape.H)
        pulls = np.zeros((*batch, shape.K))
        before = model.settle(model.init(batch))
        guard = self.guard.init(shape, batch) if isinstance(self.guard, RemembersDecisions) else None
        return FieldPolicyState(before, pulls, guard, shape.H, -1, 1)

    def aged_start(self, shape: Shape, episodes: int) -> FieldPolicyState:
        """The first state, in a later season."""
        return replace(self.init(shape), season=episodes - 1)

    def model(self, K: int, M: int, H: int) -> Field:
        """The learner for K arms, M metrics and H users."""
        groups = H if self.groups is None else max(self.groups) + 1
        z = range(self.covariates)
        return Field(
            sizes=Sizes(arm=K, group=groups, block=groups, user=H),
            metrics=M,
            covariates=self.covariates,
            families=field_families(z, z),
            noise=self.noise,
            pairs=self.pairs,
            growth=self.growth,
        )

    def begin_episode(self, state: FieldPolicyState, offers: Offer) -> FieldPolicyState:
        """A new season."""
        del offers
        return replace(state, season=state.season + 1)

    def settle(self, state: FieldPolicyState) -> FieldPolicyState:
        """The state to decide on; deciding on another one does the same work and forgets it."""
        field = self._model(state).settle(state.field)
        return state if field is state.field else replace(state, field=field)

    def decide(self, state: FieldPolicyState, offer: Offer, draws: FloatArray) -> Decision:
        """Choose an arm for one user."""
        if not isinstance(offer.user, int):
            raise InputError("decide takes one user; for a whole episode use decide_together")
        if draws.shape[:-1] != state.field.cells.batch:
            batch = state.field.cells.batch
            raise ShapeError(f"draws must have shape {batch} and one axis more, got {draws.shape}")
        return self.decide_together(state, offer, draws)

    def decide_together(self, state: FieldPolicyState, offers: Offer, draws: FloatArray) -> Decision:
        """Choose for all users of an episode from one state: offers and draws have the users as last batch axis."""
        fit, seen = self._seen(state, offers)
        compared = replace(seen, features=seen.features - seen.control_features[..., None, :])

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            return self.rule.propose(fit, compared, Ask(mask, penalty, draws, None))

        guarded = self.guard.apply(state.guard, fit, seen, ask)
        action = pmf.sample(guarded.probabilities, draws[..., 0])
        exact = self.rule.randomisation != "sampled"
        return Decision(action, guarded.probabilities, guarded.reason, exact, guarded.share, guarded.certified)

    def commit(self, state: FieldPolicyState, offer: Offer, decision: Decision) -> FieldPolicyState:
        """Remember that the decision, or those of a whole episode, were given out."""
        one = pmf.one_hot(decision.action, state.pulls.shape[-1])
        pulls = state.pulls + (one if one.ndim == state.pulls.ndim else one.sum(-2))
        guard = state.guard
        if isinstance(self.guard, RemembersDecisions):
            guard = self.guard.commit(guard, *self._seen(state, offer), decision)
        return replace(state, pulls=pulls, guard=guard, round=state.round + one.size // state.pulls.size)

    commit_together = commit

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """One metric is enough."""
        del preference
        return np.asarray(observed.any(-1))

    def observe(
        self, state: FieldPolicyState, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldPolicyState:
        """Learn from the outcome of one decision, or of a whole episode, of `late` episodes ago."""
        rows = self._rows(state, offer, action, outcome, late)
        return replace(state, field=self._model(state).observe(state.field, rows))

    def forget(
        self, state: FieldPolicyState, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0
    ) -> FieldPolicyState:
        """Take back what `observe` learned."""
        rows = self._rows(state, offer, action, outcome, late)
        return replace(state, field=self._model(state).forget(state.field, rows))

    def update(self, state: FieldPolicyState, offer: Offer, decision: Decision, outcome: Outcome) -> FieldPolicyState:
        """Give out and learn at once."""
        return self.observe(self.commit(state, offer, decision), offer, decision.action, outcome)

    def lost_digits(self, before: FieldPolicyState, after: FieldPolicyState) -> bool:
        """Of the sums of squares."""
        cells = after.field.cells
        there = cells.count[..., None] > 0
        return bool((there & (cells.squares < LOST_SHARE * before.field.cells.squares)).any())

    def with_evidence(self, state: FieldPolicyState, evidence: FieldPolicyState) -> FieldPolicyState:
        """The outcomes of `evidence`, and what was learned from them."""
        return replace(state, field=evidence.field)

    def effects(self, state: FieldPolicyState, offer: Offer, confidence: float | str) -> tuple[FloatArray, FloatArray]:
        """Each arm against the control, for this user in an average season."""
        fit, seen = self._seen(state, offer)
        w = seen.features - seen.control_features[..., None, :]
        half = constraint.radius(fit, confidence)[..., None] * np.sqrt(forms.leverages(w, fit.metric))
        return fit.mean(w), half

    def inference(self, state: FieldPolicyState) -> None:
        """Its regression is not on the features of the offers."""
        del state

    def theta(self, state: FieldPolicyState) -> FloatArray:
        """What is common to all, in standardised units: (..., M P)."""
        learned = self.settle(state).field.learned
        if learned is None:
            raise InputError("nothing is fitted yet: start from `init`")
        theta = learned.theta
        return theta.reshape(*theta.shape[:-2], -1)

    def draws_needed(self, shape: Shape) -> int:
        """How many uniforms a decision consumes."""
        return 1 + (shape.K * shape.M if self.rule.randomisation == "sampled" else 0)

    def view(self, offer: Offer, belief: Belief) -> Offer:
        """The offer on the table of means: maps that pick arm and metric."""
        K, M = belief.mean.shape[-2:]
        maps = np.eye(K * M).reshape(K, M, K * M)
        preference = np.ones(M) if offer.preference is None else offer.preference
        if offer.preference is None and M > 1:
            raise InputError(f"an offer with {M} metrics needs a preference")
        features = np.einsum("...m,kmd->...kd", preference, maps)
        features = np.broadcast_to(
            features, (*np.broadcast_shapes(features.shape[:-2], belief.mean.shape[:-2]), K, K * M)
        )
        return Offer(
            features=features,
            control=offer.control,
            sigma=np.sqrt(quadratic(belief.residual, preference)),
            maps=maps,
            preference=offer.preference,
            context=offer.context,
            available=offer.available,
            user=offer.user,
        )

    def _model(self, state: FieldPolicyState) -> Field:
        K, M = state.pulls.shape[-1], state.field.cells.mean.shape[-1] - self.covariates
        return self.model(K, M, state.users)

    def _group(self, user: int) -> int:
        return user if self.groups is None else self.groups[user]

    def _seen(self, state: FieldPolicyState, offer: Offer) -> tuple[Fit, Offer]:
        """What rule and guard see: of one user, or of many with an axis of their own."""
        state, z, pulls = self.settle(state), offer.context if self.covariates else None, state.pulls
        model = self._model(state)
        if isinstance(offer.user, int):
            belief = model.belief(state.field, self._group(offer.user), z)
        else:
            users = enumerate(offer.user)
            each = [
                model.belief(state.field, self._group(int(h)), None if z is None else z[..., i, :]) for i, h in users
            ]
            axis, pulls = pulls.ndim - 1, pulls[..., None, :]
            belief = Belief(*(np.stack([getattr(b, f.name) for b in each], axis) for f in fields(Belief)))
        return model.fit(belief, state.round, pulls), self.view(offer, belief)

    def _rows(self, state: FieldPolicyState, offer: Offer, action: IntArray, outcome: Outcome, late: int) -> Rows:
        outcome.check(offer)
        y = outcome.vector if outcome.vector is not None else np.asarray(outcome.reward)[..., None]
        together = action.ndim > len(state.field.cells.batch)
        users = np.atleast_1d(np.asarray(offer.user))
        group = np.array([self._group(int(h)) for h in users])
        keys = np.zeros((*action.shape, *(() if together else (1,)), len(FACTORS)), np.intp)
        season = max(state.season, 0) - late
        arm = action if together else action[..., None]
        for name, value in (("season", season), ("block", group), ("group", group), ("user", users), ("arm", arm)):
            keys[..., FACTORS.index(name)] = value
        z = None
        if self.covariates:
            if offer.context is None:
                raise InputError(f"the model uses {self.covariates} covariates: give the offer a context")
            z = np.broadcast_to(offer.context, (*action.shape, self.covariates))
            z = z if together else z[..., None, :]
        observed = outcome.observed
        if not together:
            y, observed = y[..., None, :], None if observed is None else observed[..., None, :]
        return self._model(state).rows(keys, y, z, observed)
