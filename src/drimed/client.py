"""The service from Python: `Client`, and `AsyncClient` for asyncio.

A request that fails on the way is made again, which is safe since every write carries an Idempotency-Key: its `key`, or
one that is made. Writes take `dry_run` where they can be tried, and `confirm` where they refuse unlikely values.
Refusals of the service are raised as drimed's own errors.
"""

from __future__ import annotations

import asyncio
import math
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import quote

from drimed import errors, records
from drimed.errors import AccessError, DrimedError, InputError, ServiceError
from drimed.records import Context, Decision, Effect, Event, Look, Page, Receipt, Report, Status, Values, read

try:
    import httpx
except ModuleNotFoundError as error:
    raise errors.MissingExtraError(str(error.name), "client") from error

__all__ = ["AccessError", "AsyncClient", "Client", "ServiceError", "Visit"]

T = TypeVar("T")

ATTEMPTS = 8  # the last after some fifteen seconds of waiting: a worker that died is replaced by then
TIMEOUT = 60.0  # seconds
WAITING = 64  # requests of a client at a time that a caller waits for with a time limit
ADDRESS = "http://127.0.0.1:8000"
AGAIN = (429, 502, 503, 504)  # answers after which the same request is worth another try
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds
TRIALS = "/v1/trials"
TOML = {"Content-Type": "application/toml"}
# Problems that consist of faults.
LISTS = {"spec": errors.SpecError, "batch": errors.BatchError, "unconfirmed": errors.UnconfirmedError}


