"""What a trial knows after an event: a frozen value.

A state is a function of the log (`drimed.trial.fold`), the same in the process that decided, in every other process and
in `verify`. Readers keep the one they have; a writer replaces it as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from drimed.errors import InputError
from drimed.learning.offer import Floor, Offer, Outcome, Shape
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.policies.contract import AnyPolicy, to_arrays
from drimed.policies.policy import Policy
from drimed.records import COMPLETE, MISSING, PARTIAL, PENDING, Event
from drimed.rules.floors import Floors
from drimed.trial.build import build_policy
from drimed.trial.codes import codes_of
from drimed.trial.layers import Layers
from drimed.trial.numbers import Numbers
from drimed.trial.parts import User
from drimed.trial.problem import FEWEST_USERS, Problem, Profile
from drimed.trial.seasons import Season
from drimed.trial.spec import TrialSpec
from drimed.trial.stopping import Looked, has_floor, views
from drimed.trial.unlikely import Spread

Values = Mapping[str, Any]  # an outcome: {"metrics": ..., "control": ...}


@dataclass(frozen=True)
class Capacity:
    """How many arms and profiles the arrays can hold."""

    arms: int
    users: int

    @staticmethod
    def holding(arms: int, users: int, least: int = FEWEST_USERS) -> Capacity:
        """Enough for so many; the capacity for users doubles."""
        while least < users:
            least *= 2
        return Capacity(arms, least)


@dataclass(frozen=True)
class Counts:
    """Decisions by the state of their outcome, and how many amendments there were."""

    pending: int = 0
    partial: int = 0
    complete: int = 0
    missing: int = 0
    amendments: int = 0

    @property
    def decisions(self) -> int:
        """All of them."""
        return self.pending + self.partial + self.complete + self.missing

    def moved(self, before: str, after: str) -> Counts:
        """One decision from a state to another."""
        if before == after:
            return self
        return replace(self, **{before: getattr(self, before) - 1, after: getattr(self, after) + 1})


@dataclass(frozen=True)
class Episode:
    """The present season."""

    number: int = 0
    contexts: dict[str, list[float]] = field(default_factory=dict)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # user, or "" for all -> arms
    # user, or "user/plot" -> its decision, where there is one per episode
    asked: Layers[str, int] = field(default_factory=Layers)


@dataclass(frozen=True)
class TrialState:
    """Everything that is known after event `seq`."""

    created: Event
    spec: TrialSpec
    capacity: Capacity
    problem: Problem
    policy: AnyPolicy
    learned: Any  # the policy's own state
    profiles: Layers[int, Profile]  # slot -> profile; a change of preference or control makes a new one
    users: Layers[str, int]  # name -> slot of the present profile
    numbers: Numbers  # by which the learner knows groups, blocks and levels
    usual: tuple[Spread, ...]  # of each metric, what was recorded so far
    remembers_users: bool  # whether the policy's arrays have an axis of users, which must be large enough
    seq: int
    hash: str
    episode: Episode = Episode()
    seasons: Layers[int, Season] = field(default_factory=Layers)  # episodes that have a name or a date
    counts: Counts = Counts()
    pulls: Layers[str, tuple[int, ...]] = field(default_factory=Layers)  # user -> decisions by arm
    retired: tuple[str, ...] = ()
    status: str = "running"
    opened: bool = False  # whether the code was opened for all
    openings: tuple[int, ...] = ()  # events that opened it, for one decision or for all
    looked: Looked = field(default_factory=Looked)
    stale: bool = False  # whether the evidence must be summed again before anything else is folded in

    @staticmethod
    def start(created: Event, capacity: Capacity | None = None) -> TrialState:
        """A trial before its first decision."""
        spec = TrialSpec.stored(created.body["spec"])
        capacity = capacity or Capacity.holding(len(spec.arms), len(spec.users))
        problem = problem_of(created, spec, capacity)
        policy = build_policy(spec, problem.shape.d)
        empty = TrialState(
            created=created,
            spec=spec,
            capacity=capacity,
            problem=problem,
            policy=policy,
            learned=policy.init(problem.shape),
            profiles=Layers(),
            users=Layers(),
            numbers=Numbers.start(problem.covariates),
            usual=(Spread(),) * len(spec.metrics),
            remembers_users=_remembers_users(policy, problem.shape),
            seq=created.seq,
            hash=created.hash,
            looked=Looked(views=views(spec, spec.users)),
        )
        return empty.entered(spec.users.items())

    @property
    def balances(self) -> bool:
        """Whether the arms of decisions that are asked for together are spread evenly over sites and blocks."""
        return isinstance(self.policy, Policy) and self.policy.balances

    def floor(self, users: Sequence[str]) -> Floor | None:
        """The least probabilities of the next decisions, for these users: (n,), or () for one."""
        if self.spec.floors is None:
            return None
        floors = Floors(**self.spec.floors.heights())
        before = np.full(len(users), self.counts.decisions)
        if floors.count == "user":
            before = np.array([sum(self.pulls.get(user, ())) for user in users])
        floor = floors.after(before[0] if len(users) == 1 else before)
        if not self.looked.ended:
            return floor
        left = np.array([has_floor(self, user) for user in users], np.float64)
        left = left[0] if len(users) == 1 else left
        return Floor(control=floor.control * left, arms=floor.arms * left)

    @property
    def seed(self) -> int:
        """Of the policy's draws."""
        return int(self.created.body["seed"])

    @cached_property
    def codes(self) -> dict[str, str]:
        """The code of each arm; empty: the trial has none."""
        return {} if self.spec.blinding is None else codes_of(self.seed, tuple(self.spec.arms), self.spec.blinding)

    def settled(self) -> Any:
        """The policy's state, ready to decide on; it is kept when a decision is recorded."""
        return self._settled

    @cached_property
    def _settled(self) -> Any:
        return self.policy.settle(self.learned)

    def entered(self, users: Iterable[tuple[str, User]]) -> TrialState:
        """With new profiles, which are these users' from now on."""
        users, problem = list(users), self.problem
        new = {name: user for name, user in reversed(users) if name not in self.users}  # each as it joined
        names = [name for name in dict.fromkeys(name for name, _ in users) if name in new]
        joining = ((name, self.spec.group_of(new[name]), new[name].attributes or {}) for name in names)
        alone = self.spec.kind == "people"
        numbers, people = self.numbers.joined(problem.covariates, joining, len(self.users), alone=alone)
        known = dict(zip(names, people, strict=True))
        profiles = [
            problem.profile(name, user, slot, known[name] if name in known else self.profile(name).person)
            for slot, (name, user) in enumerate(users, len(self.profiles))
        ]
        return replace(
            self,
            profiles=self.profiles.with_items((p.slot, p) for p in profiles),
            users=self.users.with_items((p.user, p.slot) for p in profiles),
            numbers=numbers,
        )

    # Users and arms now

    def profile(self, user: str) -> Profile:
        """The present profile of a user."""
        return self.profiles[self.users[user]]

    def excluded(self, user: str, more: Iterable[str] = ()) -> list[str]:
        """Arms that this user cannot get now."""
        there = self.episode.unavailable
        return sorted({*self.retired, *there.get("", ()), *there.get(user, ()), *more})

    def opening_offers(self, contexts: Mapping[str, list[float]]) -> Offer:
        """What all users are offered when an episode opens, where the policy looks at that."""
        if not self.policy.needs_contexts_at_opening:
            return Offer(features=np.zeros((1, 1, 1)), control=np.ones((1, 1)))
        profiles = [self.profile(u) for u in self.users]
        absent = [p.user for p in profiles if self.problem.fields and p.user not in contexts]
        if absent or not profiles:
            who = f"{absent[0]!r} has none" if absent else "there are no users"
            name = self.spec.policy.name
            raise InputError(f"policy {name!r} needs every user's context when an episode opens; {who}", ("contexts",))
        known = [as_vector(contexts.get(p.user)) if self.problem.fields else None for p in profiles]
        return self.problem.offer(profiles, known, [None] * len(profiles))

    # A decision and its outcome

    def asked(
        self, event: Event, numbers: Numbers | None = None
    ) -> tuple[Profile, FloatArray | None, BoolArray | None, int]:
        """Who a recorded decision was for, in which context, with which arms available, and in which block."""
        body = event.body
        profile = self.profiles[body["profile"]]
        mask = self.problem.available(profile, body["unavailable"])
        block = (numbers or self.numbers).block(profile.user, body.get("block"))
        return profile, as_vector(body["context"]), mask, block

    def state_of(self, outcome: Values | None, *, missing: bool) -> str:
        """The state of a decision with this outcome; `missing`: the rest of it was marked as missing."""
        parts = [] if outcome is None else [outcome["metrics"] or {}]
        if parts and self.spec.feedback == "difference":
            parts.append((outcome or {})["control"] or {})
        if parts and all(m in part for part in parts for m in self.problem.metrics):
            return COMPLETE
        return MISSING if missing else PARTIAL if any(parts) else PENDING

    def usable(self, profile: Profile, outcome: Values) -> Outcome | None:
        """An outcome as the policy learns from it, or None while it must wait for more metrics."""
        if not any(outcome.values()):  # all of it was taken back
            return None
        if self.spec.feedback == "difference" and self.spec.kind != "paper":
            return self._two_plots(profile, outcome)
        y, there = self.vector(outcome)
        y, there = y[None], there[None]  # (1, M)
        if not self.policy.usable(there, profile.preference).all():
            return None
        return Outcome(np.asarray(np.vecdot(profile.preference, y)), y, None if there.all() else there)

    def _two_plots(self, profile: Profile, outcome: Values) -> Outcome | None:
        """For learners of the field: both plots as they are, since what they share is learned too."""
        plots = [self.problem.outcome(outcome[part] or {}) for part in ("metrics", "control")]
        (y, there), (y0, there0) = ((values[None], observed[None]) for values, observed in plots)  # (1, M)
        if not self.policy.usable(there | there0, profile.preference).all():
            return None
        return Outcome(None, y, None if there.all() else there, y0, None if there0.all() else there0)

    def reward(self, profile: Profile, outcome: Values) -> float | None:
        """What an outcome is worth to the user; None while a metric that counts is not there."""
        y, there = self.vector(outcome)
        return float(np.vecdot(profile.preference, y)) if there[profile.preference != 0].all() else None

    def vector(self, outcome: Values) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, against the control plot where there is one; and what is there of it."""
        y, there = self.problem.outcome(outcome["metrics"])
        if self.spec.feedback == "difference":
            y0, there0 = self.problem.outcome(outcome["control"] or {})
            y, there = y - y0, there & there0
        return np.where(there, y, 0.0), there


def _remembers_users(policy: AnyPolicy, shape: Shape) -> bool:
    wider = replace(shape, H=shape.H + 1)
    one, other = ({k: a.shape for k, a in to_arrays(policy.init(s)).items()} for s in (shape, wider))
    return one != other


def problem_of(created: Event, spec: TrialSpec, capacity: Capacity) -> Problem:
    """The arrays of a trial; arms that came later do not change the units of attributes."""
    return Problem(spec, room=capacity.arms, users=capacity.users, founders=len(created.body["spec"]["arms"]))


def as_vector(values: list[float] | None) -> FloatArray | None:
    """A recorded context."""
    return None if values is None else np.array(values, dtype=np.float64)
