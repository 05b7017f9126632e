"""Every trial that this process serves. Readers and writers share one object: its state is replaced as a whole."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TypeVar, cast

from sqlalchemy import Connection

from drimed.errors import ConflictError, StoreError, UnknownNameError
from drimed.service import retries
from drimed.service.retries import Reply, Retry
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.sql import SqlLedger, SqlStore
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_TRIALS = 200  # that are kept in memory; the one that was not used for longest is read again

T = TypeVar("T")


class Trials:
    """Trials by name; threads may share it."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
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
                if retry is not None and (before := retries.find(_connection(tx), retry)) is not None:
                    return before
                reply = act(tx)
                if retry is not None:
                    retries.keep(_connection(tx), retry, reply)
                return reply
        except UnknownNameError as error:
            self._drop_unknown(error, name)
            raise

    def create(
        self, spec: TrialSpec, answer: Callable[[Transaction], Reply], *, actor: str, retry: Retry | None = None
    ) -> Reply:
        """A new trial, once."""
        try:
            with Trial.creating(spec, self.store, actor=actor) as (_, tx):
                if retry is not None and retries.find(_connection(tx), retry) is not None:
                    raise StoreError(
                        "an answer is kept to the creation of a trial that does not exist; restore a backup"
                    )
                reply = answer(tx)
                if retry is not None:
                    retries.keep(_connection(tx), retry, reply)
        except ConflictError:
            if retry is not None:
                with self.store.transaction(write=False) as connection:
                    before = retries.find(connection, retry)
                if before is not None:
                    return before
            raise
        return reply

    def _trial(self, name: str) -> Trial:
        with self._lock:
            trial = self._known.setdefault(name, Trial(name, self.store))
            self._known.move_to_end(name)
            if len(self._known) > MOST_TRIALS:
                self._known.popitem(last=False)
            return trial

    def _drop_unknown(self, error: UnknownNameError, name: str) -> None:
        if error.kind == "trial":
            with self._lock:
                self._known.pop(name, None)


def _connection(tx: Transaction) -> Connection:
    return cast(SqlLedger, tx.ledger).connection
