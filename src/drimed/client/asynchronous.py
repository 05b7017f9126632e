"""The client for programs that use asyncio: the same calls, awaited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from drimed.client import calls
from drimed.client.calls import AGAIN, Call, Context, Values
from drimed.client.failures import error_of
from drimed.client.records import Decision, Event, Page, Status, Story, Told, User, Verdict
from drimed.client.synchronous import ATTEMPTS, TIMEOUT, data_of
from drimed.errors import ServiceError
from drimed.records import Effect

T = TypeVar("T")


class AsyncClient:
    """A service by its address. Tasks of one loop may share it.

    A request that fails on the way is made again; this is safe, since every write carries an Idempotency-Key. What the
    service refuses is raised as drimed's own errors.
    """

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
        headers = calls.authorization(token)
        self._http = httpx.AsyncClient(base_url=address, headers=headers, timeout=timeout, transport=transport)
        self._attempts, self._sleep = attempts, sleep

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Give the connections back."""
        await self._http.aclose()

    # Trials

    async def create(self, spec: Mapping[str, Any] | str, *, key: str | None = None) -> Status:
        """A trial from its file: as data, or as the text of a TOML file."""
        return await self._run(calls.create(spec, key))

    async def trials(self, *, limit: int = 50, after: str | None = None) -> Page[Status]:
        """Some trials, in the order of their creation."""
        return await self._run(calls.trials(limit, after))

    async def status(self, trial: str) -> Status:
        """A trial at a glance."""
        return await self._run(calls.status(trial))

    async def spec(self, trial: str) -> dict[str, Any]:
        """The trial file, as it stands."""
        return await self._run(calls.spec(trial))

    async def users(self, trial: str, *, limit: int = 100, after: str | None = None) -> Page[User]:
        """Some users."""
        return await self._run(calls.users(trial, limit, after))

    # Asking and telling

    async def open_episode(
        self,
        trial: str,
        contexts: Mapping[str, Context] | None = None,
        *,
        number: int | None = None,
        unavailable: Mapping[str, Sequence[str]] | None = None,
        key: str | None = None,
    ) -> int:
        """Start the next episode; its number."""
        return await self._run(calls.open_episode(trial, contexts, number, unavailable, key))

    async def ask(
        self,
        trial: str,
        users: str | Sequence[str] | None = None,
        *,
        contexts: Mapping[str, Context] | None = None,
        unavailable: Sequence[str] = (),
        dry_run: bool = False,
        key: str | None = None,
    ) -> list[Decision]:
        """Which arm one user gets, or some, or (None) all."""
        return await self._run(calls.ask(trial, users, contexts, unavailable, dry_run, key))

    async def tell(
        self, trial: str, decision: int, outcome: Values, *, control: Values | None = None, key: str | None = None
    ) -> Told:
        """What came of a decision."""
        return await self._run(calls.tell(trial, decision, outcome, control, key))

    async def tell_many(
        self, trial: str, reports: Sequence[Mapping[str, Any]], *, key: str | None = None
    ) -> list[Told]:
        """Many outcomes, all or none: {"decision": 17, "outcome": {"yield": 5.2}} each."""
        return await self._run(calls.tell_many(trial, reports, key))

    async def amend(
        self,
        trial: str,
        decision: int,
        outcome: Values,
        *,
        reason: str,
        control: Values | None = None,
        key: str | None = None,
    ) -> Told:
        """Correct an outcome; None takes a value back."""
        return await self._run(calls.amend(trial, decision, outcome, reason, control, key))

    async def mark_missing(self, trial: str, decision: int, *, reason: str, key: str | None = None) -> Told:
        """An outcome that will not come."""
        return await self._run(calls.mark_missing(trial, decision, reason, key))

    # Changing a trial: each answers how many events the log has then

    async def pause(self, trial: str, *, reason: str, key: str | None = None) -> int:
        """Decide nothing for a while."""
        return await self._run(calls.change(trial, "pause", {"reason": reason}, key))

    async def resume(self, trial: str, *, reason: str = "", key: str | None = None) -> int:
        """Decide again."""
        return await self._run(calls.change(trial, "resume", {"reason": reason}, key))

    async def stop(self, trial: str, *, reason: str, key: str | None = None) -> int:
        """Decide nothing any more."""
        return await self._run(calls.change(trial, "stop", {"reason": reason}, key))

    async def add_user(self, trial: str, name: str, *, key: str | None = None, **definition: Any) -> int:
        """Let somebody join: preference, control, arms, group."""
        return await self._run(calls.change(trial, "users", {"name": name, **definition}, key))

    async def add_arm(self, trial: str, name: str, *, key: str | None = None, **definition: Any) -> int:
        """Offer one more arm: about, attributes or map, noise."""
        return await self._run(calls.change(trial, "arms", {"name": name, **definition}, key))

    async def retire_arm(self, trial: str, arm: str, *, reason: str, key: str | None = None) -> int:
        """Never decide for an arm again."""
        return await self._run(calls.change(trial, "retire", {"arm": arm, "reason": reason}, key))

    async def change_preference(
        self, trial: str, user: str, preference: Mapping[str, float], *, reason: str, key: str | None = None
    ) -> int:
        """How a user weighs the metrics from now on."""
        body = {"user": user, "preference": dict(preference), "reason": reason}
        return await self._run(calls.change(trial, "preference", body, key))

    async def change_control(
        self, trial: str, user: str, control: str | Mapping[str, float], *, reason: str, key: str | None = None
    ) -> int:
        """From now on this user is compared with another control: an arm, or arms with shares."""
        body = {"user": user, "control": control if isinstance(control, str) else dict(control), "reason": reason}
        return await self._run(calls.change(trial, "control", body, key))

    # Looking back

    async def decision(self, trial: str, number: int) -> Story:
        """The story of a decision."""
        return await self._run(calls.decision(trial, number))

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
            found = await self._run(calls.log(trial, kinds, user, newest_first, page, cursor))
            for event in found.items:
                yield event
            if (cursor := found.next) is None:
                return

    async def effects(
        self, trial: str, *, user: str | None = None, limit: int = 100, after: str | None = None
    ) -> Page[Effect]:
        """Each arm against the control, for some users."""
        return await self._run(calls.effects(trial, user, limit, after))

    async def verify(self, trial: str, *, expect: str | None = None) -> Verdict:
        """Prove the log; a long trial takes longer than the usual timeout."""
        return await self._run(calls.verify(trial, expect))

    async def export(self, trial: str, path: Path | str, form: str = "csv") -> Path:
        """Write every decision with what came of it to a file, csv or json."""
        call = calls.export(trial, form)
        async with self._http.stream(call.method, call.path, params=call.params, timeout=None) as response:
            if response.status_code != httpx.codes.OK:
                await response.aread()
                raise error_of(response.status_code, data_of(response))
            with Path(path).open("wb") as file:
                async for piece in response.aiter_bytes():
                    file.write(piece)
        return Path(path)

    async def _run(self, call: Call[T]) -> T:
        for attempt in range(self._attempts):
            last = attempt == self._attempts - 1
            try:
                response = await self._http.request(
                    call.method,
                    call.path,
                    params=call.params,
                    json=call.json,
                    content=call.toml,
                    headers=call.headers,
                    timeout=None if call.patient else httpx.USE_CLIENT_DEFAULT,
                )
            except httpx.TransportError as error:
                if last:
                    raise ServiceError(f"no answer from {self._http.base_url}: {error!r}") from error
                await self._sleep(calls.pause_before(attempt, None))
                continue
            if response.is_success:
                return call.read(data_of(response))
            if last or response.status_code not in AGAIN:
                raise error_of(response.status_code, data_of(response))
            await self._sleep(calls.pause_before(attempt, response.headers.get("retry-after")))
        raise ServiceError("no attempt was made")
