"""What a trial knows after an event: a frozen value.

A state is a function of the log (`fold`), the same in the process that decided, in every other process and
in `verify`. Readers keep the one they have; a writer replaces it as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from drimed.errors import InputError, NumericalError, StoreError
from drimed.models.offer import Floor, Offer, Outcome, Shape
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.guards.base import REASONS, Draw
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy, to_arrays
from drimed.policies.rules.base import Floors
from drimed.records import COMPLETE, MISSING, PARTIAL, PENDING, Event
from drimed.trial import events as kinds
from drimed.trial import unlikely
from drimed.trial.covariates import UnitIndex, block_key, plot_key
from drimed.trial.layers import Layers
from drimed.trial.look_history import LookHistory, changed_scopes, has_floor, rule_scopes
from drimed.trial.names import arm_codes
from drimed.trial.policy import build_policy
from drimed.trial.problem import FEWEST_USERS, Problem, Profile
from drimed.trial.seasons import Season
from drimed.trial.spec import Arm, ArmNoise, Stopping, TrialSpec, User
from drimed.trial.store import Ledger
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
    numbers: UnitIndex  # by which the learner knows groups, blocks and levels
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
    looked: LookHistory = field(default_factory=LookHistory)
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
            numbers=UnitIndex.start(problem.covariates),
            usual=(Spread(),) * len(spec.metrics),
            remembers_users=_remembers_users(policy, problem.shape),
            seq=created.seq,
            hash=created.hash,
            looked=LookHistory(scopes=rule_scopes(spec, spec.users)),
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
        blinding = self.spec.blinding
        return {} if blinding is None else arm_codes(self.seed, tuple(self.spec.arms), blinding.codes or {})

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
            problem.profile(name, user, slot, known[name] if name in known else self.profile(name).unit)
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
        self, event: Event, numbers: UnitIndex | None = None
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


# From events to a trial's state: `fold(state, events)` is pure.

About = TypeVar("About")
Group = list[tuple[Event, Event | None]]  # events, each with the decision that it is about

CHUNK = 2000  # events that are folded at a time: their decisions are fetched together


class OutgrownError(Exception):
    """An arm or a user was added for which the arrays are too small: the past must be folded again in larger ones."""


def fold(state: TrialState, group: Group) -> TrialState:
    """The state after one event, or after the decisions that were taken together."""
    event, about = group[0]
    if event.kind in _TOLD:
        return _outcome(state, event, about)
    if event.kind == kinds.DECISION:
        state = _decided(state, [e for e, _ in group])
    else:
        state = _HANDLERS[event.kind](state, event)
    return replace(state, seq=group[-1][0].seq, hash=group[-1][0].hash)


def at_start(ledger: Ledger) -> TrialState:
    """The state when a trial begins."""
    created = next(ledger.events(until=1), None)
    if created is None or created.kind != kinds.CREATED:
        raise StoreError(f"trial {ledger.name!r} does not begin with its creation; restore a backup")
    return TrialState.start(created)


def caught_up(state: TrialState, ledger: Ledger, until: int | None = None) -> TrialState:
    """The state after the ledger's newer events."""
    state = _summed_again(state, ledger)
    if state.seq >= (ledger.seq if until is None else until):
        return state
    for group in groups(ledger, after=state.seq, until=until):
        state = advanced(state, group, ledger)
    return state


def advanced(state: TrialState, group: Group, ledger: Ledger) -> TrialState:
    """The state after a group of events, from the log where the state alone does not suffice."""
    try:
        return _summed_again(fold(state, group), ledger)
    except OutgrownError:
        return fold(regrown(state, ledger, group), group)


def groups(ledger: Ledger, *, after: int, until: int | None) -> Iterator[Group]:
    """The ledger's events in groups, with the decisions they are about."""
    events = ledger.events(after=after, until=until)
    return grouped((event, told[0] if told else None) for event, told in with_histories(ledger, events))


def grouped(pairs: Iterable[tuple[Event, About]]) -> Iterator[list[tuple[Event, About]]]:
    """Decisions that were taken together stay together."""
    group: list[tuple[Event, About]] = []
    for event, about in pairs:
        together = (
            group
            and event.kind == kinds.DECISION == group[-1][0].kind
            and event.body["state"] == group[-1][0].body["state"]
        )
        if group and not together:
            yield group
            group = []
        group.append((event, about))
    if group:
        yield group


def with_arm(spec: TrialSpec, body: dict[str, Any]) -> TrialSpec:
    """The trial with one more arm."""
    arms = spec.arms | {body["arm"]: Arm.model_validate(body["definition"])}
    noise = spec.noise
    if "noise" in body:  # a field that nobody gave stays one: learned noise has none by arm
        own = {name: ArmNoise.model_validate(value) for name, value in body["noise"].items()}
        noise = noise.model_copy(update={"arms": noise.arms | own})
    return spec.model_copy(update={"arms": arms, "noise": noise})


