"""State of a trial after an event, a frozen value, and how it follows from the log: `fold(state, events)` is pure.

It is the same in the process that decided, in every other process and in `verify`. Readers keep the one they have; a
writer replaces it as a whole. Events are folded in groups: decisions that were taken together from one state are one
group, and an outcome comes with the event of its decision. Two things need the log again: arrays that have become too
small, and sums that lost their digits when a huge outcome was taken back; `catch_up` does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from math import sqrt
from typing import Any

import numpy as np

from drimed import streams
from drimed.errors import InputError, NumericalError, StoreError
from drimed.models.mixed.learner import Field, FieldEvidence
from drimed.models.offer import Floor, Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, computing
from drimed.policies.guards.base import FAILED, REASONS, Draw
from drimed.policies.policy import Policy
from drimed.policies.policy import State as PolicyState
from drimed.policies.protocol import AnyPolicy
from drimed.records import COMPLETE, MISSING, OTHER, PARTIAL, PENDING, Decision, DecisionRow, Event
from drimed.trial import events as kinds
from drimed.trial.events import Decided, EventBody, HistoryRead, Told, Values, body_of
from drimed.trial.look_history import LookHistory, has_floor, rule_scopes
from drimed.trial.problem import (
    FEWEST_USERS,
    Layers,
    Problem,
    Profile,
    UnitIndex,
    below_key,
    block_key,
    build_policy,
    plot_key,
)
from drimed.trial.seasons import Season
from drimed.trial.spec import Arm, ArmNoise, Stopping, TrialSpec, User
from drimed.trial.store import Ledger

CHUNK = 2000  # events that are folded at a time: their decisions are fetched together
FEWEST = 8  # recorded values of a metric before they say what is usual
NOTHING = Offer(features=np.zeros((1, 1, 1)), control=np.ones((1, 1)))  # where nobody looks at it
LOST_SHARE = 1e-6  # of a sum of squares: what is left after taking a huge value out is round-off


@dataclass(frozen=True)
class Spread:
    """Count, mean and summed squared deviations of the recorded values of one metric."""

    n: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def added(self, value: float) -> Spread:
        """With one more value.

        >>> Spread().added(1.0).added(3.0)
        Spread(n=2, mean=2.0, squares=2.0)
        """
        mean = self.mean + (value - self.mean) / (self.n + 1)
        return Spread(self.n + 1, mean, self.squares + (value - self.mean) * (value - mean))

    def removed(self, value: float) -> Spread:
        """Without one of its values; where that costs the digits of the others, counting begins again."""
        if self.n < 2:
            return Spread()
        mean = self.mean - (value - self.mean) / (self.n - 1)
        squares = self.squares - (value - self.mean) * (value - mean)
        return Spread(self.n - 1, mean, squares) if squares > LOST_SHARE * self.squares else Spread()

    @property
    def fractional(self) -> bool:
        """Whether some of the values were certainly no whole numbers: their sum or that of their squares is none."""
        sums = (self.n * self.mean, self.squares + self.n * self.mean**2)
        return any(abs(s - round(s)) > LOST_SHARE * max(1.0, abs(s)) for s in sums)

    @property
    def deviation(self) -> float:
        """The standard deviation."""
        return sqrt(max(self.squares, 0.0) / max(self.n - 1, 1))

    def is_far(self, value: float, deviations: float) -> bool:
        """Whether a value is more than so many standard deviations from the mean."""
        return self.n >= FEWEST and abs(value - self.mean) > deviations * self.deviation > 0


@dataclass(frozen=True)
class Capacity:
    """Numbers of arms and profiles that the arrays can hold."""

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
    """Decisions by the state of their outcome, and numbers of amendments and numerical failures."""

    pending: int = 0
    partial: int = 0
    complete: int = 0
    missing: int = 0
    amendments: int = 0
    failures: int = 0  # decisions by the control and outcomes not learned from, because the model could not be computed

    @property
    def decisions(self) -> int:
        return self.pending + self.partial + self.complete + self.missing

    def moved(self, before: str, after: str) -> Counts:
        """One decision from a state to another."""
        if before == after:
            return self
        return replace(self, **{before: getattr(self, before) - 1, after: getattr(self, after) + 1})


@dataclass(frozen=True)
class Episode:
    number: int = 0
    contexts: dict[str, list[float]] = field(default_factory=dict)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # user, or "" for all -> arms
    # user, or "user/plot" -> its decision, where there is one per episode
    asked: Layers[str, int] = field(default_factory=Layers)


@dataclass(frozen=True)
class Question:
    """A user or a plot to decide for; a recorded decision has these fields too."""

    profile: int  # slot
    context: list[float] | None
    unavailable: list[str]  # arms
    plot: str | None = None
    block: str | None = None


@dataclass(frozen=True)
class RecordedDecision:
    """A decision and what is recorded of its outcome."""

    event: Event
    outcome: Values | None = None  # None: nothing is recorded, or any more
    marked_missing: bool = False  # and nothing more came after that
    amendments: int = 0
    state: str = PENDING
    given: str | None = None  # the arm that was given, or OTHER; None: nothing was said
    package: str | None = None  # the code by which that was told

    @staticmethod
    def of(state: TrialState, events: Sequence[Event], until: int | None = None) -> RecordedDecision:
        """From all events about a decision, up to number `until`, or else the last one of this state."""
        recorded = RecordedDecision(events[0])
        for event in events[1:]:
            if event.seq <= (state.seq if until is None else until):
                recorded = recorded.after(state, event)
        return recorded

    def after(self, state: TrialState, event: Event) -> RecordedDecision:
        if event.kind == kinds.GIVEN:
            given = body_of(event, kinds.ArmGiven)
            return replace(self, given=given.given, package=given.package)
        outcome, missing, amendments = self.outcome, True, self.amendments
        if event.kind != kinds.MISSING:
            body = body_of(event, Told)
            outcome = body.outcome if any(body.outcome.values()) else None  # all of it may have been taken back
            missing, amendments = getattr(body, "missing", False), amendments + (event.kind == kinds.AMENDMENT)
        new = state.state_of(self, outcome, missing=missing)
        return replace(self, outcome=outcome, marked_missing=missing, amendments=amendments, state=new)

    @property
    def decision(self) -> int:
        return int(self.event.decision or 0)

    @property
    def body(self) -> Decided:
        return body_of(self.event, Decided)

    @property
    def row(self) -> DecisionRow:
        """Its row in the table of decisions."""
        event, body = self.event, self.body
        place = str(event.user), body.plot, body.block, body.arm
        return DecisionRow(self.decision, event.seq, *place, self.state, self.amendments > 0)


# Events that are folded together, each with the decision that it is about, as it stood before.
Group = list[tuple[Event, RecordedDecision | None]]


@dataclass(frozen=True)
class TrialState:
    """Everything that is known after event `seq`."""

    created: Event
    seed: int  # of the policy's draws
    spec: TrialSpec
    capacity: Capacity
    problem: Problem
    policy: AnyPolicy
    learned: Any  # the policy's own state
    profiles: Layers[int, Profile]  # slot -> profile; a change of preference or control makes a new one
    users: Layers[str, int]  # name -> slot of the present profile
    numbers: UnitIndex  # of groups, blocks and levels
    usual: tuple[Spread, ...]  # of each metric, recorded values so far
    seq: int
    hash: str
    episode: Episode = Episode()
    seasons: Layers[int, Season] = field(default_factory=Layers)  # episodes that have a name or a date
    counts: Counts = Counts()
    pulls: Layers[str, tuple[int, ...]] = field(default_factory=Layers)  # user -> decisions by arm
    retired: tuple[str, ...] = ()
    status: str = "running"
    opened: bool = False  # whether all decisions are unblinded
    openings: tuple[int, ...] = ()  # events that unblinded one decision or all
    looked: LookHistory = field(default_factory=LookHistory)
    snapshot: tuple[int, int] = (0, 0)  # the event after which the last one was taken, and `fits` then
    history: HistoryRead | None = None  # outcomes from before the trial
    stale: bool = False  # whether the evidence must be summed again before anything else is folded in

    @staticmethod
    def start(created: Event, capacity: Capacity | None = None) -> TrialState:
        """A trial before its first decision."""
        body = body_of(created, kinds.Created)
        spec = TrialSpec.model_validate(body.spec)
        capacity = capacity or Capacity.holding(len(spec.arms), len(spec.users))
        problem = problem_of(created, spec, capacity)
        policy = build_policy(problem)
        empty = TrialState(
            created=created,
            seed=body.seed,
            spec=spec,
            capacity=capacity,
            problem=problem,
            policy=policy,
            learned=policy.init(problem.shape),
            profiles=Layers(),
            users=Layers(),
            numbers=UnitIndex.start(problem.covariates),
            usual=(Spread(),) * len(spec.metrics),
            seq=created.seq,
            hash=created.hash,
            looked=LookHistory(scopes=rule_scopes(spec, spec.users) if spec.rules else {}),
        )
        return empty.with_users(spec.users.items())

    @property
    def calibration(self) -> kinds.Calibration | None:
        """Of the stopping rules that were rehearsed."""
        return body_of(self.created, kinds.Created).calibration

    @property
    def thresholds(self) -> Mapping[str, float]:
        """The bound of each calibrated rule."""
        return {} if self.calibration is None else self.calibration["thresholds"]

    @property
    def balances(self) -> bool:
        """Whether the arms of decisions that are asked for together are spread evenly over sites and blocks."""
        return isinstance(self.policy, Policy) and self.policy.balances

    @cached_property
    def codes(self) -> dict[str, str]:
        """The code of each arm; empty: arms have none."""
        blinding = self.spec.blinding
        if blinding is None or blinding.codes == "decision":
            return {}
        return blinding.arm_codes(self.seed, tuple(self.spec.arms))

    def code_of(self, decision: int, arm: str) -> str | None:
        """The code of a decision's package: its own, or that of its arm; None: the trial has no codes."""
        blinding = self.spec.blinding
        if blinding is not None and blinding.codes == "decision":
            return blinding.decision_code(self.seed, decision)
        return self.codes.get(arm)

    @property
    def fits(self) -> int:
        """Outcomes at the last fit of variances: to fit again takes longer than all else when a trial is opened."""
        evidence = getattr(self.learned, "evidence", None)
        return max(evidence.fitted_count, evidence.drawn_count) if isinstance(evidence, FieldEvidence) else 0

    @cached_property
    def settled(self) -> Any:
        """The policy's state, ready to decide on; it is kept when a decision is recorded."""
        with computing():
            return self.policy.settle(self.learned)

    def floor(self, users: Sequence[str]) -> Floor | None:
        """The least probabilities of the next decisions, for these users: (n,)."""
        if self.problem.floors is None:
            return None
        floors = self.problem.floors
        before = np.full(len(users), self.counts.decisions)
        if floors.count == "user":
            before = np.array([sum(self.pulls.get(user, ())) for user in users])
        floor = floors.after(before)
        if not self.looked.ended:
            return floor
        return floor.where(np.array([has_floor(self, user) for user in users]))

    def with_users(self, users: Iterable[tuple[str, User]]) -> TrialState:
        """With new profiles, which are these users' from now on."""
        users, problem = list(users), self.problem
        new = {name: user for name, user in reversed(users) if name not in self.users}  # each as it joined
        names = [name for name in dict.fromkeys(name for name, _ in users) if name in new]
        joining = ((name, self.spec.resolved(new[name]).group, new[name].attributes or {}) for name in names)
        alone = self.spec.kind == "people"
        numbers, units = self.numbers.joined(problem.covariates, joining, len(self.users), alone=alone)
        unit_of, held = dict(zip(names, units, strict=True)), set[str]()
        if self.spec.holdout is not None:
            draws = streams.uniforms(self.seed, "holdout", len(self.users), len(names), 1)[:, 0]
            held = {name for name, u in zip(names, draws, strict=True) if u < self.spec.holdout.share}
        profiles = [
            problem.profile(name, user, slot, unit_of[name] if name in unit_of else self.profile(name).unit)
            for slot, (name, user) in enumerate(users, len(self.profiles))
        ]
        profiles = [
            replace(p, held_out=p.user in held if p.user in unit_of else self.profile(p.user).held_out)
            for p in profiles
        ]
        return replace(
            self,
            profiles=self.profiles.with_items((p.slot, p) for p in profiles),
            users=self.users.with_items((p.user, p.slot) for p in profiles),
            numbers=numbers,
        )

    def with_history(self, past: HistoryRead) -> TrialState:
        """With outcomes from before the trial: their units are numbered after its users, their seasons before its own.

        What they teach is said in `_learned_from_past`.
        """
        if not (isinstance(self.policy, Policy) and isinstance(self.policy.learner, Field)):
            raise InputError("only the models of fields and people learn from a history")
        new = [(f" {i}", u) for i, u in enumerate(past.units) if u["name"] not in self.users]  # no name begins so
        joining = ((u["name"] or key, u["group"], u["attributes"]) for key, u in new)
        alone = self.spec.kind == "people"
        numbers, units = self.numbers.joined(self.problem.covariates, joining, len(self.users), alone=alone)
        named = ((u["name"] or key, unit) for (key, u), unit in zip(new, units, strict=True))
        learner = replace(self.policy.learner, past=(len(past.seasons), len(_past_arms(self, past)[1])))
        state = replace(
            self,
            policy=replace(self.policy, learner=learner),
            numbers=replace(numbers, past=Layers(named)),
            history=past,
        )
        return replace(state, learned=_learned_from_past(state, state.policy.init(self.problem.shape)))

    def profile(self, user: str) -> Profile:
        return self.profiles[self.users[user]]

    def excluded(self, user: str, more: Iterable[str] = ()) -> list[str]:
        unavailable = self.episode.unavailable
        return sorted({*self.retired, *unavailable.get("", ()), *unavailable.get(user, ()), *more})

    def held_out(self, profile: Profile) -> float | None:
        """The chance with which a user came to be held out; None: it is not."""
        return self.spec.holdout.share if self.spec.holdout is not None and profile.held_out else None

    def possible(self, profile: Profile, excluded: Sequence[str]) -> BoolArray | None:
        """The arms that a decision may be for: those available or, for a user who is held out, the control: (K,)."""
        mask = self.problem.available(profile, excluded)
        return profile.control > 0 if profile.held_out else mask

    def context_of(self, values: Sequence[float]) -> dict[str, float | str]:
        """A recorded context, as it was given."""
        fields = self.problem.covariates.fields.values()
        return {field.name: field.recorded(value) for field, value in zip(fields, values, strict=True)}

    def opening_offers(self, contexts: Mapping[str, list[float]]) -> Offer:
        """The offers to all users when an episode opens, where the policy looks at them."""
        if not self.policy.needs_contexts_at_opening:
            return NOTHING
        profiles = [self.profile(u) for u in self.users]
        absent = [p.user for p in profiles if self.problem.fields and p.user not in contexts]
        if absent or not profiles:
            who = f"{absent[0]!r} has none" if absent else "there are no users"
            name = self.spec.policy.name
            raise InputError(f"policy {name!r} needs every user's context when an episode opens; {who}", ("contexts",))
        vectors = [contexts.get(p.user) if self.problem.fields else None for p in profiles]
        return self.problem.offer(profiles, vectors, [None] * len(profiles))

    def with_blocks(self, questions: Sequence[Question | Decided]) -> TrialState:
        """With numbers for the blocks that these decisions name."""
        keys = [block_key(self.profiles[q.profile].user, q.block) for q in questions if q.block is not None]
        return replace(self, numbers=self.numbers.with_blocks(keys)) if keys else self

    def offer_of(self, questions: Sequence[Question | Decided]) -> Offer:
        """The offers of decisions to be taken, or of recorded ones: (n, ...)."""
        profiles = [self.profiles[q.profile] for q in questions]
        pairs = list(zip(profiles, questions, strict=True))
        masks = [self.possible(profile, q.unavailable) for profile, q in pairs]
        blocks = [self.numbers.block(profile.user, q.block) for profile, q in pairs]
        return self.problem.offer(profiles, [q.context for q in questions], masks, blocks)

    # Outcomes

    def state_of(self, recorded: RecordedDecision, outcome: Values | None, *, missing: bool) -> str:
        """The state of a decision with this outcome; `missing`: the rest of it was marked as missing."""
        left_out = recorded.event.body.get("unmeasured") or ()
        measured = [m for m in self.problem.metrics if m not in left_out]
        parts = [] if outcome is None else [outcome["metrics"] or {}]
        if outcome is not None and self.spec.feedback == "difference":
            parts.append(outcome["control"] or {})
        if parts and all(m in part or below_key(m) in part for part in parts for m in measured):
            return COMPLETE
        return MISSING if missing else PARTIAL if any(parts) else PENDING

    def usable(self, profile: Profile, outcome: Values) -> Outcome | None:
        """An outcome as the policy learns from it, or None while it must wait for more metrics: (1, ...)."""
        p = profile.preference
        if self.spec.feedback == "difference" and not self.spec.cancels:
            # Learners of the field get both plots as they are: effects that the plots share are learned too.
            plots = (self.problem.outcome(outcome[part] or {}) for part in ("metrics", "control"))
            (y, observed), (y0, observed0) = ((values[None], observed[None]) for values, observed in plots)  # (1, M)
            known = observed | observed0
            usable = Outcome(None, y, None if observed.all() else observed, y0, None if observed0.all() else observed0)
        else:
            y, observed = self.vector(outcome)
            known = observed[None]  # (1, M)
            usable = Outcome(
                np.asarray(np.vecdot(p, y[None])),
                y[None],
                None if observed.all() else known,
                size=self.problem.outcome_sizes(outcome["metrics"] or {}),
            )
        return usable if self.policy.usable(known, p).all() else None

    def learned_arm(self, recorded: RecordedDecision) -> int | None:
        """The arm that an outcome is learned for: the one given, or the one drawn, as the file says; None: for none."""
        arm = recorded.given if self.spec.learns == "given" and recorded.given else recorded.body.arm
        return None if arm == OTHER and arm not in self.spec.arms else self.problem.arm(arm)

    def reward(self, profile: Profile, outcome: Values) -> float | None:
        """The worth of an outcome to the user; None while a metric that counts is not there."""
        y, observed = self.vector(outcome)
        return float(np.vecdot(profile.preference, y)) if observed[profile.preference != 0].all() else None

    def vector(self, outcome: Values) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, less that of a control plot, and the mask of its values: (M,)."""
        y, observed = self.problem.outcome(outcome["metrics"] or {})
        if self.spec.feedback == "difference":
            y0, observed0 = self.problem.outcome(outcome["control"] or {})
            y, observed = y - y0, observed & observed0
        return np.where(observed, y, 0.0), observed


def problem_of(created: Event, spec: TrialSpec, capacity: Capacity) -> Problem:
    """The arrays of a trial; arms that came later do not change the units of attributes."""
    founders = len(body_of(created, kinds.Created).spec["arms"])
    return Problem(spec, room=capacity.arms, users=capacity.users, founders=founders)


def decision_number(decision: object) -> int:
    """The number of a decision, checked."""
    if isinstance(decision, bool) or not isinstance(decision, int | np.integer):
        whole = f"a whole decision; give decision.id ({decision.id})" if isinstance(decision, Decision) else None
        raise InputError(f"a decision is known by its number, got {whole or repr(decision)}", ("decision",))
    return int(decision)


# Folding


class OutgrownError(Exception):
    """The arrays are too small for a new arm or user: the past must be folded again in larger ones."""


def fold(state: TrialState, group: Group) -> TrialState:
    """The state after one event, or after decisions that were taken together."""
    event, recorded = group[0]
    if event.kind == kinds.DECISION:
        state = _decided(state, [e for e, _ in group])
    elif event.decision is not None:
        if recorded is None:
            raise InputError("an outcome belongs to a decision")
        state = _told(state, event, recorded)
    else:
        state = _changed(state, event)
    return replace(state, seq=group[-1][0].seq, hash=group[-1][0].hash)


def rows_after(state: TrialState, group: Group) -> dict[int, DecisionRow]:
    """The rows of the table of decisions that these events have changed."""
    new = [RecordedDecision(event) for event, _ in group if event.kind == kinds.DECISION]
    changed = [recorded.after(state, event) for event, recorded in group if recorded is not None]
    return {one.decision: one.row for one in new + changed}


def creation_of(ledger: Ledger) -> Event:
    created = next(ledger.events(until=1), None)
    if created is None or created.kind != kinds.CREATED:
        raise StoreError(f"trial {ledger.name!r} does not begin with its creation; restore a backup")
    return created


def start_of(ledger: Ledger) -> TrialState:
    return TrialState.start(creation_of(ledger))


def catch_up(state: TrialState, ledger: Ledger, until: int | None = None) -> TrialState:
    if state.seq >= (ledger.seq if until is None else until):
        return state
    for group in grouped(with_decisions(state, ledger, ledger.events(after=state.seq, until=until))):
        state = advance(state, group, ledger)
    return state


def advance(state: TrialState, group: Group, ledger: Ledger) -> TrialState:
    """The state after a group of events, from the log where the state alone does not suffice."""
    try:
        after = fold(state, group)
        return _summed_again(after, ledger) if after.stale else after
    except OutgrownError:
        arms = len(state.spec.arms) + (group[0][0].kind == kinds.ARM)
        capacity = Capacity.holding(arms, len(state.profiles) + 1, state.capacity.users)
        return fold(catch_up(TrialState.start(state.created, capacity), ledger, state.seq), group)


def grouped(pairs: Iterable[tuple[Event, RecordedDecision | None]]) -> Iterator[Group]:
    """Events in groups: decisions that were taken together stay together."""
    origins = groupby(
        pairs, lambda p: (body_of(p[0], Decided).state, 0) if p[0].kind == kinds.DECISION else (p[0].seq, 1)
    )
    return (list(group) for _, group in origins)


def with_decisions(
    state: TrialState, ledger: Ledger, events: Iterable[Event]
) -> Iterator[tuple[Event, RecordedDecision | None]]:
    """Events in order, each with the decision that it is about, as it stood before; recent ones are not read again."""
    following, recent = iter(events), dict[int, RecordedDecision]()
    while chunk := list(islice(following, CHUNK)):
        first, new = chunk[0].seq, {e.decision for e in chunk if e.kind == kinds.DECISION}
        older = {e.decision for e in chunk if e.decision is not None} - new - recent.keys()
        for number, past in (ledger.of_decisions(sorted(older)) if older else {}).items():
            if past[0].kind == kinds.DECISION and past[0].seq < first:
                recent[number] = RecordedDecision.of(state, past, first - 1)
        for event in chunk:
            number, before = event.decision or 0, recent.get(event.decision or 0)
            if event.kind == kinds.DECISION:
                before, recent[number] = None, RecordedDecision(event)
            yield event, before
            if before is not None:
                recent[number] = before.after(state, event)
        for number in list(islice(recent, max(0, len(recent) - CHUNK))):
            del recent[number]


def recorded_decisions(
    ledger: Ledger, state: TrialState, numbers: Iterable[int] | None = None
) -> Iterator[RecordedDecision]:
    """Decisions with their outcomes as this state knows them, in order: some, or (None) all."""
    wanted = range(1, state.counts.decisions + 1) if numbers is None else sorted(numbers)
    for first in range(0, len(wanted), CHUNK):
        for events in ledger.of_decisions(wanted[first : first + CHUNK]).values():
            yield RecordedDecision.of(state, events)


def with_arm(spec: TrialSpec, body: kinds.ArmAdded) -> TrialSpec:
    arms, noise = spec.arms | {body.arm: Arm.model_validate(body.definition)}, spec.noise
    if body.noise is not None:  # learned noise has none by arm
        own = {name: ArmNoise.model_validate(value) for name, value in body.noise.items()}
        noise = noise.model_copy(update={"arms": noise.arms | own})
    return spec.model_copy(update={"arms": arms, "noise": noise})


def _decided(state: TrialState, events: list[Event]) -> TrialState:
    problem, bodies = state.problem, [body_of(e, Decided) for e in events]
    placed, learned, counts = state.with_blocks(bodies), state.learned, state.counts
    if bodies[0].reason == REASONS[FAILED]:  # the model could not be computed: it learns nothing from this
        counts = replace(counts, failures=counts.failures + len(events))
    elif bodies[0].drawn:  # else no account of draws has it; its outcome is learned as any other
        draw = Draw(
            np.array([problem.arm(b.arm) for b in bodies]),
            # With room for arms that came later.
            np.array([b.probabilities + [0.0] * (problem.shape.K - len(b.probabilities)) for b in bodies]),
            np.array([REASONS.index(b.reason) for b in bodies]),
            exact=bodies[0].propensity is not None,
        )
        # A policy that keeps no accounts does not look at what was offered.
        plain = isinstance(state.settled, PolicyState) and state.settled.guard is None and state.settled.rule is None
        learned = state.policy.commit(state.settled, NOTHING if plain else placed.offer_of(bodies), draw)
    pulls: dict[str, tuple[int, ...]] = {}
    for event, body in zip(events, bodies, strict=True):
        user, arm = str(event.user), problem.arm(body.arm)
        by_arm = list(pulls[user] if user in pulls else state.pulls.get(user, ()))
        by_arm += [0] * (arm + 1 - len(by_arm))
        by_arm[arm] += 1
        pulls[user] = tuple(by_arm)
    episode, looked = state.episode, state.looked
    if state.spec.decisions == "one per episode":
        asked = ((plot_key(str(e.user), b.plot), int(e.decision or 0)) for e, b in zip(events, bodies, strict=True))
        episode = replace(episode, asked=episode.asked.with_items(asked))
    if state.spec.stopping is not None and isinstance(state.spec.stopping.looks, int):
        looked = replace(looked, asked=events[0].time)
    return replace(
        placed,
        learned=learned,
        episode=episode,
        counts=replace(counts, pending=counts.pending + len(events)),
        pulls=state.pulls.with_items(pulls.items()),
        looked=looked,
    )


def _told(state: TrialState, event: Event, recorded: RecordedDecision) -> TrialState:
    """An outcome in the place of the earlier one, the arm that was given, or the note that an outcome is missing."""
    after = recorded.after(state, event)
    counts = state.counts.moved(recorded.state, after.state)
    same_arm = state.learned_arm(recorded) == state.learned_arm(after)
    if event.kind == kinds.MISSING or (event.kind == kinds.GIVEN and same_arm):
        return replace(state, counts=counts)
    if event.kind == kinds.AMENDMENT:
        counts = replace(counts, amendments=counts.amendments + 1)
    was, new = recorded.outcome, after.outcome
    usual = []
    for spread, metric in zip(state.usual, state.problem.metrics, strict=True):
        for part in ("metrics", "control"):
            old, value = (((values or {}).get(part) or {}).get(metric) for values in (was, new))
            if old != value:
                spread = spread if old is None else spread.removed(old)
                spread = spread if value is None else spread.added(value)
        usual.append(spread)
    learned, stale = state.learned, state.stale
    if (earlier := _evidence(state, recorded)) is not None:
        try:
            with computing():
                learned = state.policy.forget(state.learned, *earlier)
                stale = state.policy.lost_digits(state.learned, learned)
        except NumericalError:
            stale = True
    if not stale:
        try:
            with computing():
                learned = _learned(state, learned, after)
        except NumericalError:
            counts = replace(counts, failures=counts.failures + 1)
    return replace(state, counts=counts, usual=tuple(usual), learned=learned, stale=stale)


def _changed(state: TrialState, event: Event) -> TrialState:
    """The state after an event of any other kind."""
    match body_of(event, EventBody):
        case HistoryRead() as body:
            return state.with_history(body)
        case kinds.EpisodeOpened() as body:
            offers, learned, counts = state.opening_offers(body.contexts), state.learned, state.counts
            try:
                with computing():
                    learned = state.policy.begin_episode(learned, offers)
            except NumericalError:
                counts = replace(counts, failures=counts.failures + 1)
            seasons = state.seasons
            if body.name is not None or body.date is not None:
                seasons = seasons.with_items([(body.episode, Season(body.name, body.date))])
            episode = Episode(body.episode, body.contexts, body.unavailable)
            return replace(state, episode=episode, seasons=seasons, learned=learned, counts=counts)
        case kinds.UserAdded() | kinds.PreferenceChanged() | kinds.ControlChanged() as body:
            if state.problem.remembers_users(state.policy) and len(state.profiles) == state.capacity.users:
                raise OutgrownError
            name = str(event.user)
            if isinstance(body, kinds.UserAdded):
                return state.with_users([(name, User.model_validate(body.definition))])
            changed = {event.kind: getattr(body, event.kind)}
            return state.with_users([(name, state.profile(name).definition.model_copy(update=changed))])
        case kinds.ArmAdded() as body:
            if len(state.spec.arms) == state.capacity.arms:
                raise OutgrownError
            spec = with_arm(state.spec, body)
            return replace(state, spec=spec, problem=problem_of(state.created, spec, state.capacity))
        case kinds.ArmRetired(arm=arm):
            looked = state.looked
            if looked.demands:
                looked = replace(looked, last=event.seq, demands=looked.demands[1:])
            return replace(state, retired=(*state.retired, arm), looked=looked)
        case kinds.StatusChanged(reason=reason):
            looked = state.looked
            if looked.demands or looked.halted:
                looked = replace(looked, demands=looked.demands[1:], halted=reason if looked.demands else "")
            return replace(state, looked=looked, status="running" if event.kind == kinds.RESUMED else event.kind)
        case kinds.Revealed(decision=decision):
            return replace(state, opened=state.opened or decision is None, openings=(*state.openings, event.seq))
        case kinds.LookTaken() as body:
            return replace(state, looked=state.looked.after(event.seq, body.to_json()))
        case kinds.RulesChanged(stopping=stopping):
            spec = state.spec.model_copy(update={"stopping": Stopping.model_validate(stopping)})
            users = {name: state.profile(name).definition for name in state.users}
            return replace(state, spec=spec, looked=state.looked.with_rules(state.spec, spec, users))
        case kinds.SnapshotTaken(after=after):
            return replace(state, snapshot=(after, state.fits))
    return state


# Learning


def _learned(state: TrialState, learned: Any, recorded: RecordedDecision) -> Any:
    """The policy's state after the outcome of a decision, if it can learn from it yet."""
    evidence = _evidence(state, recorded)
    return learned if evidence is None else state.policy.observe(learned, *evidence)


