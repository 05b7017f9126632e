"""State of a trial after an event, a frozen value, and how it follows from the log: `fold(state, events)` is pure.

It is the same in the process that decided, in every other process and in `verify`. Readers keep the one they have; a
writer replaces it as a whole. Events are folded in groups: decisions that were taken together from one state are one
group, and an outcome comes with the event of its decision. Two things need the log again: arrays that have become too
small, and sums that lost their digits when a huge outcome was taken back; `catch_up` does both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from math import sqrt
from typing import Any, TypeVar

import numpy as np

from drimed.errors import InputError, NumericalError, StoreError
from drimed.models.offer import Floor, Offer, Outcome
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import FAILED, REASONS, Draw
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.records import COMPLETE, MISSING, PARTIAL, PENDING, Decision, Event
from drimed.trial import events as kinds
from drimed.trial.events import Decided, EventBody, Told, Values, body_of
from drimed.trial.look_history import LookHistory, changed_scopes, has_floor, rule_scopes
from drimed.trial.problem import FEWEST_USERS, Problem, Profile, UnitIndex, block_key, build_policy, plot_key
from drimed.trial.seasons import Season
from drimed.trial.spec import Arm, ArmNoise, Stopping, TrialSpec, User
from drimed.trial.store import DecisionRow, Layers, Ledger

CHUNK = 2000  # events that are folded at a time: their decisions are fetched together
FEWEST = 8  # recorded values of a metric before they say what is usual
LOST_SHARE = 1e-6  # of a sum of squares: what is left after taking a huge value out is round-off

About = TypeVar("About")
Group = list[tuple[Event, Event | None]]  # events, each with the decision that it is about


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

    def is_far(self, value: float, deviations: float) -> bool:
        """Whether a value is more than so many standard deviations from the mean."""
        return self.n >= FEWEST and abs(value - self.mean) > deviations * sqrt(self.squares / (self.n - 1)) > 0


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
        """All decisions."""
        return self.pending + self.partial + self.complete + self.missing

    def moved(self, before: str, after: str) -> Counts:
        """One decision from a state to another."""
        if before == after:
            return self
        return replace(self, **{before: getattr(self, before) - 1, after: getattr(self, after) + 1})


@dataclass(frozen=True)
class Episode:
    """The open episode."""

    number: int = 0
    contexts: dict[str, list[float]] = field(default_factory=dict)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # user, or "" for all -> arms
    # user, or "user/plot" -> its decision, where there is one per episode
    asked: Layers[str, int] = field(default_factory=Layers)


@dataclass(frozen=True)
class RecordedDecision:
    """A decision and what is recorded of its outcome."""

    event: Event
    outcome: Values | None = None  # None: nothing is recorded, or any more
    marked_missing: bool = False  # and nothing more came after that
    amendments: int = 0
    state: str = PENDING

    @staticmethod
    def of(state: TrialState, events: Sequence[Event]) -> RecordedDecision:
        """From all events about a decision, up to the last one of this state."""
        recorded = RecordedDecision(events[0])
        for event in events[1:]:
            if event.seq <= state.seq:
                recorded = recorded.after(state, event)
        return recorded

    def after(self, state: TrialState, event: Event) -> RecordedDecision:
        """With one more event about it."""
        outcome, missing, amendments = self.outcome, True, self.amendments
        if event.kind != kinds.MISSING:
            body = body_of(event, Told)
            outcome = body.outcome if any(body.outcome.values()) else None  # all of it may have been taken back
            missing, amendments = getattr(body, "missing", False), amendments + (event.kind == kinds.AMENDMENT)
        new = state.state_of(outcome, missing=missing)
        return RecordedDecision(self.event, outcome, missing, amendments, new)

    @property
    def decision(self) -> int:
        """Its number."""
        return int(self.event.decision or 0)

    @property
    def body(self) -> Decided:
        """The decision as it was recorded."""
        return body_of(self.event, Decided)

    @property
    def row(self) -> DecisionRow:
        """Its row in the table of decisions."""
        event, body = self.event, body_of(self.event, Decided)
        place = str(event.user), body.plot, body.block, body.arm
        return DecisionRow(event.decision or 0, event.seq, *place, self.state, self.amendments > 0)


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
    def remembers_users(self) -> bool:
        """Whether the policy's arrays have an axis of users, which must be large enough."""
        return self.problem.remembers_users(self.policy)

    @property
    def balances(self) -> bool:
        """Whether the arms of decisions that are asked for together are spread evenly over sites and blocks."""
        return isinstance(self.policy, Policy) and self.policy.balances

    @cached_property
    def codes(self) -> dict[str, str]:
        """The code of each arm; empty: the trial has none."""
        blinding = self.spec.blinding
        return {} if blinding is None else blinding.arm_codes(self.seed, tuple(self.spec.arms))

    @cached_property
    def settled(self) -> Any:
        """The policy's state, ready to decide on; it is kept when a decision is recorded."""
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
        left = np.array([has_floor(self, user) for user in users], np.float64)
        return Floor(control=floor.control * left, arms=floor.arms * left)

    def with_users(self, users: Iterable[tuple[str, User]]) -> TrialState:
        """With new profiles, which are these users' from now on."""
        users, problem = list(users), self.problem
        new = {name: user for name, user in reversed(users) if name not in self.users}  # each as it joined
        names = [name for name in dict.fromkeys(name for name, _ in users) if name in new]
        joining = ((name, self.spec.resolved(new[name]).group, new[name].attributes or {}) for name in names)
        alone = self.spec.kind == "people"
        numbers, units = self.numbers.joined(problem.covariates, joining, len(self.users), alone=alone)
        unit_of = dict(zip(names, units, strict=True))
        profiles = [
            problem.profile(name, user, slot, unit_of[name] if name in unit_of else self.profile(name).unit)
            for slot, (name, user) in enumerate(users, len(self.profiles))
        ]
        return replace(
            self,
            profiles=self.profiles.with_items((p.slot, p) for p in profiles),
            users=self.users.with_items((p.user, p.slot) for p in profiles),
            numbers=numbers,
        )

    def profile(self, user: str) -> Profile:
        """The present profile of a user."""
        return self.profiles[self.users[user]]

    def excluded(self, user: str, more: Iterable[str] = ()) -> list[str]:
        """Arms that this user cannot get now."""
        unavailable = self.episode.unavailable
        return sorted({*self.retired, *unavailable.get("", ()), *unavailable.get(user, ()), *more})

    def context_of(self, values: Sequence[float]) -> dict[str, float | str]:
        """A recorded context, as it was given."""
        fields = self.problem.covariates.fields.values()
        return {field.name: field.recorded(value) for field, value in zip(fields, values, strict=True)}

    def opening_offers(self, contexts: Mapping[str, list[float]]) -> Offer:
        """The offers to all users when an episode opens, where the policy looks at them."""
        if not self.policy.needs_contexts_at_opening:
            return Offer(features=np.zeros((1, 1, 1)), control=np.ones((1, 1)))
        profiles = [self.profile(u) for u in self.users]
        absent = [p.user for p in profiles if self.problem.fields and p.user not in contexts]
        if absent or not profiles:
            who = f"{absent[0]!r} has none" if absent else "there are no users"
            name = self.spec.policy.name
            raise InputError(f"policy {name!r} needs every user's context when an episode opens; {who}", ("contexts",))
        vectors = [as_vector(contexts.get(p.user)) if self.problem.fields else None for p in profiles]
        return self.problem.offer(profiles, vectors, [None] * len(profiles))

    def offer_of(self, events: Sequence[Event], numbers: UnitIndex | None = None) -> Offer:
        """The offers of recorded decisions: (n, ...)."""
        profiles, contexts, masks, blocks = [], [], [], []
        for event in events:
            body = body_of(event, Decided)
            profile = self.profiles[body.profile]
            profiles.append(profile)
            contexts.append(body.context)
            masks.append(self.problem.available(profile, body.unavailable))
            block = 0 if body.block is None else (numbers or self.numbers).block(profile.user, body.block)
            blocks.append(block)
        return self.problem.offer(profiles, contexts, masks, blocks)

    # Outcomes

    def state_of(self, outcome: Values | None, *, missing: bool) -> str:
        """The state of a decision with this outcome; `missing`: the rest of it was marked as missing."""
        parts = [] if outcome is None else [outcome["metrics"] or {}]
        if outcome is not None and self.spec.feedback == "difference":
            parts.append(outcome["control"] or {})
        if parts and all(m in part for part in parts for m in self.problem.metrics):
            return COMPLETE
        return MISSING if missing else PARTIAL if any(parts) else PENDING

    def usable(self, profile: Profile, outcome: Values) -> Outcome | None:
        """An outcome as the policy learns from it, or None while it must wait for more metrics: (1, ...)."""
        if not any(outcome.values()):  # all of it was taken back
            return None
        if self.spec.feedback == "difference" and self.spec.kind != "paper":
            # Learners of the field get both plots as they are: effects that the plots share are learned too.
            plots = [self.problem.outcome(outcome[part] or {}) for part in ("metrics", "control")]
            (y, there), (y0, there0) = ((values[None], observed[None]) for values, observed in plots)  # (1, M)
            if not self.policy.usable(there | there0, profile.preference).all():
                return None
            return Outcome(None, y, None if there.all() else there, y0, None if there0.all() else there0)
        y, there = self.vector(outcome)
        y, there = y[None], there[None]  # (1, M)
        if not self.policy.usable(there, profile.preference).all():
            return None
        return Outcome(np.asarray(np.vecdot(profile.preference, y)), y, None if there.all() else there)

    def reward(self, profile: Profile, outcome: Values) -> float | None:
        """The worth of an outcome to the user; None while a metric that counts is not there."""
        y, there = self.vector(outcome)
        return float(np.vecdot(profile.preference, y)) if there[profile.preference != 0].all() else None

    def vector(self, outcome: Values) -> tuple[FloatArray, BoolArray]:
        """An outcome in the learner's units, less that of a control plot, and the mask of its values: (M,)."""
        y, there = self.problem.outcome(outcome["metrics"] or {})
        if self.spec.feedback == "difference":
            y0, there0 = self.problem.outcome(outcome["control"] or {})
            y, there = y - y0, there & there0
        return np.where(there, y, 0.0), there


