"""For monitoring the service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as PLAIN
from starlette.requests import Request
from starlette.responses import Response

from drimed.service import observing
from drimed.service.endpoints.contract import problem
from drimed.service.problems import Refusal
from drimed.service.route import answer, service_of
from drimed.service.tokens import READ

READY_WITHIN = 2.0  # seconds that the store has to answer

routes = APIRouter(tags=["health"])


@dataclass(frozen=True)
class Health:
    """Whether the service can do its work."""

    status: str


_HEALTH: dict[int | str, dict[str, Any]] = {200: {"model": Health}}
_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {PLAIN: {"schema": {"type": "string"}}}, "description": "In Prometheus' text format."}
}
_METRICS |= {code: problem(code) for code in (401, 403, 429)}


@routes.get("/healthz", summary="Alive", operation_id="healthz", responses=_HEALTH, response_model=None)
async def healthz() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@routes.get(
    "/readyz", summary="Ready", operation_id="readyz", responses=_HEALTH | {503: problem(503)}, response_model=None
)
async def readyz(request: Request) -> Response:
    """The store answers too, and the service is not stopping."""
    service = service_of(request)
    if service.stopping:
        raise Refusal(503, "unavailable", "the service is stopping")
    try:
        await asyncio.wait_for(service.run(service.store.names), READY_WITHIN)
    except TimeoutError:
        raise Refusal(503, "unavailable", "the store does not answer") from None
    return answer({"status": "ready"})


@routes.get("/metrics", summary="Prometheus", operation_id="metrics", responses=_METRICS, response_class=Response)
async def metrics(request: Request) -> Response:
    """Requests, their seconds, decisions and outcomes. Needs a token for all trials, where there are tokens."""
    service = service_of(request)
    (await service.identify(request)).must(READ)
    return Response(await service.run(observing.prometheus_text), media_type=PLAIN)
