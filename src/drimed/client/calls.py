"""Every request that can be made, as data: both clients send them, each in its own way."""

from __future__ import annotations

import math
import random
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import numpy as np

from drimed.client.records import Decision, Event, Page, Status, Story, Told, User, Verdict, made
from drimed.errors import ConfigError, InputError
from drimed.records import Effect

T = TypeVar("T")
Context = Mapping[str, float]
Values = Mapping[str, float | None]

AGAIN = (429, 502, 503, 504)  # answers after which the same request is worth another try
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds
LONGEST_KEY = 200


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: dict[str, Any] = field(default_factory=dict)
    json: Any = None
    toml: str | None = None
    key: str | None = None
    patient: bool = False  # it may take longer than any timeout

    @property
    def headers(self) -> dict[str, str]:
        """What goes with it."""
        found = {} if self.key is None else {"Idempotency-Key": self.key}
        return found | ({"Content-Type": "application/toml"} if self.toml is not None else {})


def authorization(token: str | None) -> dict[str, str]:
    """The header that shows a token; no message ever does."""
    if token is None:
        return {}
    text = token.strip()
    if not text or not text.isascii() or not text.isprintable():
        raise ConfigError("token must be one line of printable ASCII characters, such as `drimed token create` shows")
    return {"Authorization": f"Bearer {text}"}


def pause_before(attempt: int, retry_after: str | None) -> float:
    """Seconds before another try: longer each time, never all clients at once, and as the service asked."""
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt) * random.uniform(0.5, 1.0)
    if retry_after is not None and retry_after.isdigit():
        wait = max(wait, min(60.0, float(retry_after)))
    return wait


def create(spec: Mapping[str, Any] | str, key: str | None) -> Call[Status]:
    """A trial from its file: as data, or as the text of a TOML file."""
    if isinstance(spec, str):
        return Call("POST", "/v1/trials", lambda d: made(Status, d), toml=spec, key=_key(key))
    return Call("POST", "/v1/trials", lambda d: made(Status, d), json=_plain(spec), key=_key(key))


def trials(limit: int, after: str | None) -> Call[Page[Status]]:
    """Some trials."""
    return Call("GET", "/v1/trials", _page(Status), _given(limit=limit, after=after))


def status(trial: str) -> Call[Status]:
    """A trial at a glance."""
    return Call("GET", _of(trial), lambda d: made(Status, d))


def spec(trial: str) -> Call[dict[str, Any]]:
    """The trial file."""
    return Call("GET", _of(trial, "spec"), dict)


def users(trial: str, limit: int, after: str | None) -> Call[Page[User]]:
    """Some users."""
    return Call("GET", _of(trial, "users"), _page(User), _given(limit=limit, after=after))


def open_episode(
    trial: str,
    contexts: Mapping[str, Context] | None,
    number: int | None,
    unavailable: Mapping[str, Sequence[str]] | None,
    key: str | None,
) -> Call[int]:
    """The next episode."""
    body = _given(contexts=contexts or None, number=number, unavailable=unavailable or None)
    return _write(_of(trial, "episodes"), body, key, lambda d: int(d["episode"]))


def ask(
    trial: str,
    users: str | Sequence[str] | None,
    contexts: Mapping[str, Context] | None,
    unavailable: Sequence[str],
    dry_run: bool,
    key: str | None,
) -> Call[list[Decision]]:
    """Which arms users get."""
    wanted = [users] if isinstance(users, str) else None if users is None else list(users)
    body = _given(users=wanted, contexts=contexts or None, unavailable=list(unavailable) or None)
    if dry_run:
        body["dry_run"] = True
    return _write(_of(trial, "ask"), body, key, lambda d: [Decision.of(g) for g in d["decisions"]])


def tell(trial: str, decision: int, outcome: Values, control: Values | None, key: str | None) -> Call[Told]:
    """What came of a decision."""
    body = _given(outcome=dict(outcome), control=None if control is None else dict(control))
    return _write(_of(trial, "decisions", decision, "outcome"), body, key, lambda d: made(Told, d))


