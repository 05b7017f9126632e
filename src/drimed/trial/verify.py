"""Verify a trial: the chain of its log holds, and every decision is reproduced.

Everything is read from the events alone: each event must be allowed after the events before it, and each decision is
taken again from the state and the draws it names and must agree to the last bit. The table of decisions and the
snapshot must follow from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np

from drimed.errors import ConflictError, DrimedError, InputError, MissingModuleError
from drimed.records import Event, Head, Proof
from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.ask import decide
from drimed.trial.dataset import Dataset
from drimed.trial.event_checks import check_event, check_start
from drimed.trial.events import (
    START,
    Created,
    Decided,
    EventBody,
    LookTaken,
    SnapshotTaken,
    body_of,
    hash_after,
    to_json,
)
from drimed.trial.state import Group, TrialState, advance, grouped, recorded_decisions, start_of, with_decisions
from drimed.trial.stopping import look
from drimed.trial.store import Ledger, Snapshot, Store, checked

VERSIONS = "drimed {} with NumPy {}"
# Another processor or library may differ in the last digits; estimates are recorded with seven of them.
ROUND_OFF = 1e-5
NOT_LOOKED_AT = "tokens, answers that are kept for repeated requests"
MOST_FAULTS, MOST_NAMED = 100, 10
ROWS_AT_ONCE = 10_000  # of the table of decisions
LARGEST = 2**31 - 1  # number of an event


def verify(
    store: Store,
    name: str,
    *,
    expected_hash: str | None = None,
    anchors: Iterable[Head] = (),
    progress: Callable[[int, int], None] | None = None,
) -> Proof:
    """Replay a whole trial.

    Anchors of other trials are left out. `progress` is called with events done and events in all.
    """
    checked(store)
    heads = list(anchors)
    own = [head for head in heads if head.trial == name]
    others = f", {len(heads) - len(own)} anchors of other trials" if len(heads) > len(own) else ""
    with store.reading(name) as ledger:
        return replace(_Replay(ledger, progress).run(expected_hash, own), left_out=NOT_LOOKED_AT + others)


class _Replay:
    def __init__(self, ledger: Ledger, progress: Callable[[int, int], None] | None) -> None:
        self.ledger, self.progress = ledger, progress
        self.faults: list[str] = []
        self.broken: list[str] = []  # faults of the chain
        self.decisions = self.exact = self.anchors = self.looks = 0
        self.rounded: list[int] = []  # decisions that are reproduced to round-off only,
        self.moved: list[int] = []  # and looks, by their events
        self.seq, self.hash = 0, START  # of the last event that was read
        self.replayed = 0  # the last event that was folded
        self.expected = False  # whether an event has the hash that is expected
        self.snapshot = ledger.snapshot()  # to be compared with the state after its event
        self.unchecked: str | None = None
        self.made_with = ""
        self.data: Dataset | None = None  # of the last look
        self.requests: dict[str, tuple[int, str, str]] = {}  # request -> state, time and actor of its decisions

    def run(self, expected_hash: str | None, anchors: Sequence[Head]) -> Proof:
        hashes = {a.event: "" for a in anchors}
        chain = self._chain(hashes, expected_hash)
        try:
            self._replay(start_of(self.ledger), chain)
        except MissingModuleError as error:
            self.unchecked = f"decisions cannot be checked here: {error}"
        except Exception as error:  # whatever was written into the log must not stop its proof
            self._fault(f"the log cannot be replayed after event {self.replayed}: {_text(error)}")
        for _ in chain:  # to its end, also where nothing more can be replayed
            pass
        if (self.seq, self.hash) != (self.ledger.seq, self.ledger.hash):
            end = f"the log ends with event {self.seq}, its head is event {self.ledger.seq}"
            self._fault(f"{end}: the end was cut off or added", chain=True)
        if expected_hash is not None and not self.expected:
            self._fault(f"no event has the hash {expected_hash}: the log was rewritten or cut off", chain=True)
        self._compare_anchors(anchors, hashes)
        faults = [*self.broken, *self.faults][:MOST_FAULTS]
        decisions, looks = ("decisions", self.decisions, self.rounded), ("looks, of events", self.looks, self.moved)
        rounded = [
            f"{len(found)} of {count} {what} ({', '.join(map(str, found[:MOST_NAMED]))}"
            f"{', ...' if len(found) > MOST_NAMED else ''})"
            for what, count, found in (decisions, looks)
            if found
        ]
        if rounded and self.unchecked is None:
            self.unchecked = (
                f"{' and '.join(rounded)} are reproduced to round-off only, which another "
                f"processor or version may cause and a changed log too: the log says {self.made_with}, here is "
                f"{VERSIONS.format(version('drimed'), np.__version__)}; verify it with those, on the machine that "
                "took them"
            )
        ok, counts = not faults and self.unchecked is None, (self.seq, self.decisions, self.exact, len(self.rounded))
        return Proof(ok, *counts, faults, self.hash, self.anchors, self.looks, self.unchecked, self.made_with)

    def _fault(self, text: str, *, chain: bool = False) -> None:
        faults = self.broken if chain else self.faults
        if len(faults) < MOST_FAULTS:
            faults.append(text)

    def _chain(self, hashes: dict[int, str], expected_hash: str | None) -> Iterator[Event]:
        """Every event, in its place and unchanged; `hashes` gets those of the events that it names."""
        for event in self.ledger.events(until=LARGEST):
            if event.seq != self.seq + 1:
                gap = f"after event {self.seq} comes event {event.seq}: {event.seq - self.seq - 1} missing"
                self._fault(gap, chain=True)
            try:
                holds = hash_after(self.hash, event) == event.hash
            except (TypeError, ValueError):  # SQLite takes bytes for text
                holds = False
            if not holds:
                text = f"event {event.seq} ({event.kind}) is not what was recorded, or not in its place"
                self._fault(text, chain=True)
            self.seq, self.hash = event.seq, event.hash
            self.expected = self.expected or event.hash == expected_hash
            if event.seq in hashes:
                hashes[event.seq] = event.hash
            if event.seq <= self.ledger.seq:
                yield event

    def _compare_anchors(self, anchors: Sequence[Head], hashes: dict[int, str]) -> None:
        """Compare each anchor with its event; the first that differs says the most."""
        wrong = sorted((a for a in anchors if hashes.get(a.event) != a.hash), key=lambda a: a.event)
        self.anchors = len(anchors) - len(wrong)
        if not wrong:
            return
        first = wrong[0]
        text = f"at {first.time} event {first.event} had the hash {first.hash[:12]}, and "
        if first.event > self.seq:
            text += f"the log ends with event {self.seq}: what followed was cut off after that"
        else:
            text += f"something up to event {first.event} was changed after that"
        if before := [a for a in anchors if a.event < first.event]:
            last = max(before, key=lambda a: a.event)
            text += f"; nothing up to event {last.event} was (the anchor of {last.time} holds)"
        more = f" {len(wrong) - 1} later anchors differ too." if len(wrong) > 1 else ""
        self._fault(f"{text}.{more}", chain=True)

    def _replay(self, state: TrialState, events: Iterator[Event]) -> None:
        if state.spec.name != self.ledger.name:
            self._fault(f"the log is of trial {state.spec.name!r}, and the store has it as {self.ledger.name!r}")
        with self._allowed(state.created):
            check_start(state.created)
            made = body_of(state.created, Created)
            self.made_with = VERSIONS.format(made.drimed, made.numpy)
        next(events)  # the first event is known
        self._compare_snapshot(state)
        for group in grouped(with_decisions(state, self.ledger, events)):
            state = self._step(state, group)
            self._compare_snapshot(state)
            if self.progress is not None:
                self.progress(state.seq, self.ledger.seq)
        if self.snapshot is not None:
            self._fault(f"the snapshot is of event {self.snapshot.seq}, after which none was taken")
        self._compare_rows(state)

    def _compare_rows(self, state: TrialState) -> None:
        """Compare the table of decisions with the rows that follow from the log, some at a time, newest first."""
        rows, before = self.ledger.decision_rows(limit=ROWS_AT_ONCE), state.counts.decisions + 1
        while rows or before > 1:
            stored = {row.decision: row for row in rows}
            first = max(1, rows[-1].decision) if rows else 1
            for recorded in recorded_decisions(self.ledger, state, range(first, before)):
                expected, row = recorded.row, stored.pop(recorded.decision, None)
                if row != expected:
                    self._fault(f"the table of decisions has {row}, expected {expected}")
            for row in stored.values():
                self._fault(f"the table of decisions has {row}, expected {None}")
            before = min(before, first)
            rows = self.ledger.decision_rows(before=rows[-1].decision, limit=ROWS_AT_ONCE) if rows else []

    def _step(self, state: TrialState, group: Group) -> TrialState:
        """Check one event, or decisions that were taken together, and fold them in."""
        event = group[0][0]
        with self._allowed(event):
            check_event(state, group)
        for one, _ in group:
            with self._allowed(one):
                if to_json(body_of(one, EventBody).to_json()) != one.text:
                    raise InputError("its text is not as this program writes it")
        with self._allowed(event):
            for one, _ in group:
                self._check_once(state, one)
        if event.kind == kinds.DECISION:
            self._redecide(state, [one for one, _ in group])
        elif event.kind == kinds.LOOK:
            self._relook(state, event)
        return advance(state, group, self.ledger)

    @contextmanager
    def _allowed(self, event: Event) -> Iterator[None]:
        try:
            yield
        except MissingModuleError:
            raise
        except Exception as error:  # whatever was written into the log must not stop its proof
            self._fault(f"event {event.seq} ({event.kind}) cannot have been recorded there: {_text(error)}")

    def _check_once(self, state: TrialState, event: Event) -> None:
        """A request is answered once; a guard that keeps accounts of users takes several steps for their plots."""
        if event.request is None:
            return
        now = event.time, event.actor
        before = self.requests.setdefault(event.request, (state.seq, *now))
        if before[0] != state.seq and not (state.problem.remembers_users(state.policy) and before[1:] == now):
            raise ConflictError(f"request {event.request!r} was answered before")

    def _redecide(self, state: TrialState, events: list[Event]) -> None:
        for event, again in zip(events, decide(state, [body_of(event, Decided) for event in events]), strict=True):
            self.decisions += 1
            if not body_of(event, Decided).drawn:
                self.exact += 1  # nothing is to be repeated, and what it says was checked
            elif again.to_json() == event.body:
                self.exact += 1
            elif off := _differences(again.to_json(), event.body):
                self._fault(f"decision {event.decision} (event {event.seq}) is not reproduced: {off} differ")
            else:
                self.rounded.append(int(event.decision or 0))

    def _relook(self, state: TrialState, event: Event) -> None:
        """Repeat an interim analysis."""
        again, self.data = look(self.ledger, state, body_of(event, LookTaken).cause, self.data)
        self.looks += 1
        if off := _differences(again, event.body):
            self._fault(f"the look of event {event.seq} is not reproduced: {off} differ")
        elif again != event.body:
            self.moved.append(event.seq)

    def _compare_snapshot(self, state: TrialState) -> None:
        self.replayed = state.seq
        snapshot = self.snapshot
        if snapshot is None or state.seq != snapshot.seq:
            return
        self.snapshot = None
        taken = next(self.ledger.events(after=state.seq, until=state.seq + 1, kinds=[kinds.SNAPSHOT]), None)
        if taken is not None and taken.body != SnapshotTaken(snapshot.seq, snapshots.digest(snapshot)).to_json():
            self._fault(f"the snapshot after event {snapshot.seq} is not the one that was taken")
        elif not _holds(state, snapshot):
            self._fault(f"the snapshot after event {snapshot.seq} is not what the log amounts to")


def _text(error: Exception) -> str:
    return str(error) if isinstance(error, DrimedError) else repr(error)


def _differences(again: dict[str, Any], recorded: dict[str, Any]) -> str:
    """The fields, but for the hash, that differ by more than round-off."""
    names = (name for name in {**again, **recorded} if name != "hash")
    return ", ".join(name for name in names if not _close(again.get(name), recorded.get(name)))


def _close(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=ROUND_OFF, atol=ROUND_OFF))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_close, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_close(value, other[name]) for name, value in one.items())
    return bool(type(one) is type(other) and one == other)


def _holds(state: TrialState, stored: Snapshot) -> bool:
    """Whether a snapshot holds this state; how it was packed does not matter."""
    try:
        restored = snapshots.restore(state.created, stored)
    except Exception:  # torn or changed in whatever way
        return False
    return stored.hash == state.hash and snapshots.take(restored).data == snapshots.take(state).data
