"""Handling of a request: an id, a log line, metrics, limits, the caller's permission, and a strict JSON body."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import secrets
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import cache
from typing import Any, cast

from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from pydantic import TypeAdapter, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drimed.errors import DrimedError, UnknownNameError
from drimed.service import auth, refusals
from drimed.service.refusals import Refusal, request_id
from drimed.service.runtime import Author, Reply, Service
from drimed.service.settings import FIELDS, REQUEST
from drimed.trial.events import to_json
from drimed.trial.spec import first_twice

# In the description of a route: the permission it needs, the bodies it takes, and whether these may be large.
ROLE, MEDIA, LARGE = "x-role", "x-media", "x-large"
JSON = "application/json"
TRIAL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
SMALL_BODY = 256 * 1024  # bytes: the largest body where no table is expected
AT_ONCE = 32 * 1024  # bytes: a larger body is read in a thread
LARGEST = "largest_body"  # in the state of a request: the most bytes that its address takes
DRAIN_SECONDS, DRAIN_BODIES = 2.0, 4  # how long, and how many of the largest bodies, a refused client may still send
GONE = 499  # status in log and metrics: the client hung up before it was answered
QUIET = ("/healthz", "/readyz", "/metrics")  # asked for every few seconds: logged at level debug
METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where several processes add up their metrics, in files
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
REQUESTS = Counter("drimed_requests", "Requests answered.", ["method", "route", "status"])
LATENCY = Histogram("drimed_request_seconds", "From a request to its answer.", ["method", "route"], buckets=SECONDS)
_requests, _latency = cache(REQUESTS.labels), cache(LATENCY.labels)
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_WRITER = json.JSONEncoder(allow_nan=False, separators=(",", ":"), ensure_ascii=False, default=vars)  # of records too

log = logging.getLogger("drimed.service.requests")


def prometheus_text() -> bytes:
    """The metrics of all processes in Prometheus' text format."""
    if METRICS_FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def service_of(request: Request) -> Service:
    return cast(Service, request.app.state.service)


def caller_of(request: Request) -> auth.Caller:
    return cast(auth.Caller, request.state.caller)


async def admit(request: Request, role: str) -> auth.Caller:
    """Identify the caller and check the permission; lists of all trials are narrowed to the caller's own later."""
    caller = await service_of(request).identify(request)
    request.state.caller = caller
    trial = request.path_params.get("trial")
    caller.must(role, trial if trial is not None else caller.trial)
    if trial is not None and not TRIAL.fullmatch(trial):
        raise refusals.refusal(UnknownNameError("trial", trial[:100], ()))
    return caller


async def author_of(request: Request) -> Author:
    """The author of a write, with its Idempotency-Key if it has one."""
    parts = [text.encode() for text in (request.method, address_of(request), media_of(request))]
    return Author.of(caller_of(request).actor, request.headers.get("idempotency-key"), *parts, await request.body())


