"""The service from Python: `Client`, and `AsyncClient` for asyncio.

Both have the same methods. A request that fails on the way is made again, which is safe since every write carries an
Idempotency-Key. Refusals of the service are raised as drimed's own errors.
"""

from __future__ import annotations

import asyncio
import functools
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypedDict, TypeVar, Unpack, overload
from urllib.parse import quote

from drimed import errors, records
from drimed.errors import AccessError, DrimedError, InputError, ServiceError
from drimed.records import Context, Decision, Effect, Event, Look, Page, Receipt, Report, Status, Values, read

try:
    import httpx
except ModuleNotFoundError as error:
    raise errors.MissingExtraError(str(error.name), "client") from error

__all__ = ["AccessError", "AsyncClient", "Client", "ServiceError"]

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 8  # the last after some fifteen seconds of waiting: a worker that died is replaced by then
TIMEOUT = 60.0  # seconds
AGAIN = (429, 502, 503, 504)  # answers after which the same request is worth another try
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds
TRIALS = "/v1/trials"
TOML = {"Content-Type": "application/toml"}
# Problems that consist of faults.
LISTS = {"spec": errors.SpecError, "batch": errors.BatchError, "unconfirmed": errors.UnconfirmedError}


class Once(TypedDict, total=False):
    """Options of every write."""

    key: str | None  # its Idempotency-Key; None: one is made


