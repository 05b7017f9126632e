"""Around every request: an id, a line in the log, numbers for Prometheus, and a limit to what is read."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import secrets
import time

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest, multiprocess
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from drimed.service.logs import FIELDS, REQUEST
from drimed.service.problems import Refusal, request_id

log = logging.getLogger("drimed.service.requests")
_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
VERSION = "/v1"
DRAIN_SECONDS, DRAIN_BODIES = 2.0, 4  # how long, and how many of the largest bodies, a refused client is listened to
LARGEST = "largest_body"  # in the state of a request: the most bytes that its address takes
GONE = 499  # for the log and the numbers: the client hung up before it was answered
QUIET = ("/healthz", "/readyz", "/metrics")  # asked for every few seconds: only logged in detail

METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # where several processes add up their numbers, in files
SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10)
REQUESTS = Counter("drimed_requests", "Requests answered.", ["method", "route", "status"])
LATENCY = Histogram("drimed_request_seconds", "From a request to its answer.", ["method", "route"], buckets=SECONDS)
DECISIONS = Counter("drimed_decisions", "Decisions taken and recorded.")
OUTCOMES = Counter("drimed_outcomes", "Outcomes recorded, amended or marked as missing.")
REPEATED = Counter("drimed_repeated", "Repeated writes, answered again.")


def prometheus_text() -> bytes:
    """All numbers of all processes, in Prometheus' text format."""
    if METRICS_FOLDER not in os.environ:
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    multiprocess.MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


def limit_body(scope: Scope, most: int) -> None:
    """From here on a larger body is refused; one that says its size, before it is read."""
    scope["state"][LARGEST] = most
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if int(length) > most:
        raise too_large(most)


def too_large(most: int) -> Refusal:
    """A body of more bytes than the address takes."""
    detail = f"the body has more than {most} bytes; send it in parts"
    return Refusal(413, "too-large", detail, headers={"Connection": "close"})


class Observed:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, largest_body: int) -> None:
        self._app, self._largest = app, largest_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        await _Exchange(self._app, scope, receive, send, self._largest).run()


class _Exchange:
    def __init__(self, app: ASGIApp, scope: Scope, receive: Receive, send: Send, largest: int) -> None:
        self._app, self._scope, self._receive, self._send, self._largest = app, scope, receive, send, largest
        self._headers = dict(scope["headers"])
        given = self._headers.get(b"x-request-id", b"").decode("latin-1")
        self._id = given if _ID.fullmatch(given) else secrets.token_hex(8)
        self._status, self._read = 0, 0
        scope.setdefault("state", {})["request_id"] = self._id
        request_id.set(self._id)

    async def run(self) -> None:
        start = time.perf_counter()
        try:
            length = self._headers.get(b"content-length", b"0")
            if not length.isdigit() or int(length) > self._largest:
                raise self._too_large()
            await self._app(self._scope, self._limited, self._noted)
        except Refusal as refusal:
            await self._refuse(refusal)
        except ClientDisconnect:
            self._status = self._status or GONE  # nobody hears an answer
        except asyncio.CancelledError:  # the service stops, and the time to finish is over
            detail = "the service is stopping; try again"
            await self._refuse(Refusal(503, "unavailable", detail, headers={"Retry-After": "1"}))
        except Exception:
            log.exception("request failed", extra={FIELDS: {"request_id": self._id}})
            detail = f"internal error; the service's log has more under request id {self._id}"
            await self._refuse(Refusal(500, "internal", detail))
        finally:
            self._account(time.perf_counter() - start)

    async def _limited(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request":
            self._read += len(message.get("body", b""))
            if self._read > min(self._largest, self._scope["state"].get(LARGEST, self._largest)):
                raise self._too_large()
        return message

    async def _noted(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            more = [(b"x-request-id", self._id.encode()), (b"x-content-type-options", b"nosniff")]
            if not any(name.lower() == b"cache-control" for name, _ in message["headers"]):
                more.append((b"cache-control", b"no-store"))
            message = {**message, "headers": [*message["headers"], *more]}
        await self._send(message)

    def _too_large(self) -> Refusal:
        return too_large(min(self._largest, self._scope["state"].get(LARGEST, self._largest)))

    async def _refuse(self, refusal: Refusal) -> None:
        if not self._status:
            if refusal.status == 413:
                await self._drain()
            await refusal.response()(self._scope, self._receive, self._noted)

    async def _drain(self) -> None:
        """Read on a little and discard it: a client that is still sending would not get the refusal."""
        try:
            async with asyncio.timeout(DRAIN_SECONDS):
                while self._read <= DRAIN_BODIES * self._largest:
                    message = await self._receive()
                    self._read += len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body"):
                        return
        except TimeoutError:
            return

    def _account(self, seconds: float) -> None:
        route = getattr(self._scope.get("route"), "path", "unmatched")
        if self._scope["path"].startswith(VERSION + "/") and route.startswith("/"):
            route = VERSION + route.removeprefix(VERSION)  # a route does not know where its router is
        method = self._scope["method"] if self._scope["method"] in _METHODS else "other"
        REQUESTS.labels(method, route, str(self._status)).inc()
        LATENCY.labels(method, route).observe(seconds)
        caller = self._scope.get("state", {}).get("caller")
        fields = {
            "request_id": self._id,
            "method": method,
            "path": self._scope["path"],
            "status": self._status,
            "ms": round(seconds * 1000, 3),
            "actor": getattr(caller, "actor", None),
        }
        log.log(logging.DEBUG if self._scope["path"] in QUIET else logging.INFO, REQUEST, extra={FIELDS: fields})


_METHODS = {"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}
