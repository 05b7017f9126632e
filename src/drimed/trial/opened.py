"""Reading and writing one trial in one store: what this process knows of it, in transactions.

Whatever other processes recorded is folded in first. A snapshot is taken when it is time for one, and the log's hash is
noted elsewhere when an episode begins and when the trial ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from drimed.errors import HaltedError
from drimed.records import Head
from drimed.trial import anchors, proposing, snapshots
from drimed.trial import events as kinds
from drimed.trial.fold import caught_up
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger, Store, checked
from drimed.trial.transaction import Memory, Transaction

log = logging.getLogger(__name__)

SNAPSHOT_EVERY = 1000  # events: folding so many takes a fraction of a second
FEWEST_BETWEEN = 50  # events between a snapshot and one that is taken for a fit: the fits of a small trial are quick


class Opened:
    """One trial in one store; threads may share it."""

    def __init__(
        self, name: str, store: Store, *, actor: str, clock: Callable[[], str], anchors: Path | None = None
    ) -> None:
        checked(store)
        self.name, self.store, self.clock = name, store, clock
        self._actor, self._anchors = actor, anchors
        self._state: TrialState | None = None  # the newest that this process has folded; replaced as a whole
        self._snapshot: int | None = None  # the event after which the last snapshot was taken; None: not known
        self._fitted = 0  # outcomes at the fit that the last snapshot has
        self._memory = Memory()

    @contextmanager
    def writing(self, actor: str | None = None, *, dry_run: bool = False) -> Iterator[Transaction]:
        """A transaction: durable when the block ends. A dry run writes nothing."""
        if self._state is None:
            self.state()  # a long log is read before the lock is taken
        known, kept = self._state, self._snapshot
        with (self.store.reading if dry_run else self.store.writing)(self.name) as ledger:
            # A writer is alone now: whatever was folded last in this process is in the ledger too.
            state = self._known(known if dry_run else self._state, ledger)
            tx = Transaction(state, ledger, self.clock(), actor or self._actor, dry_run, self._memory)
            halted = None
            try:
                yield tx
            except HaltedError as error:  # what led to it is recorded
                if dry_run:
                    raise
                halted = error
            if not dry_run and tx.state.seq > state.seq:
                kept = self._keep_snapshot(state, tx)
        if not dry_run:
            if kept is not None and kept > state.seq:
                self._fitted = snapshots.fits(tx.state)
            self._state, self._snapshot = tx.state, kept
            if self._anchors is not None and _ends_something(state, tx.state):
                anchors.note(self._anchors, Head(self.name, tx.state.seq, tx.state.hash, self.clock()))
        if halted is not None:
            raise halted

    @contextmanager
    def proposing(self, actor: str | None = None) -> Iterator[Transaction]:
        """A transaction on the log as it stands, of which nothing is recorded: see `proposing.write`."""
        with self.reading() as (ledger, state):
            pending = proposing.Pending(ledger)
            yield Transaction(state, pending, self.clock(), actor or self._actor, memory=self._memory)

    @property
    def is_known(self) -> bool:
        """Whether the state was read before."""
        return self._state is not None

    def state(self) -> TrialState:
        """Everything that is known now; it never changes."""
        with self.reading() as (_, state):
            return state

    @contextmanager
    def reading(self) -> Iterator[tuple[Ledger, TrialState]]:
        """The log and the state at one moment; never waits for a writer."""
        known = self._state  # before the ledger is opened, so that it cannot be ahead of it
        with self.store.reading(self.name) as ledger:
            state = self._known(known, ledger)
            if state is not known:
                self._state = state
            yield ledger, state

    def _known(self, state: TrialState | None, ledger: Ledger) -> TrialState:
        """The state after the ledger's last event; a store that was set back is read again."""
        if state is not None and not _same_log(state, ledger):
            log.warning(
                "trial %s: the store was set back: event %d, which this process knows, is not in it; the log is read "
                "again. Decisions that are not in it any more must not be told", self.name, state.seq,
            )  # fmt: skip
            state = None
        if state is None:
            state, unusable, self._fitted = snapshots.recall(ledger)
            self._snapshot = -SNAPSHOT_EVERY if unusable else None
            return state
        return caught_up(state, ledger)

    def _keep_snapshot(self, before: TrialState, tx: Transaction) -> int:
        """Take one at the end of a transaction if it is time for it; after which event the last one was taken."""
        seq, due = tx.state.seq, max(SNAPSHOT_EVERY, len(tx.state.users))
        last = tx.ledger.snapshot_seq() if self._snapshot is None else self._snapshot
        if 0 <= last <= seq - due:  # another process may have taken one; one that nobody can use is replaced at once
            last = tx.ledger.snapshot_seq()
        if seq >= last + due or _is_costly(before, tx.state, last, self._fitted):
            return snapshots.keep(tx, alone=last < 0)
        return last


def _is_costly(before: TrialState, after: TrialState, kept: int, fitted: int) -> bool:
    """Whether what came after the last snapshot takes long to fold in: arrays grew, or variances were fitted."""
    again = snapshots.fits(after) != fitted and after.seq >= kept + FEWEST_BETWEEN
    return again or before.capacity != after.capacity


def _ends_something(before: TrialState, after: TrialState) -> bool:
    """Whether an episode was opened, which closes the one before, or the trial was stopped."""
    return (before.episode.number, before.status == "stopped") != (after.episode.number, after.status == "stopped")


def _same_log(state: TrialState, ledger: Ledger) -> bool:
    """Whether the ledger continues the log that this state knows."""
    if state.seq > ledger.seq:
        return False
    if state.seq == ledger.seq:
        return state.hash == ledger.hash
    following = next(ledger.events(after=state.seq, until=state.seq + 1), None)
    return following is not None and kinds.hash_after(state.hash, following) == following.hash