class Sure(Once, total=False):
    """Options of writes that can be tried, and that refuse unlikely values until they are confirmed."""

    confirm: bool
    dry_run: bool


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request, and how its answer is read."""

    method: str
    path: str
    read: Callable[[Any], T]
    params: dict[str, Any] = field(default_factory=dict)
    json: Any = None
    content: str | None = None  # instead of json
    headers: dict[str, str] = field(default_factory=dict)
    patient: bool = False  # it may take longer than any timeout


class Method(Generic[P, T]):
    """A method that makes a call, on a client that sends it."""

    def __init__(self, make: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]  # it stands for the function

    @overload
    def __get__(self, client: None, owner: type) -> Callable[Concatenate[Any, P], Call[T]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Any:
        if client is None:
            return self._make

        @functools.wraps(self._make.__get__(client))
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._make(client, *args, **kwargs))

        return method


class Methods:
    """Both clients: each method makes a call, which the client sends."""

    _connect: ClassVar[Any]  # makes the connections
    _wait: ClassVar[Any]  # sleeps

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Any] | None = None,
    ) -> None:
        self._http = self._connect(base_url=address, headers=_bearer(token), timeout=timeout, transport=transport)
        self._attempts, self._sleep = attempts, sleep or self._wait

    @Method
    def create(self, spec: Mapping[str, Any] | str, **options: Unpack[Once]) -> Call[Status]:
        """Create a trial from its file: as data, or as the text of a TOML file."""
        key = _key(options.get("key"))
        if isinstance(spec, str):
            return Call("POST", TRIALS, _status, content=spec, headers=TOML | key)
        return Call("POST", TRIALS, _status, json=_plain(spec), headers=key)

    @Method
    def trials(self, *, limit: int = 50, after: str | None = None) -> Call[Page[Status]]:
        """Some trials, in the order of their creation."""
        return Call("GET", TRIALS, _page(_status), _given(limit=limit, after=after))

    @Method
    def status(self, trial: str) -> Call[Status]:
        """A trial at a glance."""
        return _get(trial, "", _status)

    @Method
    def spec(self, trial: str) -> Call[dict[str, Any]]:
        """The trial file, as it stands."""
        return _get(trial, "spec", dict)

    @Method
    def users(self, trial: str, *, limit: int = 100, after: str | None = None) -> Call[Page[records.Member]]:
        """Some users, in the order in which they joined."""
        return _get(trial, "users", _page(partial(read, records.Member)), limit=limit, after=after)

    @Method
    def open_episode(self, /, trial: str, contexts: Mapping[str, Context] | None = None, **fields: Any) -> Call[int]:
        """Start the next episode and return its number: number, name, date, unavailable, confirm, dry_run, key."""
        return _post(trial, "episodes", lambda d: int(d["episode"]), fields, contexts=contexts or None)

    @Method
    def ask(self, /, trial: str, users: str | Sequence[str] | None = None, **fields: Any) -> Call[list[Decision]]:
        """Decide for one user, some, or (None) all; `fields`: dry_run, and those of an AskRequest as in `ask_many`."""
        named = [users] if isinstance(users, str) else users
        records.AskRequest(users=named, **{name: value for name, value in fields.items() if name != "dry_run"})
        answer: Callable[[Any], list[Decision]] = lambda d: [Decision.read(one) for one in d["decisions"]]  # noqa: E731
        return _post(trial, "ask", answer, fields, users=named)

    @Method
    def tell(
        self, trial: str, decision: int, outcome: Values, *, control: Values | None = None, **options: Unpack[Sure]
    ) -> Call[Receipt]:
        """Report the outcome of a decision; an unlikely value is refused until `confirm` is set."""
        return _post(trial, f"decisions/{decision}/outcome", _receipt, options, outcome=outcome, control=control)

    @Method
    def tell_many(
        self, trial: str, reports: Sequence[Report | Mapping[str, Any]], **options: Unpack[Sure]
    ) -> Call[list[Receipt]]:
        """Many outcomes, all or none: Report(17, {"yield": 5.2}) or {"decision": 17, "outcome": {"yield": 5.2}}."""
        rows = [_given(**vars(r)) if isinstance(r, Report) else dict(r) for r in reports]
        answer: Callable[[Any], list[Receipt]] = lambda d: [_receipt(one) for one in d["receipts"]]  # noqa: E731
        return _post(trial, "tell", answer, options, reports=rows)

    @Method
    def amend(
        self,
        trial: str,
        decision: int | Decision,
        outcome: Values,
        *,
        reason: str,
        control: Values | None = None,
        saw: Values | None = None,
        **options: Unpack[Sure],
    ) -> Call[Receipt]:
        """Correct an outcome; None takes a value back.

        Given the decision itself and not its number, the correction is refused if its outcome has changed since.
        `saw` says so for some values.
        """
        body: dict[str, Any] = {"outcome": outcome, "reason": reason, "control": control, "saw": saw}
        if isinstance(decision, Decision):
            if saw is None:  # also of values that were not there
                body |= {"saw": dict.fromkeys(outcome) | (decision.outcome or {}), "saw_control": decision.control}
            decision = decision.id
        return _post(trial, f"decisions/{decision}/amend", _receipt, options, **body)

    @Method
    def mark_missing(
        self, trial: str, decision: int, *, reason: str, dry_run: bool = False, **options: Unpack[Once]
    ) -> Call[Receipt]:
        """Mark an outcome, or the rest of it, as missing."""
        return _post(trial, f"decisions/{decision}/missing", _receipt, options, reason=reason, dry_run=dry_run)

    # Changes to a trial: each returns its status afterwards

    @Method
    def pause(self, trial: str, *, reason: str, **options: Unpack[Once]) -> Call[Status]:
        """Decide nothing until it is resumed."""
        return _post(trial, "pause", _status, options, reason=reason)

    @Method
    def resume(self, trial: str, *, reason: str = "", **options: Unpack[Once]) -> Call[Status]:
        """Decide again."""
        return _post(trial, "resume", _status, options, reason=reason)

    @Method
    def stop(self, trial: str, *, reason: str, **options: Unpack[Once]) -> Call[Status]:
        """Decide nothing more, for good."""
        return _post(trial, "stop", _status, options, reason=reason)

    @Method
    def add_user(self, /, trial: str, name: str, **definition: Any) -> Call[Status]:
        """Add a user: preference, control, arms, group, cohort, attributes, blocks or plots."""
        return _post(trial, "users", _status, definition, name=name)

    @Method
    def add_arm(self, /, trial: str, name: str, **definition: Any) -> Call[Status]:
        """Offer one more arm: about, attributes or map, noise."""
        return _post(trial, "arms", _status, definition, name=name)

    @Method
    def retire_arm(self, trial: str, arm: str, *, reason: str, **options: Unpack[Once]) -> Call[Status]:
        """Never give an arm again."""
        return _post(trial, "retire", _status, options, arm=arm, reason=reason)

    @Method
    def change_preference(
        self, trial: str, user: str, preference: Mapping[str, float], *, reason: str, **options: Unpack[Once]
    ) -> Call[Status]:
        """Change how a user weighs the metrics from now on."""
        return _post(trial, "preference", _status, options, user=user, preference=preference, reason=reason)

    @Method
    def change_control(
        self, trial: str, user: str, control: str | Mapping[str, float], *, reason: str, **options: Unpack[Once]
    ) -> Call[Status]:
        """Compare a user with another control from now on: an arm, or arms with shares."""
        return _post(trial, "control", _status, options, user=user, control=control, reason=reason)

    @Method
    def change_rules(
        self, trial: str, stopping: Mapping[str, Any], *, reason: str, **options: Unpack[Once]
    ) -> Call[Status]:
        """Replace the stopping rules, as they stand under [stopping] in a trial file."""
        return _post(trial, "rules", _status, options, stopping=stopping, reason=reason)

    @Method
    def look(self, trial: str, *, dry_run: bool = False, **options: Unpack[Once]) -> Call[Look]:
        """Evaluate the stopping rules; the look is recorded, and so is a pause or a stop that they demand."""
        return _post(trial, "looks", Look.read, options, dry_run=dry_run)

    @Method
    def reveal(
        self, trial: str, decision: int | None = None, *, reason: str, **options: Unpack[Once]
    ) -> Call[records.Opening]:
        """Open the code for one decision, or (None) for all: the answer has the arm, or the codes."""
        return _post(trial, "reveal", partial(read, records.Opening), options, decision=decision, reason=reason)

    # Looking back

    @Method
    def looks(self, trial: str, *, limit: int = 100, before: str | None = None) -> Call[Page[Look]]:
        """Looks at the stopping rules, newest first; `before` is the `next` of the page before."""
        return _get(trial, "looks", _page(Look.read), limit=limit, before=before)

    @Method
    def decision(self, trial: str, number: int) -> Call[Decision]:
        """A decision with its outcome."""
        return _get(trial, f"decisions/{number}", Decision.read)

    @Method
    def history(self, trial: str, number: int) -> Call[list[Event]]:
        """All events about a decision, its own first."""
        return _get(trial, f"decisions/{number}", lambda d: [Event.read(e) for e in d["history"]])

    @Method
    def decisions(
        self, /, trial: str, *, limit: int = 25, before: str | None = None, **search: Any
    ) -> Call[Page[Decision]]:
        """Decisions, newest first: of a `user`, a `plot` or a `block`, for an `arm`, or in a `state`.

        States are pending, partial, complete, missing and amended.
        """
        return _get(trial, "decisions", _page(Decision.read), limit=limit, before=before, **search)

    @Method
    def log_page(
        self,
        trial: str,
        *,
        kinds: Sequence[str] = (),
        user: str | None = None,
        newest_first: bool = False,
        limit: int = 500,
        cursor: str | None = None,
    ) -> Call[Page[Event]]:
        """Some events; `log` iterates over all of them."""
        params: dict[str, Any] = {"order": "newest" if newest_first else "oldest", "kind": list(kinds) or None}
        return _get(trial, "log", _page(Event.read), user=user, limit=limit, cursor=cursor, **params)

    @Method
    def effects(
        self, trial: str, *, user: str | None = None, limit: int = 100, after: str | None = None
    ) -> Call[Page[Effect]]:
        """Each arm against the control, for one user or for so many."""
        return _get(trial, "effects", _page(partial(read, Effect)), user=user, limit=limit, after=after)

    @Method
    def checks(self, trial: str) -> Call[records.Checks]:
        """The results of a trial's checks, and the promise that they withdraw."""
        return _get(trial, "checks", records.Checks.read)

    @Method
    def head(self, trial: str) -> Call[records.Head]:
        """The number and the hash of the log's last event, to be kept elsewhere."""
        return _get(trial, "head", partial(read, records.Head))

    @Method
    def verify(self, trial: str, *, expect: str | None = None) -> Call[records.Proof]:
        """Prove the log; a long trial takes longer than the usual timeout."""
        return _get(trial, "verify", partial(read, records.Proof), patient=True, expect=expect)


