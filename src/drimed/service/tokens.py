"""Bearer tokens: 256 random bits each; the store keeps only their SHA-256."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import shlex
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.service import token_log
from drimed.trial.events import now
from drimed.trial.stores.schema import tokens as table
from drimed.trial.stores.sql import SqlStore

BLINDED, READ, ASK_TELL, MANAGE = ROLES = ("blinded", "read", "ask-tell", "manage")
# What an address may need besides a role that reads, asks or manages, and who may use it. Somebody who is blinded may
# only do what is said here: an address that is added is not for them.
ANY, TELL = "any", "tell"
MAY = {
    ANY: ROLES,
    TELL: (BLINDED, ASK_TELL, MANAGE),
    READ: (READ, ASK_TELL, MANAGE),
    ASK_TELL: (ASK_TELL, MANAGE),
    MANAGE: (MANAGE,),
}
BEGINNING = "drimed"  # of every token, so that one is recognised where it should not be
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,98}")
LOCAL = "local"  # the actor where there are no tokens
HOW_TO = "drimed token create --role manage --label NAME"


@dataclass(frozen=True)
class Token:
    """What is known of a token; not the token."""

    id: str  # no secret: the middle part of the token
    label: str  # who acts with it, in the log
    role: str
    trial: str | None  # None: all
    created: str
    expires: str | None
    revoked: str | None

    def state(self, moment: str) -> str:
        """active, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= moment else "active"


def create(
    store: SqlStore,
    *,
    label: str,
    role: str,
    trial: str | None = None,
    days: float | None = None,
    actor: str = "python",
) -> tuple[Token, str]:
    """A new token, and its text, which is shown only once; `actor` makes it."""
    if role not in ROLES:
        raise UnknownNameError("role", role, ROLES)
    if not _LABEL.fullmatch(label) or label == LOCAL:
        raise InputError(
            f"a label is 1 to 99 letters, digits, spaces and . _ @ -, and not {LOCAL!r}; got {label!r}. "
            "The log shows it as the actor"
        )
    if days is not None and not 0 < days < 36500:
        raise InputError(f"a token is valid for more than 0 and less than 36500 days, got {days:g}")
    end = None if days is None else datetime.now(UTC) + timedelta(days=days)
    expires = None if end is None else end.isoformat(timespec="microseconds")
    token = Token(secrets.token_hex(4), label, role, trial, now(), expires, None)
    text = f"{BEGINNING}_{token.id}_{secrets.token_urlsafe(32)}"
    with store.transaction(write=True) as connection:
        try:
            connection.execute(table.insert().values(**vars(token), hash=_hash(text)))
        except IntegrityError:
            message = f"there is a token {label!r} already, and the log names it; choose another label"
            raise ConflictError(message) from None
        body = {name: value for name, value in vars(token).items() if name != "revoked"} | {"hash": _hash(text)}
        token_log.append(connection, token_log.CREATED, body, actor)
    return token, text


def how_to(store: str) -> str:
    """The command that makes a token for a store; the address of a database has a password, and is not repeated.

    >>> how_to("my trials.db")
    "drimed token create --role manage --label NAME --store 'my trials.db'"
    """
    if "://" in store and not store.startswith("sqlite"):
        return f"{HOW_TO} (with DRIMED_STORE or --store as for drimed serve)"
    return f"{HOW_TO} --store {shlex.quote(store)}"


def listed(store: SqlStore) -> list[Token]:
    """Every token there has been, oldest first."""
    with store.transaction(write=False) as connection:
        rows = connection.execute(sa.select(*_COLUMNS).order_by(table.c.created, table.c.id)).all()
    return [Token(*row) for row in rows]


def revoke(store: SqlStore, name: str, *, actor: str = "python") -> Token:
    """Never accept a token again, by its label or id; it stays in the list."""
    with store.transaction(write=True) as connection:
        rows = connection.execute(sa.select(*_COLUMNS)).all()
        found = next((t for t in (Token(*row) for row in rows) if name in (t.label, t.id)), None)
        if found is None:
            raise UnknownNameError("token", name, [r.label for r in rows])
        if found.revoked is None:
            moment = now()
            connection.execute(table.update().where(table.c.id == found.id).values(revoked=moment))
            token_log.append(connection, token_log.REVOKED, {"id": found.id, "revoked": moment}, actor)
    return found


def any_made(store: SqlStore) -> bool:
    """Whether there ever was one."""
    with store.transaction(write=False) as connection:
        return connection.execute(sa.select(table.c.id).limit(1)).first() is not None


def recognised(store: SqlStore, text: str) -> Token | None:
    """The token with this text, in whatever state it is."""
    beginning, _, rest = text.partition("_")
    id, _, secret = rest.partition("_")
    if beginning != BEGINNING or not secret or not re.fullmatch("[0-9a-f]{8}", id):
        return None
    with store.transaction(write=False) as connection:
        row = connection.execute(sa.select(*_COLUMNS, table.c.hash).where(table.c.id == id)).first()
    stored = row.hash if row is not None else _hash("")
    same = hmac.compare_digest(_hash(text), stored)  # also where there is none: both take the same time
    return Token(*tuple(row)[:-1]) if row is not None and same else None


_COLUMNS = [table.c[name] for name in ("id", "label", "role", "trial", "created", "expires", "revoked")]


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
