"""A policy: a learner, a rule and a guard, as pure functions over any batch (protocol.py).

Offers, draws and outcomes have the n users that are served from one state as their last batch axis, (..., n); a single
decision is n = 1. Outcomes may come late and in any order, and be taken back with `forget`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from drimed.errors import ConfigError, InputError, ShapeError
from drimed.models.linear_regression import AnyLearner, Learner
from drimed.models.noise_estimation import NoiseModel
from drimed.models.offer import Fit, Offer, Outcome, Seen, Shape, Unit, check_sizes
from drimed.numerics import probability, quadratic_forms
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import Draw, Guard, radius
from drimed.policies.protocol import AnyPolicy, Effects, Traits
from drimed.policies.registry import guard_name, settings_of
from drimed.policies.rules.base import Ask, Rule, one_of_the_plots, raised

UNIFORMS_TO_SPREAD = 2  # of a decision: where it would lie alone, and its place in the order


@dataclass(frozen=True, slots=True)
class State:
    """Everything a policy knows; arrays only."""

    evidence: Any  # the learner's
    pulls: FloatArray  # (..., K)
    guard: Any  # the guard's own memory, or None
    rule: Any  # the rule's own memory, or None
    round: int  # number of the next decision, from 1

    def knowing(self, evidence: Any) -> State:
        """The same with other evidence; `replace` takes as long as a step of a small regression."""
        return State(evidence, self.pulls, self.guard, self.rule, self.round)


@final
@dataclass(frozen=True, kw_only=True)
class Policy(AnyPolicy):
    """One learner, one rule, one guard."""

    learner: AnyLearner
    rule: Rule
    guard: Guard

    def __post_init__(self) -> None:
        if self.learner.discount < 1 and getattr(self.guard, "confidence", None) == "anytime":
            raise ConfigError(
                "confidence 'anytime' needs discount 1: with forgetting the radius holds in each episode, not in all "
                "at once; give a level such as 0.99 instead"
            )
        if hasattr(self.rule, "init") and not self.learner.keeps_features:
            raise ConfigError(
                f"the rule {type(self.rule).__name__} keeps sums on features, which a learner of the field does not "
                "have; use another rule, or the paper's learner"
            )

    @cached_property
    def traits(self) -> Traits:
        learner, level = self.learner, getattr(self.guard, "confidence", None)
        dial = "" if level in (None, 0.99) else f" at {level}"
        return Traits(
            learner=learner.about, rule=type(self.rule).__name__, guard=guard_name(self.guard) + dial,
            settings=settings_of(type(learner), type(self.rule), type(self.guard)), feedback=learner.feedback,
            weighting=learner.weighting, noise_bound=learner.noise_bound, promise=self.guard.promise,
            protects=self.guard.protects, tolerance=getattr(self.guard, "tolerance", None), confidence=level,
        )  # fmt: skip

    def init(self, shape: Shape, batch: tuple[int, ...] = (), episodes: int = 0) -> State:
        """The state before any data, for a batch of independent runs, after so many episodes."""
        parts: tuple[Any, Any] = self.guard, self.rule
        guard, rule = (part.init(shape, batch) if hasattr(part, "init") else None for part in parts)
        return State(self.learner.start(shape, batch, episodes), np.zeros((*batch, shape.K)), guard, rule, 1)

    def begin_episode(self, state: State, offer: Offer) -> State:
        """Let the evidence age; these policies need nothing from the offers."""
        del offer
        return state.knowing(self.learner.age(state.evidence))

    def decide(self, state: State, offer: Offer, draws: FloatArray) -> Draw:
        """Choose an arm for each user of the offer from one state: draws are uniforms (..., n, draws_needed).

        A learner of sites and seasons has the arms spread evenly over them; each decision keeps its probabilities.
        """
        draws = np.asarray(draws)
        d = self.learner.theta(state.evidence).shape[-1] if self.learner.keeps_features else None
        check_sizes(state.pulls.shape, d, offer, draws)
        if not ((draws >= 0) & (draws <= 1)).all():  # neither is NaN
            raise InputError(f"draws must be uniforms between 0 and 1, got {draws}")
        seen = self.learner.see(state.evidence, offer, state.pulls, state.round)
        u, least = draws[..., 0], None
        if self.balances:
            unit = offer.unit or Unit(user=offer.user, group=offer.user)
            group = np.asarray(unit.group)
            site = np.where(group < 0, group.max() + 1 + unit.user, group)  # a user in no group is a site of its own
            least = one_of_the_plots(seen.offer, unit.user)
            u = evenly(draws, site, unit.user, unit.block, least > 0)

        def ask(mask: BoolArray | None, penalty: FloatArray | None = None, /) -> FloatArray:
            wish = self.rule.propose(seen.fit, seen.compared, Ask(mask, draws, penalty, state.rule))
            return raised(wish, seen.offer, mask, least)

        guarded = self.guard.apply(state.guard, seen.fit, seen.offer, ask)
        p = guarded.probabilities
        if least is not None and least.any():  # the first numbers are the control's, in all plots of a user alike
            before = np.vecdot(np.cumsum(p, -1) - p, seen.offer.control)
            u = np.where(least > 0, (u + before) % 1.0, u)
        exact = self.rule.randomisation != "sampled"
        return Draw(probability.sample(p, u), p, guarded.reason, exact, guarded.share, guarded.certified, seen)

    def commit(self, state: State, offer: Offer, draw: Draw) -> State:
        """Remember that the decisions were given out."""
        guard, memory = state.guard, state.rule
        if guard is not None or memory is not None:
            seen = draw.seen or self.see(state, offer)
            parts: tuple[Any, Any] = self.guard, self.rule
            guard = guard and parts[0].commit(guard, seen.fit, seen.offer, draw)
            memory = memory and parts[1].commit(memory, seen.fit, seen.offer, draw.action)
        pulls = state.pulls + (draw.action[..., None] == np.arange(state.pulls.shape[-1])).sum(-2)
        return State(state.evidence, pulls, guard, memory, state.round + draw.action.shape[-1])

    def usable(self, observed: BoolArray, preference: FloatArray) -> BoolArray:
        return self.learner.usable(observed, preference)

    def observe(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Learn from the outcomes of decisions of the present episode, or of the one `late` episodes ago."""
        outcome.check(offer)
        return state.knowing(self.learner.add(state.evidence, offer, action, outcome, late))

    def forget(self, state: State, offer: Offer, action: IntArray, outcome: Outcome, late: int = 0) -> State:
        """Take back what `observe` learned from outcomes."""
        outcome.check(offer)
        return state.knowing(self.learner.remove(state.evidence, offer, action, outcome, late))

    def settle(self, state: State) -> State:
        """The state to decide on: before each decision, whatever the learner had put off is done."""
        evidence = self.learner.ready(state.evidence)
        return state if evidence is state.evidence else state.knowing(evidence)

    def lost_digits(self, before: State, after: State) -> bool:
        return self.learner.lost_digits(before.evidence, after.evidence)

    def with_evidence(self, state: State, evidence: State) -> State:
        """The belief that `evidence` gives."""
        return state.knowing(evidence.evidence)

    def see(self, state: State, offer: Offer) -> Seen:
        """The offer as rule and guard see it."""
        return self.learner.see(state.evidence, offer, state.pulls, state.round)

    def effects(self, state: State, offer: Offer, confidence: float | str, draw: Draw | None = None) -> Effects:
        """Each arm against the control, as seen now or when the draw was made."""
        seen = draw.seen if draw is not None and draw.seen is not None else self.see(state, offer)
        w = seen.offer.features - seen.offer.control_features[..., None, :]
        estimate, draws = seen.fit.mean(w), seen.fit.draws
        if draws is None or isinstance(confidence, str):
            half = radius(seen.fit, confidence)[..., None] * np.sqrt(quadratic_forms.leverages(w, seen.fit.metric))
            return Effects(estimate, half, half)
        ends = np.quantile(np.matmul(w, np.swapaxes(draws, -1, -2)), [1 - confidence, confidence], axis=-1)
        return Effects(estimate, ends[1] - estimate, estimate - ends[0])

    def inference(self, state: State) -> tuple[Fit, NoiseModel | None] | None:
        """Its own regression, where that is on the offers' features, weighted, and on vectors."""
        learner = self.learner
        if not isinstance(learner, Learner) or learner.feedback != "vector" or learner.weighting == "none":
            return None
        return self.fit(state), state.evidence.noise

    def fit(self, state: State) -> Fit:
        """The regression on the offers' features; learners of the field have a fit for each offer instead."""
        if not isinstance(self.learner, Learner):
            raise ConfigError(f"a learner of the {self.learner.about} has a fit for each offer: use `see`")
        return self.learner.fit(state.evidence, state.pulls, state.round)

    def theta(self, state: State) -> FloatArray:
        return self.learner.theta(state.evidence)

    def draws_needed(self, shape: Shape) -> int:
        sampled = self.rule.randomisation == "sampled"
        return 1 + (self.learner.coefficients(shape) if sampled else UNIFORMS_TO_SPREAD - 1 if self.balances else 0)

    @cached_property
    def balances(self) -> bool:
        """Whether decisions that are taken together are spread evenly; a sampled arm has no chance to keep."""
        return self.learner.balances and self.rule.randomisation != "sampled"