class Client(Methods):
    """A service by its address. Threads may share it."""

    _connect, _wait = httpx.Client, staticmethod(time.sleep)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def send(self, call: Call[T]) -> T:
        """Make a request, again if it fails on the way."""
        for attempt in range(self._attempts):
            try:
                response: httpx.Response = self._http.send(_request(self._http, call))
                if response.is_success:
                    return call.read(_data(response))
                self._sleep(_pause(response, attempt, self._attempts))
            except httpx.TransportError as error:
                self._sleep(_pause(error, attempt, self._attempts))
        raise ServiceError("no attempt was made")

    def log(self, trial: str, *, page: int = 500, **search: Any) -> Iterator[Event]:
        """The events, fetched page by page: of some `kinds`, of a `user`, `newest_first`."""
        cursor: str | None = ""
        while cursor is not None:
            some = self.log_page(trial, limit=page, cursor=cursor or None, **search)
            yield from some.items
            cursor = some.next

    def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with its outcome to a file: csv, json or xlsx."""
        with self._http.stream("GET", _address(trial, "export"), params={"format": form}, timeout=None) as response:
            if not response.is_success:
                response.read()
                raise _error(response.status_code, _data(response))
            with Path(path).open("wb") as file:
                file.writelines(response.iter_bytes())
        return Path(path)


class AsyncClient(Methods):
    """A service by its address, for asyncio. Tasks of one loop may share it."""

    _connect, _wait = httpx.AsyncClient, staticmethod(asyncio.sleep)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def send(self, call: Call[T]) -> T:
        """Make a request, again if it fails on the way."""
        for attempt in range(self._attempts):
            try:
                response: httpx.Response = await self._http.send(_request(self._http, call))
                if response.is_success:
                    return call.read(_data(response))
                await self._sleep(_pause(response, attempt, self._attempts))
            except httpx.TransportError as error:
                await self._sleep(_pause(error, attempt, self._attempts))
        raise ServiceError("no attempt was made")

    async def log(self, trial: str, *, page: int = 500, **search: Any) -> AsyncIterator[Event]:
        """The events, fetched page by page: of some `kinds`, of a `user`, `newest_first`."""
        cursor: str | None = ""
        while cursor is not None:
            some = await self.log_page(trial, limit=page, cursor=cursor or None, **search)
            for event in some.items:
                yield event
            cursor = some.next

    async def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with its outcome to a file: csv, json or xlsx."""
        address, params = _address(trial, "export"), {"format": form}
        async with self._http.stream("GET", address, params=params, timeout=None) as response:
            if not response.is_success:
                await response.aread()
                raise _error(response.status_code, _data(response))
            with Path(path).open("wb") as file:
                async for piece in response.aiter_bytes():
                    file.write(piece)
        return Path(path)


