"""One process's view of a trial, kept in step with its store: one transaction at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.events import Draft, Event, chain
from drimed.trial.memory import Memory
from drimed.trial.stores.store import Ledger, Store

SNAPSHOT_EVERY = 1000  # events: folding so many takes a fraction of a second


@dataclass
class Transaction:
    """What is known inside a transaction, and what it adds."""

    memory: Memory
    ledger: Ledger
    time: str
    actor: str
    dry_run: bool
    taken: list[tuple[Event, Event | None]] = field(default_factory=list)

    def append(
        self, drafts: Sequence[Draft], actor: str | None, about: Mapping[int, Event] | None = None
    ) -> list[Event]:
        """Record; a dry run only shows what would be."""
        head = self.ledger
        written = chain(drafts, seq=head.seq, hash=head.hash, time=self.time, actor=actor or self.actor)
        if written and not self.dry_run:
            self.ledger.append(written)
            self.taken += [(e, (about or {}).get(e.decision or 0)) for e in written]
        return written


class Recorder:
    """Folds in what others wrote before anything is decided, and what this process wrote once it is durable."""

    def __init__(self, name: str, store: Store, actor: str, clock: Callable[[], str]) -> None:
        self.name, self.store, self.actor, self.clock = name, store, actor, clock
        self._lock = threading.RLock()
        self._memory: Memory | None = None
        self._snapshot = 0  # the event after which the last snapshot was taken

    def memory(self) -> Memory:
        """Everything that is known now."""
        with self._lock, self.store.reading(self.name) as ledger:
            return self._caught_up(ledger)

    def begun(self) -> bool:
        """Whether an episode was ever opened; what is known already answers that, once it is so."""
        known = self._memory
        return (known is not None and known.episode.number > 0) or self.memory().episode.number > 0

    @contextmanager
    def writing(self, *, dry_run: bool = False) -> Iterator[Transaction]:
        """A transaction: durable when the block ends."""
        with self._lock:
            with (self.store.reading if dry_run else self.store.writing)(self.name) as ledger:
                memory = self._caught_up(ledger)
                if not dry_run and memory.seq >= self._snapshot + max(SNAPSHOT_EVERY, len(memory.users)):
                    self._keep_snapshot(memory, ledger)
                transaction = Transaction(memory, ledger, self.clock(), self.actor, dry_run)
                yield transaction
            if transaction.taken:
                self._advance(transaction.taken)

    def _advance(self, taken: list[tuple[Event, Event | None]]) -> None:
        """Fold in what was just written, as every other process will."""
        memory, self._memory = self._memory, None  # should folding fail half-way, nothing half-done is kept
        if memory is None:
            return
        if taken[0][0].kind == kinds.DECISION:
            memory.take(taken)
        elif taken[0][0].kind not in (kinds.ARM, kinds.USER, kinds.PREFERENCE):  # these may need the whole past
            for pair in taken:
                memory.take([pair])
        self._memory = memory

    def _caught_up(self, ledger: Ledger) -> Memory:
        memory, self._memory = self._memory, None
        if memory is None:
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
