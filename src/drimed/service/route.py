"""How a request of /v1 is handled: first who asks, then the body, strictly, then the work."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine
from typing import Any, cast

from fastapi import APIRouter
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import DrimedError, UnknownNameError
from drimed.service import access, observing, problems
from drimed.service.access import Caller
from drimed.service.answers import Reply, Retry
from drimed.service.problems import Refusal
from drimed.service.service import Service
from drimed.trial.events import written
from drimed.trial.names import first_twice

# In the description of a route: the role it needs, the bodies it takes, and whether these may be as large as any.
ROLE, MEDIA, LARGE = "x-role", "x-media", "x-large"
SMALL_BODY = 256 * 1024  # bytes: the largest body where no table is expected
AT_ONCE = 32 * 1024  # bytes: a larger body is read in a thread, so that nobody waits for it
JSON = "application/json"
TRIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def service_of(request: Request) -> Service:
    """The service that a request came to."""
    return cast(Service, request.app.state.service)


def caller_of(request: Request) -> Caller:
    """Who makes a request of a `Guarded` route."""
    return cast(Caller, request.state.caller)


async def admit(request: Request, role: str) -> Caller:
    """Who makes a request, if they may; what is about all trials is narrowed to the caller's own later."""
    caller: Caller = await service_of(request).identify(request)
    request.state.caller = caller
    trial = request.path_params.get("trial")
    caller.must(role, trial if trial is not None else caller.trial)
    if trial is not None and not TRIAL.fullmatch(trial):
        raise problems.of_error(UnknownNameError("trial", trial[:100], ()))
    return caller


async def retry_of(request: Request) -> Retry | None:
    """The request with its Idempotency-Key, if it has one."""
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
    """Data as it is sent: equal answers are equal bytes."""
    return Response(written(data).encode(), status, headers, JSON)


def replied(reply: Reply, headers: dict[str, str] | None = None) -> Response:
    """What a write answered, now or the first time."""
    more = {"Idempotency-Replayed": "true"} if reply.repeated else {}
    return Response(reply.text, reply.status, (headers or {}) | more, JSON)


def read_json(text: bytes) -> Any:
    """JSON as data; NaN and names that are given twice are refused.

    >>> read_json(b'{"yield": NaN}')
    Traceback (most recent call last):
    ...
    drimed.service.problems.Refusal: NaN is not JSON; leave out what is not known
    """
    try:
        data = json.loads(text.decode(), parse_constant=_constant, object_pairs_hook=_object)
        if b"\\u" in text:
            written(data).encode()  # a lone surrogate, as \ud800, could not be stored
    except json.JSONDecodeError as error:
        raise _malformed(f"not JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise _malformed(f"not UTF-8: byte {error.start} cannot be read") from None
    except UnicodeEncodeError:
        raise _malformed("a text has a character that is not valid Unicode (a lone surrogate)") from None
    except RecursionError:
        raise _malformed("nested too deeply") from None
    except ValueError as error:  # a number of thousands of digits
        raise _malformed(str(error)) from None
    return data


def _malformed(detail: str) -> Refusal:
    return Refusal(400, "malformed", detail)


def _constant(name: str) -> Any:
    raise _malformed(f"{name} is not JSON; leave out what is not known")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise _malformed(f"{first_twice(name for name, _ in pairs)!r} is given twice in one object")
    return made


class StrictRequest(Request):
    """JSON without NaN and without anything twice."""

    async def json(self) -> Any:
        if not hasattr(self, "_data"):
            await self.read(None)
        return self._data

    async def read(self, model: TypeAdapter[Any] | None) -> None:
        """Read the body; a large one in a thread, where it is also compared with its model."""
        body = await self.body()
        if len(body) <= AT_ONCE:
            self._data = read_json(body)
        else:
            self._data = await service_of(self).parse(lambda: _checked(body, model))


class Guarded(APIRoute):
    """Refuses before it reads: unknown callers first, then bodies of another type, then bodies with faults."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        described = self.openapi_extra or {}
        role, media = str(described[ROLE]), described.get(MEDIA, [JSON])
        writes = bool((self.methods or set()) - {"GET", "HEAD"})
        taken = [field.field_info.annotation for field in self.dependant.body_params]
        model = TypeAdapter[Any](taken[0]) if taken and taken[0] is not None else None
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            await admit(request, role)
            strict = StrictRequest(request.scope, request.receive)
            if writes:
                access.refuse_other_sites(request)
                if not described.get(LARGE):
                    observing.limit_body(request.scope, SMALL_BODY)
                await _check_body(strict, media, model)
            try:
                return await handle(strict)
            except RequestValidationError as error:
                raise problems.of_validation(error.errors()) from None
            except DrimedError as error:
                raise problems.of_error(error, where=None if writes else "query") from error

        return handler


def guarded_router(**settings: Any) -> APIRouter:
    """A router of guarded routes."""
    return APIRouter(route_class=Guarded, **settings)


def _checked(body: bytes, model: TypeAdapter[Any] | None) -> Any:
    """The data of a body that fits its model."""
    data = read_json(body)
    if model is not None:
        try:
            model.validate_python(data)
        except ValidationError as error:
            found = error.errors(include_url=False, include_input=False)
            raise problems.of_validation({**one, "loc": ("body", *one["loc"])} for one in found) from None
    return data


async def _check_body(request: StrictRequest, media: list[str], model: TypeAdapter[Any] | None) -> None:
    """Its type, and that it is JSON, before its fields are checked."""
    body = await request.body()
    came = media_of(request)
    if came not in media and (body or came):
        detail = f"expected Content-Type {' or '.join(media)}, got {came or 'none'}"
        raise Refusal(415, "media-type", detail, headers={"Accept-Post": ", ".join(media)})
    if not body:
        raise _malformed("the body is empty; send at least {}")
    if came == JSON:
        await request.read(model)
