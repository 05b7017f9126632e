"""Start the service: check its settings, then hand over to uvicorn and its worker processes."""

from __future__ import annotations

import os
import shlex
import tempfile
from dataclasses import dataclass

from drimed.errors import ConfigError
from drimed.service import demo, tokens
from drimed.service.access import HOW_TO
from drimed.service.settings import Settings
from drimed.trial.stores.opening import open_store

APPLICATION = "drimed.service.app:from_environment"
HEALTH = 30  # seconds in which a worker must answer its supervisor: a busy machine is slow to import
# Not imported from `metrics`: prometheus_client would then already have looked for it.
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"


@dataclass(frozen=True)
class Prepared:
    """What to tell whoever starts the service."""

    open: bool  # there are no tokens: every program on this machine may do everything
    filled: str | None  # the trial that was simulated


def prepare(settings: Settings, *, with_demo: bool = False) -> Prepared:
    """Open the store once before any worker does, and refuse to serve strangers without tokens."""
    store = open_store(settings.store)
    try:
        guarded = tokens.any_made(store)
        if not guarded and not settings.local:
            raise ConfigError(
                f"{settings.host} can be reached from other machines, and the store has no tokens, so anybody could "
                f"decide; make one first:\n  {how_to(settings.store)}\n"
                "or listen on 127.0.0.1 only"
            )
        filled = demo.fill(store).name if with_demo and not store.names() else None
    finally:
        store.close()
    return Prepared(not guarded, filled)


def how_to(store: str) -> str:
    """Make a token for a store; the address of a database has a password, and is not repeated.

    >>> how_to("my trials.db")
    "drimed token create --role manage --label NAME --store 'my trials.db'"
    """
    if "://" in store and not store.startswith("sqlite"):
        return f"{HOW_TO} (with DRIMED_STORE or --store as for drimed serve)"
    return f"{HOW_TO} --store {shlex.quote(store)}"


def run(settings: Settings) -> None:
    """Serve until told to stop."""
    os.environ.update(settings.environment())
    with tempfile.TemporaryDirectory(prefix="drimed-metrics-") as folder:
        if settings.workers > 1:
            os.environ[METRICS_FOLDER] = folder
        import uvicorn  # here: the command line shows its help without it

        from drimed.service.observing import configuration

        uvicorn.run(
            APPLICATION,
            factory=True,
            host=settings.host,
            port=settings.port,
            workers=settings.workers,
            log_config=configuration(settings.log_level),
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=settings.grace,
            timeout_worker_healthcheck=HEALTH,
        )
