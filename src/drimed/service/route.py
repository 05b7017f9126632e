"""How a request of /v1 is taken: first who asks, then the body, strictly, then the work."""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import DrimedError, UnknownNameError
from drimed.service import access, problems, wire
from drimed.service.access import Caller
from drimed.service.problems import Refusal
from drimed.service.retries import Reply, Retry
from drimed.service.service import Service

ROLE, MEDIA = "x-role", "x-media"  # in the description of a route: the role it needs, and the bodies it takes
JSON = "application/json"
TRIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return cast(Service, request.app.state.service)


def caller_of(request: Request) -> Caller:
    """Who makes a request of a `Guarded` route."""
    return cast(Caller, request.state.caller)


async def retry_of(request: Request) -> Retry | None:
    """The request as one that may be repeated, if it has an Idempotency-Key."""
    key = request.headers.get("idempotency-key")
    if key is None:
        return None
    query = request.url.query
    target = request.url.path + (f"?{query}" if query else "")
    media = media_of(request)
    return Retry.of(caller_of(request).actor, key, request.method, target, media, await request.body())


def media_of(request: Request) -> str:
    """The content type, without its parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def answer(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Data as it is sent."""
    return Response(wire.written(data), status, headers, JSON)


def replied(reply: Reply, headers: dict[str, str] | None = None) -> Response:
    """What a write answered, now or the first time."""
    more = {"Idempotency-Replayed": "true"} if reply.repeated else {}
    return Response(reply.text, reply.status, (headers or {}) | more, JSON)


class StrictRequest(Request):
    """JSON without NaN and without anything twice."""

    async def json(self) -> Any:
        if not hasattr(self, "_data"):
            try:
                self._data = wire.read(await self.body())
            except wire.MalformedError as error:
                raise _Malformed(str(error)) from None
        return self._data


class Guarded(APIRoute):
    """Refuses before it reads: unknown callers first, then what is no body of this route, then bodies with faults."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        described = self.openapi_extra or {}
        role, media = str(described[ROLE]), described.get(MEDIA, [JSON])
        writes = bool((self.methods or set()) - {"GET", "HEAD"})
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            caller = await service_of(request).identify(request)
            request.state.caller = caller
            trial = request.path_params.get("trial")
            caller.must(role, trial) if trial is not None else _somewhere(caller, role)
            if trial is not None and not TRIAL.fullmatch(trial):
                raise problems.of_error(UnknownNameError("trial", trial[:100], ()))
            strict = StrictRequest(request.scope, request.receive)
            if writes:
                access.refuse_other_sites(request)
                await _check_body(strict, media)
            try:
                return await handle(strict)
            except _Malformed as error:
                raise Refusal(400, "malformed", str(error)) from None
            except RequestValidationError as error:
                raise problems.of_validation(error.errors()) from None
            except DrimedError as error:
                raise problems.of_error(error, getattr(strict, "_data", None)) from error

        return handler


def guarded_router(**settings: Any) -> APIRouter:
    """A router of guarded routes."""
    return APIRouter(route_class=Guarded, **settings)


class _Malformed(wire.MalformedError):
    """Raised where FastAPI reads the body: it passes ValueErrors of its own kind on, and no others."""


async def _check_body(request: StrictRequest, media: list[str]) -> None:
    """Its type, and that it is JSON: before anything else is said about it."""
    body = await request.body()
    came = media_of(request)
    if came not in media and (body or came):
        expected = " or ".join(media)
        raise Refusal(
            415,
            "media-type",
            f"expected Content-Type {expected}, got {came or 'none'}",
            headers={"Accept-Post": ", ".join(media)},
        )
    if not body:
        raise Refusal(400, "malformed", "the body is empty; send {} if there is nothing to say")
    if came == JSON:
        try:
            await request.json()
        except _Malformed as error:
            raise Refusal(400, "malformed", str(error)) from None


def _somewhere(caller: Caller, role: str) -> None:
    """A route of all trials: what is shown and done there is narrowed to the caller's own."""
    caller.must(role, caller.trial)
