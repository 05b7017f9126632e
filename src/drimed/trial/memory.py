"""What a trial knows: its events, folded one after the other.

The same fold runs in the process that decided, in every other process, and in `verify`: what is known is a function of
the log. Deciding itself is in drimed.trial.deciding; this only takes in what was written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from drimed.errors import InputError, NumericalError, StoreError
from drimed.guards.decision import REASONS, Decision
from drimed.learning import learned
from drimed.learning.offer import Offer, Outcome
from drimed.linear.arrays import BoolArray, FloatArray, IntArray
from drimed.policies.policy import AnyPolicy, Policy
from drimed.policies.state import to_arrays
from drimed.published.dri import PublishedDri
from drimed.trial import events as kinds
from drimed.trial.build import build_policy
from drimed.trial.events import Event
from drimed.trial.problem import FEWEST_USERS, Problem, Profile
from drimed.trial.spec import Arm, ArmNoise, TrialSpec, User
from drimed.trial.stores.store import Ledger

Group = list[tuple[Event, Event | None]]  # events, each with the decision that it is about

CHUNK = 2000  # events that are folded at a time: their decisions are fetched together


# A sum that keeps less than this share of itself when something is taken out has lost its digits. What is left of a
# mistyped 1e12 among fives is round-off: then everything is added up again.
LOST_SHARE = 1e-6


class OutgrownError(Exception):
    """An arm or a user was added for which the arrays have no room: the past must be folded again with more."""


@dataclass(frozen=True)
class Room:
    """For how many arms and profiles the arrays are made."""

    arms: int
    users: int


@dataclass
class Counts:
    """How many of each there are."""

    decisions: int = 0
    answered: int = 0  # decisions with an outcome, whole or in part
    missing: int = 0  # decisions whose outcome will not come
    amended: int = 0  # amendments

    @property
    def awaited(self) -> int:
        """Decisions whose outcome may still come."""
        return self.decisions - self.answered - self.missing


@dataclass
class Episode:
    """The present season."""

    number: int = 0
    contexts: dict[str, list[float]] = field(default_factory=dict)
    unavailable: dict[str, list[str]] = field(default_factory=dict)  # user, or "" for all -> arms
    asked: dict[str, int] = field(default_factory=dict)  # user -> its decision, where there is one per episode


class Memory:
    """Everything that is known after event `seq`."""

    def __init__(self, created: Event, room: Room | None = None) -> None:
        spec = TrialSpec.model_validate(created.body["spec"])
        self.created = created
        self.seed = int(created.body["seed"])
        self.spec = spec
        self.room = room or _room(len(spec.arms), len(spec.users))
        self.founders = len(spec.arms)
        self.problem = self._problem()
        self.policy: AnyPolicy = build_policy(spec, self.problem.shape.d)
        self.state: Any = self.policy.init(self.problem.shape)
        self._settled: tuple[int, Any] = (-1, None)
        self.stale = False  # whether the evidence must be added up again before anything else is taken in
        self.profiles: list[Profile] = []
        self.definitions: list[tuple[str, User]] = []  # of the profiles
        self.users: dict[str, int] = {}  # name -> slot of its present profile
        self.episode = Episode()
        self.counts = Counts()
        self.pulls: dict[str, list[int]] = {}  # user -> decisions by arm
        self.retired: list[str] = []
        self.status = "running"
        self.seq, self.hash = created.seq, created.hash
        for name, user in spec.users.items():
            self.enter(name, user)

    # Folding

    @staticmethod
    def at_start(ledger: Ledger) -> Memory:
        """What is known when a trial begins."""
        created = next(ledger.events(until=1), None)
        if created is None or created.kind != kinds.CREATED:
            raise StoreError(f"trial {ledger.name!r} does not begin with its creation; restore a backup")
        return Memory(created)

    def caught_up(self, ledger: Ledger, until: int | None = None) -> Memory:
        """This memory after the ledger's newer events; another one where the arrays had to grow."""
        memory = self
        memory.add_up_again(ledger)
        if memory.seq >= (ledger.seq if until is None else until):
            return memory
        for group in groups(ledger, after=memory.seq, until=until):
            memory = memory.taken(group, ledger)
        return memory

    def taken(self, group: Group, ledger: Ledger) -> Memory:
        """This memory after a group of events, or another one where the arrays had to grow."""
        try:
            self.take(group)
        except OutgrownError:
            return self.regrown(ledger, group[-1][0].seq)
        self.add_up_again(ledger)
        return self

    def regrown(self, ledger: Ledger, until: int) -> Memory:
        """The whole past up to event `until`, in arrays that have room for it."""
        arms, users = len(self.spec.arms), len(self.profiles)
        for event in ledger.events(after=self.seq, until=until):
            arms += event.kind == kinds.ARM
            users += event.kind in (kinds.USER, kinds.PREFERENCE, kinds.CONTROL)
        again = Memory(self.created, _room(arms, users, self.room.users))
        return again.caught_up(ledger, until)

    def add_up_again(self, ledger: Ledger) -> None:
        """Where taking an outcome out has cost too many digits: all that is known now, from the first decision on."""
        if not self.stale:
            return
        fresh = self.policy.init(self.problem.shape)
        if isinstance(self.policy, PublishedDri):  # it discounts its prior too
            for _ in range(self.episode.number):
                fresh = replace(fresh, ridge=self.policy.aged(fresh.ridge))
        for first in range(1, self.counts.decisions + 1, CHUNK):
            numbers = range(first, min(first + CHUNK, self.counts.decisions + 1))
            for events in ledger.of_decisions(numbers).values():
                told = [e for e in events if e.kind in (kinds.OUTCOME, kinds.AMENDMENT) and e.seq <= self.seq]
                if told:
                    fresh = self._learned(fresh, events[0], told[-1].body["outcome"])
        evidence = {name: getattr(fresh, name) for name in ("ridge", "noise") if hasattr(fresh, name)}
        self.state, self.stale = replace(self.state, **evidence), False

    def take(self, group: Group) -> None:
        """One event, or the decisions that were given out together; each with the decision that it is about."""
        event, about = group[0]
        if event.kind == kinds.DECISION:
            self._give_out([e for e, _ in group])
        else:
            getattr(self, f"_on_{event.kind}")(event, about)
        self.seq, self.hash = group[-1][0].seq, group[-1][0].hash

    def as_it_stands(self) -> Memory:
        """A copy that later events leave alone. States are never changed in place; what is counted and listed is."""
        same = copy(self)
        same.episode = replace(self.episode, asked=dict(self.episode.asked))
        same.counts = replace(self.counts)
        same.pulls = {user: list(pulls) for user, pulls in self.pulls.items()}
        same.profiles, same.definitions = list(self.profiles), list(self.definitions)
        same.users, same.retired = dict(self.users), list(self.retired)
        return same

    def settled(self) -> Any:
        """The policy's state, ready to decide on. It becomes the state when a decision is really given out."""
        if self._settled[0] != self.seq:
            self._settled = self.seq, self.policy.settle(self.state)
        return self._settled[1]

    def _on_episode(self, event: Event, _: Event | None) -> None:
        body = event.body
        self.episode = Episode(body["episode"], body["contexts"], body["unavailable"])
        self.state = self.policy.begin_episode(self.state, self.episode_offers(body["contexts"]))

    def _give_out(self, events: list[Event]) -> None:
        self.state = self.settled()
        if isinstance(self.policy, Policy) and len(events) > 1:
            offers = self.problem.offers(*zip(*(self.asked(e) for e in events), strict=True))
            self.state = self.policy.commit_together(self.state, offers, self._decisions(events))
        else:
            for event in events:
                offer = self.problem.offer(*self.asked(event))
                self.state = self.policy.commit(self.state, offer, self._decision(event))
        for event in events:
            user, arm = str(event.user), self.problem.arm(event.body["arm"])
            pulls = self.pulls.setdefault(user, [])
            pulls += [0] * (arm + 1 - len(pulls))
            pulls[arm] += 1
            self.counts.decisions += 1
            if self.spec.decisions == "one per episode":
                self.episode.asked[user] = int(event.decision or 0)

    def _on_outcome(self, event: Event, about: Event | None) -> None:
        was = event.body["was"]
        self.counts.answered += was is None
        self.counts.missing -= event.body["late"]
        self._relearn(about, was, event.body["outcome"])

    def _on_amendment(self, event: Event, about: Event | None) -> None:
        self.counts.amended += 1
        self._relearn(about, event.body["was"], event.body["outcome"])

    def _on_missing(self, event: Event, _: Event | None) -> None:
        del event
        self.counts.missing += 1

    def _on_user(self, event: Event, _: Event | None) -> None:
        name, user = str(event.user), User.model_validate(event.body["definition"])
        self._has_room_for_a_profile()
        self.enter(name, user)

    def _on_preference(self, event: Event, _: Event | None) -> None:
        self._change(event, "preference")

    def _on_control(self, event: Event, _: Event | None) -> None:
        self._change(event, "control")

    def _change(self, event: Event, what: str) -> None:
        name = str(event.user)
        self._has_room_for_a_profile()
        self.enter(name, self.definition(name).model_copy(update={what: event.body[what]}))

    def _on_arm(self, event: Event, _: Event | None) -> None:
        if len(self.spec.arms) == self.room.arms:
            raise OutgrownError
        self.redefine(self.with_arm(event.body))

    def with_arm(self, body: dict[str, Any]) -> TrialSpec:
        """The trial with one more arm."""
        arms = self.spec.arms | {body["arm"]: Arm.model_validate(body["definition"])}
        noise = self.spec.noise
        if "noise" in body:
            own = {name: ArmNoise.model_validate(value) for name, value in body["noise"].items()}
            noise = noise.model_copy(update={"arms": noise.arms | own})
        return self.spec.model_copy(update={"arms": arms, "noise": noise})

    def _on_retired(self, event: Event, _: Event | None) -> None:
        self.retired.append(event.body["arm"])

    def _on_paused(self, _: Event, __: Event | None) -> None:
        self.status = "paused"

    def _on_resumed(self, _: Event, __: Event | None) -> None:
        self.status = "running"

    def _on_stopped(self, _: Event, __: Event | None) -> None:
        self.status = "stopped"

    def enter(self, name: str, user: User) -> None:
        """A new profile, which is the user's from now on."""
        slot = len(self.profiles)
        self.profiles.append(self.problem.profile(name, user, slot))
        self.definitions.append((name, user))
        self.users[name] = slot

    def _has_room_for_a_profile(self) -> None:
        if len(self.profiles) == self.room.users and self._counts_users():
            raise OutgrownError

    def _counts_users(self) -> bool:
        """Whether the policy's own arrays have an axis of users."""
        shape = self.problem.shape
        wider = type(shape)(d=shape.d, K=shape.K, M=shape.M, H=shape.H + 1)
        sizes = [{k: a.shape for k, a in to_arrays(self.policy.init(s)).items()} for s in (shape, wider)]
        return sizes[0] != sizes[1]

    def redefine(self, spec: TrialSpec) -> None:
        """The trial as it stands now."""
        self.spec = spec
        self.problem = self._problem()

    def _problem(self) -> Problem:
        return Problem(self.spec, arms=self.room.arms, users=self.room.users, founders=self.founders)

    # What a stored decision was about

    def profile(self, user: str) -> Profile:
        """The present profile of a user."""
        return self.profiles[self.users[user]]

    def definition(self, user: str) -> User:
        """A user as it was described last."""
        return self.definitions[self.users[user]][1]

    def excluded(self, user: str, more: Iterable[str] = ()) -> list[str]:
        """Arms that this user cannot get now."""
        there = self.episode.unavailable
        return sorted({*self.retired, *there.get("", ()), *there.get(user, ()), *more})

    def episode_offers(self, contexts: dict[str, list[float]]) -> Offer:
        """All users at the start of an episode; only the published algorithms look at it."""
        if isinstance(self.policy, Policy):
            return Offer(features=np.zeros((1, 1)), control=np.ones(1))
        profiles = [self.profile(u) for u in self.users]
        absent = [p.user for p in profiles if self.problem.fields and p.user not in contexts]
        if absent or not profiles:
            who = f"{absent[0]!r} has none" if absent else "there are no users"
            name = self.spec.policy.name
            raise InputError(f"policy {name!r} needs every user's context when an episode opens; {who}")
        known = [_context(contexts.get(p.user)) if self.problem.fields else None for p in profiles]
        return self.problem.offers(profiles, known, [None] * len(profiles))

    def asked(self, event: Event) -> tuple[Profile, FloatArray | None, BoolArray | None]:
        """Who asked, in which context, for which arms."""
        body = event.body
        profile = self.profiles[body["profile"]]
        mask = self.problem.available(profile, body["unavailable"])
        return profile, _context(body["context"]), mask

    def _decision(self, event: Event) -> Decision:
        one = self._decisions([event])
        return Decision(one.action[0], one.probabilities[0], one.reason[0], one.exact)

    def _decisions(self, events: list[Event]) -> Decision:
        K = self.problem.shape.K
        given = [e.body["probabilities"] for e in events]
        return Decision(
            np.array([self.problem.arm(e.body["arm"]) for e in events]),
            np.array([p + [0.0] * (K - len(p)) for p in given]),
            np.array([REASONS.index(e.body["reason"]) for e in events]),
            exact=events[0].body["propensity"] is not None,
        )

    def _relearn(self, about: Event | None, was: dict[str, Any] | None, now: dict[str, Any]) -> None:
        """Replace what was learned from a decision's outcome."""
        if about is None:
            raise InputError("an outcome belongs to a decision")
        if was is not None and (old := self.usable(self.profiles[about.body["profile"]], was)) is not None:
            before = self.state
            try:
                self.state = self.policy.forget(self.state, *self._evidence(about, old))
                self.stale = _lost(before, self.state)
            except NumericalError:
                self.stale = True
        if not self.stale:
            self.state = self._learned(self.state, about, now)

    def _learned(self, state: Any, about: Event, outcome: dict[str, Any]) -> Any:
        """A state after the outcome of a decision, if it can be learned from yet."""
        usable = self.usable(self.profiles[about.body["profile"]], outcome)
        return state if usable is None else self.policy.observe(state, *self._evidence(about, usable))

    def _evidence(self, about: Event, outcome: Outcome) -> tuple[Offer, IntArray, Outcome, int]:
        """What was offered, which arm was given, what came of it, and how many episodes ago."""
        offer = self.problem.offer(*self.asked(about))
        action = np.asarray(self.problem.arm(about.body["arm"]))
        return offer, action, outcome, self.episode.number - int(about.body["episode"])

    def usable(self, profile: Profile, outcome: dict[str, Any]) -> Outcome | None:
        """An outcome as the policy can learn from it, or None while it must wait for more metrics."""
        y, there = self._vector(outcome)
        learner = self.policy.learner if isinstance(self.policy, Policy) else None
        if learner is None or learner.feedback == "reward":
            if not there[profile.preference != 0].all():
                return None
        elif not there.any() or (learner.weighting == "learned" and not there.all()):
            return None
        return Outcome(np.asarray(np.vecdot(profile.preference, y)), y, None if there.all() else there)

    def reward(self, profile: Profile, outcome: dict[str, Any]) -> float | None:
        """What an outcome is worth to the user; None while a metric that counts is not there."""
        y, there = self._vector(outcome)
        return float(np.vecdot(profile.preference, y)) if there[profile.preference != 0].all() else None

    def _vector(self, outcome: dict[str, Any]) -> tuple[FloatArray, BoolArray]:
        y, there = self.problem.outcome(outcome["metrics"])
        if self.spec.feedback == "difference":
            y0, there0 = self.problem.outcome(outcome["control"] or {})
            y, there = y - y0, there & there0
        return np.where(there, y, 0.0), there


