"""The answers to writes that carried an Idempotency-Key, stored in the transaction of the write itself.

A request that is repeated after a crash, or that arrives twice at once, gets the same bytes again. After the draft of
the IETF (Idempotency-Key header).
"""

from __future__ import annotations

import hashlib
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from drimed.errors import ConflictError
from drimed.service.problems import Refusal
from drimed.trial.events import now
from drimed.trial.stores.schema import requests as table
from drimed.trial.stores.sql import SqlStore

LONGEST_KEY = 200  # characters
NEWEST = 100_000  # answers that are kept however old they seem to be: a clock that was set ahead makes all look old
STEADY = 60.0  # seconds by which the clock on the wall may drift from the one that only goes forward, in an hour
PURGED_AT_ONCE = 500  # answers: writers wait no longer than this takes


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


class Purge:
    """Forgets old answers, but never on the word of a clock that was set: the newest are kept in any case.

    Between two purges of a process the clock on the wall must have gone as far as the one that only goes forward.
    """

    def __init__(
        self,
        hours: float,
        *,
        newest: int = NEWEST,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._hours, self._newest, self._wall, self._steady = hours, newest, wall, steady
        self._before = wall(), steady()

    def __call__(self, store: SqlStore) -> int:
        """How many were forgotten."""
        wall, steady = self._wall(), self._steady()
        (last_wall, last_steady), self._before = self._before, (wall, steady)
        gone = steady - last_steady
        if abs((wall - last_wall).total_seconds() - gone) > STEADY * max(1.0, gone / 3600):
            return 0  # it was set; what is old can be forgotten next time, when it is known how far it goes
        before = (wall - timedelta(hours=self._hours)).isoformat(timespec="microseconds")
        purged = 0
        while True:
            with store.transaction(write=True) as connection:
                last = connection.scalar(
                    sa.select(table.c.id).order_by(table.c.id.desc()).offset(self._newest).limit(1)
                )
                old = sa.select(table.c.id).where(table.c.time < before, table.c.id <= (last or 0))
                ids = list(connection.scalars(old.limit(PURGED_AT_ONCE)))
                if ids:
                    connection.execute(table.delete().where(table.c.id.in_(ids)))
            purged += len(ids)
            if len(ids) < PURGED_AT_ONCE:
                return purged


_FIND = sa.select(table.c.fingerprint, table.c.status, table.c.answer).where(
    table.c.actor == sa.bindparam("actor"), table.c.key == sa.bindparam("key")
)
_KEEP = table.insert()
