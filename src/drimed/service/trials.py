"""Every trial that this process serves, and its writes, each done once however often it is requested.

Readers and writers share one object of a trial: its state is replaced as a whole. The answer to a write is stored with
it (answers.py).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from drimed.errors import ConflictError, StoreError, UnknownNameError
from drimed.service.answers import Reply, Retry, find, keep
from drimed.service.observing import DECISIONS
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.sql import SqlStore
from drimed.trial.stores.store import Ledger
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_TRIALS = 200  # that are kept in memory; the one that was not used for longest is read again

T = TypeVar("T")


class Trials:
    """Trials by name; threads may share it."""

    def __init__(self, store: SqlStore, anchors: Path | None = None) -> None:
        self.store, self.anchors = store, anchors
        self._known: OrderedDict[str, Trial] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, look: Callable[[Trial], T]) -> T:
        """Read a trial as it stands now."""
        try:
            return look(self._trial(name))
        except UnknownNameError as error:
            self._drop_unknown(error, name)
            raise

    def write(self, name: str, act: Callable[[Transaction], Reply], *, actor: str, retry: Retry | None = None) -> Reply:
        """Change a trial: what `act` did and what it answered become durable together, or nothing does."""
        try:
            with self._trial(name).writing(actor) as tx:
                connection = tx.ledger.connection
                if retry is not None and (before := find(connection, retry)) is not None:
                    return before
                reply = act(tx)
                if retry is not None:
                    keep(connection, retry, reply)
                return reply
        except UnknownNameError as error:
            self._drop_unknown(error, name)
            raise

    def decide(self, name: str, act: Callable[[Transaction], Reply], *, actor: str, retry: Retry | None) -> Reply:
        """The same for what takes decisions: a slow one is taken outside the store's lock, perhaps more than once."""
        decisions = 0

        def counted(tx: Transaction) -> Reply:
            nonlocal decisions
            before = tx.state.counts.decisions
            reply = act(tx)
            decisions = tx.state.counts.decisions - before
            return reply

        def found(ledger: Ledger) -> Reply | None:
            return None if retry is None else find(ledger.connection, retry)

        def kept(ledger: Ledger, reply: Reply) -> None:
            if retry is not None:
                keep(ledger.connection, retry, reply)

        try:
            reply = self._trial(name).session.decide(counted, actor=actor, find=found, keep=kept)
        except UnknownNameError as error:
            self._drop_unknown(error, name)
            raise
        DECISIONS.inc(0 if reply.repeated else decisions)
        return reply

    def create(
        self, spec: TrialSpec, answer: Callable[[Transaction], Reply], *, actor: str, retry: Retry | None = None
    ) -> Reply:
        """A new trial, once."""
        try:
            with Trial.creating(spec, self.store, actor=actor) as (_, tx):
                connection, reply = tx.ledger.connection, answer(tx)
                if retry is not None:
                    if find(connection, retry) is not None:
                        raise StoreError("the answer to this creation is stored but the trial is not; restore a backup")
                    keep(connection, retry, reply)
                return reply
        except ConflictError:
            if retry is not None:
                with self.store.transaction(write=False) as connection:
                    before = find(connection, retry)
                if before is not None:
                    return before
            raise

    def _trial(self, name: str) -> Trial:
        with self._lock:
            trial = self._known.setdefault(name, Trial(name, self.store, anchors=self.anchors))
            self._known.move_to_end(name)
            if len(self._known) > MOST_TRIALS:
                self._known.popitem(last=False)
            return trial

    def _drop_unknown(self, error: UnknownNameError, name: str) -> None:
        if error.kind == "trial":
            with self._lock:
                self._known.pop(name, None)