def _evidence(state: TrialState, recorded: RecordedDecision) -> tuple[Offer, IntArray, Outcome, int] | None:
    """The offer of a decision, the arm to learn about, the outcome, and how many episodes ago; None: nothing yet."""
    body, arm = recorded.body, state.learned_arm(recorded)
    if recorded.outcome is None or arm is None:
        return None
    outcome = state.usable(state.profiles[body.profile], recorded.outcome)
    if outcome is None:
        return None
    return state.offer_of([body]), np.array([arm]), outcome, state.episode.number - body.episode


def _learned_from_past(state: TrialState, learned: Any) -> Any:
    """With the history, each outcome under its arm or, where it may not tell of its effect, under one of the past.

    Arms of the past have effects with variances of their own: they take up all that was peculiar to those who were
    given the arm then, and what is left tells of sites, seasons and noise alone. With a discount an outcome counts so
    many times (a power prior; Ibrahim and Chen 2000).
    """
    past, policy, problem = state.history, state.policy, state.problem
    if past is None or not isinstance(policy, Policy) or not isinstance(policy.learner, Field):
        return learned
    evidence, rows, fields = learned.evidence, len(past.arm), problem.covariates.fields.values()
    units = [
        state.numbers.past[key] if (key := u["name"] or f" {i}") in state.numbers.past else state.profile(key).unit
        for i, u in enumerate(past.units)
    ]
    y = _columns(past.metrics, problem.metrics, rows) / problem.sizes  # (n, M)
    context = _columns(past.contexts, [c.name for c in fields], rows)  # (n, D)
    unknown = np.array([c.typical if c.levels is None else -1.0 for c in fields])
    context = np.where(np.isnan(context), unknown, context)
    offered, beside = _past_arms(state, past)
    attributes = problem.attributes
    if attributes is not None:  # those of the past have none
        attributes = np.concatenate([attributes, np.zeros((len(beside), attributes.shape[1]))])
    K, weight = problem.room, state.spec.past_weight or 1.0
    action = np.array([K + beside[name] if name in beside else offered[name] for name in past.arms])[past.arm]
    season, observed = np.array(past.season), np.isfinite(y)
    for number in range(len(past.seasons)):
        at = np.flatnonzero(season == number)
        place = problem.units([units[past.unit[i]] for i in at], context[at] if problem.fields else None)
        offer = Offer(features=np.zeros((1, 1, 1)), control=np.ones((1, K)), unit=place, attributes=attributes)
        outcome = Outcome(None, np.where(observed[at], y[at], 0.0), observed[at])
        evidence = policy.learner.add(evidence, offer, action[at], outcome, learned.evidence.season - number, weight)
    return replace(learned, evidence=evidence)


def _columns(values: Mapping[str, Sequence[float | None]], names: Sequence[str], rows: int) -> FloatArray:
    """Columns by name, NaN where there is nothing: (rows, names)."""
    columns = [values.get(name, [None] * rows) for name in names]
    return np.array(columns, np.float64).reshape(len(names), rows).T


def _past_arms(state: TrialState, past: HistoryRead) -> tuple[dict[str, int], dict[str, int]]:
    """Numbers of the trial's first arms, and of the arms of the past that are told apart from them."""
    offered = {name: i for i, name in enumerate(body_of(state.created, kinds.Created).spec["arms"])}
    beside = [name for name in past.arms if name not in offered or not state.spec.past_weight]
    return offered, {name: i for i, name in enumerate(beside)}


def _summed_again(state: TrialState, ledger: Ledger) -> TrialState:
    """Sum the evidence anew, from the first decision on, where taking an outcome out has cost too many digits."""
    fresh = _learned_from_past(state, state.policy.init(state.problem.shape, episodes=state.episode.number))
    for recorded in recorded_decisions(ledger, state):
        with suppress(NumericalError), computing():
            fresh = _learned(state, fresh, recorded)
    return replace(state, learned=state.policy.with_evidence(state.learned, fresh), stale=False)
