"""From events to a trial's state: `fold(state, events)` is pure.

Events are folded in groups: decisions that were taken together from one state are one group. An outcome comes with the
event of its decision. Two things need the log again: arrays that have become too small, and sums that lost their digits
when a huge outcome was taken back; `caught_up` does both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar

import numpy as np

from drimed.errors import InputError, NumericalError, StoreError
from drimed.guards.guard import REASONS, Draw
from drimed.learning.offer import Offer, Outcome
from drimed.linear.arrays import IntArray
from drimed.records import MISSING, Event
from drimed.trial import events as kinds
from drimed.trial import unlikely
from drimed.trial.numbers import block_key, plot_key
from drimed.trial.parts import Arm, ArmNoise, Stopping, User
from drimed.trial.seasons import Season
from drimed.trial.spec import TrialSpec
from drimed.trial.state import Capacity, Episode, TrialState, Values, problem_of
from drimed.trial.stopping import after_look, changed
from drimed.trial.stores.store import Ledger

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
    return replace(state, looked=after_look(state.looked, event.seq, event.body))


def _rules(state: TrialState, event: Event) -> TrialState:
    spec, in_view = changed(state, Stopping.model_validate(event.body["stopping"]))
    met = {
        rule: claims for rule, claims in state.looked.met.items() if in_view.get(rule) is state.looked.views.get(rule)
    }
    return replace(state, spec=spec, looked=replace(state.looked, views=in_view, met=met))


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