def groups(ledger: Ledger, *, after: int, until: int | None) -> Iterator[Group]:
    """The ledger's events with the decisions they are about; decisions that were given out together stay together."""
    return grouped(_with_decisions(ledger, after, until))


def grouped(pairs: Iterable[tuple[Event, Event | None]]) -> Iterator[Group]:
    """The same, of events that are at hand."""
    group: Group = []
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


def _with_decisions(ledger: Ledger, after: int, until: int | None) -> Iterator[tuple[Event, Event | None]]:
    while True:
        chunk = list(ledger.events(after=after, until=until, limit=CHUNK))
        wanted = sorted({e.decision for e in chunk if e.decision is not None and e.kind != kinds.DECISION})
        found = ledger.of_decisions(wanted) if wanted else {}
        for event in chunk:
            about = found.get(event.decision or 0) if event.kind != kinds.DECISION else None
            yield event, about[0] if about else None
        if len(chunk) < CHUNK:
            return
        after = chunk[-1].seq


def _lost(before: Any, after: Any) -> bool:
    """Whether something was taken out of the evidence beside which what is left is round-off."""
    if getattr(before, "noise", None) is not None:  # V and b follow from the sums
        there = after.noise.n[..., None] > 0
        square = learned.squares(learned.absorb(before.noise)), learned.squares(after.noise)
        return bool((there & (square[1] < LOST_SHARE * square[0])).any())
    V, b = after.ridge.V, after.ridge.b
    gone = LOST_SHARE * np.linalg.norm(before.ridge.b - b) > np.linalg.norm(b)
    return bool(gone or (np.diagonal(V) < LOST_SHARE * np.diagonal(before.ridge.V)).any())


def _context(values: list[float] | None) -> FloatArray | None:
    return None if values is None else np.array(values, dtype=np.float64)


def _room(arms: int, users: int, least: int = FEWEST_USERS) -> Room:
    while least < users:
        least *= 2
    return Room(arms, least)
