"""The log of a trial: an append-only chain of events that proves itself.

Every event carries the hash of the one before it. Changing, removing or reordering one breaks the chain at that place;
cutting off the end contradicts the head that the store keeps beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from drimed.errors import InputError
from drimed.records import Event

_WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False)
START = ""  # what the first event of a trial is chained to

CREATED, EPISODE, DECISION = "created", "episode", "decision"
OUTCOME, AMENDMENT, MISSING = "outcome", "amendment", "missing"
USER, PREFERENCE, CONTROL, ARM, RETIRED = "user", "preference", "control", "arm", "retired"
PAUSED, RESUMED, STOPPED = "paused", "resumed", "stopped"
REVEALED = "revealed"  # a code was opened, for one decision or for all
LOOK, RULES = "look", "rules"  # what the stopping rules said; and when they were changed
SNAPSHOT = "snapshot"  # the program's own: what was kept of the state, by its hash
KINDS = (
    CREATED, EPISODE, DECISION, OUTCOME, AMENDMENT, MISSING, USER, PREFERENCE, CONTROL, ARM, RETIRED, PAUSED, RESUMED,
    STOPPED, REVEALED, LOOK, RULES, SNAPSHOT,
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """An event that is about to be recorded."""

    kind: str
    body: dict[str, Any]
    decision: int | None = None  # the decision it is about
    user: str | None = None
    request: str | None = None  # the caller's idempotency key


def hash_after(previous: str, e: Event) -> str:
    """The hash that event `e` must have after one whose hash is `previous`."""
    return _digest(previous, e.seq, e.time, e.actor, e.kind, e.decision, e.user, e.request, e.text)


def beginning(spec: dict[str, Any], seed: int) -> dict[str, Any]:
    """The body of a trial's first event."""
    return {"spec": spec, "seed": seed, "numpy": version("numpy")}


def chain(drafts: Sequence[Draft], *, seq: int, hash: str, time: str, actor: str) -> list[Event]:
    """The drafts as the next events after number `seq`, whose hash is `hash`."""
    events = []
    storable("actor", actor)
    for i, draft in enumerate(drafts, seq + 1):
        text = written(draft.body)
        storable("text", text)
        hash = _digest(hash, i, time, actor, draft.kind, draft.decision, draft.user, draft.request, text)
        event = Event(i, time, actor, draft.kind, draft.decision, draft.user, draft.request, text, hash)
        vars(event)["body"] = draft.body  # the same as reading the text again
        events.append(event)
    return events


def storable(what: str, text: str, most: int | None = None) -> None:
    """Refuse text that a database cannot keep or index."""
    if most is not None and len(text) > most:
        raise InputError(f"{what} has {len(text)} characters; {most} are allowed")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"{what} has a character that is not Unicode, {text[error.start]!r}") from None
    if "\0" in text:
        raise InputError(f"{what} has a zero byte, which not every database can keep; leave it out")


def _digest(*parts: str | int | None) -> str:
    return hashlib.sha256(written(parts).encode()).hexdigest()


def written(data: Any) -> str:
    """Data as text: every double is read back as it was."""
    return _WRITER.encode(data)


def now() -> str:
    """This moment in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
