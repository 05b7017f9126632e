"""Tokens, roles and rate limits.

A token has 256 random bits; the store keeps only its SHA-256. Without any token, everybody on this machine may do
everything.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import math
import re
import secrets
import shlex
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError
from starlette.requests import HTTPConnection

from drimed.errors import ConflictError, InputError, UnknownNameError
from drimed.service.connections import origin
from drimed.service.refusals import Refusal
from drimed.service.settings import Settings
from drimed.trial.events import now
from drimed.trial.store import Store
from drimed.trial.store import tokens as table

ROLES = ("blinded", "ask-blinded", "read", "ask-tell", "manage")
BLINDED, ASK_BLINDED, READ, ASK_TELL, MANAGE = ROLES
# Permissions of addresses, and the roles that have them. An address is closed to blinded callers unless it says ANY,
# TELL or ASK.
ANY, TELL, ASK = "any", "tell", "ask"
ALLOWED = {
    ANY: ROLES,
    TELL: (BLINDED, ASK_BLINDED, ASK_TELL, MANAGE),
    ASK: (ASK_BLINDED, ASK_TELL, MANAGE),
    READ: (READ, ASK_TELL, MANAGE),
    ASK_TELL: (ASK_TELL, MANAGE),
    MANAGE: (MANAGE,),
}
LOCAL = "local"  # the actor where there are no tokens
COOKIE = "drimed_token"  # where pages keep a token
HOW_TO = "drimed token create --role manage --label NAME"
FAILURES = 5.0, 20  # unknown tokens from one address: a second, and at once
TRUST = 2.0  # seconds for which a token is not looked up again: a revoked one works for so long
MOST_KNOWN = 1000  # tokens in memory
MOST_BUCKETS = 10_000  # callers; with more, all begin again
# Headers that proxies add; besides, nginx speaks HTTP/1.0 to what is behind it, which browsers and clients do not.
FORWARDED = ("x-forwarded-", "forwarded", "via", "x-real-ip", "x-client-ip")
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,98}")
_TOKEN = re.compile(r"drimed_([0-9a-f]{8})_.+")


@dataclass(frozen=True)
class Token:
    """A token without its secret."""

    id: str  # not secret: the middle part of the token
    label: str  # the actor in the log
    role: str
    trial: str | None  # None: all
    created: str
    expires: str | None
    revoked: str | None
    created_by: str
    revoked_by: str | None

    def state(self, moment: str) -> str:
        """active, expired or revoked."""
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and self.expires <= moment else "active"


_COLUMNS = [table.c[name] for name in Token.__dataclass_fields__]


def create_token(
    store: Store,
    *,
    label: str,
    role: str,
    trial: str | None = None,
    days: float | None = None,
    actor: str = "python",
) -> tuple[Token, str]:
    """Make a token, and its text, which is shown only once."""
    if role not in ROLES:
        raise UnknownNameError("role", role, ROLES)
    if not _LABEL.fullmatch(label) or label == LOCAL:
        raise InputError(
            f"a label is 1 to 99 letters, digits, spaces and . _ @ -, and not {LOCAL!r}; got {label!r}. "
            "The log shows it as the actor"
        )
    if days is not None and not 0 < days < 36500:
        raise InputError(f"a token is valid for more than 0 and less than 36500 days, got {days:g}")
    end = None if days is None else (datetime.now(UTC) + timedelta(days=days)).isoformat(timespec="microseconds")
    token = Token(secrets.token_hex(4), label, role, trial, now(), end, None, actor, None)
    text = f"drimed_{token.id}_{secrets.token_urlsafe(32)}"
    with store.transaction(write=True) as connection:
        try:
            connection.execute(table.insert().values(**vars(token), hash=_digest(text).hex()))
        except IntegrityError:
            message = f"there is a token {label!r} already, and the log names it; choose another label"
            raise ConflictError(message) from None
    return token, text


def how_to(store: str) -> str:
    """The command that makes a token for a store, without a database's password.

    >>> how_to("my trials.db")
    "drimed token create --role manage --label NAME --store 'my trials.db'"
    """
    if "://" in store and not store.startswith("sqlite"):
        return f"{HOW_TO} (with DRIMED_STORE or --store as for drimed serve)"
    return f"{HOW_TO} --store {shlex.quote(store)}"


def list_tokens(store: Store) -> list[Token]:
    """All tokens, also revoked ones, oldest first."""
    with store.transaction(write=False) as connection:
        return [Token(*row) for row in connection.execute(sa.select(*_COLUMNS).order_by(table.c.created, table.c.id))]


def revoke_token(store: Store, name: str, *, actor: str = "python") -> Token:
    """Revoke a token by its label or id; it stays in the list."""
    tokens = list_tokens(store)
    token = next((t for t in tokens if name in (t.label, t.id)), None)
    if token is None:
        raise UnknownNameError("token", name, [t.label for t in tokens])
    with store.transaction(write=True) as connection:
        active = (table.c.id == token.id) & table.c.revoked.is_(None)
        connection.execute(table.update().where(active).values(revoked=now(), revoked_by=actor))
    return token


def has_tokens(store: Store) -> bool:  # also revoked ones
    with store.transaction(write=False) as connection:
        return connection.execute(sa.select(table.c.id).limit(1)).first() is not None


def find_token(store: Store, text: str) -> Token | None:
    """The token with this text, in whatever state."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    with store.transaction(write=False) as connection:
        row = connection.execute(sa.select(*_COLUMNS, table.c.hash).where(table.c.id == match[1])).first()
    stored = row.hash if row is not None else _digest("").hex()
    same = hmac.compare_digest(_digest(text).hex(), stored)  # also without a row: both take the same time
    return Token(*tuple(row)[:-1]) if row is not None and same else None


