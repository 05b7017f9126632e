"""For monitoring the service."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from drimed.errors import StoreError
from drimed.service import metrics
from drimed.service.endpoints.documented import problem
from drimed.service.problems import Refusal
from drimed.service.route import answer, service_of
from drimed.service.tokens import READ

READY_WITHIN = 2.0  # seconds that the store has to answer

routes = APIRouter(tags=["health"])


@dataclass(frozen=True)
class Health:
    """Whether the service can do its work."""

    status: str


def _described(*errors: int, **more: Any) -> dict[str, Any]:
    responses: dict[int | str, dict[str, Any]] = {200: {"model": Health}}
    responses |= {code: problem(code) for code in errors}
    return {"responses": responses, "response_model": None} | more


@routes.get("/healthz", summary="Alive", operation_id="healthz", **_described())
async def healthz() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@routes.get("/readyz", summary="Ready", operation_id="readyz", **_described(503))
async def readyz(request: Request) -> Response:
    """The store answers too, and the service is not stopping."""
    service = service_of(request)
    if service.stopping:
        raise Refusal(503, "unavailable", "the service is stopping")
    try:
        await asyncio.wait_for(service.run(service.store.names), READY_WITHIN)
    except (TimeoutError, StoreError) as error:
        raise Refusal(503, "unavailable", str(error) or "the store does not answer") from None
    return answer({"status": "ready"})


_METRICS: dict[int | str, dict[str, Any]] = {
    200: {"content": {metrics.MEDIA: {"schema": {"type": "string"}}}, "description": "In Prometheus' text format."}
}
_METRICS |= {code: problem(code) for code in (401, 403, 429)}


@routes.get("/metrics", summary="Prometheus", operation_id="metrics", responses=_METRICS, response_class=Response)
async def prometheus(request: Request) -> Response:
    """Requests, their seconds, decisions and outcomes. Needs a token for all trials, where there are tokens."""
    service = service_of(request)
    caller = await service.identify(request)
    caller.must(READ)
    return Response(await service.run(metrics.page), media_type=metrics.MEDIA)