def evenly(draws: FloatArray, site: Any, user: Any, block: Any, alone: Any = False) -> FloatArray:
    """Uniform numbers of decisions at these sites, users and blocks, (n,) each: draws (..., n, 2 or more) -> (..., n).

    Each number by itself is uniform, so that every arm keeps exactly its probability. Together they lie evenly on the
    circle (systematic sampling; Madow and Madow 1944): the n numbers are 1 / n apart, and those of one site, user and
    block as far from each other as they can be. The m numbers of a user for whom `alone` is set are exactly 1 / m
    apart: an arm that has a chance of 1 / m or more in each of its plots is never missing. The first decision's first
    number turns the circle; the second numbers put the decisions in order.
    """
    if draws.ndim < 2 or draws.shape[-1] < UNIFORMS_TO_SPREAD:
        raise ShapeError(
            f"decisions that are spread evenly need {UNIFORMS_TO_SPREAD} uniforms each, got draws of shape "
            f"{draws.shape}: take policy.draws_needed(shape) of them"
        )
    n, key = draws.shape[-2], draws[..., 1]
    if n == 1:
        return draws[..., 0] % 1.0
    every = np.arange(n)
    farm, owner, block = (np.unique(np.broadcast_to(a, n), return_inverse=True)[1] for a in (site, user, block))
    inside = np.unique(owner * n + block, return_inverse=True)[1]
    # The m plots of a block at 0, 1, ..., m - 1 of m parts, and each block a bit further on than the one before it; in
    # this order the plots of a user; and so each user of a site, and each site.
    plot, plots = _turns(key, every, inside)
    part, parts = _turns(key, inside, owner)
    plot, plots = _turns((plot + (part + 0.5) / parts) / plots, every, owner)
    member, members = _turns(key, owner, farm)
    place, places = _turns(key, farm, np.zeros(n, np.intp))
    at = (plot + (member + (place + 0.5) / places) / members) / plots
    ranks = np.argsort(np.argsort(at, axis=-1, kind="stable"), axis=-1)
    return np.asarray((draws[..., :1, 0] + np.where(alone, at, ranks / n)) % 1.0)


def _turns(key: FloatArray, part: IntArray, whole: IntArray) -> tuple[IntArray, IntArray]:
    """The turn of each decision's part among all parts of its whole, by their smallest keys, and their number.

    Parts and wholes are numbered (n,), keys (..., n) lie in [0, 1].
    """
    order = np.argsort(part, kind="stable")
    first = np.flatnonzero(np.diff(part[order], prepend=-1))
    least, belongs = np.minimum.reduceat(key[..., order], first, axis=-1), whole[order[first]]
    counts = np.bincount(belongs)
    start = np.cumsum(counts) - counts
    turn = np.argsort(np.argsort(belongs + least, axis=-1, kind="stable"), axis=-1) - start[belongs]
    return turn[..., part], counts[whole]
