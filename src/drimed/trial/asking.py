"""Which arm each user gets: a decision is taken once, and returned again when it is asked for again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed import streams
from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.guards.guard import REASONS
from drimed.guards.guard import Decision as Drawn
from drimed.linear.arrays import BoolArray, FloatArray
from drimed.records import Decision, Event, Path
from drimed.trial import events as kinds
from drimed.trial.events import Draft
from drimed.trial.faults import first_twice
from drimed.trial.problem import Profile
from drimed.trial.queries import Story, record, stories
from drimed.trial.state import TrialState, as_vector
from drimed.trial.transaction import Transaction

Context = Mapping[str, float]


@dataclass(frozen=True)
class Question:
    """One user, and what is known before deciding for it."""

    profile: Profile
    context: FloatArray | None  # (D,), as it was given
    excluded: list[str]  # arms that are unavailable
    available: BoolArray | None  # (K,), the same as a mask


def ask(
    tx: Transaction,
    users: Sequence[str] | None,
    *,
    contexts: Mapping[str, Context] | None = None,
    unavailable: Sequence[str] = (),
    episode: int | None = None,
    key: str | None = None,
) -> list[Decision]:
    """Decide for some users, or (None) for all; those who have a decision in this episode keep it.

    With `episode` the decisions are for that episode, which is opened with these contexts if it is the next one.
    """
    contexts = contexts or {}
    if key is not None:
        kinds.storable("key", key, kinds.LONGEST_KEY)
        if before := _answered(tx, key, users):
            return before
    _can_decide(tx.state)
    _known(tx.state, users or (), ("users",))
    _known(tx.state, contexts, ("contexts",))
    _in_episode(tx, contexts, episode)
    state = tx.state
    names = list(state.users) if users is None else list(users)
    if not names:
        raise InputError("there is nobody to decide for: add users first", ("users",))
    if (twice := first_twice(names)) is not None:
        raise InputError(f"user {twice!r} is asked for twice in one call", ("users",))
    standing = {u: state.episode.asked[u] for u in names if u in state.episode.asked}
    new = [u for u in names if u not in standing]
    written = _decided(tx, [_question(state, u, contexts.get(u), unavailable) for u in new], new, key)
    found = {d.user: d for d in _recorded(tx, standing.values())}
    found |= {str(e.user): record(state, _fresh(state, e)) for e in written}
    return [found[u] for u in names]


def preview(tx: Transaction) -> list[Decision]:
    """What would be decided now for every user, in its context of this episode or a typical one."""
    state = tx.state
    _can_decide(state)
    typical = {name: f.typical for name, f in state.spec.context.items()}
    known = {u: None if u in state.episode.contexts or not typical else typical for u in state.users}
    questions = [_question(state, user, context, ()) for user, context in known.items()]
    return [record(state, _fresh(state, event)) for event in _decided(tx, questions, list(known), None)]


def open_episode(
    tx: Transaction,
    contexts: Mapping[str, Context] | None = None,
    number: int | None = None,
    unavailable: Mapping[str, Sequence[str]] | None = None,
) -> int:
    """The next episode; opening the one that is open again does nothing."""
    state = tx.state
    current = state.episode.number
    if number is not None and number == current:
        return current
    if state.status != "running":
        raise ConflictError(f"trial {state.spec.name!r} is {state.status}; no episode can be opened")
    if number is not None and number != current + 1:
        raise ConflictError(f"episode {number} cannot be opened: the next one is {current + 1}", ("number",))
    tx.append([Draft(kinds.EPISODE, _episode(state, contexts or {}, unavailable or {}))])
    return current + 1


def decide(state: TrialState, questions: Sequence[Question]) -> list[dict[str, Any]]:
    """The decisions as they are recorded: all from the present state, numbered on from the last one."""
    first, problem, policy = state.counts.decisions, state.problem, state.policy
    draws = streams.uniforms(state.seed, "policy", first, len(questions), policy.draws_needed(problem.shape))
    learned = state.settled()
    if len(questions) == 1:
        q = questions[0]
        offer = problem.offer(q.profile, q.context, q.available)
        drawn = policy.decide(learned, offer, draws[0])
    else:
        offer = problem.offers(*zip(*((q.profile, q.context, q.available) for q in questions), strict=True))
        drawn = policy.decide_together(learned, offer, draws)
    return _bodies(state, questions, drawn, policy.effects(learned, offer, state.spec.confidence))


def _bodies(
    state: TrialState, questions: Sequence[Question], drawn: Drawn, effects: tuple[FloatArray, FloatArray] | None
) -> list[dict[str, Any]]:
    """What is recorded of n decisions: arrays with a user's axis, or without one for a single decision."""
    n, arms, first = len(questions), state.problem.arms, state.counts.decisions

    def numbers(values: Any, *core: int) -> list[Any]:
        return [None] * n if values is None else np.reshape(values, (n, *core)).tolist()

    action, reason = numbers(drawn.action), numbers(drawn.reason)
    probabilities = numbers(drawn.probabilities, -1)
    propensity = numbers(drawn.propensity if drawn.exact else None)
    share, certified = numbers(drawn.share), numbers(drawn.certified)
    estimate, half = (numbers(values, -1) for values in effects or (None, None))
    return [
        {
            "episode": state.episode.number,
            "profile": q.profile.slot,
            "context": None if q.context is None else q.context.tolist(),
            "unavailable": q.excluded,
            "state": state.seq,
            "draw": first + i,
            "arm": arms[action[i]],
            "probabilities": probabilities[i][: len(arms)],
            "propensity": propensity[i],
            "reason": REASONS[reason[i]],
            "share": share[i],
            "certified": certified[i],
            "estimate": None if effects is None else estimate[i][: len(arms)],
            "half": None if effects is None else half[i][: len(arms)],
        }
        for i, q in enumerate(questions)
    ]