def problem_of(created: Event, spec: TrialSpec, capacity: Capacity) -> Problem:
    """The arrays of a trial; arms that came later do not change the units of attributes."""
    founders = len(body_of(created, kinds.Created).spec["arms"])
    return Problem(spec, room=capacity.arms, users=capacity.users, founders=founders)


def as_vector(values: list[float] | None) -> FloatArray | None:
    """A recorded context."""
    return None if values is None else np.array(values, dtype=np.float64)


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
    event, about = group[0]
    if event.kind == kinds.DECISION:
        state = _decided(state, [e for e, _ in group])
    elif event.kind in (kinds.OUTCOME, kinds.AMENDMENT):
        state = _told(state, event, about)
    else:
        state = _changed(state, event)
    return replace(state, seq=group[-1][0].seq, hash=group[-1][0].hash)


def start_of(ledger: Ledger) -> TrialState:
    """The state when a trial begins."""
    created = next(ledger.events(until=1), None)
    if created is None or created.kind != kinds.CREATED:
        raise StoreError(f"trial {ledger.name!r} does not begin with its creation; restore a backup")
    return TrialState.start(created)


def catch_up(state: TrialState, ledger: Ledger, until: int | None = None) -> TrialState:
    """The state after the ledger's newer events."""
    state = _summed_again(state, ledger) if state.stale else state
    if state.seq >= (ledger.seq if until is None else until):
        return state
    events = ledger.events(after=state.seq, until=until)
    for group in grouped((event, past[0] if past else None) for event, past in with_histories(ledger, events)):
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


