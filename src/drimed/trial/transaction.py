"""Transactions on one trial: the state at their start, the events that they add, and how these become durable.

A transaction buffers its events and folds them into its state. A write flushes them under the store's lock. A dry run
drops them. A slow decision is taken without the lock, and its events are flushed if the log still ends where it did.
Quick ones that wait at the same time are flushed together (`Trial.commit_all`): the disk is waited for once.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Generic, TypeVar

from drimed.errors import HaltedError, InputError
from drimed.records import AskRequest, Decision, Event, Head
from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.dataset import Dataset
from drimed.trial.event_checks import check_event
from drimed.trial.events import Draft, SnapshotTaken, chain
from drimed.trial.state import RecordedDecision, TrialState, advance, catch_up, grouped, rows_after, start_of
from drimed.trial.store import Ledger, Store, checked

SNAPSHOT_EVERY = 1000  # events: folding so many takes a fraction of a second
USERS_PER_EVENT = 10  # of a large trial: the events after a snapshot are folded faster than its users are restored
FEWEST_BETWEEN = 50  # events between a snapshot and one that is taken for a fit: the fits of a small trial are quick
QUICK = 0.05  # seconds: as long as decisions take less, the next one is taken under the lock at once
ATTEMPTS = 3  # at a slow decision without the lock

log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class Memory:
    """Data that a process keeps from one transaction to the next, only so that it need not be read again."""

    data: Dataset | None = None  # of the last look


@dataclass
class Transaction:
    """The state moves on with every event that is appended; it is durable when the transaction is committed."""

    state: TrialState
    ledger: Ledger
    time: str
    actor: str
    memory: Memory = field(default_factory=Memory)
    dry_run: bool = False

    def append(self, drafts: Sequence[Draft], recorded: Mapping[int, RecordedDecision] | None = None) -> list[Event]:
        """Buffer events and fold them in, as every other process will; outcomes come with their recorded decisions."""
        events = chain(drafts, seq=self.state.seq, hash=self.state.hash, time=self.time, actor=self.actor)
        self.ledger.append(events)
        for group in grouped((event, (recorded or {}).get(event.decision or 0)) for event in events):
            check_event(self.state, group)
            self.state = advance(self.state, group, self.ledger)
            self.ledger.rows |= rows_after(self.state, group)
        return events


@dataclass(frozen=True)
class Write(Generic[T]):
    """A change of a trial whose answer is `act`'s. It may be called several times, and only the last call counts."""

    act: Callable[[Transaction], T]
    actor: str | None = None
    find: Callable[[Ledger], T | None] = lambda _: None  # the answer, if it was given before
    keep: Callable[[Ledger, T], None] = lambda _, __: None  # records the answer in the same transaction
    large: bool = False  # it may take long until it is refused: that is found out without the lock
    question: tuple[AskRequest, Callable[[list[Decision]], T]] | None = None  # all that `act` does, and its answer


