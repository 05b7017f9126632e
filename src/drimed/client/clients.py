"""Two clients with the same methods: one for ordinary programs, one for asyncio."""

from __future__ import annotations

import asyncio
import functools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any, Generic, ParamSpec, Self, TypeVar, overload

import httpx

from drimed.client import calls
from drimed.client.calls import Call
from drimed.client.failures import error_of
from drimed.errors import ConfigError, ServiceError
from drimed.records import Event

P = ParamSpec("P")
T = TypeVar("T")

ATTEMPTS = 8  # the last after some fifteen seconds of waiting: a worker that died is replaced by then
TIMEOUT = 60.0  # seconds
AGAIN = (429, 502, 503, 504)  # answers after which the same request is worth another try
FIRST_WAIT, LONGEST_WAIT = 0.1, 5.0  # seconds


class Method(Generic[P, T]):
    """A function that returns a call, as a method: a client sends the call, and the method returns what it answers."""

    def __init__(self, make: Callable[P, Call[T]]) -> None:
        self._make = make
        functools.update_wrapper(self, make)  # type: ignore[arg-type]  # it stands for the function

    @overload
    def __get__(self, client: None, owner: type) -> Callable[P, Call[T]]: ...
    @overload
    def __get__(self, client: Client, owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: AsyncClient, owner: type) -> Callable[P, Awaitable[T]]: ...
    def __get__(self, client: Client | AsyncClient | None, owner: type) -> Callable[P, Any]:
        if client is None:
            return self._make

        @functools.wraps(self._make)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return client.send(self._make(*args, **kwargs))

        return method


class Methods:
    """What both clients can do. A request that fails on the way is made again, which is safe since every write carries
    an Idempotency-Key. What the service refuses is raised as drimed's own errors.
    """

    create = Method(calls.create)
    trials = Method(calls.trials)
    status = Method(calls.status)
    spec = Method(calls.spec)
    users = Method(calls.users)

    open_episode = Method(calls.open_episode)
    ask = Method(calls.ask)
    tell = Method(calls.tell)
    tell_many = Method(calls.tell_many)
    amend = Method(calls.amend)
    mark_missing = Method(calls.mark_missing)

    pause = Method(calls.pause)
    resume = Method(calls.resume)
    stop = Method(calls.stop)
    add_user = Method(calls.add_user)
    add_arm = Method(calls.add_arm)
    retire_arm = Method(calls.retire_arm)
    change_preference = Method(calls.change_preference)
    change_control = Method(calls.change_control)
    reveal = Method(calls.reveal)
    look = Method(calls.look)
    change_rules = Method(calls.change_rules)

    decision = Method(calls.decision)
    history = Method(calls.history)
    decisions = Method(calls.decisions)
    log_page = Method(calls.log_page)
    effects = Method(calls.effects)
    checks = Method(calls.checks)
    head = Method(calls.head)
    looks = Method(calls.looks)
    verify = Method(calls.verify)


class Client(Methods):
    """A service by its address. Threads may share it."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._http = httpx.Client(base_url=address, headers=_bearer(token), timeout=timeout, transport=transport)
        self._attempts, self._sleep = attempts, sleep

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
            found: httpx.Response | httpx.TransportError
            try:
                found = self._http.send(_request(self._http, call))
            except httpx.TransportError as error:
                found = error
            if isinstance(found, httpx.Response) and found.is_success:
                return call.read(_data(found))
            self._sleep(_wait(found, attempt, self._attempts))
        raise ServiceError("no attempt was made")

    def log(
        self,
        trial: str,
        *,
        kinds: Sequence[str] = (),
        user: str | None = None,
        newest_first: bool = False,
        page: int = 500,
    ) -> Iterator[Event]:
        """The events, fetched page by page."""
        cursor: str | None = None
        while True:
            found = self.log_page(trial, kinds=kinds, user=user, newest_first=newest_first, limit=page, cursor=cursor)
            yield from found.items
            if (cursor := found.next) is None:
                return

    def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with its outcome to a file: csv, json or xlsx."""
        with closing(self._http.send(_request(self._http, calls.export(trial, form)), stream=True)) as response:
            if not response.is_success:
                response.read()
                raise error_of(response.status_code, _data(response))
            with Path(path).open("wb") as file:
                file.writelines(response.iter_bytes())
        return Path(path)