def grouped(pairs: Iterable[tuple[Event, About]]) -> Iterator[list[tuple[Event, About]]]:
    """Events in groups: decisions that were taken together stay together."""
    group: list[tuple[Event, About]] = []
    state: int | None = None  # from which the decisions of this group were taken
    for event, about in pairs:
        origin = body_of(event, Decided).state if event.kind == kinds.DECISION else None
        if group and (origin is None or origin != state):
            yield group
            group = []
        group.append((event, about))
        state = origin
    if group:
        yield group


def with_histories(ledger: Ledger, events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Events in order, each with all events about its decision; these may include later ones.

    Recent events are not read again.
    """
    following, recent = iter(events), dict[int, list[Event]]()
    while chunk := list(islice(following, CHUNK)):
        recent |= {e.decision: [e] for e in chunk if e.kind == kinds.DECISION and e.decision is not None}
        wanted = {e.decision for e in chunk if e.decision is not None and e.decision not in recent}
        older = ledger.of_decisions(sorted(wanted)) if wanted else {}
        for event in chunk:
            number = event.decision or 0
            if event.kind == kinds.DECISION or not number:
                yield event, []
                continue
            yield event, recent[number] if number in recent else older.get(number, [])
            if number in recent:
                recent[number].append(event)
        for number in list(islice(recent, max(0, len(recent) - CHUNK))):
            del recent[number]


def with_arm(spec: TrialSpec, body: kinds.ArmAdded) -> TrialSpec:
    """The trial with one more arm."""
    arms, noise = spec.arms | {body.arm: Arm.model_validate(body.definition)}, spec.noise
    if body.noise is not None:  # learned noise has none by arm
        own = {name: ArmNoise.model_validate(value) for name, value in body.noise.items()}
        noise = noise.model_copy(update={"arms": noise.arms | own})
    return spec.model_copy(update={"arms": arms, "noise": noise})


def _decided(state: TrialState, events: list[Event]) -> TrialState:
    problem, bodies = state.problem, [body_of(e, Decided) for e in events]
    keys = [block_key(str(e.user), b.block) for e, b in zip(events, bodies, strict=True) if b.block is not None]
    numbers = state.numbers.with_blocks(keys) if keys else state.numbers
    learned, counts = state.learned, state.counts
    if bodies[0].reason == REASONS[FAILED]:  # the model could not be computed: it learns nothing from this
        counts = replace(counts, failures=counts.failures + len(events))
    else:
        draw = Draw(
            np.array([problem.arm(b.arm) for b in bodies]),
            # With room for arms that came later.
            np.array([b.probabilities + [0.0] * (problem.shape.K - len(b.probabilities)) for b in bodies]),
            np.array([REASONS.index(b.reason) for b in bodies]),
            exact=bodies[0].propensity is not None,
        )
        learned = state.policy.commit(state.settled, state.offer_of(events, numbers), draw)
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
        state,
        learned=learned,
        episode=episode,
        counts=replace(counts, pending=counts.pending + len(events)),
        pulls=state.pulls.with_items(pulls.items()),
        numbers=numbers,
        looked=looked,
    )


def _told(state: TrialState, event: Event, about: Event | None) -> TrialState:
    """An outcome in the place of the earlier one."""
    if about is None:
        raise InputError("an outcome belongs to a decision")
    body, decided = body_of(event, Told), body_of(about, Decided)
    was, new = body.was, body.outcome
    before, after = state.state_of(was, missing=body.late), state.state_of(new, missing=getattr(body, "missing", False))
    counts = state.counts.moved(before, after)
    if event.kind == kinds.AMENDMENT:
        counts = replace(counts, amendments=counts.amendments + 1)
    usual = []
    for spread, metric in zip(state.usual, state.problem.metrics, strict=True):
        for part in ("metrics", "control"):
            old, value = (((values or {}).get(part) or {}).get(metric) for values in (was, new))
            if old != value:
                spread = spread if old is None else spread.removed(old)
                spread = spread if value is None else spread.added(value)
        usual.append(spread)
    learned, stale = state.learned, state.stale
    if was is not None and (outcome := state.usable(state.profiles[decided.profile], was)) is not None:
        try:
            learned = state.policy.forget(state.learned, *_evidence(state, about, outcome))
            stale = state.policy.lost_digits(state.learned, learned)
        except NumericalError:
            stale = True
    if not stale:
        learned, failed = _learned(state, learned, about, new)
        counts = replace(counts, failures=counts.failures + failed)
    return replace(state, counts=counts, usual=tuple(usual), learned=learned, stale=stale)


def _changed(state: TrialState, event: Event) -> TrialState:
    """The state after an event of any other kind."""
    match body_of(event, EventBody):
        case kinds.OutcomeMissing(was=was):
            return replace(state, counts=state.counts.moved(state.state_of(was, missing=False), MISSING))
        case kinds.EpisodeOpened() as body:
            learned = state.policy.begin_episode(state.learned, state.opening_offers(body.contexts))
            seasons = state.seasons
            if body.name is not None or body.date is not None:
                seasons = seasons.with_items([(body.episode, Season(body.name, body.date))])
            episode = Episode(body.episode, body.contexts, body.unavailable)
            return replace(state, episode=episode, seasons=seasons, learned=learned)
        case kinds.UserAdded() | kinds.PreferenceChanged() | kinds.ControlChanged() as body:
            if state.remembers_users and len(state.profiles) == state.capacity.users:
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
            return replace(state, retired=(*state.retired, arm))
        case kinds.StatusChanged(reason=reason):
            looked = state.looked
            if looked.demands is not None or looked.halted:
                looked = replace(looked, demands=None, halted=reason if looked.demands is not None else "")
            return replace(state, looked=looked, status="running" if event.kind == kinds.RESUMED else event.kind)
        case kinds.Revealed(decision=decision):
            return replace(state, opened=state.opened or decision is None, openings=(*state.openings, event.seq))
        case kinds.LookTaken() as body:
            return replace(state, looked=state.looked.after(event.seq, body.to_json()))
        case kinds.RulesChanged(stopping=stopping):
            spec, scopes = changed_scopes(state, Stopping.model_validate(stopping))
            looked = state.looked
            met = {rule: claims for rule, claims in looked.met.items() if scopes.get(rule) is looked.scopes.get(rule)}
            return replace(state, spec=spec, looked=replace(looked, scopes=scopes, met=met))
    return state  # a snapshot


# Learning


def _learned(state: TrialState, learned: Any, about: Event, outcome: Values) -> tuple[Any, bool]:
    """The policy's state after the outcome of a decision, if it can learn from it yet; and whether that failed."""
    usable = state.usable(state.profiles[body_of(about, Decided).profile], outcome)
    if usable is None:
        return learned, False
    try:
        return state.policy.observe(learned, *_evidence(state, about, usable)), False
    except NumericalError:
        return learned, True


def _evidence(state: TrialState, about: Event, outcome: Outcome) -> tuple[Offer, IntArray, Outcome, int]:
    """The offer of a decision, its arm, its outcome, and how many episodes ago that was."""
    body = body_of(about, Decided)
    action = np.array([state.problem.arm(body.arm)])
    return state.offer_of([about]), action, outcome, state.episode.number - body.episode


def _summed_again(state: TrialState, ledger: Ledger) -> TrialState:
    """Sum the evidence anew, from the first decision on, where taking an outcome out has cost too many digits."""
    fresh = state.policy.init(state.problem.shape, episodes=state.episode.number)
    for first in range(1, state.counts.decisions + 1, CHUNK):
        numbers = range(first, min(first + CHUNK, state.counts.decisions + 1))
        for events in ledger.of_decisions(numbers).values():
            told = [e for e in events if e.kind in (kinds.OUTCOME, kinds.AMENDMENT) and e.seq <= state.seq]
            if told:
                fresh, _ = _learned(state, fresh, events[0], body_of(told[-1], Told).outcome)
    return replace(state, learned=state.policy.with_evidence(state.learned, fresh), stale=False)