# One function for each kind of event


def _decided(state: TrialState, events: list[Event]) -> TrialState:
    learned, problem = state.settled(), state.problem
    named = [block_key(str(e.user), e.body["block"]) for e in events if e.body.get("block") is not None]
    numbers = state.numbers.with_blocks(named)
    offer = problem.offer(*zip(*(state.asked(e, numbers) for e in events), strict=True))
    learned = state.policy.commit(learned, offer, _draw(state, events))
    pulls: dict[str, tuple[int, ...]] = {}
    for event in events:
        user, arm = str(event.user), problem.arm(event.body["arm"])
        given = list(pulls[user] if user in pulls else state.pulls.get(user, ()))
        given += [0] * (arm + 1 - len(given))
        given[arm] += 1
        pulls[user] = tuple(given)
    episode = state.episode
    if state.spec.decisions == "one per episode":
        asked = ((plot_key(str(e.user), e.body.get("plot")), int(e.decision or 0)) for e in events)
        episode = replace(episode, asked=episode.asked.with_items(asked))
    counts = replace(state.counts, pending=state.counts.pending + len(events))
    if state.spec.stopping is not None and isinstance(state.spec.stopping.looks, int):
        state = replace(state, looked=replace(state.looked, asked=events[0].time))
    given_out = state.pulls.with_items(pulls.items())
    return replace(state, learned=learned, episode=episode, counts=counts, pulls=given_out, numbers=numbers)


def _outcome(state: TrialState, event: Event, about: Event | None) -> TrialState:
    body = event.body
    was, now = body["was"], body["outcome"]
    before = state.state_of(was, missing=body.get("late", False))
    counts = state.counts.moved(before, state.state_of(now, missing=body.get("missing", False)))
    if event.kind == kinds.AMENDMENT:
        counts = replace(counts, amendments=counts.amendments + 1)
    usual = unlikely.recorded(state.usual, state.problem.metrics, was, now)
    learned, stale = _relearned(state, about, was, now)
    new = {"counts": counts, "usual": usual, "learned": learned, "stale": stale}
    return replace(state, seq=event.seq, hash=event.hash, **new)


def _missing(state: TrialState, event: Event) -> TrialState:
    before = state.state_of(event.body.get("was"), missing=False)
    return replace(state, counts=state.counts.moved(before, MISSING))


def _episode(state: TrialState, event: Event) -> TrialState:
    body = event.body
    learned = state.policy.begin_episode(state.learned, state.opening_offers(body["contexts"]))
    season = Season(body.get("name"), body.get("date"))
    named = state.seasons.with_items([(body["episode"], season)]) if season.body() else state.seasons
    episode = Episode(body["episode"], body["contexts"], body["unavailable"])
    return replace(state, episode=episode, seasons=named, learned=learned)


def _user(state: TrialState, event: Event) -> TrialState:
    if state.remembers_users and len(state.profiles) == state.capacity.users:
        raise OutgrownError
    name = str(event.user)
    if event.kind == kinds.USER:
        definition = User.model_validate(event.body["definition"])
    else:  # a preference or a control
        definition = state.profile(name).definition.model_copy(update={event.kind: event.body[event.kind]})
    return state.entered([(name, definition)])


def _arm(state: TrialState, event: Event) -> TrialState:
    if len(state.spec.arms) == state.capacity.arms:
        raise OutgrownError
    spec = with_arm(state.spec, event.body)
    return replace(state, spec=spec, problem=problem_of(state.created, spec, state.capacity))


def _retired(state: TrialState, event: Event) -> TrialState:
    return replace(state, retired=(*state.retired, event.body["arm"]))


def _turned(state: TrialState, event: Event) -> TrialState:
    demanded = state.looked.demands is not None
    if demanded or state.looked.halted:
        looked = replace(state.looked, demands=None, halted=event.body["reason"] if demanded else "")
        state = replace(state, looked=looked)
    return replace(state, status="running" if event.kind == kinds.RESUMED else event.kind)


def _revealed(state: TrialState, event: Event) -> TrialState:
    whole = state.opened or "decision" not in event.body
    return replace(state, opened=whole, openings=(*state.openings, event.seq))


def _look(state: TrialState, event: Event) -> TrialState:
    return replace(state, looked=state.looked.after(event.seq, event.body))


def _rules(state: TrialState, event: Event) -> TrialState:
    spec, in_view = changed_scopes(state, Stopping.model_validate(event.body["stopping"]))
    met = {
        rule: claims for rule, claims in state.looked.met.items() if in_view.get(rule) is state.looked.scopes.get(rule)
    }
    return replace(state, spec=spec, looked=replace(state.looked, scopes=in_view, met=met))


def _same(state: TrialState, event: Event) -> TrialState:
    del event
    return state


