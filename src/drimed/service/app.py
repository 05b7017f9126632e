"""The application: every endpoint and page, its errors, and how it starts and stops."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.config import STARTUP_FAILURE

from drimed import __version__
from drimed.errors import ConfigError, DrimedError
from drimed.policies.registry import MODULES
from drimed.service import connections, logs, observing, problems, tokens, warming
from drimed.service.connections import Door, GuardedProtocol
from drimed.service.endpoints import health, reading, writing
from drimed.service.pages import asking, history, home, managing, overview, plan, rendering, telling
from drimed.service.pages.route import nothing_here
from drimed.service.problems import Problem, Refusal
from drimed.service.route import LARGE, MEDIA
from drimed.service.service import Service
from drimed.service.settings import Settings
from drimed.service.supervising import Workers
from drimed.trial.stores import open_store

ABOUT = """Live trials over HTTP: create one, ask which arm each user gets, report the outcome, and prove the whole log
afterwards.

* **Access**: `Authorization: Bearer TOKEN`. `drimed token create` makes a token with a role: `read`, `ask-tell` (also
  asks and reports outcomes), `manage` (also creates and changes trials) or `blinded` (reports outcomes, and sees no
  arms). `x-role` is the role an endpoint needs; `any`: every role, `tell`: `ask-tell` or `blinded`. Every recorded
  event carries the token's label.
* **Retries**: every write takes an `Idempotency-Key`. A repeated request with the same key gets the same bytes again,
  also after a crash; nothing is done twice. A refused request is not remembered.
* **Errors** are `application/problem+json` with `type`, `title`, `status`, `detail` and, where known, `errors`: the
  fields at fault. An unknown name also has `kind` and `name`.
* **Lists** come in pages that end with `next`: the cursor of what follows.
"""
TAGS = [
    {"name": "trials", "description": "Create and list trials."},
    {"name": "asking and telling", "description": "Decisions and their outcomes. Role `ask-tell`."},
    {"name": "changing a trial", "description": "While it runs. Role `manage`."},
    {"name": "looking back", "description": "Decisions, the log, exports, proofs, effects. Role `read`."},
    {"name": "health", "description": "For monitoring the service."},
]
HEALTH = 30  # seconds in which a worker must answer its supervisor: a busy machine is slow to import


def create_app(settings: Settings, *, warm: bool = False) -> FastAPI:
    """The application for one process; the store is opened when it starts. `warm`: kernels are compiled beside it."""
    os.environ.setdefault(MODULES, "")  # a trial that comes over HTTP must not import what it likes

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        service = await asyncio.get_running_loop().run_in_executor(None, Service, settings)
        app.state.service = service
        files = connections.raise_file_limit() - connections.OTHER_FILES
        door = Door(max(1, min(settings.connections, files)), settings.connections_per_address, settings.proxies)
        if warm:
            warming.start()
        tasks = [asyncio.create_task(work) for work in (service.purging(), door.sweeping())]
        try:
            yield {"door": door}
        finally:
            service.stopping = True
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            await asyncio.get_running_loop().run_in_executor(None, service.close)

    app = FastAPI(
        title="drimed",
        summary="Experiments that keep every user about as well off as under the control.",
        description=ABOUT,
        version=__version__,
        openapi_url="/v1/openapi.json",
        docs_url=None,  # it would fetch scripts from elsewhere
        redoc_url=None,
        openapi_tags=TAGS,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    for routes in (writing.trials, reading.trials, writing.decisions, writing.changes, reading.log):
        app.include_router(routes, prefix="/v1")
    app.include_router(health.routes)
    for part in (rendering, home, overview, plan, asking, telling, history, managing):
        app.include_router(part.routes)
    app.add_middleware(observing.Observed, largest_body=settings.largest_body)
    app.add_exception_handler(Refusal, _refused)
    app.add_exception_handler(DrimedError, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # the way FastAPI documents
    return app


def from_environment() -> FastAPI:
    """The application with the settings of DRIMED_*; every worker process begins here."""
    return create_app(Settings.resolve({}, os.environ), warm=True)


def has_tokens(settings: Settings) -> bool:
    """Open the store once before any worker does, and refuse to serve strangers without tokens."""
    with closing(open_store(settings.store)) as store:
        found = tokens.any_made(store)
    if not found and not settings.local:
        raise ConfigError(
            f"{settings.host} can be reached from other machines, and the store has no tokens, so anybody could "
            f"decide; make one first:\n  {tokens.how_to(settings.store)}\nor listen on 127.0.0.1 only"
        )
    return found


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    os.environ.update(settings.environment())
    connections.raise_file_limit()  # workers inherit it
    with tempfile.TemporaryDirectory(prefix="drimed-metrics-") as folder:
        if settings.workers > 1:  # they find it when they import prometheus_client
            os.environ[observing.METRICS_FOLDER] = folder
        config = configured(settings, f"{__name__}:{from_environment.__name__}", factory=True)
        if settings.workers > 1:
            Workers(config, [config.bind_socket()]).run()
            return
        server = uvicorn.Server(config)
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def configured(settings: Settings, app: Any, **more: Any) -> uvicorn.Config:
    """How uvicorn serves the application."""
    words: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "workers": settings.workers,
        "http": GuardedProtocol,
        "backlog": connections.BACKLOG,
        "proxy_headers": bool(settings.proxies),
        "forwarded_allow_ips": settings.proxies,
        "log_config": logs.configuration(settings.log_level),
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": settings.grace,
        "timeout_worker_healthcheck": HEALTH,
    }
    return uvicorn.Config(app, **words | more)


async def _refused(_: Request, error: Exception) -> Response:
    """A DrimedError comes from outside the endpoint: tokens cannot be looked up while the store does not answer."""
    assert isinstance(error, Refusal | DrimedError)
    return (error if isinstance(error, Refusal) else problems.of_error(error)).response()


async def _http(request: Request, error: Exception) -> Response:
    """What Starlette itself refuses: addresses and methods that do not exist. People get a page."""
    assert isinstance(error, HTTPException)
    kind = {404: "unknown", 405: "method"}.get(error.status_code, "malformed")
    if not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", ""):
        return nothing_here(request, Refusal(error.status_code, kind, "there is no such page"))
    detail = error.detail
    if error.status_code == 404:
        detail = "there is nothing at this address; /v1/openapi.json lists all addresses"
    return Refusal(error.status_code, kind, detail, headers=error.headers).response()


def _described(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        about = {name: getattr(app, name) for name in ("title", "version", "summary", "description", "routes")}
        made = get_openapi(tags=app.openapi_tags, **about)
        parts = made.setdefault("components", {})
        schema = TypeAdapter(Problem).json_schema(ref_template="#/components/schemas/{model}")
        parts.setdefault("schemas", {}).update(schema.pop("$defs", {}))
        parts["schemas"][Problem.__name__] = schema
        parts["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for path, methods in made["paths"].items():
            for operation in methods.values():
                if path not in ("/healthz", "/readyz"):
                    operation["security"] = [{"token": []}]
                for own in (MEDIA, LARGE):
                    operation.pop(own, None)
        app.openapi_schema = made
    return app.openapi_schema
