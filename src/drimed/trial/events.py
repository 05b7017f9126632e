"""What happened, one line each: an append-only chain that proves itself.

Every event carries the hash of the one before it. Whoever changes, removes or reorders one breaks the chain at that
place; whoever cuts off its end contradicts the head that the store keeps beside it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from drimed.errors import InputError

LONGEST_KEY = 500  # characters of a caller's key
START = ""  # what the first event of a trial is chained to

# The kinds of events.
CREATED, EPISODE, DECISION = "created", "episode", "decision"
OUTCOME, AMENDMENT, MISSING = "outcome", "amendment", "missing"
USER, PREFERENCE, CONTROL, ARM, RETIRED = "user", "preference", "control", "arm", "retired"
PAUSED, RESUMED, STOPPED = "paused", "resumed", "stopped"
KINDS = (
    CREATED, EPISODE, DECISION, OUTCOME, AMENDMENT, MISSING, USER, PREFERENCE, CONTROL, ARM, RETIRED, PAUSED, RESUMED,
    STOPPED,
)  # fmt: skip


@dataclass(frozen=True)
class Draft:
    """Something that is about to be recorded."""

    kind: str
    body: dict[str, Any]
    decision: int | None = None  # the decision it is about
    user: str | None = None
    request: str | None = None  # the caller's key, so that a repeated request is answered and not repeated


@dataclass(frozen=True)
class Event:
    """Something that was recorded."""

    seq: int  # from 1
    time: str  # UTC
    actor: str
    kind: str
    decision: int | None
    user: str | None
    request: str | None
    text: str  # the body, as it was written
    hash: str

    @cached_property
    def body(self) -> dict[str, Any]:
        """What happened."""
        data: dict[str, Any] = json.loads(self.text)
        return data

    def chained_to(self, previous: str) -> str:
        """The hash that this event must have after one whose hash is `previous`."""
        return _digest(
            previous, self.seq, self.time, self.actor, self.kind, self.decision, self.user, self.request, self.text
        )


def chain(drafts: Sequence[Draft], *, seq: int, hash: str, time: str, actor: str) -> list[Event]:
    """The drafts as the next events after number `seq`, whose hash is `hash`."""
    events = []
    storable("actor", actor)
    for i, draft in enumerate(drafts, seq + 1):
        text = written(draft.body)
        storable("text", text)
        hash = _digest(hash, i, time, actor, draft.kind, draft.decision, draft.user, draft.request, text)
        event = Event(i, time, actor, draft.kind, draft.decision, draft.user, draft.request, text, hash)
        vars(event)["body"] = draft.body  # what reading the text would give, and takes as long as writing it
        events.append(event)
    return events


def storable(what: str, text: str, most: int | None = None) -> None:
    """Refuse what a database cannot keep, or not in an index."""
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
    return json.dumps(data, allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def now() -> str:
    """This moment in UTC, to the microsecond."""
    return datetime.now(UTC).isoformat(timespec="microseconds")