@dataclass(frozen=True)
class Caller:
    """Author of a request."""

    actor: str  # as the log names them
    role: str
    trial: str | None = None  # the only one they may use; None: all
    token: str | None = None  # its id; None: there are no tokens

    @property
    def blinded(self) -> bool:
        return self.role in (BLINDED, ASK_BLINDED)

    def may(self, permission: str, trial: str | None = None) -> bool:
        """Whether they have a permission, on a trial or (None) on all."""
        return self.role in ALLOWED[permission] and self.trial in (None, trial)

    def must(self, permission: str, trial: str | None = None) -> None:
        if self.may(permission, trial):
            return
        if self.trial not in (None, trial):
            raise Refusal(403, "forbidden", f"token {self.actor!r} is for another trial only")
        needed = ASK_TELL if permission in (TELL, ASK) else permission
        raise Refusal(403, "forbidden", f"token {self.actor!r} has the role {self.role!r}; this needs {needed!r}")


class RateLimit:
    """Requests a second: a bucket for each caller, which fills steadily.

    >>> moment = 0.0
    >>> limit = RateLimit(rate=2.0, burst=1, clock=lambda: moment)
    >>> limit.take("north"), limit.take("north")
    (0.0, 0.5)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._levels: dict[str, tuple[float, float]] = {}  # caller -> level and its time

    def take(self, who: str) -> float:
        """Count a request: 0 if it may pass, else the seconds until it may."""
        moment = self._clock()
        level, then = self._levels.get(who, (self._burst, moment))
        level = min(self._burst, level + (moment - then) * self._rate)
        if self._rate and level < 1:
            return (1 - level) / self._rate
        if len(self._levels) >= MOST_BUCKETS:
            self._levels.clear()
        self._levels[who] = level - 1, moment
        return 0.0


class Access:
    """Callers by their tokens, which are remembered for a moment so that not every request asks the store."""

    def __init__(self, store: Store, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._known: dict[bytes, tuple[Token, float]] = {}  # digest -> token, and until when it is not looked up again
        self._open_until = 0.0  # until then there were no tokens
        self._requests, self._failures = RateLimit(settings.rate, settings.burst), RateLimit(*FAILURES)

    async def identify(
        self, connection: HTTPConnection, token: str | None, run: Callable[[Callable[[], Any]], Awaitable[Any]]
    ) -> Caller:
        """The author of a request; refuses unknown callers and those who make too many. `run` works in a thread."""
        text, moment = token or token_text(connection), self._clock()
        if text is None:
            if self._open_until <= moment and not await run(self.check_open):
                raise _unauthenticated("send a token: `Authorization: Bearer ...`")
            _require_this_machine(connection)
            return Caller(LOCAL, MANAGE)
        known, until = self._known.get(_digest(text), (None, 0.0))
        if until <= moment:
            known = await run(lambda: find_token(self._store, text))
            if known is None:  # who guesses waits; a right token from the same address does not
                _refuse_for(self._failures.take(origin(connection.client.host if connection.client else "")))
            else:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[_digest(text)] = known, self._clock() + TRUST
        state = "unknown" if known is None else known.state(now())
        if known is None or state != "active":
            raise _unauthenticated(f"the token is {state}; make a new one with: {HOW_TO}", error="invalid_token")
        _refuse_for(self._requests.take(known.id))
        return Caller(known.label, known.role, known.trial, known.id)

    def check_open(self) -> bool:
        """Ask the store whether there are no tokens."""
        is_open = is_loopback(self._settings.host) and not has_tokens(self._store)
        self._open_until = self._clock() + TRUST if is_open else 0.0
        return is_open


def _refuse_for(seconds: float) -> None:
    if seconds:
        after = max(1, math.ceil(seconds))
        raise Refusal(429, "too-many", f"try again in {after} s", headers={"Retry-After": str(after)})


def token_text(connection: HTTPConnection) -> str | None:
    """The token of a request, from its header or the pages' cookie."""
    header = connection.headers.get("authorization")
    if header is None:
        return connection.cookies.get(COOKIE) or None
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise _unauthenticated("expected `Authorization: Bearer TOKEN`", error="invalid_request")
    return text.strip()


def refuse_other_sites(connection: HTTPConnection) -> None:  # which could use the browser's cookies
    if connection.headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        raise Refusal(403, "forbidden", "writes from pages of other sites are refused")


def is_loopback(host: str) -> bool:
    """Whether a name or address is reachable from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _require_this_machine(connection: HTTPConnection) -> None:
    """Without tokens, refuse what a proxy passes on and names that others point here."""
    host = connection.headers.get("host", "").rsplit(":", 1)[0]
    forwarded = any(name.startswith(FORWARDED) for name in connection.headers)
    if forwarded or connection.scope.get("http_version") == "1.0" or not is_loopback(host):
        detail = f"without tokens this service only answers this machine, as localhost; make a token first: {HOW_TO}"
        raise Refusal(403, "forbidden", detail)


def _unauthenticated(detail: str, error: str | None = None) -> Refusal:
    challenge = 'Bearer realm="drimed"' + (f', error="{error}"' if error else "")
    return Refusal(401, "unauthenticated", detail, headers={"WWW-Authenticate": challenge})


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