_TOLD = (kinds.OUTCOME, kinds.AMENDMENT)
_PROFILES = (kinds.USER, kinds.PREFERENCE, kinds.CONTROL)
_HANDLERS: dict[str, Callable[[TrialState, Event], TrialState]] = {
    kinds.EPISODE: _episode,
    kinds.MISSING: _missing,
    kinds.USER: _user,
    kinds.PREFERENCE: _user,
    kinds.CONTROL: _user,
    kinds.ARM: _arm,
    kinds.RETIRED: _retired,
    kinds.PAUSED: _turned,
    kinds.RESUMED: _turned,
    kinds.STOPPED: _turned,
    kinds.REVEALED: _revealed,
    kinds.LOOK: _look,
    kinds.RULES: _rules,
    kinds.SNAPSHOT: _same,
}


# Learning


def _relearned(state: TrialState, about: Event | None, was: Values | None, now: Values) -> tuple[Any, bool]:
    """What is known with another outcome in the place of what was learned from a decision; and whether it is stale."""
    if about is None:
        raise InputError("an outcome belongs to a decision")
    learned, stale = state.learned, state.stale
    if was is not None and (old := state.usable(state.profiles[about.body["profile"]], was)) is not None:
        try:
            learned = state.policy.forget(state.learned, *_evidence(state, about, old))
            stale = state.policy.lost_digits(state.learned, learned)
        except NumericalError:
            stale = True
    if not stale:
        learned = _learned(state, learned, about, now)
    return learned, stale


def _learned(state: TrialState, learned: Any, about: Event, outcome: Values) -> Any:
    """The policy's state after the outcome of a decision, if it can be learned from yet."""
    usable = state.usable(state.profiles[about.body["profile"]], outcome)
    return learned if usable is None else state.policy.observe(learned, *_evidence(state, about, usable))


def _evidence(state: TrialState, about: Event, outcome: Outcome) -> tuple[Offer, IntArray, Outcome, int]:
    """What was offered, which arm was given, its outcome, and how many episodes ago that was."""
    offer = state.problem.offer(*zip(*[state.asked(about)], strict=True))
    action = np.array([state.problem.arm(about.body["arm"])])
    return offer, action, outcome, state.episode.number - int(about.body["episode"])


def _probabilities(state: TrialState, decision: Event) -> list[float]:
    """What each arm's chance was, with room for the arms that came later."""
    given: list[float] = decision.body["probabilities"]
    return given + [0.0] * (state.problem.shape.K - len(given))


def _draw(state: TrialState, events: list[Event]) -> Draw:
    return Draw(
        np.array([state.problem.arm(e.body["arm"]) for e in events]),
        np.array([_probabilities(state, e) for e in events]),
        np.array([REASONS.index(e.body["reason"]) for e in events]),
        exact=events[0].body["propensity"] is not None,
    )


# Where the log is needed again


def _summed_again(state: TrialState, ledger: Ledger) -> TrialState:
    """Where taking an outcome out has cost too many digits: the evidence anew, from the first decision on."""
    if not state.stale:
        return state
    fresh = state.policy.aged_start(state.problem.shape, state.episode.number)
    for first in range(1, state.counts.decisions + 1, CHUNK):
        numbers = range(first, min(first + CHUNK, state.counts.decisions + 1))
        for events in ledger.of_decisions(numbers).values():
            told = [e for e in events if e.kind in _TOLD and e.seq <= state.seq]
            if told:
                fresh = _learned(state, fresh, events[0], told[-1].body["outcome"])
    return replace(state, learned=state.policy.with_evidence(state.learned, fresh), stale=False)


def regrown(state: TrialState, ledger: Ledger, group: Group) -> TrialState:
    """The past up to this state once more, in arrays that are large enough for these events too."""
    arms = len(state.spec.arms) + sum(event.kind == kinds.ARM for event, _ in group)
    users = len(state.profiles) + sum(event.kind in _PROFILES for event, _ in group)
    again = TrialState.start(state.created, Capacity.holding(arms, users, state.capacity.users))
    return caught_up(again, ledger, state.seq)


def with_histories(ledger: Ledger, events: Iterable[Event]) -> Iterator[tuple[Event, list[Event]]]:
    """Events of the ledger in order, each with what the log has about the decision it is about; that may include later
    events. What passed lately is not read again.
    """
    following, recent = iter(events), dict[int, list[Event]]()
    while chunk := list(islice(following, CHUNK)):
        recent |= {e.decision: [e] for e in chunk if e.kind == kinds.DECISION and e.decision is not None}
        wanted = {e.decision for e in chunk if e.decision is not None and e.decision not in recent}
        found = ledger.of_decisions(sorted(wanted)) if wanted else {}
        for event in chunk:
            number = event.decision or 0
            if event.kind == kinds.DECISION or not number:
                yield event, []
                continue
            yield event, recent[number] if number in recent else found.get(number, [])
            if number in recent:
                recent[number].append(event)
        for number in list(islice(recent, max(0, len(recent) - CHUNK))):
            del recent[number]