class Client:
    """A service by its address. Threads may share it."""

    _kind: Any = httpx.Client

    def __init__(
        self,
        address: str = ADDRESS,
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        transport: httpx.BaseTransport | httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Any] = time.sleep,
    ) -> None:
        self._http = self._kind(base_url=address, headers=_bearer(token), timeout=timeout, transport=transport)
        self._attempts, self._sleep = attempts, sleep
        self._threads = ThreadPoolExecutor(WAITING, "drimed-visit")  # started when they are needed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Finish recording visits that could not wait, and close the connections."""
        self._threads.shutdown()
        self._http.close()

    def create(self, spec: Mapping[str, Any] | str, key: str | None = None) -> Status:
        """Create a trial from its file: as data, or as the text of a TOML file."""
        sent: dict[str, Any] = {"content": spec} if isinstance(spec, str) else {"json": _plain(spec)}
        headers = _key(key) | (TOML if isinstance(spec, str) else {})
        return self._send(_of_data(_STATUS), "POST", TRIALS, **sent, headers=headers)

    def trials(self, *, limit: int = 50, after: str | None = None) -> Page[Status]:
        """Some trials, in the order of their creation."""
        return self._page(Status, "", "", limit=limit, after=after)

    def status(self, trial: str) -> Status:
        """A trial at a glance."""
        return self._get(_STATUS, trial, "")

    def spec(self, trial: str) -> dict[str, Any]:
        """The trial file, as it stands."""
        return self._get(dict, trial, "spec")

    def users(self, trial: str, *, limit: int = 100, after: str | None = None) -> Page[records.Member]:
        """Some users, in the order in which they joined."""
        return self._page(records.Member, trial, "users", limit=limit, after=after)

    def open_episode(self, /, trial: str, contexts: Mapping[str, Context] | None = None, **fields: Any) -> int:
        """Start the next episode and return its number: number, name, date, unavailable, confirm, dry_run, key."""
        number = lambda data: int(data["episode"])  # noqa: E731
        return self._post(number, trial, "episodes", **fields, contexts=contexts or None)

    def ask(
        self, /, trial: str, users: str | Sequence[str] | None = None, *, dry_run: bool = False, **fields: Any
    ) -> list[Decision]:
        """Decide for one user, some, or (None) all; `fields` are those of an AskRequest, as in `ask_many`.

        For one user they may be context, attributes, cohort, plot and block too, as in `Trial.ask`.
        """
        if isinstance(users, str):
            request = records.AskRequest.of_user(users, **fields)
        else:
            request = records.AskRequest(users=users, **fields)
        decisions = _several(Decision.read, "decisions")
        return self._post(decisions, trial, "ask", **vars(request), dry_run=dry_run)

    def give_control(self, trial: str, user: str, arm: str, *, reason: str, **fields: Any) -> Decision:
        """Record that a user got its control without a draw; `key` is that of the `ask` without an answer in time.

        `fields` are context, attributes and dry_run.
        """
        body = {"user": user, "arm": arm, "reason": reason, "ask_key": fields.pop("key", None)}
        return self._post(Decision.read, trial, "undrawn", **body, **fields)

    def ask_within(
        self, seconds: float, trial: str, user: str, *, control: str, key: str | None = None, **known: Any
    ) -> Visit:
        """Ask for one user; without an answer in so many seconds it gets the control, and a thread records that.

        `known` are its context and the attributes of a new user.
        """
        key, (request, late) = _key(key)["Idempotency-Key"], _visit(user, control, seconds, known)
        asked = self._threads.submit(lambda: self.ask(trial, **request, key=key)[0])
        try:
            return Visit(asked.result(seconds).arm, asked)
        except TimeoutError:
            asked.cancel()  # if it has not begun
            return Visit(control, self._threads.submit(lambda: self.give_control(trial, **late, key=key)), late=True)

    def tell(
        self, trial: str, decision: int, outcome: Values, *, control: Values | None = None, **options: Any
    ) -> Receipt:
        """Report the outcome of a decision; an unlikely value is refused until `confirm` is set."""
        at = f"decisions/{decision}/outcome"
        return self._post(_RECEIPT, trial, at, **options, outcome=outcome, control=control)

    def tell_many(self, trial: str, reports: Sequence[Report | Mapping[str, Any]], **options: Any) -> list[Receipt]:
        """Many outcomes, all or none: Report(17, {"yield": 5.2}) or {"decision": 17, "outcome": {"yield": 5.2}}."""
        rows = [_given(**vars(r)) if isinstance(r, Report) else dict(r) for r in reports]
        return self._post(_several(_RECEIPT, "receipts"), trial, "tell", reports=rows, **options)

    def amend(self, trial: str, decision: int | Decision, outcome: Values, *, reason: str, **options: Any) -> Receipt:
        """Correct an outcome, and with `control` that of the control plot; None takes a value back.

        Given the decision itself and not its number, the correction is refused if its outcome has changed since.
        `saw` says so for some values.
        """
        seen: dict[str, Any] = {}
        if isinstance(decision, Decision):  # also values that were not there
            seen = {"saw": dict.fromkeys(outcome) | (decision.outcome or {}), "saw_control": decision.control}
            decision = decision.id
        body = (seen if options.get("saw") is None else {}) | options
        return self._post(_RECEIPT, trial, f"decisions/{decision}/amend", **body, outcome=outcome, reason=reason)

    def mark_missing(self, trial: str, decision: int, *, reason: str, **options: Any) -> Receipt:
        """Mark an outcome, or the rest of it, as missing."""
        return self._post(_RECEIPT, trial, f"decisions/{decision}/missing", **options, reason=reason)

    def pause(self, trial: str, *, reason: str, **options: Any) -> Status:
        """Decide nothing until it is resumed; changes return the status afterwards."""
        return self._post(_STATUS, trial, "pause", **options, reason=reason)

    def resume(self, trial: str, *, reason: str = "", **options: Any) -> Status:
        """Decide again."""
        return self._post(_STATUS, trial, "resume", **options, reason=reason)

    def stop(self, trial: str, *, reason: str, **options: Any) -> Status:
        """Decide nothing more, for good."""
        return self._post(_STATUS, trial, "stop", **options, reason=reason)

    def add_user(self, /, trial: str, name: str, **definition: Any) -> Status:
        """Add a user: preference, control, arms, group, cohort, attributes, blocks or plots."""
        return self._post(_STATUS, trial, "users", **definition, name=name)

    def add_arm(self, /, trial: str, name: str, **definition: Any) -> Status:
        """Offer one more arm: about, attributes or map, noise."""
        return self._post(_STATUS, trial, "arms", **definition, name=name)

    def retire_arm(self, trial: str, arm: str, *, reason: str, **options: Any) -> Status:
        """Never give an arm again."""
        return self._post(_STATUS, trial, "retire", **options, arm=arm, reason=reason)

    def change_preference(self, trial: str, user: str, preference: Values, *, reason: str, **options: Any) -> Status:
        """Change how a user weighs the metrics from now on."""
        return self._post(_STATUS, trial, "preference", **options, user=user, preference=preference, reason=reason)

    def change_control(self, trial: str, user: str, control: str | Values, *, reason: str, **options: Any) -> Status:
        """Compare a user with another control from now on: an arm, or arms with shares."""
        return self._post(_STATUS, trial, "control", **options, user=user, control=control, reason=reason)

    def change_rules(self, trial: str, stopping: Mapping[str, Any], *, reason: str, **options: Any) -> Status:
        """Replace the stopping rules, as they stand under [stopping] in a trial file."""
        return self._post(_STATUS, trial, "rules", **options, stopping=stopping, reason=reason)

    def look(self, trial: str, *, dry_run: bool = False, key: str | None = None) -> Look:
        """Evaluate the stopping rules; the look is recorded, and so is a pause or a stop that they demand."""
        return self._post(Look.read, trial, "looks", key=key, dry_run=dry_run)

    def reveal(self, trial: str, decision: int | None = None, *, reason: str, **options: Any) -> records.Opening:
        """Open the code for one decision, or (None) for all: the answer has the arm, or the codes."""
        return self._post(partial(read, records.Opening), trial, "reveal", **options, decision=decision, reason=reason)

    def looks(self, trial: str, *, limit: int = 100, before: str | None = None) -> Page[Look]:
        """Looks at the stopping rules, newest first; `before` is the `next` of the page before."""
        return self._page(Look, trial, "looks", limit=limit, before=before)

    def decision(self, trial: str, number: int) -> Decision:
        """A decision with its outcome."""
        return self._get(Decision.read, trial, f"decisions/{number}")

    def history(self, trial: str, number: int) -> list[Event]:
        """All events about a decision, its own first."""
        return self._get(_several(Event.read, "history"), trial, f"decisions/{number}")

    def decisions(self, /, trial: str, *, limit: int = 25, before: str | None = None, **search: Any) -> Page[Decision]:
        """Decisions, newest first: of a `user`, `plot` or `block`, for an `arm`, or in a `state` or amended."""
        return self._page(Decision, trial, "decisions", limit=limit, before=before, **search)

    def log_page(
        self, trial: str, *, kinds: Sequence[str] = (), newest_first: bool = False, limit: int = 500, **search: Any
    ) -> Page[Event]:
        """Some events, of a `user` and from a `cursor` on; `log` iterates over all of them."""
        order, kind = "newest" if newest_first else "oldest", list(kinds) or None
        return self._page(Event, trial, "log", order=order, kind=kind, limit=limit, **search)

    def effects(self, trial: str, *, limit: int = 100, **search: Any) -> Page[Effect]:
        """Each arm against the control, for one `user` or for so many `after` those of the page before."""
        return self._page(Effect, trial, "effects", limit=limit, **search)

    def checks(self, trial: str) -> records.Checks:
        """The results of a trial's checks, and the promise that they withdraw."""
        return self._get(records.Checks.read, trial, "checks")

    def head(self, trial: str) -> records.Head:
        """The number and the hash of the log's last event, to be kept elsewhere."""
        return self._get(partial(read, records.Head), trial, "head")

    def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with its outcome to a file: csv, json or xlsx."""

        def write(response: httpx.Response) -> Path:
            Path(path).write_bytes(response.content)
            return Path(path)

        return self._send(write, "GET", _address(trial, "export"), params={"format": form}, timeout=None)

    def verify(self, trial: str, *, expect: str | None = None) -> records.Proof:
        """Prove the log; a long trial takes longer than the usual timeout."""
        reader, params = _of_data(partial(read, records.Proof)), _given(expect=expect)
        return self._send(reader, "GET", _address(trial, "verify"), params=params, timeout=None)

    def log(self, trial: str, *, page: int = 500, **search: Any) -> Iterator[Event]:
        """The events, fetched page by page: of some `kinds`, of a `user`, `newest_first`."""
        cursor: str | None = ""
        while cursor is not None:
            some = self.log_page(trial, limit=page, cursor=cursor or None, **search)
            yield from some.items
            cursor = some.next

    def _get(self, reader: Callable[[Any], T], trial: str, path: str, **params: Any) -> T:
        return self._send(_of_data(reader), "GET", _address(trial, path), params=_given(**params))

    def _page(self, kind: type[T], trial: str, path: str, /, **params: Any) -> Page[T]:
        own = getattr(kind, "read", partial(read, kind))
        return self._get(lambda data: Page([own(item) for item in data["items"]], data["next"]), trial, path, **params)

    def _post(self, reader: Callable[[Any], T], trial: str, path: str, /, *, key: str | None = None, **body: Any) -> T:
        sent = {"json": _plain(_given(**body)), "headers": _key(key)}
        return self._send(_of_data(reader), "POST", _address(trial, path), **sent)

    def _send(self, reader: Callable[[Any], T], method: str, path: str, *, attempt: int = 1, **sent: Any) -> T:
        """The answer to a request as `reader` reads it, which is all that differs between requests."""
        try:
            answer = self._http.request(method, path, **sent)
        except httpx.TransportError as error:
            answer = error
        if not (wait := self._wait(attempt, answer)):
            return reader(answer)
        self._sleep(wait)
        return self._send(reader, method, path, attempt=attempt + 1, **sent)

    def _wait(self, attempt: int, answer: httpx.Response | httpx.TransportError) -> float:
        """Seconds until another try: later each time, not all clients at once, as the service asks; 0: no other."""
        last, after = attempt >= self._attempts, ""
        if isinstance(answer, httpx.TransportError):
            if last:
                raise ServiceError(f"no answer from {answer.request.url}: {answer!r}") from answer
        elif answer.is_success:
            return 0.0
        elif last or answer.status_code not in AGAIN:
            raise _error(answer)
        else:
            after = answer.headers.get("retry-after", "")
        wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0 ** (attempt - 1)) * random.uniform(0.5, 1.0)
        return max(wait, min(60.0, float(after))) if after.isdigit() else wait


class AsyncClient:
    """The methods of `Client`, awaited. Tasks of one loop may share it."""

    def __init__(self, address: str = ADDRESS, **settings: Any) -> None:
        self._client = _Awaited(address, **{"sleep": asyncio.sleep} | settings)
        self._late = set[asyncio.Task[Decision]]()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Finish recording visits that could not wait, and close the connections."""
        await asyncio.gather(*self._late, return_exceptions=True)
        await self._client._http.aclose()

    async def ask_within(
        self, seconds: float, trial: str, user: str, *, control: str, key: str | None = None, **known: Any
    ) -> Visit:
        """Ask for one user; without an answer in so many seconds it gets the control, and that is recorded."""
        key, (request, late) = _key(key)["Idempotency-Key"], _visit(user, control, seconds, known)
        asked = asyncio.create_task(_first(self.ask(trial, **request, key=key)))
        await asyncio.wait([asked], timeout=seconds)
        if asked.done():
            return Visit(asked.result().arm, asked)
        asked.cancel()
        recording = asyncio.create_task(_first(self.give_control(trial, **late, key=key)))
        self._late.add(recording)
        recording.add_done_callback(self._late.discard)
        return Visit(control, recording, late=True)

    async def log(self, trial: str, *, page: int = 500, **search: Any) -> AsyncIterator[Event]:
        """The events, fetched page by page: of some `kinds`, of a `user`, `newest_first`."""
        cursor: str | None = ""
        while cursor is not None:
            some = await self.log_page(trial, limit=page, cursor=cursor or None, **search)
            for event in some.items:
                yield event
            cursor = some.next

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method: Callable[..., Awaitable[Any]] = getattr(self._client, name)
        return method