def tell_many(trial: str, reports: Sequence[Mapping[str, Any]], key: str | None) -> Call[list[Told]]:
    """What came of many."""
    body = {"reports": [dict(r) for r in reports]}
    return _write(_of(trial, "tell"), body, key, lambda d: [made(Told, t) for t in d["told"]])


def amend(
    trial: str, decision: int, outcome: Values, reason: str, control: Values | None, key: str | None
) -> Call[Told]:
    """A correction."""
    body = _given(outcome=dict(outcome), reason=reason, control=None if control is None else dict(control))
    return _write(_of(trial, "decisions", decision, "amend"), body, key, lambda d: made(Told, d))


def mark_missing(trial: str, decision: int, reason: str, key: str | None) -> Call[Told]:
    """An outcome that will not come."""
    return _write(_of(trial, "decisions", decision, "missing"), {"reason": reason}, key, lambda d: made(Told, d))


def change(trial: str, what: str, body: Mapping[str, Any], key: str | None) -> Call[int]:
    """Pause, resume, stop, users, arms, retire, preference, control; answers how many events the log has."""
    return _write(_of(trial, what), _given(**body), key, lambda d: int(d["events"]))


def decision(trial: str, number: int) -> Call[Story]:
    """The story of a decision."""
    return Call("GET", _of(trial, "decisions", number), Story.of)


def log(
    trial: str, kinds: Sequence[str], user: str | None, newest_first: bool, limit: int, cursor: str | None
) -> Call[Page[Event]]:
    """Some events."""
    params = _given(user=user, limit=limit, cursor=cursor, order="newest" if newest_first else "oldest")
    if kinds:
        params["kind"] = list(kinds)
    return Call("GET", _of(trial, "log"), _page(Event), params)


def export(trial: str, form: str) -> Call[None]:
    """Every decision, as a file."""
    return Call("GET", _of(trial, "export"), lambda _: None, {"format": form})


def verify(trial: str, expect: str | None) -> Call[Verdict]:
    """A proof of the log."""
    return Call("GET", _of(trial, "verify"), lambda d: made(Verdict, d), _given(expect=expect), patient=True)


def effects(trial: str, user: str | None, limit: int, after: str | None) -> Call[Page[Effect]]:
    """Arms against the control."""
    read = lambda d: Page([made(Effect, e) for e in d["items"]], d["next"])  # noqa: E731
    return Call("GET", _of(trial, "effects"), read, _given(user=user, limit=limit, after=after))


def _page(kind: type[T]) -> Callable[[Any], Page[T]]:
    """How one page of a list is read."""
    return lambda d: Page([made(kind, item) for item in d["items"]], d["next"])


def _write(path: str, body: Mapping[str, Any], key: str | None, read: Callable[[Any], T]) -> Call[T]:
    return Call("POST", path, read, json=_plain(body), key=_key(key))


def _of(trial: str, *steps: str | int) -> str:
    return "/".join(["/v1/trials", *(quote(str(step), safe="") for step in (trial, *steps))])


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key(given: str | None) -> str:
    if given is None:
        return uuid.uuid4().hex
    if not 0 < len(given) <= LONGEST_KEY or not given.isascii() or not given.isprintable():
        raise InputError(
            f"key must be an Idempotency-Key of 1 to {LONGEST_KEY} printable ASCII characters, or None to have one "
            f"made, got {given[:LONGEST_KEY]!r}"
        )
    return given


def _plain(value: Any, at: tuple[str, ...] = ()) -> Any:
    """A body as JSON has it; NumPy's numbers are numbers."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(inner, (*at, str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*at, str(i))) for i, inner in enumerate(value)]
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{'.'.join(at)} must be a finite number, got {value}; leave it out if it is not known")
    if value is not None and not isinstance(value, str | int | float):
        raise InputError(f"{'.'.join(at)} must be a number, a text, a list or a mapping, got {type(value).__name__}")
    return value
