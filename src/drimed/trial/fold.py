"""From events to a trial's state: `fold(state, events)` is pure.

Events are folded in groups: decisions that were taken together from one state are one group, and an outcome comes with
the event of its decision. Two things need the log again: arrays that have become too small, and sums that lost their
digits when a huge outcome was taken back; `catch_up` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from drimed.errors import InputError, NumericalError, StoreError
from drimed.models.offer import Offer, Outcome
from drimed.numerics.arrays import IntArray
from drimed.policies.guards.base import FAILED, REASONS, Draw
from drimed.records import MISSING, Event
from drimed.trial import events as kinds
from drimed.trial.covariates import block_key, plot_key
from drimed.trial.events import Decided, EventBody, Told, Values, body_of
from drimed.trial.look_history import changed_scopes
from drimed.trial.seasons import Season
from drimed.trial.spec import Arm, ArmNoise, Stopping, TrialSpec, User
from drimed.trial.state import Capacity, Episode, TrialState, problem_of
from drimed.trial.store import Ledger

About = TypeVar("About")
Group = list[tuple[Event, Event | None]]  # events, each with the decision that it is about

CHUNK = 2000  # events that are folded at a time: their decisions are fetched together


class OutgrownError(Exception):
    """The arrays are too small for a new arm or user: the past must be folded again in larger ones."""


def fold(state: TrialState, group: Group) -> TrialState:
    """The state after one event, or after decisions that were taken together."""
    event, about = group[0]
    if event.kind == kinds.DECISION:
        state = _decided(state, [e for e, _ in group])
    elif event.kind in (kinds.OUTCOME, kinds.AMENDMENT):
        state = _told(state, event, about)
    elif event.kind != kinds.SNAPSHOT:
        state = _HANDLERS[event.kind](state, event, body_of(event, EventBody))
    return replace(state, seq=group[-1][0].seq, hash=group[-1][0].hash)


def start_of(ledger: Ledger) -> TrialState:
    """The state when a trial begins."""
    created = next(ledger.events(until=1), None)
    if created is None or created.kind != kinds.CREATED:
        raise StoreError(f"trial {ledger.name!r} does not begin with its creation; restore a backup")
    return TrialState.start(created)


def catch_up(state: TrialState, ledger: Ledger, until: int | None = None) -> TrialState:
    """The state after the ledger's newer events."""
    state = _summed_again(state, ledger)
    if state.seq >= (ledger.seq if until is None else until):
        return state
    events = ledger.events(after=state.seq, until=until)
    for group in grouped((event, past[0] if past else None) for event, past in with_histories(ledger, events)):
        state = advance(state, group, ledger)
    return state


def advance(state: TrialState, group: Group, ledger: Ledger) -> TrialState:
    """The state after a group of events, from the log where the state alone does not suffice."""
    try:
        return _summed_again(fold(state, group), ledger)
    except OutgrownError:
        arms = len(state.spec.arms) + sum(event.kind == kinds.ARM for event, _ in group)
        users = len(state.profiles) + sum(event.kind in _PROFILES for event, _ in group)
        capacity = Capacity.holding(arms, users, state.capacity.users)
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


# One function for each kind of event


def _decided(state: TrialState, events: list[Event]) -> TrialState:
    problem, bodies = state.problem, [body_of(e, Decided) for e in events]
    keys = [block_key(str(e.user), b.block) for e, b in zip(events, bodies, strict=True) if b.block is not None]
    numbers, learned, counts = state.numbers.with_blocks(keys), state.learned, state.counts
    if bodies[0].reason == REASONS[FAILED]:  # the model could not be computed: it learns nothing from this
        counts = replace(counts, failures=counts.failures + len(events))
    else:
        draw = Draw(
            np.array([problem.arm(b.arm) for b in bodies]),
            np.array([_probabilities(state, b) for b in bodies]),
            np.array([REASONS.index(b.reason) for b in bodies]),
            exact=bodies[0].propensity is not None,
        )
        learned = state.policy.commit(state.settled(), state.offer_of(events, numbers), draw)
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
    before, after = state.state_of(was, missing=body.late), state.state_of(new, missing=body.still_missing)
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


def _missing(state: TrialState, _: Event, body: kinds.OutcomeMissing) -> TrialState:
    return replace(state, counts=state.counts.moved(state.state_of(body.was, missing=False), MISSING))


