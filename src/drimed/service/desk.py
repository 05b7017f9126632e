"""Every trial that this process serves: one copy for those who write, one for those who look.

A writer's copy is held while its transaction waits for the disk or for other processes; whoever looks at the same
trial does not wait for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from drimed.errors import ConflictError, StoreError, UnknownNameError
from drimed.service import retries
from drimed.service.retries import Reply, Retry
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.sql import SqlStore
from drimed.trial.stores.store import Ledger, Store
from drimed.trial.trial import Trial

MOMENT = 0.005  # seconds that somebody who looks waits for a writer to be between two writes
MOST_TRIALS = 200  # that are kept in memory; the one that was not used for longest is read again

T = TypeVar("T")


class Desk:
    """Trials by name; threads may share it."""

    def __init__(self, store: SqlStore) -> None:
        self.store = store
        self._entries: OrderedDict[str, _Entry] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, name: str, look: Callable[[Trial], T]) -> T:
        """Look at a trial as it stands now."""
        entry = self._entry(name)
        self.teach(entry.reader)
        try:
            return look(entry.reader)
        except UnknownNameError as error:
            self._drop_unknown(error, name)
            raise

    def teach(self, reader: Trial) -> None:
        """What the writer has folded in need not be folded again by those who look; unless it is busy just now."""
        entry = self._entry(reader.name)
        if entry.writing.acquire(timeout=MOMENT):
            try:
                reader.learn_from(entry.writer)
            finally:
                entry.writing.release()

    def write(self, name: str, act: Callable[[Trial], Reply], retry: Retry | None = None) -> Reply:
        """Change a trial: what `act` did and what it answered become durable together, or nothing does."""
        entry = self._entry(name)
        with entry.writing:
            begun = reached = 0
            try:
                with self.store.writing(name) as ledger:
                    begun = reached = ledger.seq
                    if retry is not None and (before := retries.find(ledger.connection, retry)) is not None:
                        return before
                    try:
                        with entry.held.within(ledger):
                            reply = act(entry.writer)
                    finally:
                        reached = ledger.seq
                    if retry is not None:
                        retries.keep(ledger.connection, retry, reply)
            except BaseException as error:
                if reached != begun:
                    entry.renew()  # it has taken in what was not made durable
                if isinstance(error, UnknownNameError):
                    self._drop_unknown(error, name)
                raise
        return reply

    def create(
        self, spec: TrialSpec, answer: Callable[[Trial], Reply], *, actor: str, retry: Retry | None = None
    ) -> Reply:
        """A new trial, once."""
        held = Held(self.store)
        try:
            with self.store.create(spec.name) as ledger:
                if retry is not None and retries.find(ledger.connection, retry) is not None:
                    raise StoreError(
                        "an answer is kept to the creation of a trial that does not exist; restore a backup"
                    )
                with held.within(ledger):
                    reply = answer(Trial.create(spec, held, actor=actor))
                if retry is not None:
                    retries.keep(ledger.connection, retry, reply)
        except ConflictError:
            if retry is not None:
                with self.store.transaction(write=False) as connection:
                    before = retries.find(connection, retry)
                if before is not None:
                    return before
            raise
        return reply

    def _entry(self, name: str) -> _Entry:
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                entry = self._entries[name] = _Entry(name, self.store)
            self._entries.move_to_end(name)
            if len(self._entries) > MOST_TRIALS:
                self._entries.popitem(last=False)
            return entry

    def _drop_unknown(self, error: UnknownNameError, name: str) -> None:
        if error.kind == "trial":
            with self._lock:
                self._entries.pop(name, None)


class Held:
    """A store whose one transaction is opened and ended by somebody else."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._ledger: Ledger | None = None

    @contextmanager
    def within(self, ledger: Ledger) -> Iterator[None]:
        """Everything in this block happens in the ledger's transaction."""
        self._ledger = ledger
        try:
            yield
        finally:
            self._ledger = None

    def names(self) -> list[str]:
        return self._store.names()

    @contextmanager
    def create(self, name: str) -> Iterator[Ledger]:
        with self.writing(name) as ledger:
            yield ledger

    @contextmanager
    def writing(self, name: str) -> Iterator[Ledger]:
        if self._ledger is None or self._ledger.name != name:
            raise StoreError(f"nobody has opened a transaction on trial {name!r}")
        yield self._ledger

    @contextmanager
    def reading(self, name: str) -> Iterator[Ledger]:
        with self.writing(name) as ledger:
            yield ledger

    def close(self) -> None:
        """It is not ours."""


class _Entry:
    def __init__(self, name: str, store: SqlStore) -> None:
        self._name = name
        self.held = Held(store)
        self.writing = threading.Lock()
        self.writer, self.reader = Trial(name, self.held), Trial(name, store)

    def renew(self) -> None:
        """Forget what the writer knows; it is read again."""
        self.writer = Trial(self._name, self.held)