def _decided(tx: Transaction, questions: Sequence[Question], users: Sequence[str], key: str | None) -> list[Event]:
    bodies = decide(tx.state, questions) if questions else []
    first = tx.state.counts.decisions + 1
    drafts = [
        Draft(kinds.DECISION, body, first + i, user, key)
        for i, (user, body) in enumerate(zip(users, bodies, strict=True))
    ]
    return tx.append(drafts)


def _question(state: TrialState, user: str, context: Context | None, unavailable: Sequence[str]) -> Question:
    profile, problem = state.profile(user), state.problem
    if context is not None:
        values = problem.context(context, ("contexts", user))
    elif problem.fields and user not in state.episode.contexts:
        raise InputError(
            f"user {user!r} has no context in episode {state.episode.number}; expected {', '.join(problem.fields)}: "
            "give it with the request, in a sheet, or when the episode is opened",
            ("contexts", user),
        )
    else:
        values = as_vector(state.episode.contexts.get(user))
    for arm in arm_names(unavailable):
        problem.arm(arm, ("unavailable",))
    excluded = state.excluded(user, unavailable)
    return Question(profile, values, excluded, problem.available(profile, excluded))


def _in_episode(tx: Transaction, contexts: Mapping[str, Context], episode: int | None) -> None:
    """Open the episode that is asked for, if it is the next one; the first one is opened by the first question."""
    current = tx.state.episode.number
    if episode is None and current > 0:
        return
    if episode is not None and not max(1, current) <= episode <= current + 1:
        known = f"episode {current} is open" if current else "no episode is open"
        raise ConflictError(f"decisions for episode {episode} cannot be taken now: {known}", ("episode",))
    if episode != current:
        tx.append([Draft(kinds.EPISODE, _episode(tx.state, contexts if episode is not None else {}, {}))])


def _episode(
    state: TrialState, contexts: Mapping[str, Context], unavailable: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """The next episode, as it is recorded."""
    body: dict[str, Any] = {"episode": state.episode.number + 1, "contexts": {}, "unavailable": {}}
    _known(state, contexts, ("contexts",))
    for user, values in contexts.items():
        if (vector := state.problem.context(values, ("contexts", user))) is not None:
            body["contexts"][user] = vector.tolist()
    _known(state, filter(None, unavailable), ("unavailable",))
    for user, arms in unavailable.items():
        for arm in arm_names(arms):
            state.problem.arm(arm, ("unavailable", user))
        for name in [user] if user else state.users:
            state.problem.available(state.profile(name), [*state.retired, *arms])
        body["unavailable"][user] = sorted(arms)
    state.opening_offers(body["contexts"])  # refuses what the policy could not begin with
    return body


def _answered(tx: Transaction, key: str, users: Sequence[str] | None) -> list[Decision]:
    """What this request was answered with before: its own decisions, and those that stood in its episode."""
    found = {str(e.user): e for e in tx.ledger.of_request(key) if e.kind == kinds.DECISION}
    if not found:
        return []
    state, stood = tx.state, dict[str, Event]()
    if state.spec.decisions == "one per episode":
        before = min(e.seq for e in found.values()) - 1
        for event in tx.ledger.events(until=before, kinds=(kinds.EPISODE, kinds.DECISION), newest_first=True):
            if event.kind == kinds.EPISODE:
                break
            stood[str(event.user)] = event
    whole = stood | found
    names = [u for u in state.users if u in whole] if users is None else list(users)
    if not set(found) <= set(names) <= set(whole):
        raise ConflictError(
            f"request {key!r} was made before, for other users; give each request its own key", ("key",)
        )
    known = {d.user: d for d in _recorded(tx, [int(whole[u].decision or 0) for u in names])}
    return [known[u] for u in names]


def _recorded(tx: Transaction, numbers: Any) -> list[Decision]:
    """Decisions that were taken before, as they stand."""
    return [record(tx.state, story, repeated=True) for story in stories(tx.ledger, tx.state, list(numbers))]


def _fresh(state: TrialState, event: Event) -> Story:
    """A decision that was taken just now."""
    return Story(event, None, False, 0, state.state_of(None, missing=False))


def arm_names(names: Sequence[str]) -> Sequence[str]:
    """Arms that are unavailable, as a list."""
    if isinstance(names, str):
        raise InputError(
            f"unavailable must be a list of arms, got the text {names!r}; write [{names!r}]", ("unavailable",)
        )
    return names


def _known(state: TrialState, users: Any, field: Path) -> None:
    """`field` has a list of users, or a table by user."""
    for i, user in enumerate(users):
        if user not in state.users:
            raise UnknownNameError("user", user, state.users, (*field, i if isinstance(users, Sequence) else user))


def _can_decide(state: TrialState) -> None:
    if state.status != "running":
        fix = "; resume it first" if state.status == "paused" else ""
        raise ConflictError(f"trial {state.spec.name!r} is {state.status} and decides nothing{fix}")
