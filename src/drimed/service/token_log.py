"""What was done to tokens, by whom and when: a log that is chained as a trial's is, and must amount to the tokens.

A token that was made, changed or taken back in the database itself, and not by this program, contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from drimed.records import Event, Head
from drimed.trial.events import START, Draft, chain, hash_after, now
from drimed.trial.stores.schema import log as table
from drimed.trial.stores.schema import tokens
from drimed.trial.stores.sql import SqlStore

NAME = "@tokens"  # in a file of anchors: no trial can have this name
FOUND, CREATED, REVOKED = "found", "created", "revoked"  # found: it was there before the log
_NAMES = ("seq", "time", "actor", "kind", "text", "hash")
_FIELDS = ("id", "label", "role", "trial", "created", "expires", "hash", "revoked")


def append(connection: Connection, kind: str, body: Mapping[str, Any], actor: str) -> None:
    """Record, in the transaction that does it."""
    if connection.dialect.name != "sqlite":  # there a writer is alone anyway
        connection.exec_driver_sql(f"LOCK TABLE {table.name} IN EXCLUSIVE MODE")
    last = connection.execute(sa.select(table.c.seq, table.c.hash).order_by(table.c.seq.desc()).limit(1)).first()
    seq, hash = (0, START) if last is None else last
    (event,) = chain([Draft(kind, dict(body))], seq=seq, hash=hash, time=now(), actor=actor)
    connection.execute(table.insert(), {name: getattr(event, name) for name in _NAMES})


def events(store: SqlStore) -> list[Event]:
    """All of it, oldest first."""
    with store.transaction(write=False) as connection:
        return _events(connection)


def head(store: SqlStore) -> Head | None:
    """Where it stands; None: there was never a token."""
    found = events(store)
    return Head(NAME, found[-1].seq, found[-1].hash, now()) if found else None


def verify(store: SqlStore, anchors: Iterable[Head] = ()) -> list[str]:
    """What is wrong: the chain, an event that could not have been recorded there, tokens that are not what it says."""
    with store.transaction(write=False) as connection:
        found = _events(connection)
        rows = connection.execute(sa.select(*(tokens.c[name] for name in _FIELDS)).order_by(tokens.c.id)).all()
    there = {row.id: dict(zip(_FIELDS, row, strict=True)) for row in rows}
    faults = [*_chain(found), *_anchored(found, anchors)]
    said: dict[str, dict[str, Any]] = {}
    for event in found:
        try:
            said = _applied(said, event)
        except (KeyError, TypeError, ValueError) as error:
            faults.append(f"event {event.seq} ({event.kind}) of the tokens' log cannot have been recorded: {error}")
    for id in sorted({*said, *there}):
        if id not in said:
            faults.append(f"token {there[id]['label']!r} ({id}) is in no event: it was put there by somebody else")
        elif id not in there:
            faults.append(f"token {said[id]['label']!r} ({id}) is gone; tokens are revoked, and stay in the list")
        elif off := [name for name in _FIELDS if said[id].get(name) != there[id][name]]:
            faults.append(f"token {said[id]['label']!r} ({id}) was changed by somebody else: {', '.join(off)}")
    return faults


def _applied(said: Mapping[str, dict[str, Any]], event: Event) -> dict[str, dict[str, Any]]:
    """The tokens after an event."""
    body = event.body
    id = str(body["id"])
    if event.kind in (FOUND, CREATED):
        if id in said or any(t["label"] == body["label"] for t in said.values()):
            raise ValueError(f"there is a token {body['label']!r} already")
        if event.kind == FOUND and event.seq != len(said) + 1:
            raise ValueError("tokens from before the log are at its beginning")
        return {**said, id: {"revoked": None, **body}}
    if event.kind == REVOKED:
        if said[id]["revoked"] is not None:
            raise ValueError(f"token {said[id]['label']!r} was revoked before")
        return {**said, id: {**said[id], "revoked": body["revoked"]}}
    raise ValueError(f"there are no events of kind {event.kind!r}")


def _chain(found: Sequence[Event]) -> list[str]:
    faults, hash = [], START
    for number, event in enumerate(found, 1):
        if event.seq != number or hash_after(hash, event) != event.hash:
            faults.append(f"event {event.seq} ({event.kind}) of the tokens' log is not what was recorded there")
        hash = event.hash
    return faults


def _anchored(found: Sequence[Event], anchors: Iterable[Head]) -> list[str]:
    there = {event.seq: event.hash for event in found}
    wrong = [a for a in anchors if a.trial == NAME and there.get(a.event) != a.hash]
    first = min(wrong, key=lambda a: a.event, default=None)
    if first is None:
        return []
    said = f"at {first.time} event {first.event} of the tokens' log had the hash {first.hash[:12]}, and has not now"
    return [f"{said}: something up to it was changed or cut off after that"]


def _events(connection: Connection) -> list[Event]:
    rows = connection.execute(sa.select(*(table.c[name] for name in _NAMES)).order_by(table.c.seq))
    return [Event(r.seq, r.time, r.actor, r.kind, None, None, None, r.text, r.hash) for r in rows]
