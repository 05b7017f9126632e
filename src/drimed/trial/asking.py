"""Which arm each user gets: a decision is taken once, and given again to whoever asks again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.trial import events as kinds
from drimed.trial import faults, running
from drimed.trial.deciding import Asked, decide
from drimed.trial.events import Draft, Event
from drimed.trial.memory import Memory
from drimed.trial.recorder import Transaction
from drimed.trial.records import Given
from drimed.trial.running import Context


def ask(
    now: Transaction,
    users: Sequence[str] | None,
    contexts: Mapping[str, Context],
    unavailable: Sequence[str],
    key: str | None,
) -> list[Given]:
    """Decide for some users, or (None) for all; those who have a decision in this episode keep it."""
    if key is not None:
        kinds.storable("key", key, kinds.LONGEST_KEY)
        if before := _answered(now, key, users):
            return before
    _can_decide(now.memory)
    if now.memory.episode.number == 0:  # the first one need not be opened
        now.append([Draft(kinds.EPISODE, running.episode(now.memory, {}, {}))])
    memory = now.memory
    names = list(memory.users) if users is None else list(users)
    if not names:
        raise InputError("there is nobody to decide for: add users first")
    if (twice := faults.first_twice(names)) is not None:
        raise InputError(f"user {twice!r} is asked for twice in one call")
    for name in [*names, *contexts]:
        if name not in memory.users:
            raise UnknownNameError("user", name, memory.users)
    standing = {u: memory.episode.asked[u] for u in names if u in memory.episode.asked}
    new = [u for u in names if u not in standing]
    written = _decided(now, [_asked(memory, u, contexts.get(u), unavailable) for u in new], new, key)
    found = _standing(now, standing) | {str(e.user): given(memory, e) for e in written}
    return [found[u] for u in names]


def preview(now: Transaction) -> list[Given]:
    """What would be decided now for every user, in its context of this episode or a typical one."""
    memory = now.memory
    _can_decide(memory)
    typical = {name: f.typical for name, f in memory.spec.context.items()}
    known = {u: None if u in memory.episode.contexts or not typical else typical for u in memory.users}
    asked = [_asked(memory, user, context, ()) for user, context in known.items()]
    return [given(memory, event) for event in _decided(now, asked, list(known), None)]


def given(memory: Memory, event: Event, *, repeated: bool = False) -> Given:
    """A decision's event as callers get it."""
    return Given.of(event, memory.problem.arms, memory.problem.fields, repeated=repeated)


def _decided(now: Transaction, asked: Sequence[Asked], users: Sequence[str], key: str | None) -> list[Event]:
    bodies = decide(now.memory, asked) if asked else []
    first = now.memory.counts.decisions + 1
    drafts = [
        Draft(kinds.DECISION, body, first + i, user, key)
        for i, (user, body) in enumerate(zip(users, bodies, strict=True))
    ]
    return now.append(drafts)


def _asked(memory: Memory, user: str, context: Context | None, unavailable: Sequence[str]) -> Asked:
    profile = memory.profile(user)
    if context is not None:
        values = memory.problem.context(context)
    elif memory.problem.fields and user not in memory.episode.contexts:
        raise InputError(
            f"user {user!r} has no context in episode {memory.episode.number}; expected "
            f"{', '.join(memory.problem.fields)}: give it here or to open_episode"
        )
    else:
        known = memory.episode.contexts.get(user)
        values = None if known is None else np.array(known, dtype=np.float64)
    excluded = memory.excluded(user, unavailable)
    return Asked(profile, values, excluded, memory.problem.available(profile, excluded))


def _answered(now: Transaction, key: str, users: Sequence[str] | None) -> list[Given]:
    """What this request was answered with before: what it decided, and what had been decided in its episode."""
    found = {str(e.user): e for e in now.ledger.of_request(key) if e.kind == kinds.DECISION}
    if not found:
        return []
    memory, stood = now.memory, dict[str, Event]()
    if memory.spec.decisions == "one per episode":
        before = min(e.seq for e in found.values()) - 1
        for event in now.ledger.events(until=before, kinds=(kinds.EPISODE, kinds.DECISION), newest_first=True):
            if event.kind == kinds.EPISODE:
                break
            stood[str(event.user)] = event
    whole = stood | found
    names = [u for u in memory.users if u in whole] if users is None else list(users)
    if not set(found) <= set(names) <= set(whole):
        raise ConflictError(f"request {key!r} was made before, for other users; give each request its own key")
    return [given(memory, whole[u], repeated=True) for u in names]


def _standing(now: Transaction, decisions: dict[str, int]) -> dict[str, Given]:
    found = now.ledger.of_decisions(list(decisions.values()))
    return {u: given(now.memory, found[n][0], repeated=True) for u, n in decisions.items()}


def _can_decide(memory: Memory) -> None:
    if memory.status != "running":
        fix = "; resume it first" if memory.status == "paused" else ""
        raise ConflictError(f"trial {memory.spec.name!r} is {memory.status} and decides nothing{fix}")
