"""Every trial that this process serves, and its writes, each done once however often it is requested.

Readers and writers share one object of a trial: its state is replaced as a whole. The answer to a write is stored with
its idempotency key, in the transaction of the write itself: a request that is repeated after a crash, or that arrives
twice at once, gets the same bytes again. After the draft of the IETF (Idempotency-Key header).
"""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeVar, cast

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from drimed.errors import ConflictError, StoreError, UnknownNameError
from drimed.service.observing import DECISIONS
from drimed.service.problems import Refusal
from drimed.trial.events import now
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.schema import requests as table
from drimed.trial.stores.sql import SqlLedger, SqlStore
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial

MOST_TRIALS = 200  # that are kept in memory; the one that was not used for longest is read again
LONGEST_KEY = 200  # characters
PURGED_AT_ONCE = 500  # answers: writers wait no longer than this takes

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """An answer, as it is sent."""

    status: int
    text: bytes
    repeated: bool = False


@dataclass(frozen=True)
class Retry:
    """A request with its key."""

    actor: str  # different callers may use the same key
    key: str
    fingerprint: str

    @staticmethod
    def of(actor: str, key: str, method: str, target: str, media: str, body: bytes) -> Retry:
        """The request with this key."""
        key = key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key  # the draft writes it in quotes
        if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise Refusal(400, "malformed", f"Idempotency-Key must be 1 to {LONGEST_KEY} printable ASCII characters")
        digest = hashlib.sha256()
        for part in (method.encode(), target.encode(), media.encode(), body):
            digest.update(len(part).to_bytes(8, "big") + part)
        return Retry(actor, key, digest.hexdigest())

    @property
    def name(self) -> str:
        """As the trial's log keeps it beside a decision."""
        return f"{self.actor}/{self.key}"


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
                connection = cast(SqlLedger, tx.ledger).connection
                if retry is not None and (before := find(connection, retry)) is not None:
                    return before
                decisions = tx.state.counts.decisions
                reply = act(tx)
                DECISIONS.inc(tx.state.counts.decisions - decisions)
                if retry is not None:
                    keep(connection, retry, reply)
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
                connection, reply = cast(SqlLedger, tx.ledger).connection, answer(tx)
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


def find(connection: Connection, retry: Retry) -> Reply | None:
    """The first answer."""
    row = connection.execute(_FIND, {"actor": retry.actor, "key": retry.key}).first()
    if row is None:
        return None
    if row.fingerprint != retry.fingerprint:
        detail = "this Idempotency-Key was used for another request; give each request its own key"
        fault = {"field": "Idempotency-Key", "detail": "was used for another request", "in": "header"}
        raise Refusal(422, "key-reused", detail, errors=[fault])
    return Reply(row.status, zlib.decompress(row.answer), repeated=True)


def keep(connection: Connection, retry: Retry, reply: Reply) -> None:
    """Remember an answer."""
    row = vars(retry) | {"time": now(), "status": reply.status, "answer": zlib.compress(reply.text, 1)}
    try:
        connection.execute(_KEEP, row)
    except IntegrityError:
        raise ConflictError("another request with this Idempotency-Key is running; try again") from None


def purge(store: SqlStore, hours: float) -> int:
    """Forget answers that are older; how many there were."""
    before = (datetime.now(UTC) - timedelta(hours=hours)).isoformat(timespec="microseconds")
    old = sa.select(table.c.id).where(table.c.time < before).limit(PURGED_AT_ONCE)
    purged = 0
    while True:
        with store.transaction(write=True) as connection:
            ids = list(connection.scalars(old))
            if ids:
                connection.execute(table.delete().where(table.c.id.in_(ids)))
        purged += len(ids)
        if len(ids) < PURGED_AT_ONCE:
            return purged


_FIND = sa.select(table.c.fingerprint, table.c.status, table.c.answer).where(
    table.c.actor == sa.bindparam("actor"), table.c.key == sa.bindparam("key")
)
_KEEP = table.insert()
