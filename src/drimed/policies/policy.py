"""The composition: learner x rule x guard, as pure functions over any batch.

    init(shape, batch)                      -> State
    begin_episode(state, offer)             -> State
    settle(state)                           -> State     before a decision
    decide(state, offer, draws)             -> Draw
    update(state, offer, draw, outcome)     -> State     = observe(commit(...), ...)

Offers, draws and outcomes have the n users that are served from one state as their last batch axis, (..., n); a single
decision is n = 1. `commit` is the part of `update` that belongs to giving decisions out, `observe` the part that
belongs to their outcomes, which may come late and in any order, and be taken back with `forget`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.models.linear_regression import AnyLearner, Learner
from drimed.models.noise_estimation import Noise
from drimed.models.offer import Fit, Floor, Offer, Outcome, Seen, Shape, Unit
from drimed.numerics import probability, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.numerics.probability import sample
from drimed.policies.guards import base
from drimed.policies.guards.base import Draw, Guard, RemembersDecisions
from drimed.policies.guards.margin import Tolerance
from drimed.policies.protocol import Traits, check_sizes
from drimed.policies.registry import guard_name
from drimed.policies.rules.base import Ask, RemembersRounds, Rule, raised
from drimed.policies.rules.med import MED, LinMED

# Offers that are alike: users with the same wishes and arms are decided for once, and drawn for one by one.

# What rules and guards without a memory look at, and how many axes one user's has.
_SEEN = {
    "features": 2,
    "control": 1,
    "sigma": 1,
    "maps": 3,
    "whitening": 3,
    "scale": 0,
    "preference": 1,
    "available": 1,
}
WORTH = 2  # times as many users as different offers, from where on it pays


def distinct(offers: Offer) -> tuple[Offer, IntArray] | None:
    """One of each kind, and the place among them of each offer (n,); None where most of them differ."""
    n = offers.features.shape[0] if offers.features.ndim == _SEEN["features"] + 1 else 1
    floor = offers.floor
    own: dict[str, FloatArray] = {}
    for name, axes in _SEEN.items():
        array = getattr(offers, name)
        if array is not None and array.ndim == axes + 1 and array.shape[0] == n > 1:
            own[name] = array
    limits = {} if floor is None else {"control": np.asarray(floor.control), "arms": np.asarray(floor.arms)}
    flat = [np.ascontiguousarray(array).reshape(n, -1) for array in (*own.values(), *limits.values()) if array.ndim]
    kinds: dict[bytes, int] = {}
    place = np.array([kinds.setdefault(b"".join(part[h].tobytes() for part in flat), len(kinds)) for h in range(n)])
    if len(kinds) * WORTH > n:
        return None
    first = np.unique(place, return_index=True)[1]
    kept: dict[str, Any] = {name: array[first] for name, array in own.items()}
    if floor is not None:
        kept["floor"] = Floor(**{name: array[first] if array.ndim else array for name, array in limits.items()})
    return replace(offers, **kept, user=np.zeros(1, np.intp), unit=None, context=None), place


def drawn(kinds: Draw, place: IntArray, draws: FloatArray, seen: Seen) -> Draw:
    """An arm of its own for each user, by the probabilities of its kind: draws (n, ...)."""
    p = kinds.probabilities[place]
    return Draw(
        sample(p, draws[..., 0]),
        p,
        kinds.reason_code[place],
        kinds.exact,
        None if kinds.share is None else kinds.share[place],
        None if kinds.certified is None else kinds.certified[place],
        seen,
    )


# Draws for decisions that are taken together, so that each arm comes about as often as its chances say.

NEEDED = 2  # uniforms of a decision: where it would lie alone, and its place in the order


def evenly(draws: FloatArray, site: Any, block: Any) -> FloatArray:
    """Uniform numbers of decisions at these sites and blocks, (n,) each: draws (..., n, 2 or more) -> (..., n).

    The first decision's first number turns the circle; the second numbers put the decisions in order.

    >>> draws = np.array([[0.1, 0.4], [0.7, 0.2], [0.3, 0.9], [0.6, 0.8]])
    >>> np.round(evenly(draws, np.array([0, 0, 1, 1]), 0), 2).tolist()
    [0.6, 0.1, 0.85, 0.35]
    """
    if draws.ndim < 2 or draws.shape[-1] < NEEDED:
        raise ShapeError(
            f"decisions that are spread evenly need {NEEDED} uniforms each, (..., n, {NEEDED}); got draws of shape "
            f"{draws.shape}: take policy.draws_needed(shape) of them"
        )
    n = draws.shape[-2]
    order = np.argsort(_wish(draws[..., 1], _places(n, site, block)), axis=-1, kind="stable")
    return np.asarray((draws[..., :1, 0] + _rank(order) / n) % 1.0)


def _wish(key: FloatArray, place: IntArray) -> FloatArray:
    """Where on the circle each decision should be: those of one place apart, the places one after the other: (..., n).

    A place with m decisions has them at 0, 1, ..., m - 1 of m parts, in the order of their keys, and each place a bit
    further on than the one before it, in the order of their smallest keys.
    """
    sizes = np.bincount(place)
    places, start = len(sizes), np.cumsum(sizes) - sizes
    order = np.argsort(place + key, axis=-1, kind="stable")  # by place, then by key
    turn = _rank(order) - start[place]
    least = np.take_along_axis(key, order[..., start], -1)  # (..., places)
    shift = (_rank(np.argsort(least, axis=-1, kind="stable")) + 0.5) / places
    return np.asarray((turn + shift[..., place]) / sizes[place])


def _rank(order: IntArray) -> IntArray:
    """The place of each in an order: the inverse of a permutation, on the last axis."""
    return np.argsort(order, axis=-1, kind="stable")


def _places(n: int, site: Any, block: Any) -> IntArray:
    """A number for each pair of site and block: (n,)."""
    pairs = np.stack([np.broadcast_to(np.asarray(a), n) for a in (site, block)], -1)
    return np.unique(pairs, axis=0, return_inverse=True)[1].reshape(-1)


@dataclass(frozen=True, slots=True)
class State:
    """Everything a policy knows; arrays only."""

    evidence: Any  # the learner's
    pulls: FloatArray  # (..., K)
    guard: Any  # the guard's own memory, or None
    rule: Any  # the rule's own memory, or None
    round: int  # number of the next decision, from 1


@final
@dataclass(frozen=True, kw_only=True)
class Policy:
    """One learner, one rule, one guard."""

    learner: AnyLearner
    rule: Rule
    guard: Guard

    needs_contexts_at_opening: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.learner.discount < 1 and getattr(self.guard, "confidence", None) == "anytime":
            raise ConfigError(
                "confidence 'anytime' needs discount 1: with forgetting the radius holds in each episode, not in all "
                "at once; give a level such as 0.99 instead"
            )
        if isinstance(self.rule, RemembersRounds) and not self.learner.keeps_features:
            raise ConfigError(
                f"the rule {type(self.rule).__name__} keeps sums on features, which a learner of the field does not "
                "have; use another rule, or the paper's learner"
            )

    @cached_property
    def traits(self) -> Traits:
        """What it is made of."""
        learner, level = self.learner, getattr(self.guard, "confidence", None)
        dial = "" if level in (None, 0.99) else f" at {level}"
        return Traits(
            learner=learner.about,
            rule=type(self.rule).__name__,
            guard=guard_name(self.guard) + dial,
            settings=settings_of(type(learner), type(self.rule), type(self.guard)),
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
        return self._start(shape, batch, 0)

    def aged_start(self, shape: Shape, episodes: int) -> State:
        """The state without any outcome after so many episodes."""
        return self._start(shape, (), episodes)

    def begin_episode(self, state: State, offer: Offer) -> State:
        """Let the evidence age; these policies need nothing from the offers."""
        del offer
        return State(self.learner.age(state.evidence), state.pulls, state.guard, state.rule, state.round)

    def decide(self, state: State, offer: Offer, draws: FloatArray) -> Draw:
        """Choose an arm for each user of the offer from one state: draws are uniforms (..., n, draws_needed).

        A learner of sites and seasons has the arms spread evenly over them; each decision keeps its probabilities.
        """
        draws = np.asarray(draws)
        d = self.learner.theta(state.evidence).shape[-1] if self.learner.keeps_features else None
        check_sizes(state.pulls.shape, d, offer, draws)
        if not ((draws >= 0) & (draws <= 1)).all():  # neither is NaN
            raise InputError(f"draws must be uniforms between 0 and 1, got {draws}")
        seen = self.see(state, offer)
        alone = self._looks_at_offers_alone and state.guard is None and state.pulls.ndim == 1
        groups = distinct(seen.offer) if alone else None
        if groups is not None:
            few, place = groups
            m = len(few.features)
            kinds = self._decide(state, Seen(seen.fit, few, few), draws[:m], draws[:m, 0])
            return drawn(kinds, place, draws, seen)
        return self._decide(state, seen, draws, self._uniforms(offer, draws))

    def commit(self, state: State, offer: Offer, draw: Draw) -> State:
        """Remember that the decisions were given out."""
        guard, memory = None, None
        if state.guard is not None or state.rule is not None:
            seen = draw.seen or self.see(state, offer)
            remembers, rounds = self._remembering
            if remembers and state.guard is not None:
                guard = remembers.commit(state.guard, seen.fit, seen.offer, draw)
            if rounds and state.rule is not None:
                memory = rounds.commit(state.rule, seen.fit, seen.offer, draw.action)
        pulls = state.pulls + probability.one_hot(draw.action, state.pulls.shape[-1]).sum(-2)
        return State(state.evidence, pulls, guard, memory, state.round + draw.action.shape[-1])

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        """Whether its learner can learn from such outcomes."""
        return self.learner.usable(observed, preference)

    def observe(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Learn from the outcomes of decisions of the present episode, or of the one `late` episodes ago."""
        outcome.check(offer)
        evidence = self.learner.add(state.evidence, offer, action, outcome, late)
        return State(evidence, state.pulls, state.guard, state.rule, state.round)

    def forget(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Take back what `observe` learned from outcomes."""
        outcome.check(offer)
        evidence = self.learner.remove(state.evidence, offer, action, outcome, late)
        return State(evidence, state.pulls, state.guard, state.rule, state.round)

    def settle(self, state: State) -> State:
        """The state to decide on: before each decision, whatever the learner had put off is done."""
        evidence = self.learner.ready(state.evidence)
        if evidence is state.evidence:
            return state
        return State(evidence, state.pulls, state.guard, state.rule, state.round)

    def update(self, state: State, offer: Offer, draw: Draw, outcome: Outcome) -> State:
        """Give out and learn at once."""
        return self.observe(self.commit(state, offer, draw), offer, draw.action, outcome)

    def lost_digits(self, before: State, after: State) -> bool:
        """Of the learner's sums."""
        return self.learner.lost_digits(before.evidence, after.evidence)

    def with_evidence(self, state: State, evidence: State) -> State:
        """What `evidence` has learned."""
        return State(evidence.evidence, state.pulls, state.guard, state.rule, state.round)

    def see(self, state: State, offer: Offer) -> Seen:
        """The offer as rule and guard see it."""
        return self.learner.see(state.evidence, offer, state.pulls, state.round)

    def effects(
        self, state: State, offer: Offer, confidence: float | str, draw: Draw | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Each arm against the control, as seen now or when the draw was made."""
        seen = draw.seen if draw is not None and draw.seen is not None else self.see(state, offer)
        w = seen.offer.features - seen.offer.control_features[..., None, :]
        half = base.radius(seen.fit, confidence)[..., None] * np.sqrt(quadratic_forms.leverages(w, seen.fit.metric))
        return seen.fit.mean(w), half

    def inference(self, state: State) -> tuple[Fit, Noise | None] | None:
        """Its own regression, where that is on the offers' features, weighted, and on vectors."""
        learner = self.learner
        if not isinstance(learner, Learner) or learner.feedback != "vector" or learner.weighting == "none":
            return None
        return self.fit(state), state.evidence.noise

    def fit(self, state: State) -> Fit:
        """The regression on the offers' features; learners of the field have a fit for each offer instead."""
        if not isinstance(self.learner, Learner):
            raise ConfigError(f"a learner of the {self.learner.about} has a fit for each offer: use `see`")
        return self.learner.fit(state.evidence.ridge, state.evidence.noise, state.pulls, state.round)

    def theta(self, state: State) -> FloatArray:
        """The estimate: (..., d)."""
        return self.learner.theta(state.evidence)

    def draws_needed(self, shape: Shape) -> int:
        """How many uniforms a decision consumes."""
        sampled = self.rule.randomisation == "sampled"
        return 1 + (self.learner.coefficients(shape) if sampled else NEEDED - 1 if self.balances else 0)

    @cached_property
    def _looks_at_offers_alone(self) -> bool:
        """Whether two users with the same offer have the same probabilities, whoever they are."""
        return isinstance(self.learner, Learner) and isinstance(self.rule, MED | LinMED)

    @cached_property
    def _remembering(self) -> tuple[RemembersDecisions | None, RemembersRounds | None]:
        """Guard and rule, where they have a memory."""
        return (
            self.guard if isinstance(self.guard, RemembersDecisions) else None,
            self.rule if isinstance(self.rule, RemembersRounds) else None,
        )

    def _start(self, shape: Shape, batch: tuple[int, ...], episodes: int) -> State:
        guard, rule = (part.init(shape, batch) if part else None for part in self._remembering)
        return State(self.learner.start(shape, batch, episodes), np.zeros((*batch, shape.K)), guard, rule, 1)

    @property
    def balances(self) -> bool:
        """Whether decisions that are taken together are spread evenly; a sampled arm has no chance to keep."""
        return self.learner.balances and self.rule.randomisation != "sampled"

    def _uniforms(self, offer: Offer, draws: FloatArray) -> FloatArray:
        """The uniform number that each decision is drawn by: (..., n)."""
        if not self.balances:
            return draws[..., 0]
        unit = offer.unit or Unit(user=offer.user, group=offer.user)
        group = np.asarray(unit.group)
        site = np.where(group < 0, group.max() + 1 + unit.user, group)  # a user in no group is a site of its own
        return evenly(draws, site, unit.block)

    def _decide(self, state: State, seen: Seen, draws: FloatArray, u: FloatArray) -> Draw:
        """Ask the rule through the guard, and draw an arm by each of the uniforms u (..., n)."""

        def ask(mask: BoolArray | None, penalty: FloatArray | None) -> FloatArray:
            wish = self.rule.propose(seen.fit, seen.compared, Ask(mask, penalty, draws, state.rule))
            return raised(wish, seen.offer, mask)

        guarded = self.guard.apply(state.guard, seen.fit, seen.offer, ask)
        p = guarded.probabilities
        exact = self.rule.randomisation != "sampled"
        return Draw(probability.sample(p, u), p, guarded.reason, exact, guarded.share, guarded.certified, seen)


def settings_of(learner: Any, rule: Any, guard: Any) -> frozenset[str]:
    """The settings of a policy that is made of these: a tolerance is given by its own fields."""
    found = {"learner", "rule", "guard"} | {f.name for part in (learner, rule, guard) for f in fields(part)}
    if "tolerance" in found:
        found = found - {"tolerance"} | {f.name for f in fields(Tolerance)}
    return frozenset(found)