class TrialSession:
    """One trial in one store, with the newest state that this process has folded; threads may share it."""

    def __init__(
        self,
        name: str,
        store: Store,
        *,
        actor: str = "python",
        clock: Callable[[], str] = kinds.now,
        anchors: Path | None = None,
    ) -> None:
        checked(store)
        self.name, self.store, self.clock = name, store, clock
        self.slow: bool | None = None  # whether the newest decisions took long; None: none was taken yet
        # Seconds by the clock of this process's writers: until they have the store, to fold in what others wrote, to
        # decide and to learn (where variances are fitted anew: `fit`), and until that is durable.
        self.spent = dict.fromkeys(("wait", "catch up", "work", "fit", "commit"), 0.0)
        self._actor, self._anchors = actor, anchors
        self._state: TrialState | None = None  # replaced as a whole
        self._snapshot_lost = False  # the last snapshot could not be used: another one is taken at once
        self._memory = Memory()

    def state(self) -> TrialState:
        with self.reading() as (_, state):
            return state

    @contextmanager
    def reading(self) -> Iterator[tuple[Ledger, TrialState]]:
        """The log and the state at one moment; never waits for a writer."""
        known = self._state  # before the ledger is opened, so that it cannot be ahead of it
        with self.store.reading(self.name) as ledger:
            state = self._caught_up(known, ledger)
            if state is not known:
                self._state = state
            yield ledger, state

    @contextmanager
    def writing(self, actor: str | None = None, *, dry_run: bool = False) -> Iterator[Transaction]:
        """A transaction: durable when the block ends. A dry run writes nothing."""
        if dry_run:
            with self.reading() as (ledger, state):
                yield Transaction(state, ledger, self.clock(), actor or self._actor, self._memory, dry_run=True)
            return
        if self._state is None:
            self.state()  # a long log is read before the lock is taken
        halted, moments = None, [time.perf_counter()]
        with self.store.writing(self.name) as ledger:
            moments.append(time.perf_counter())
            # A writer is alone now: whatever was folded last in this process is in the ledger too.
            start = self._caught_up(self._state, ledger)
            moments.append(time.perf_counter())
            tx = Transaction(start, ledger, self.clock(), actor or self._actor, self._memory)
            try:
                yield tx
            except HaltedError as error:  # the look that led to it is recorded
                halted = error
            keeps = tx.state.seq > start.seq and (self._snapshot_lost or _snapshot_due(start, tx.state))
            if keeps:
                snapshot = snapshots.take(tx.state)
                ledger.keep(snapshot)
                tx.append([Draft(SnapshotTaken(snapshot.seq, snapshots.digest(snapshot)))])
            moments.append(time.perf_counter())
        moments.append(time.perf_counter())
        doing = "wait", "catch up", "work" if tx.state.fits == start.fits else "fit", "commit"
        for what, (begin, end) in zip(doing, pairwise(moments), strict=True):
            self.spent[what] += end - begin
        self._state, self._snapshot_lost = tx.state, self._snapshot_lost and not keeps
        before, after = ((state.episode.number, state.status == "stopped") for state in (start, tx.state))
        if self._anchors is not None and before != after:
            try:
                append_anchors(self._anchors, [Head(self.name, tx.state.seq, tx.state.hash, self.clock())])
            except InputError as error:  # the event is recorded already
                log.error("trial %s: event %d has no anchor: %s", self.name, tx.state.seq, error)
        if halted is not None:
            raise halted

    def decide(
        self, act: Callable[[Transaction], T], *, actor: str | None = None, dry_run: bool = False, large: bool = False
    ) -> T:
        """The answer of `act`, which takes decisions; its events are durable then."""
        if dry_run:
            with self.writing(actor, dry_run=True) as tx:
                return act(tx)
        return self.commit(Write(act, actor, large=large))

    def commit(self, write: Write[T]) -> T:
        """The answer to a write whose events are durable.

        A writer of SQLite has the whole store to itself, so a slow decision is taken without the lock and recorded
        only if the log still ends where it did; and so is what a large request asks for.
        """
        for _ in range(0 if self.slow is False and not write.large else ATTEMPTS):
            halted: HaltedError | None = None
            with self.reading() as (ledger, start):
                if (before := write.find(ledger)) is not None:
                    return before
                proposed = Transaction(start, ledger, self.clock(), write.actor or self._actor, self._memory)
                try:
                    answer = self._timed(write, proposed)
                except HaltedError as error:
                    halted = error
            with self.writing(write.actor) as tx:
                if (before := write.find(tx.ledger)) is not None:
                    return before
                if (tx.state.seq, tx.state.hash) != (start.seq, start.hash):
                    continue  # another event was recorded meanwhile
                tx.ledger.append(ledger.new, list(ledger.rows.values()))
                tx.state = proposed.state
                if halted is not None:
                    raise halted
                write.keep(tx.ledger, answer)
            return answer
        with self.writing(write.actor) as tx:
            return self._answer(tx, write)

    def _answer(self, tx: Transaction, write: Write[T]) -> T:
        """Take a decision in a transaction, unless its answer is there."""
        if (before := write.find(tx.ledger)) is not None:
            return before
        answer = self._timed(write, tx)
        write.keep(tx.ledger, answer)
        return answer

    def _timed(self, write: Write[T], tx: Transaction) -> T:
        start, before = time.thread_time(), tx.state  # a thread that waits for others is not slow
        answer = write.act(tx)
        if not write.large:
            self._judge(before, tx.state, time.thread_time() - start)
        return answer

    def _judge(self, before: TrialState, after: TrialState, seconds: float) -> None:
        """Note whether the newest decisions took long, each of them: new variances and the first one say nothing."""
        if self.slow is None:  # it compiled kernels
            self.slow = False
        elif before.fits == after.fits:
            self.slow = seconds > QUICK * max(1, after.counts.decisions - before.counts.decisions)

    def _caught_up(self, state: TrialState | None, ledger: Ledger) -> TrialState:
        """The state after the ledger's last event; a store that was set back is read again."""
        if state is not None and (state.seq, state.hash) == (ledger.seq, ledger.hash):
            return state
        if state is not None:
            following = next(ledger.events(after=state.seq, until=state.seq + 1), None)
            if following is not None and kinds.hash_after(state.hash, following) == following.hash:
                return catch_up(state, ledger)
            log.warning(
                "trial %s: the store was set back: event %d, which this process knows, is not in it; the log is read "
                "again. Decisions that are not in it any more must not be told", self.name, state.seq,
            )  # fmt: skip
        snapshot = ledger.snapshot()
        start = (snapshots.checked(ledger, snapshot) if snapshot else None) or start_of(ledger)
        state = catch_up(start, ledger)
        self._snapshot_lost = start.seq < state.snapshot[0]
        return state


