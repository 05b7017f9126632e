"""Who asks, what they may do, and how often."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from drimed.service import tokens
from drimed.service.problems import Refusal
from drimed.service.settings import Settings, is_loopback
from drimed.service.tokens import ASK_TELL, BLINDED, HOW_TO, LOCAL, MANAGE, MAY, TELL, Token
from drimed.trial.events import now
from drimed.trial.stores.sql import SqlStore

COOKIE = "drimed_token"  # where pages keep it
TRUST = 2.0  # seconds for which a token is not looked up again: a revoked one works for so long
MOST_KNOWN = 1000
MOST_BUCKETS = 10_000  # then those that are full again are forgotten: nothing is lost with them
# Headers that proxies add; besides, nginx speaks HTTP/1.0 to what is behind it, which browsers and clients do not.
FORWARDED = ("x-forwarded-", "forwarded", "via", "x-real-ip", "x-client-ip")


@dataclass(frozen=True)
class Caller:
    """Who makes a request."""

    actor: str  # as the log names them
    role: str
    trial: str | None = None  # the only one they may use; None: all
    token: str | None = None  # its id; None: there are no tokens, and everybody on this machine may do everything

    def may(self, role: str, trial: str | None = None) -> bool:
        """Whether they may do what needs this (`tokens.MAY`), on a trial or (None) on all."""
        return self.role in MAY[role] and self.trial in (None, trial)

    @property
    def blinded(self) -> bool:
        """Whether they must not learn which arms were given."""
        return self.role == BLINDED

    def must(self, role: str, trial: str | None = None) -> None:
        """Refuse what they may not do."""
        if self.may(role, trial):
            return
        if self.trial not in (None, trial):
            raise Refusal(403, "forbidden", f"token {self.actor!r} is for another trial only")
        needed = ASK_TELL if role == TELL else role
        raise Refusal(403, "forbidden", f"token {self.actor!r} has the role {self.role!r}; this needs {needed!r}")


class Access:
    """Tokens that were looked up a moment ago, so that not every request asks the store."""

    def __init__(self, store: SqlStore, settings: Settings, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._settings, self._clock = store, settings, clock
        self._known: dict[bytes, tuple[Token, float]] = {}
        self._open_until = 0.0  # until then there were no tokens
        self._lock = threading.Lock()

    def fresh(self, text: str | None) -> Token | None:
        """A token that was looked up a moment ago; never waits."""
        if text is None:
            return None
        token, until = self._known.get(_digest(text), (None, 0.0))
        return token if until > self._clock() else None

    def knew(self, text: str) -> bool:
        """Whether it was recognised at some time; never waits."""
        return _digest(text) in self._known

    def known_to_be_open(self) -> bool:
        """Whether there were no tokens a moment ago; never waits."""
        return self._open_until > self._clock()

    def look_whether_open(self) -> bool:
        """Ask the store whether there are no tokens."""
        is_open = self._settings.local and not tokens.any_made(self._store)
        if is_open:
            self._open_until = self._clock() + TRUST
        return is_open

    def look_up(self, text: str) -> Token | None:
        """Ask the store."""
        token = tokens.recognised(self._store, text)
        if token is not None:
            with self._lock:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[_digest(text)] = token, self._clock() + TRUST
        return token

    def caller(self, connection: HTTPConnection, text: str | None, token: Token | None, *, is_open: bool) -> Caller:
        """Who it is, once everything was looked up."""
        if text is None:
            if not is_open:
                raise _unauthenticated("send a token: `Authorization: Bearer ...`")
            _refuse_strangers(connection)
            return Caller(LOCAL, MANAGE)
        state = "unknown" if token is None else token.state(now())
        if token is None or state != "active":
            raise _unauthenticated(f"the token is {state}; make a new one with: {HOW_TO}", error="invalid_token")
        return Caller(token.label, token.role, token.trial, token.id)


class Buckets:
    """So many requests a second: a bucket of tokens for each caller, which fills steadily, in each process.

    >>> moment = 0.0
    >>> buckets = Buckets(rate=2.0, burst=1, clock=lambda: moment)
    >>> buckets.take("north"), buckets.take("north")
    (0.0, 0.5)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._levels: dict[str, tuple[float, float]] = {}  # who -> what was left, when

    def wait(self, who: str) -> float:
        """In how many seconds a request may pass; 0: now."""
        return 0.0 if not self._rate else max(0.0, (1 - self._level(who, self._clock())) / self._rate)

    def take(self, who: str) -> float:
        """One request: 0 if it may pass, else in how many seconds it may."""
        if not self._rate:
            return 0.0
        now = self._clock()
        level = self._level(who, now)
        if level < 1:
            return (1 - level) / self._rate
        if len(self._levels) >= MOST_BUCKETS:
            self._forget(now)
        self._levels[who] = level - 1, now
        return 0.0

    def _level(self, who: str, now: float) -> float:
        level, then = self._levels.get(who, (self._burst, now))
        return min(self._burst, level + (now - then) * self._rate)

    def _forget(self, now: float) -> None:
        self._levels = {w: (n, t) for w, (n, t) in self._levels.items() if n + (now - t) * self._rate < self._burst}
        if len(self._levels) >= MOST_BUCKETS:
            self._levels.clear()


def text_of(connection: HTTPConnection) -> str | None:
    """The token that came with a request, in its header or in the pages' cookie."""
    header = connection.headers.get("authorization")
    if header is None:
        return connection.cookies.get(COOKIE) or None
    scheme, _, text = header.partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise _unauthenticated("expected `Authorization: Bearer TOKEN`", error="invalid_request")
    return text.strip()


def refuse_other_sites(connection: HTTPConnection) -> None:
    """A page of another site must not write with what the browser knows of ours."""
    site = connection.headers.get("sec-fetch-site", "none")
    if site not in ("none", "same-origin"):
        raise Refusal(403, "forbidden", "writes from pages of other sites are refused")


def _refuse_strangers(connection: HTTPConnection) -> None:
    """Without tokens only this machine may come: not what a proxy passes on, and no name somebody else points here."""
    host = connection.headers.get("host", "").rsplit(":", 1)[0]
    passed_on = any(name.startswith(FORWARDED) for name in connection.headers)
    if passed_on or connection.scope.get("http_version") == "1.0" or not is_loopback(host):
        detail = f"without tokens this service only answers this machine, as localhost; make a token first: {HOW_TO}"
        raise Refusal(403, "forbidden", detail)


def _unauthenticated(detail: str, error: str | None = None) -> Refusal:
    challenge = 'Bearer realm="drimed"' + (f', error="{error}"' if error else "")
    return Refusal(401, "unauthenticated", detail, headers={"WWW-Authenticate": challenge})


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode(errors="surrogatepass")).digest()
