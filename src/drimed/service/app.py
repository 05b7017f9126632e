"""The application: its routes, errors and description, and how it starts and stops."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, suppress
from functools import cache
from importlib import resources
from typing import Any

import uvicorn
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors import Multiprocess

from drimed import __version__
from drimed.errors import ConfigError, DrimedError, NumericalError
from drimed.policies.registry import MODULES
from drimed.reports.analysis import prepare
from drimed.service import alerts, api, auth, connections, refusals
from drimed.service.pages import base, read, write
from drimed.service.refusals import Refusal
from drimed.service.routing import JSON, LARGE, MEDIA, METRICS_FOLDER, Observed
from drimed.service.runtime import Service
from drimed.service.settings import Settings, log_configuration
from drimed.trial import template
from drimed.trial.events import to_json
from drimed.trial.store import open_store

HEALTH_CHECK = 30  # seconds in which a worker must answer its supervisor: a busy machine is slow to import
CLOSING = 5.0  # seconds after the grace in which everything ends: nothing that still runs is recorded
log = logging.getLogger(__name__)


def create_app(settings: Settings, *, warm: bool = False, ends: bool = False) -> FastAPI:
    """The application of one process; it opens the store when it starts. `warm`: get ready in a thread.

    `ends`: the process is the service's own, and ends soon after the application whatever still runs.
    """
    os.environ.setdefault(MODULES, "")  # a trial that comes over HTTP must not import what it likes

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
        service = await asyncio.get_running_loop().run_in_executor(None, Service, settings)
        app.state.service = service
        files = connections.raise_file_limit() - connections.OTHER_FILES
        most = max(1, min(settings.connections, files))
        door = connections.Door(most, settings.connections_per_address, settings.proxies)
        if warm:
            threading.Thread(target=warm_up, args=(service,), name="warming", daemon=True).start()
        else:
            service.warm.set()
        always = [service.purge(), door.sweep(), alerts.Watch(service).run(), *([service.tidy()] if ends else [])]
        tasks = [asyncio.create_task(work) for work in always]
        try:
            yield {"door": door}
        finally:
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
            if ends:
                faulthandler.dump_traceback_later(CLOSING, exit=True)  # says what still runs
            await asyncio.get_running_loop().run_in_executor(None, service.close)
            faulthandler.cancel_dump_traceback_later()

    app = FastAPI(
        version=__version__,
        openapi_url=None,  # it would be written anew for each request
        redirect_slashes=False,
        lifespan=lifespan,
    )
    for router in (api.routes, api.health, base.static, read.routes, write.routes):
        app.router.routes.extend(router.routes)  # included, each would be built again, by the first request
    app.add_middleware(Observed, largest_body=settings.largest_body)
    for kind in (Refusal, DrimedError, HTTPException):
        app.add_exception_handler(kind, _refused)
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # the way FastAPI documents
    description = cache(lambda: to_json(app.openapi()).encode())

    @app.get("/v1/openapi.json", include_in_schema=False)
    async def _() -> Response:
        return Response(description(), media_type=JSON)

    return app


def from_environment() -> FastAPI:
    """The application with the settings of DRIMED_*; every worker process begins here."""
    return create_app(Settings.resolve({}, os.environ), warm=True, ends=True)


def check_access(settings: Settings) -> bool:
    """Whether the store has tokens; refuse to serve other machines without any."""
    with closing(open_store(settings.store)) as store:
        guarded = auth.has_tokens(store)
    if not guarded and not auth.is_loopback(settings.host):
        raise ConfigError(
            f"{settings.host} can be reached from other machines, and the store has no tokens, so anybody could "
            f"decide; make one first:\n  {auth.how_to(settings.store)}\nor listen on 127.0.0.1 only"
        )
    return guarded


def run(settings: Settings) -> None:
    os.environ.update(settings.environment())
    connections.raise_file_limit()  # workers inherit it
    with tempfile.TemporaryDirectory(prefix="drimed-metrics-") as folder:
        if settings.workers > 1:  # workers find it when they import prometheus_client
            os.environ[METRICS_FOLDER] = folder
        config = uvicorn_config(settings, f"{__name__}:{from_environment.__name__}", factory=True)
        if settings.workers > 1:
            Multiprocess(config, [config.bind_socket()]).run()
            return
        server = uvicorn.Server(config)
        with suppress(KeyboardInterrupt):
            server.run()
        if not server.started:
            sys.exit(STARTUP_FAILURE)


def uvicorn_config(settings: Settings, app: Any, **more: Any) -> uvicorn.Config:
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "workers": settings.workers,
        "http": connections.GuardedProtocol,
        "backlog": connections.BACKLOG,
        "timeout_keep_alive": connections.KEPT,
        "proxy_headers": bool(settings.proxies),
        "forwarded_allow_ips": settings.proxies,
        "log_config": log_configuration(settings.log_level),
        "access_log": False,
        "server_header": False,
        "timeout_graceful_shutdown": settings.grace,
        "timeout_worker_healthcheck": HEALTH_CHECK,
    }
    return uvicorn.Config(app, **options | more)


def warm_up(service: Service) -> None:
    """Prepare the numerical code and read trials, those in use first, so that the first questions wait for nothing."""
    start = time.perf_counter()
    try:
        prepare()
        for name in service.trials.recent():
            if service.stopping:
                return
            state = service.trials.open(name).state()
            if state.status == "running":
                with suppress(NumericalError):
                    _ = state.settled
    except Exception:  # the same error comes again, with an answer, in a request
        log.exception("not all trials and numerical code could be prepared")
    else:
        log.info("the numerical code and the trials are ready after %.1f s", time.perf_counter() - start)
    finally:
        service.warm.set()


async def _refused(request: Request, error: Exception) -> Response:
    """Errors outside the endpoints, such as addresses that do not exist; people get a page."""
    assert isinstance(error, Refusal | HTTPException | DrimedError)
    refusal = refusals.refusal(error)
    if isinstance(error, HTTPException):
        if not request.url.path.startswith("/v1/") and "text/html" in request.headers.get("accept", ""):
            visit = base.Visit(request, request.app.state.service)
            return base.refused_page(visit, Refusal(refusal.status, refusal.kind, "there is no such page"))
        if refusal.status == 404:
            refusal.detail = "there is nothing at this address; /v1/openapi.json lists all addresses"
    return refusal.response()


def _openapi(app: FastAPI) -> dict[str, Any]:
    """The description: routes and models as FastAPI finds them, with prose, headers and examples from files."""
    if app.openapi_schema is None:
        files = resources.files(__package__)
        prose = tomllib.loads((files / "openapi.toml").read_text(encoding="utf-8"))
        examples = json.loads((files / "examples.json").read_text(encoding="utf-8"))
        about = {name: prose[name] for name in ("title", "summary", "description")}
        tags = [{"name": name, "description": text} for name, text in prose["tags"].items()]
        schema = get_openapi(**about, version=__version__, tags=tags, routes=app.routes)
        headers, trial_file = prose["headers"], {"schema": {"type": "object"}, "example": examples.pop("trial file")}
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        for name, model in schema["components"]["schemas"].items():
            model["title"] = name.replace("_", "")  # generated clients name their types after it: all differ
        for name, example in examples.items():
            schema["components"]["schemas"][name]["examples"] = [example]
        for path, methods in schema["paths"].items():
            for method, operation in methods.items():
                if path not in ("/healthz", "/readyz"):
                    operation["security"] = [{"token": []}]
                if method == "post":
                    operation.setdefault("parameters", []).append(prose["idempotency_key"])
                for status, answer in operation["responses"].items():
                    if int(status) >= 400:
                        answer["description"] = prose["errors"][status]
                        answer["content"] = {refusals.MEDIA: answer["content"].pop(JSON)}
                    names = {"429": ["Retry-After"], "503": ["Retry-After"], "201": ["Location"]}.get(status, [])
                    names += ["Idempotency-Replayed"] if method == "post" and int(status) < 300 else []
                    answer |= {"headers": {name: headers[name] for name in names}} if names else {}
                for own in (MEDIA, LARGE):
                    operation.pop(own, None)
        template_file = {"schema": {"type": "string"}, "example": template()}
        content = {JSON: trial_file, api.TOML: template_file}
        schema["paths"]["/v1/trials"]["post"]["requestBody"] = {"required": True, "content": content}
        app.openapi_schema = schema
    return app.openapi_schema
