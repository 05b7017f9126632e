"""One process's view of a trial, kept in step with its store: one transaction at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass

from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.events import Draft, Event, chain
from drimed.trial.memory import Memory, grouped
from drimed.trial.stores.store import Ledger, Store

SNAPSHOT_EVERY = 1000  # events: folding so many takes a fraction of a second


@dataclass
class Transaction:
    """What is known inside a transaction, with what it adds."""

    memory: Memory
    ledger: Ledger
    time: str
    actor: str
    dry_run: bool
    wrote: bool = False

    def append(self, drafts: Sequence[Draft], about: Mapping[int, Event] | None = None) -> list[Event]:
        """Record and fold in, as every other process will; a dry run only shows what would be.

        `about` has the decisions that outcomes belong to.
        """
        head = self.memory
        written = chain(drafts, seq=head.seq, hash=head.hash, time=self.time, actor=self.actor)
        if self.dry_run:
            if written and written[0].kind == kinds.EPISODE:  # what is shown next happens in it
                self.memory = copy(self.memory)  # an episode replaces what it changes
                self.memory.take([(written[0], None)])
            return written
        if written:
            self.wrote = True
            self.ledger.append(written)
        for group in grouped((e, (about or {}).get(e.decision or 0)) for e in written):
            self.memory = self.memory.taken(group, self.ledger)
        return written


class Recorder:
    """Folds in what others wrote before anything is decided, and what this process writes before it is durable."""

    def __init__(self, name: str, store: Store, actor: str, clock: Callable[[], str]) -> None:
        self.name, self.store, self.actor, self.clock = name, store, actor, clock
        self._lock = threading.RLock()
        self._memory: Memory | None = None
        self._snapshot = 0  # the event after which the last snapshot was taken

    def memory(self) -> Memory:
        """Everything that is known now; it stays as it is, whatever other threads fold in."""
        with self._lock, self.store.reading(self.name) as ledger:
            return self._caught_up(ledger).as_it_stands()

    def learn_from(self, other: Recorder) -> None:
        """Take over what another one of the same trial has folded in already; nobody may be writing with it now."""
        with self._lock:
            known, newer = self._memory, other._memory
            if newer is not None and (known is None or newer.seq > known.seq):
                self._memory = newer.as_it_stands()

    @contextmanager
    def writing(self, actor: str | None, *, dry_run: bool = False) -> Iterator[Transaction]:
        """A transaction: durable when the block ends. What cannot be folded in is never written."""
        transaction = None
        with self._lock:
            try:
                with (self.store.reading if dry_run else self.store.writing)(self.name) as ledger:
                    memory = self._caught_up(ledger)
                    if not dry_run and memory.seq >= self._snapshot + max(SNAPSHOT_EVERY, len(memory.users)):
                        self._keep_snapshot(memory, ledger)
                    transaction = Transaction(memory, ledger, self.clock(), actor or self.actor, dry_run)
                    yield transaction
                    if transaction.wrote:
                        if transaction.memory.room != memory.room:  # nobody else need fold the whole past for that
                            ledger.keep(snapshots.take(transaction.memory))
                        self._memory = transaction.memory
            except BaseException:
                self._snapshot = 0  # one that was taken just now is gone; the next writer looks
                if transaction is not None and transaction.wrote:
                    self._memory = None  # it may hold what was not written
                raise

    def _caught_up(self, ledger: Ledger) -> Memory:
        memory, self._memory = self._memory, None
        if memory is None or memory.seq > ledger.seq or (memory.seq == ledger.seq and memory.hash != ledger.hash):
            memory = snapshots.recall(ledger)
            self._snapshot = ledger.snapshot_seq()
        else:
            memory = memory.caught_up(ledger)
        self._memory = memory
        return memory

    def _keep_snapshot(self, memory: Memory, ledger: Ledger) -> None:
        self._snapshot = ledger.snapshot_seq()  # another process may have taken one
        if memory.seq >= self._snapshot + max(SNAPSHOT_EVERY, len(memory.users)):
            ledger.keep(snapshots.take(memory))
            self._snapshot = memory.seq