class _Awaited(Client):
    """A client whose answers are to be awaited."""

    _kind = httpx.AsyncClient

    async def _send(  # type: ignore[override]
        self, reader: Callable[[Any], T], method: str, path: str, *, attempt: int = 1, **sent: Any
    ) -> T:
        try:
            answer = await self._http.request(method, path, **sent)
        except httpx.TransportError as error:
            answer = error
        if not (wait := self._wait(attempt, answer)):
            return reader(answer)
        await self._sleep(wait)
        return await self._send(reader, method, path, attempt=attempt + 1, **sent)


@dataclass(frozen=True)
class Visit:
    """The arm to give a user now."""

    arm: str
    decision: Any  # its record, as a future or (asyncio) a task: outcomes are told with its number
    late: bool = False  # no answer came in time: it is the control, which was not drawn


def _visit(user: str, control: str, seconds: float, known: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The request, and the record that it was not answered in time."""
    request = {"users": user} | {name: known.get(name) or None for name in ("context", "attributes")}
    return request, {"user": user, "arm": control, "reason": f"no answer within {1000 * seconds:g} ms", **known}


async def _first(answer: Awaitable[Any]) -> Decision:
    given = await answer
    decision: Decision = given[0] if isinstance(given, list) else given
    return decision


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


def _bearer(token: str | None) -> dict[str, str]:
    """The header with a token; no message ever has it."""
    if token is None:
        return {}
    text, one_line = token.strip(), "one line of printable ASCII characters"
    if not text or not text.isascii() or not text.isprintable():
        raise errors.ConfigError(f"token must be {one_line}, such as `drimed token create` shows")
    return {"Authorization": f"Bearer {text}"}


_STATUS, _RECEIPT = partial(read, Status), partial(read, Receipt)


def _several(reader: Callable[[Any], T], name: str) -> Callable[[Any], list[T]]:
    return lambda data: [reader(one) for one in data[name]]


def _of_data(reader: Callable[[Any], T]) -> Callable[[httpx.Response], T]:
    def read_json(response: httpx.Response) -> T:
        try:
            data = response.json()
        except ValueError:
            raise ServiceError(f"{response.url} did not answer with JSON; is it a drimed service?") from None
        return reader(data)

    return read_json


def _error(response: httpx.Response) -> DrimedError:
    """The error for a refusal, as if the trial were here."""
    status, problem = response.status_code, dict[str, Any]()
    with suppress(ValueError, TypeError):  # an answer of another program
        problem = dict(response.json())
    detail = str(problem.get("detail") or f"the service answered with status {status}")
    kind = str(problem.get("type", "")).rpartition(":")[2]
    found = ({"path": (), "detail": ""} | e for e in problem.get("errors", ()))
    faults = [records.Fault(tuple(e["path"]), str(e["detail"]), e.get("line"), e.get("row")) for e in found]
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
