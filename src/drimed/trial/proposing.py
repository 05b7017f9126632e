"""Decisions that take long are taken outside the store's lock, and recorded if nothing else was recorded meanwhile.

A writer of SQLite has the whole store to itself: a decision of a minute under the lock would stop every other trial for
that minute. So a slow decision is taken from what is known, and recorded under the lock only if the log still ends
where it did; otherwise it is taken again, and after some attempts under the lock. What is recorded is the same.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from drimed.errors import HaltedError, InputError
from drimed.linear import kernel
from drimed.records import Event
from drimed.trial.events import DECISION
from drimed.trial.stores.store import Ledger, Snapshot
from drimed.trial.transaction import Transaction

if TYPE_CHECKING:
    from drimed.trial.trial import Trial

QUICK = 0.1  # seconds: as long as decisions take less, the next one is taken under the lock at once
LOADING = 1.0  # seconds that the first decision of a process may take for other reasons, compiling kernels apart
ATTEMPTS = 3  # outside the lock

T = TypeVar("T")


class OvertakenError(Exception):
    """Something else was recorded since the decision was taken."""


class Pending:
    """A ledger that was opened for reading, and what is to be recorded after its last event."""

    def __init__(self, base: Ledger) -> None:
        self.base, self.name = base, base.name
        self.added: list[Event] = []

    @property
    def seq(self) -> int:
        return self.base.seq + len(self.added)

    @property
    def hash(self) -> str:
        return self.added[-1].hash if self.added else self.base.hash

    @property
    def connection(self) -> Any:
        """Of a ledger in a database."""
        return self.base.connection  # type: ignore[attr-defined]

    def events(
        self,
        *,
        after: int = 0,
        until: int | None = None,
        kinds: Sequence[str] = (),
        user: str | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[Event]:
        last = self.seq if until is None else until
        new = [
            e
            for e in self.added
            if after < e.seq <= last and (not kinds or e.kind in kinds) and (user is None or e.user == user)
        ]
        old = self.base.events(
            after=after,
            until=min(last, self.base.seq),
            kinds=kinds,
            user=user,
            limit=limit,
            newest_first=newest_first,
        )
        given = 0
        for part in (reversed(new), old) if newest_first else (old, new):
            for event in part:
                if limit is not None and given >= limit:
                    return
                given += 1
                yield event

    def of_decisions(self, decisions: Sequence[int]) -> dict[int, list[Event]]:
        found = self.base.of_decisions(decisions)
        for event in self.added:
            if event.decision is not None and event.decision in decisions:
                found.setdefault(event.decision, []).append(event)
        return dict(sorted(found.items()))

    def untouched(self) -> list[int]:
        about = Counter(e.decision for e in self.added if e.decision is not None)
        taken = {e.decision for e in self.added if e.kind == DECISION and e.decision is not None}
        before = [number for number in self.base.untouched() if number not in about]
        return sorted(before + [number for number in taken if about[number] == 1])

    def of_request(self, request: str) -> list[Event]:
        return self.base.of_request(request) + [e for e in self.added if e.request == request]

    def append(self, events: Sequence[Event]) -> None:
        self.added += events

    def seq_of(self, hash: str) -> int | None:
        return next((event.seq for event in self.added if event.hash == hash), None) or self.base.seq_of(hash)

    def snapshot(self, until: int | None = None) -> Snapshot | None:
        return self.base.snapshot(until)

    def snapshot_seq(self) -> int:
        return self.base.snapshot_seq()

    def snapshot_seqs(self) -> list[int]:
        return self.base.snapshot_seqs()

    def keep(self, snapshot: Snapshot, *, alone: bool = False) -> None:
        del alone
        raise InputError(f"snapshot {snapshot.seq} cannot be kept before its events are recorded")


def write(
    trial: Trial,
    act: Callable[[Transaction], T],
    *,
    actor: str | None = None,
    find: Callable[[Ledger], T | None] = lambda _: None,
    keep: Callable[[Ledger, T], None] = lambda _, __: None,
) -> T:
    """What `act` answers; its events are durable then. It may be called several times, and only the last one counts.

    An answer that `find` has already is given instead, and nothing is done. `keep` records the answer under the lock.
    """
    for _ in range(ATTEMPTS if trial.slow in (None, True) else 0):
        with trial.proposing(actor) as tx:
            if (before := find(tx.ledger)) is not None:
                return before
            answer = _tried(trial, act, tx)
        try:
            with trial.writing(actor) as live:
                if (before := find(live.ledger)) is not None:
                    return before
                _take(live, tx)
                if isinstance(answer, HaltedError):
                    raise answer
                keep(live.ledger, answer)
            return answer
        except OvertakenError:
            continue
    with trial.writing(actor) as tx:
        if (before := find(tx.ledger)) is not None:
            return before
        answer = _timed(trial, act, tx)
        keep(tx.ledger, answer)
    return answer


def _tried(trial: Trial, act: Callable[[Transaction], T], tx: Transaction) -> T | HaltedError:
    """What `act` answers, or that a stopping rule has ended the trial, which is to be recorded too."""
    try:
        return _timed(trial, act, tx)
    except HaltedError as error:
        return error


def _timed(trial: Trial, act: Callable[[Transaction], T], tx: Transaction) -> T:
    start, before = time.perf_counter(), kernel.spent()
    answer = act(tx)
    took = time.perf_counter() - start - kernel.spent().since(before).clock
    trial.slow = took > LOADING if trial.slow is None else trial.slow or took > QUICK
    return answer


def _take(live: Transaction, proposed: Transaction) -> None:
    """Record what was decided on the log as it still is."""
    pending = proposed.ledger
    assert isinstance(pending, Pending)
    if (live.state.seq, live.state.hash) != (pending.base.seq, pending.base.hash):
        raise OvertakenError
    live.ledger.append(pending.added)
    live.state = proposed.state