class AsyncClient(Methods):
    """A service by its address, for asyncio. Tasks of one loop may share it."""

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        *,
        token: str | None = None,
        timeout: float = TIMEOUT,
        attempts: int = ATTEMPTS,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._http = httpx.AsyncClient(base_url=address, headers=_bearer(token), timeout=timeout, transport=transport)
        self._attempts, self._sleep = attempts, sleep

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
            found: httpx.Response | httpx.TransportError
            try:
                found = await self._http.send(_request(self._http, call))
            except httpx.TransportError as error:
                found = error
            if isinstance(found, httpx.Response) and found.is_success:
                return call.read(_data(found))
            await self._sleep(_wait(found, attempt, self._attempts))
        raise ServiceError("no attempt was made")

    async def log(
        self,
        trial: str,
        *,
        kinds: Sequence[str] = (),
        user: str | None = None,
        newest_first: bool = False,
        page: int = 500,
    ) -> AsyncIterator[Event]:
        """The events, fetched page by page."""
        cursor: str | None = None
        while True:
            search = {"kinds": kinds, "user": user, "newest_first": newest_first, "limit": page}
            found = await self.log_page(trial, cursor=cursor, **search)  # type: ignore[arg-type]  # of several types
            for event in found.items:
                yield event
            if (cursor := found.next) is None:
                return

    async def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with its outcome to a file: csv, json or xlsx."""
        request = _request(self._http, calls.export(trial, form))
        async with aclosing(await self._http.send(request, stream=True)) as response:
            if not response.is_success:
                await response.aread()
                raise error_of(response.status_code, _data(response))
            with Path(path).open("wb") as file:
                async for piece in response.aiter_bytes():
                    file.write(piece)
        return Path(path)


def _request(http: httpx.Client | httpx.AsyncClient, call: Call[Any]) -> httpx.Request:
    sent = {name: getattr(call, name) for name in ("method", "params", "json", "content", "headers")}
    timeout = None if call.patient else httpx.USE_CLIENT_DEFAULT
    return http.build_request(url=call.path, timeout=timeout, **sent)


def _data(response: httpx.Response) -> Any:
    """An answer's JSON; None where a refusal has none."""
    try:
        return response.json()
    except ValueError:
        if response.is_success:
            raise ServiceError(f"{response.url} did not answer with JSON; is it a drimed service?") from None
        return None


def _wait(found: httpx.Response | httpx.TransportError, attempt: int, attempts: int) -> float:
    """Seconds before another try: longer each time, never all clients at once, and as the service asked.

    Raises what ended the last try, and what another one would not change.
    """
    last, after = attempt == attempts - 1, ""
    if isinstance(found, httpx.Response):
        if last or found.status_code not in AGAIN:
            raise error_of(found.status_code, _data(found))
        after = found.headers.get("retry-after", "")
    elif last:
        raise ServiceError(f"no answer from {found.request.url}: {found!r}") from found
    wait = min(LONGEST_WAIT, FIRST_WAIT * 2.0**attempt) * random.uniform(0.5, 1.0)
    return max(wait, min(60.0, float(after))) if after.isdigit() else wait


def _bearer(token: str | None) -> dict[str, str]:
    """The header with a token; no message ever has it."""
    if token is None:
        return {}
    text = token.strip()
    if not text or not text.isascii() or not text.isprintable():
        raise ConfigError("token must be one line of printable ASCII characters, such as `drimed token create` shows")
    return {"Authorization": f"Bearer {text}"}
