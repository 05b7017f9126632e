"""Proof that a trial is what its log says: the chain holds, and every decision comes out again.

Everything is read from the events alone, without snapshots: each decision is taken anew from the state and the draws it
names, and must agree to the last bit with what was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.deciding import Asked, decide
from drimed.trial.events import START, Event
from drimed.trial.memory import Memory, groups
from drimed.trial.stores.store import Ledger, Snapshot, Store

ROUND_OFF = 1e-9  # another processor or library may differ in the last digits of a probability
MOST_FAULTS = 100


@dataclass
class Verdict:
    """What was found."""

    events: int = 0
    decisions: int = 0
    exact: int = 0  # decisions that came out again to the last bit
    rounded: int = 0  # that came out to round-off: the arm and all else is the same
    faults: list[str] = field(default_factory=list)
    hash: str = ""  # of the last event: keep it elsewhere, and nobody can rewrite the whole log unseen

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return not self.faults


def verify(
    store: Store, name: str, *, expected_hash: str | None = None, progress: Callable[[int, int], None] | None = None
) -> Verdict:
    """Replay a whole trial; `progress` is told events done and events in all."""
    with store.reading(name) as ledger:
        return _Check(ledger, progress).run(expected_hash)


class _Check:
    def __init__(self, ledger: Ledger, progress: Callable[[int, int], None] | None) -> None:
        self.ledger, self.progress = ledger, progress
        self.found = Verdict()
        self.replayed, self.compared = 0, False

    def run(self, expected_hash: str | None) -> Verdict:
        self._chain(expected_hash)
        try:
            self._replay()
        except Exception as error:  # whatever somebody wrote into the log must not stop its proof
            self._fault(f"the log cannot be replayed after event {self.replayed}: {error!r}")
        return self.found

    def _fault(self, text: str) -> None:
        if len(self.found.faults) < MOST_FAULTS:
            self.found.faults.append(text)

    def _chain(self, expected_hash: str | None) -> None:
        """Every event in its place, and unchanged."""
        seq, hash, met = 0, START, expected_hash is None
        for event in self.ledger.events(until=2**31 - 1):
            if event.seq != seq + 1:
                self._fault(f"after event {seq} comes event {event.seq}: {event.seq - seq - 1} missing")
            if not _holds(event, hash):
                self._fault(f"event {event.seq} ({event.kind}) is not what was recorded, or not in its place")
            seq, hash = event.seq, event.hash
            met = met or hash == expected_hash
        self.found.events, self.found.hash = seq, hash
        if (seq, hash) != (self.ledger.seq, self.ledger.hash):
            self._fault(
                f"the log ends with event {seq}, its head is event {self.ledger.seq}: the end was cut off or added"
            )
        if not met:
            self._fault(f"no event has the hash {expected_hash}: the log was rewritten or cut off")

    def _replay(self) -> None:
        memory = Memory.at_start(self.ledger)
        if memory.spec.name != self.ledger.name:
            self._fault(f"the log is of trial {memory.spec.name!r}, and the store has it as {self.ledger.name!r}")
        snapshot = self.ledger.snapshot()
        self._compare(memory, snapshot)
        for group in groups(self.ledger, after=memory.seq, until=None):
            if group[0][0].kind == kinds.DECISION:
                self._redecide(memory, [event for event, _ in group])
            memory = memory.taken(group, self.ledger)
            self._compare(memory, snapshot)
            if self.progress is not None:
                self.progress(memory.seq, self.ledger.seq)
        if snapshot is not None and not self.compared:
            self._fault(f"the snapshot is of event {snapshot.seq}, after which none was taken")

    def _compare(self, memory: Memory, snapshot: Snapshot | None) -> None:
        self.replayed = memory.seq
        if snapshot is not None and snapshot.seq == memory.seq:
            self.compared = True
            if not _same(memory, snapshot):
                self._fault(f"the snapshot after event {snapshot.seq} is not what the log amounts to")

    def _redecide(self, memory: Memory, events: list[Event]) -> None:
        asked = []
        for event in events:
            profile, context, mask = memory.asked(event)
            asked.append(Asked(profile, context, event.body["unavailable"], mask))
        for i, (event, body) in enumerate(zip(events, decide(memory, asked), strict=True)):
            self.found.decisions += 1
            number = memory.counts.decisions + i + 1
            if event.decision != number:
                self._fault(f"event {event.seq} is decision {event.decision}, expected {number}")
            if body == event.body:
                self.found.exact += 1
                continue
            off = [name for name in body if not _close(body[name], event.body.get(name))]
            if off or set(body) != set(event.body):
                names = ", ".join(off) or "its fields"
                self._fault(f"decision {event.decision} (event {event.seq}) does not come out again: {names} differ")
            else:
                self.found.rounded += 1


def _holds(event: Event, hash: str) -> bool:
    try:
        return event.chained_to(hash) == event.hash
    except (TypeError, ValueError):  # SQLite takes bytes for text
        return False


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=ROUND_OFF, atol=ROUND_OFF))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_close(a, b) for a, b in zip(one, other, strict=True))
    return bool(one == other)


def _same(memory: Memory, stored: Snapshot) -> bool:
    """Whether a snapshot holds what the log amounts to; how it was packed does not matter."""
    try:
        again = snapshots.take(snapshots.restore(memory.created, stored))
    except Exception:  # torn or changed in whatever way
        return False
    return stored.hash == memory.hash and again.data == snapshots.take(memory).data
