"""Proof that a trial is what its log says: the chain holds, and every decision is reproduced.

Everything is read from the events alone: each decision is taken again from the state and the draws it names, and must
agree to the last bit with what was recorded. The table of decisions and the snapshot must follow from the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from drimed.errors import ConflictError, DrimedError, MissingModuleError
from drimed.records import Event, Head, Proof
from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.ask import Question, decide
from drimed.trial.checks import check, check_start
from drimed.trial.dataset import Dataset
from drimed.trial.events import START, hash_after
from drimed.trial.queries import Story, decision_row
from drimed.trial.state import TrialState, advanced, at_start, grouped, with_histories
from drimed.trial.stopping import look
from drimed.trial.store import DecisionRow, Ledger, Snapshot, Store, checked

ROUND_OFF = 1e-9  # another processor or library may differ in the last digits of a probability
# The end of an exact range is searched for, and with millions of decisions in it the search itself loses digits.
ROUND_OFF_OF_LOOKS = 1e-7
MOST_FAULTS = 100


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
    with store.reading(name) as ledger:
        return _Check(ledger, progress).run(expected_hash, [a for a in anchors if a.trial == name])


class _Check:
    def __init__(self, ledger: Ledger, progress: Callable[[int, int], None] | None) -> None:
        self.ledger, self.progress = ledger, progress
        self.faults: list[str] = []
        self.broken: list[str] = []  # faults of the chain
        self.decisions = self.exact = self.rounded = self.anchors = 0
        self.seq, self.hash = 0, START  # of the last event that was read
        self.replayed = self.looks = 0
        self.expected = False  # whether an event has the hash that is expected
        self.snapshot = ledger.snapshot()  # to be compared with the state after its event
        self.rows: dict[int, DecisionRow] = {}  # the table of decisions, as it follows from the log
        self.unchecked: str | None = None
        self.seen: Dataset | None = None  # by the last look
        self.requests: dict[str, tuple[int, str, str]] = {}  # from which state, when and for whom each was answered

    def run(self, expected_hash: str | None, anchors: Sequence[Head]) -> Proof:
        hashes = {a.event: "" for a in anchors}
        chain = self._chain(hashes, expected_hash)
        try:
            self._replay(at_start(self.ledger), chain)
        except MissingModuleError as error:
            self.unchecked = f"decisions cannot be checked here: {error}"
        except Exception as error:  # whatever was written into the log must not stop its proof
            text = str(error) if isinstance(error, DrimedError) else repr(error)
            self._fault(f"the log cannot be replayed after event {self.replayed}: {text}")
        for _ in chain:  # to its end, also where nothing more can be replayed
            pass
        if (self.seq, self.hash) != (self.ledger.seq, self.ledger.hash):
            self._break(
                f"the log ends with event {self.seq}, its head is event {self.ledger.seq}: the end was cut off or added"
            )
        if expected_hash is not None and not self.expected:
            self._break(f"no event has the hash {expected_hash}: the log was rewritten or cut off")
        self._compare_anchors(anchors, hashes, self.seq)
        return self._proof()

    def _proof(self) -> Proof:
        faults = [*self.broken, *self.faults][:MOST_FAULTS]
        counts = self.seq, self.decisions, self.exact, self.rounded
        ok = not faults and self.unchecked is None
        return Proof(ok, *counts, faults, self.hash, self.anchors, self.looks, self.unchecked)

    def _fault(self, text: str) -> None:
        if len(self.faults) < MOST_FAULTS:
            self.faults.append(text)

    def _break(self, text: str) -> None:
        if len(self.broken) < MOST_FAULTS:
            self.broken.append(text)

    def _chain(self, hashes: dict[int, str], expected_hash: str | None) -> Iterator[Event]:
        """Every event, in its place and unchanged; `hashes` gets those of the events that it names."""
        for event in self.ledger.events(until=2**31 - 1):
            if event.seq != self.seq + 1:
                self._break(f"after event {self.seq} comes event {event.seq}: {event.seq - self.seq - 1} missing")
            if not _holds(event, self.hash):
                self._break(f"event {event.seq} ({event.kind}) is not what was recorded, or not in its place")
            self.seq, self.hash = event.seq, event.hash
            self.expected = self.expected or event.hash == expected_hash
            if event.seq in hashes:
                hashes[event.seq] = event.hash
            if event.seq <= self.ledger.seq:
                yield event

    def _compare_anchors(self, anchors: Sequence[Head], there: Mapping[int, str], last: int) -> None:
        """Each against the event it is of; the first that differs says the most."""
        wrong = [a for a in anchors if there.get(a.event) != a.hash]
        self.anchors = len(anchors) - len(wrong)
        if not wrong:
            return
        first = min(wrong, key=lambda a: a.event)
        if first.event > last:
            said = f"the log ends with event {last}: what followed was cut off after that"
        else:
            now = there[first.event][:12] or "none"
            said = f"its hash is {now} now: something up to event {first.event} was changed after that"
        right = [a for a in anchors if a.event < first.event]
        if right:
            best = max(right, key=lambda a: a.event)
            said += f"; nothing up to event {best.event} was (the anchor of {best.time} holds)"
        more = f" {len(wrong) - 1} later anchors differ too." if len(wrong) > 1 else ""
        self._break(f"at {first.time} event {first.event} had the hash {first.hash[:12]}, and {said}.{more}")

    def _replay(self, state: TrialState, events: Iterator[Event]) -> None:
        if state.spec.name != self.ledger.name:
            self._fault(f"the log is of trial {state.spec.name!r}, and the store has it as {self.ledger.name!r}")
        self._possible(state.created, lambda: check_start(state.created))
        next(events)  # the first event is known
        self._compare(state)
        for group in grouped(with_histories(self.ledger, events)):
            self._check(state, group)
            if group[0][0].kind == kinds.DECISION:
                self._redecide(state, [event for event, _ in group])
            elif group[0][0].kind == kinds.LOOK:
                self._relook(state, group[0][0])
            stories = [(event, _story(state, told)) for event, told in group]
            state = advanced(state, [(event, told[0] if told else None) for event, told in group], self.ledger)
            rows = (decision_row(state, event, story) for event, story in stories)
            self.rows |= {row.decision: row for row in rows if row is not None}
            self._compare(state)
            if self.progress is not None:
                self.progress(state.seq, self.ledger.seq)
        if self.snapshot is not None:
            self._fault(f"the snapshot is of event {self.snapshot.seq}, after which none was taken")
        stored = {row.decision: row for row in self.ledger.decision_rows()}
        for number in sorted(n for n in {*stored, *self.rows} if stored.get(n) != self.rows.get(n)):
            self._fault(f"the table of decisions has {stored.get(number)}, expected {self.rows.get(number)}")

    def _compare(self, state: TrialState) -> None:
        self.replayed = state.seq
        snapshot = self.snapshot
        if snapshot is None or state.seq != snapshot.seq:
            return
        self.snapshot = None
        taken = next(self.ledger.events(after=state.seq, until=state.seq + 1, kinds=[kinds.SNAPSHOT]), None)
        if taken is not None and taken.body != {"after": snapshot.seq, "hash": snapshots.digest(snapshot)}:
            self._fault(f"the snapshot after event {snapshot.seq} is not the one that was taken")
        elif not _same(state, snapshot):
            self._fault(f"the snapshot after event {snapshot.seq} is not what the log amounts to")

    def _check(self, state: TrialState, group: list[tuple[Event, list[Event]]]) -> None:
        """Whether anybody could have recorded this: the rules of the trial that records hold for its log too."""
        event = group[0][0]
        self._possible(event, lambda: check(state, [(one, _story(state, told)) for one, told in group]))
        self._possible(event, lambda: self._once(state, event))

    def _possible(self, event: Event, rule: Callable[[], None]) -> None:
        try:
            rule()
        except MissingModuleError:
            raise
        except Exception as error:  # whatever somebody wrote into the log must not stop its proof
            what = str(error) if isinstance(error, DrimedError) else repr(error)
            self._fault(f"event {event.seq} ({event.kind}) cannot have been recorded there: {what}")

    def _once(self, state: TrialState, event: Event) -> None:
        """A request is answered once; a guard that keeps accounts of users takes several steps for their plots."""
        if event.request is None:
            return
        now = event.time, event.actor
        before = self.requests.setdefault(event.request, (state.seq, *now))
        if before[0] != state.seq and not (state.remembers_users and before[1:] == now):
            raise ConflictError(f"request {event.request!r} was answered before")

    def _redecide(self, state: TrialState, events: list[Event]) -> None:
        questions = []
        for event in events:
            profile, context, mask, _ = state.asked(event)
            body = event.body
            questions.append(Question(profile, context, body["unavailable"], mask, body.get("plot"), body.get("block")))
        for event, body in zip(events, decide(state, questions), strict=True):
            self.decisions += 1
            if body == event.body:
                self.exact += 1
                continue
            off = [name for name in body if not _close(body[name], event.body.get(name))]
            if off or set(body) != set(event.body):
                names = ", ".join(off) or "its fields"
                self._fault(f"decision {event.decision} (event {event.seq}) is not reproduced: {names} differ")
            else:
                self.rounded += 1

    def _relook(self, state: TrialState, event: Event) -> None:
        """Take a look again: what it said must be the same, and its numbers but for round-off."""
        body, self.seen = look(self.ledger, state, event.body["cause"], self.seen)
        self.looks += 1
        said = {name: value for name, value in body.items() if name != "hash"}
        off = [name for name in said if not _close(said[name], event.body.get(name), ROUND_OFF_OF_LOOKS)]
        if off or set(body) != set(event.body):
            self._fault(f"the look of event {event.seq} is not reproduced: {', '.join(off) or 'its fields'} differ")


def _story(state: TrialState, events: list[Event]) -> Story | None:
    """What was known of a decision at that moment, if it had been taken."""
    if not events or events[0].kind != kinds.DECISION or events[0].seq > state.seq:
        return None
    return Story.of(state, events)


def _holds(event: Event, hash: str) -> bool:
    try:
        return hash_after(hash, event) == event.hash
    except (TypeError, ValueError):  # SQLite takes bytes for text
        return False


def _close(one: Any, other: Any, within: float = ROUND_OFF) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return bool(np.isclose(one, other, rtol=within, atol=within))
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(_close(a, b, within) for a, b in zip(one, other, strict=True))
    if isinstance(one, dict) and isinstance(other, dict):
        return set(one) == set(other) and all(_close(value, other[name], within) for name, value in one.items())
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _same(state: TrialState, stored: Snapshot) -> bool:
    """Whether a snapshot holds what the log amounts to; how it was packed does not matter."""
    try:
        restored = snapshots.restore(state.created, stored)
    except Exception:  # torn or changed in whatever way
        return False
    return stored.hash == state.hash and snapshots.take(restored).data == snapshots.take(state).data