def _snapshot_due(before: TrialState, after: TrialState) -> bool:
    """True if the events since the last snapshot take long to fold in: many, new variances, or arrays that grew."""
    last, fits = after.snapshot
    refitted = after.seq >= last + FEWEST_BETWEEN and after.fits != fits
    often = max(SNAPSHOT_EVERY, len(after.users) // USERS_PER_EVENT)
    return refitted or after.seq >= last + often or before.capacity != after.capacity


# Anchors: ends of logs at some time, kept in a file where writers to the store cannot change them. Each line has a
# time, the trial, the number of an event and its hash. Since every hash rests on all events before it, one line proves
# that nothing up to that event was changed after that time.

_ANCHOR = re.compile(r"(?P<time>\S+) (?P<trial>\S+) (?P<event>[1-9][0-9]{0,9}) (?P<hash>[0-9a-f]{64})")


def anchor_line(head: Head) -> str:
    """An anchor as a line of a file.

    >>> anchor_line(Head("maize", 7, "ab" * 32, "2026-05-01T10:00:00+00:00"))[:40]
    '2026-05-01T10:00:00+00:00 maize 7 ababab'
    """
    return f"{head.time} {head.trial} {head.event} {head.hash}"


def load_anchors(file: Path) -> list[Head]:
    """The anchors in a file; empty lines and comments (#) are left out."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    heads = []
    for number, one in enumerate(text.splitlines(), 1):
        if not one.strip() or one.startswith("#"):
            continue
        parts = _ANCHOR.fullmatch(one.strip())
        if parts is None:
            expected = "expected a time, a trial, an event's number and its hash"
            raise InputError(f"{file}, line {number}: {expected}, got {one!r}")
        heads.append(Head(parts["trial"], int(parts["event"]), parts["hash"], parts["time"]))
    return heads


def append_anchors(file: Path, heads: Iterable[Head]) -> None:
    """Add lines at the end, durably; several processes may do so at once."""
    text = "".join(anchor_line(head) + "\n" for head in heads)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error}") from None


def missing_anchors(ledger: Ledger, known: Sequence[Head], time: str) -> Iterator[Head]:
    """Anchors that a file does not have yet: the opening of each episode, and the end of the log."""
    anchored = {head.event for head in known if head.trial == ledger.name}
    for event in ledger.events(kinds=[kinds.EPISODE]):
        if event.seq not in anchored and event.seq < ledger.seq:
            yield Head(ledger.name, event.seq, event.hash, time)
    if ledger.seq not in anchored:
        yield Head(ledger.name, ledger.seq, ledger.hash, time)