# Requests


_status, _receipt = partial(read, Status), partial(read, Receipt)


def _page(item: Callable[[Any], T]) -> Callable[[Any], Page[T]]:
    return lambda d: Page([item(one) for one in d["items"]], d["next"])


def _get(trial: str, path: str, answer: Callable[[Any], T], *, patient: bool = False, **params: Any) -> Call[T]:
    return Call("GET", _address(trial, path), answer, _given(**params), patient=patient)


def _post(trial: str, path: str, answer: Callable[[Any], T], options: Mapping[str, Any], /, **body: Any) -> Call[T]:
    given = _given(**body | {name: value for name, value in options.items() if name != "key"})
    return Call("POST", _address(trial, path), answer, json=_plain(given), headers=_key(options.get("key")))


def _address(trial: str, path: str) -> str:
    return "/".join([TRIALS, *(quote(step, safe="") for step in [trial, *path.split("/")] if step)])


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _key(key: str | None) -> dict[str, str]:
    key = uuid.uuid4().hex if key is None else key
    if not 0 < len(key) <= records.LONGEST_KEY or not key.isascii() or not key.isprintable():
        expected = f"an Idempotency-Key of 1 to {records.LONGEST_KEY} printable ASCII characters, or None"
        raise InputError(f"key must be {expected} to have one made, got {key[: records.LONGEST_KEY]!r}", ("key",))
    return {"Idempotency-Key": key}


