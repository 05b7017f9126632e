"""Where a proof begins that need not begin with the first event: at a snapshot that a kept hash vouches for.

The event after a snapshot has the hash of its bytes. If the chain leads from that event to one whose hash somebody kept
elsewhere, then both are as they were when the hash was kept, and only what came after them must be replayed.
"""

from __future__ import annotations

from dataclasses import dataclass

from drimed.errors import ConflictError
from drimed.trial import events as kinds
from drimed.trial import snapshots
from drimed.trial.fold import at_start
from drimed.trial.state import TrialState
from drimed.trial.stores.store import Ledger, Snapshot


@dataclass(frozen=True)
class Kept:
    """A hash that was kept, and the event that has it."""

    event: int
    hash: str


def found(ledger: Ledger, since: str | int) -> Kept:
    """The event that a hash or a number means; ConflictError if there is none."""
    if isinstance(since, int):
        event = next(ledger.events(after=since - 1, until=since), None) if 0 < since <= ledger.seq else None
        if event is None:
            raise ConflictError(f"there is no event {since}: the log ends with event {ledger.seq}")
        return Kept(since, event.hash)
    number = ledger.seq_of(since)
    if number is None or number > ledger.seq:
        raise ConflictError(
            f"no event has the hash {since}: the log was rewritten or cut off; `verify` without `--since` says where"
        )
    return Kept(number, since)


def beginning(ledger: Ledger, kept: Kept) -> TrialState:
    """The state to replay from: that of the newest snapshot before the event, or (none can be used) the trial's start.

    Nothing is proven yet: the chain from there must still lead to the hash that was kept.
    """
    start = at_start(ledger)
    for seq in reversed([seq for seq in ledger.snapshot_seqs() if seq < kept.event]):
        snapshot = ledger.snapshot(seq)
        if snapshot is not None and (state := _restored(ledger, start, snapshot)) is not None:
            return state
    return start


def _restored(ledger: Ledger, start: TrialState, snapshot: Snapshot) -> TrialState | None:
    """What it holds, if it is the one that was taken."""
    try:
        last, taken = ledger.events(after=snapshot.seq - 1, until=snapshot.seq + 1)
        ours = last.hash == snapshot.hash and taken.kind == kinds.SNAPSHOT
        if not ours or taken.body != {"after": snapshot.seq, "hash": snapshots.digest(snapshot)}:
            return None
        return snapshots.restore(start.created, snapshot)
    except Exception:  # torn or changed in whatever way: the log has everything
        return None