def _episode(state: TrialState, _: Event, body: kinds.EpisodeOpened) -> TrialState:
    learned = state.policy.begin_episode(state.learned, state.opening_offers(body.contexts))
    seasons = state.seasons
    if body.name is not None or body.date is not None:
        seasons = seasons.with_items([(body.episode, Season(body.name, body.date))])
    episode = Episode(body.episode, body.contexts, body.unavailable)
    return replace(state, episode=episode, seasons=seasons, learned=learned)


def _user(state: TrialState, event: Event, body: EventBody) -> TrialState:
    if state.remembers_users and len(state.profiles) == state.capacity.users:
        raise OutgrownError
    name = str(event.user)
    if isinstance(body, kinds.UserAdded):
        definition = User.model_validate(body.definition)
    else:  # a preference or a control
        definition = state.profile(name).definition.model_copy(update={event.kind: getattr(body, event.kind)})
    return state.with_users([(name, definition)])


def _arm(state: TrialState, _: Event, body: kinds.ArmAdded) -> TrialState:
    if len(state.spec.arms) == state.capacity.arms:
        raise OutgrownError
    spec = with_arm(state.spec, body)
    return replace(state, spec=spec, problem=problem_of(state.created, spec, state.capacity))


def _retired(state: TrialState, _: Event, body: kinds.ArmRetired) -> TrialState:
    return replace(state, retired=(*state.retired, body.arm))


def _status(state: TrialState, event: Event, body: kinds.StatusChanged) -> TrialState:
    looked = state.looked
    if looked.demands is not None or looked.halted:
        looked = replace(looked, demands=None, halted=body.reason if looked.demands is not None else "")
    return replace(state, looked=looked, status="running" if event.kind == kinds.RESUMED else event.kind)


def _revealed(state: TrialState, event: Event, body: kinds.Revealed) -> TrialState:
    return replace(state, opened=state.opened or body.decision is None, openings=(*state.openings, event.seq))


def _look(state: TrialState, event: Event, body: kinds.LookTaken) -> TrialState:
    return replace(state, looked=state.looked.after(event.seq, body.to_json()))


def _rules(state: TrialState, _: Event, body: kinds.RulesChanged) -> TrialState:
    spec, scopes = changed_scopes(state, Stopping.model_validate(body.stopping))
    looked = state.looked
    met = {rule: claims for rule, claims in looked.met.items() if scopes.get(rule) is looked.scopes.get(rule)}
    return replace(state, spec=spec, looked=replace(looked, scopes=scopes, met=met))


_PROFILES = (kinds.USER, kinds.PREFERENCE, kinds.CONTROL)
_HANDLERS: dict[str, Callable[[TrialState, Event, Any], TrialState]] = {
    kinds.EPISODE: _episode,
    kinds.MISSING: _missing,
    kinds.USER: _user,
    kinds.PREFERENCE: _user,
    kinds.CONTROL: _user,
    kinds.ARM: _arm,
    kinds.RETIRED: _retired,
    kinds.PAUSED: _status,
    kinds.RESUMED: _status,
    kinds.STOPPED: _status,
    kinds.REVEALED: _revealed,
    kinds.LOOK: _look,
    kinds.RULES: _rules,
}


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


def _probabilities(state: TrialState, body: Decided) -> list[float]:
    """The probability of each arm, with room for arms that came later."""
    return body.probabilities + [0.0] * (state.problem.shape.K - len(body.probabilities))


def _summed_again(state: TrialState, ledger: Ledger) -> TrialState:
    """Sum the evidence anew, from the first decision on, where taking an outcome out has cost too many digits."""
    if not state.stale:
        return state
    fresh = state.policy.init(state.problem.shape, episodes=state.episode.number)
    for first in range(1, state.counts.decisions + 1, CHUNK):
        numbers = range(first, min(first + CHUNK, state.counts.decisions + 1))
        for events in ledger.of_decisions(numbers).values():
            told = [e for e in events if e.kind in (kinds.OUTCOME, kinds.AMENDMENT) and e.seq <= state.seq]
            if told:
                fresh, _ = _learned(state, fresh, events[0], body_of(told[-1], Told).outcome)
    return replace(state, learned=state.policy.with_evidence(state.learned, fresh), stale=False)