def _plain(value: Any, at: tuple[str | int, ...] = ()) -> Any:
    """A body as JSON data; numbers and arrays of NumPy turn themselves into Python's."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {name: _plain(inner, (*at, str(name))) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, (*at, i)) for i, inner in enumerate(value)]
    name = ".".join(map(str, at))
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"{name} must be a finite number, got {value}; leave it out if it is not known", at)
    if value is not None and not isinstance(value, str | int | float):
        raise InputError(f"{name} must be a number, a text, a list or a mapping, got {type(value).__name__}", at)
    return value


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    sent = {name: getattr(call, name) for name in ("method", "params", "json", "content", "headers")}
    timeout = None if call.patient else httpx.USE_CLIENT_DEFAULT
    return http.build_request(url=call.path, timeout=timeout, **sent)


def _bearer(token: str | None) -> dict[str, str]:
    """The header with a token; no message ever has it."""
    if token is None:
        return {}
    text, one_line = token.strip(), "one line of printable ASCII characters"
    if not text or not text.isascii() or not text.isprintable():
        raise errors.ConfigError(f"token must be {one_line}, such as `drimed token create` shows")
    return {"Authorization": f"Bearer {text}"}


# Answers


def _data(response: httpx.Response) -> Any:
    """The JSON of an answer; None where a refusal has none."""
    try:
        return response.json()
    except ValueError:
        if response.is_success:
            raise ServiceError(f"{response.url} did not answer with JSON; is it a drimed service?") from None
        return None


def _pause(result: httpx.Response | httpx.TransportError, attempt: int, attempts: int) -> float:
    """Seconds before another try: longer each time, never all clients at once, and as the service asked.

    Raises the error that ended the last try, and one that another try would not change.
    """
    last, after = attempt == attempts - 1, ""
    if isinstance(result, httpx.Response):
        if last or result.status_code not in AGAIN:
            raise _error(result.status_code, _data(result))
        after = result.headers.get("retry-after", "")
    elif last:
        raise ServiceError(f"no answer from {result.request.url}: {result!r}") from result
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt) * random.uniform(0.5, 1.0)
    return max(wait, min(60.0, float(after))) if after.isdigit() else wait


def _error(status: int, data: object) -> DrimedError:
    """The error for a refusal, as if the trial were here; `data` is its problem+json."""
    problem: Mapping[str, Any] = data if isinstance(data, Mapping) else {}
    detail = str(problem.get("detail") or f"the service answered with status {status}")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    faults = [
        records.Fault(tuple(e.get("path", ())), str(e.get("detail", "")), e.get("line"), e.get("row"))
        for e in problem.get("errors", ())
    ]
    path = faults[0].path if faults else ()
    if kind in LISTS and faults:
        return LISTS[kind](faults)
    if problem.get("kind") is not None:
        return errors.UnknownNameError(str(problem["kind"]), str(problem.get("name")), (), path, message=detail)
    if status in (401, 403):
        return AccessError(detail)
    if status == 409:
        return errors.ConflictError(detail, path)
    if status in (400, 404, 413, 415, 422):
        return InputError(detail, path) if len(faults) < 2 else errors.BatchError(faults)
    return errors.StoreError(detail) if status == 503 else ServiceError(detail)