def address_of(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")


def media_of(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def encoded(data: Any) -> bytes:
    """Data or a record as JSON: equal answers are equal bytes."""
    return _WRITER.encode(data).encode()


def answer(data: Any) -> Response:
    return Response(encoded(data), media_type=JSON)


def replied(reply: Reply, **headers: str) -> Response:
    """The answer to a write, now or the first time."""
    more = {"Idempotency-Replayed": "true"} if reply.repeated else {}
    return Response(reply.text, reply.status, headers | more, JSON)


def limit_body(scope: Scope, most: int) -> None:
    """Refuse larger bodies from here on; one that declares its size, before it is read."""
    state, length = scope["state"], dict(scope["headers"]).get(b"content-length", b"0")
    most = state[LARGEST] = min(most, state.get(LARGEST, most))
    if not length.isdigit() or int(length) > most:
        raise _too_large(most)


def read_json(text: bytes) -> Any:
    """Parse JSON; NaN and names that are given twice are refused.

    >>> read_json(b'{"yield": NaN}')
    Traceback (most recent call last):
    ...
    drimed.service.refusals.Refusal: NaN is not JSON; leave out what is not known
    """
    try:
        data = json.loads(text.decode(), parse_constant=_constant, object_pairs_hook=_object)
        if b"\\u" in text:
            to_json(data).encode()  # a lone surrogate, as \ud800, could not be stored
    except RecursionError:
        raise _malformed("nested too deeply") from None
    except ValueError as error:  # also bytes that are not UTF-8, and a number of thousands of digits
        raise _malformed(f"not JSON in UTF-8: {error}") from None
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


def _too_large(most: int) -> Refusal:
    detail = f"the body has more than {most} bytes; send it in parts"
    return Refusal(413, "too-large", detail, headers={"Connection": "close"})


class StrictRequest(Request):
    """A request whose JSON is read strictly."""

    async def json(self) -> Any:
        if not hasattr(self, "_data"):
            self._data = read_json(await self.body())
        return self._data

    async def read(self, media: list[str], model: TypeAdapter[Any] | None) -> None:
        """Check the type of the body and read it; a large one is read, and compared with its model, in a thread."""
        body, came = await self.body(), media_of(self)
        if came not in media and (body or came):
            detail = f"expected Content-Type {' or '.join(media)}, got {came or 'none'}"
            raise Refusal(415, "media-type", detail, headers={"Accept-Post": ", ".join(media)})
        if not body:
            raise _malformed("the body is empty; send at least {}")
        if came == JSON and len(body) <= AT_ONCE:
            self._data = read_json(body)
        elif came == JSON:
            self._data = await service_of(self).parse(lambda: _checked(body, model))


def _checked(body: bytes, model: TypeAdapter[Any] | None) -> Any:
    """The data or, where it has a model, that: FastAPI takes it as it is."""
    data = read_json(body)
    try:
        return data if model is None else model.validate_python(data)
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        raise refusals.invalid({**one, "loc": ("body", *one["loc"])} for one in errors) from None


class Guarded(APIRoute):
    """A route of /v1. It refuses before it reads: unknown callers first, then other media, then faulty bodies."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        described = self.openapi_extra or {}
        role, media = str(described[ROLE]), described.get(MEDIA, [JSON])
        writes = bool((self.methods or set()) - {"GET", "HEAD"})
        bodies = [field.field_info.annotation for field in self.dependant.body_params]
        model = TypeAdapter[Any](bodies[0]) if bodies and bodies[0] is not None else None
        handle = super().get_route_handler()

        async def handler(request: Request) -> Response:
            await admit(request, role)
            strict = StrictRequest(request.scope, request.receive)
            if writes:
                auth.refuse_other_sites(request)
                if not described.get(LARGE):
                    limit_body(request.scope, SMALL_BODY)
                await strict.read(media, model)
            try:
                return await handle(strict)
            except RequestValidationError as error:
                raise refusals.invalid(error.errors()) from None
            except DrimedError as error:
                raise refusals.refusal(error, None if writes else "query", request.path_params) from error

        return handler


class Observed:
    """The outermost layer: every request gets an id, a limit of its body, an answer, a log line and metrics."""

    def __init__(self, app: ASGIApp, largest_body: int) -> None:
        self._app, self._largest = app, largest_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start, status, received = time.perf_counter(), 0, 0
        sent_id = dict(scope["headers"]).get(b"x-request-id", b"").decode("latin-1")
        own_id = sent_id if _ID.fullmatch(sent_id) else secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = own_id
        request_id.set(own_id)

        async def limited() -> Message:
            nonlocal received
            message = await receive()
            if message["type"] == "http.request":
                received += len(message.get("body", b""))
                if received > scope["state"][LARGEST]:
                    raise _too_large(scope["state"][LARGEST])
            return message

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                more = [(b"x-request-id", own_id.encode()), (b"x-content-type-options", b"nosniff")]
                if not any(name.lower() == b"cache-control" for name, _ in message["headers"]):
                    more.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message["headers"], *more]}
            await send(message)

        async def refuse(refusal: Refusal) -> None:
            if status:
                return
            if refusal.status == 413:  # a client that is still sending would not get the refusal
                with suppress(TimeoutError):
                    async with asyncio.timeout(DRAIN_SECONDS):
                        drained = received
                        while drained <= DRAIN_BODIES * self._largest:
                            message = await receive()
                            drained += len(message.get("body", b""))
                            if message["type"] == "http.disconnect" or not message.get("more_body"):
                                break
            await refusal.response()(scope, receive, noted)

        service: Service = scope["app"].state.service
        service.requests += 1
        try:
            limit_body(scope, self._largest)
            if (door := scope["state"].get("door")) is not None:
                await door.turn((scope["client"] or ("",))[0])
            await self._app(scope, limited, noted)
        except Refusal as refusal:
            await refuse(refusal)
        except ClientDisconnect:
            status = status or GONE
        except asyncio.CancelledError:  # the service stops, and the time to finish is over
            await refuse(refusals.unavailable("the service is stopping; try again"))
        except Exception:
            log.exception("request failed", extra={FIELDS: {"request_id": own_id}})
            detail = f"internal error; the service's log has more under request id {own_id}"
            await refuse(Refusal(500, "internal", detail))
        finally:
            service.requests -= 1
            _account(scope, own_id, status, time.perf_counter() - start)


def _account(scope: Scope, own_id: str, status: int, seconds: float) -> None:
    path, method = scope["path"], scope["method"] if scope["method"] in METHODS else "other"
    route = getattr(scope.get("route"), "path", "unmatched")
    _requests(method, route, str(status)).inc()
    _latency(method, route).observe(seconds)
    fields = {"request_id": own_id, "method": method, "path": path, "status": status, "ms": round(seconds * 1000, 3)}
    fields["actor"] = getattr(scope.get("state", {}).get("caller"), "actor", None)
    log.log(logging.DEBUG if path in QUIET else logging.INFO, REQUEST, extra={FIELDS: fields})
