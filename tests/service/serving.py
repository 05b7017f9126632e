"""A service that runs for a test: in a thread of this process, or as `drimed serve` in processes of its own."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import uvicorn
from fastapi import FastAPI

from drimed.policies.registry import MODULES
from drimed.service.app import create_app, uvicorn_config
from drimed.service.runtime import Service
from drimed.service.settings import Settings

T = TypeVar("T")
PATIENCE = 60.0  # seconds for a service to start on a busy machine


def wait_until(condition: Callable[[], T | None], seconds: float = PATIENCE) -> T:
    """The first answer that is true."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@dataclass
class Running:
    """A service in this process."""

    address: str
    service: Service
    http: httpx.Client


@contextmanager
def modules_as_before() -> Iterator[None]:
    """An application says for its process which modules may be loaded; a test process has others to run."""
    before = os.environ.get(MODULES)
    try:
        yield
    finally:
        os.environ.pop(MODULES, None)
        if before is not None:
            os.environ[MODULES] = before


@contextmanager
def served(settings: Settings | FastAPI) -> Iterator[Running]:
    """The application behind a real socket."""
    with modules_as_before():
        yield from _served(create_app(settings) if isinstance(settings, Settings) else settings, settings)


def _served(app: FastAPI, settings: Settings | FastAPI) -> Iterator[Running]:
    known = settings if isinstance(settings, Settings) else Settings()
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn_config(known, app, workers=1, log_config=None, timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    wait_until(lambda: server.started)
    address = f"http://127.0.0.1:{listening.getsockname()[1]}"
    try:
        with httpx.Client(base_url=address, timeout=2 * PATIENCE) as http:  # the first fit may have to be compiled
            yield Running(address, app.state.service, http)
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()


@dataclass
class Processes:
    """A service in processes of its own."""

    address: str
    log: Path
    parent: subprocess.Popen[bytes]

    def workers(self) -> list[int]:
        """Those that answer now; each says in the log when it starts."""
        started = re.findall(r"Started server process \[(\d+)\]", self.log.read_text())
        return [int(pid) for pid in started if _lives(int(pid))]


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def processes(store: str, log: Path, *flags: str) -> Iterator[Processes]:
    """`drimed serve`, stopped as an operator stops it."""
    port = free_port()
    command = [sys.executable, "-m", "drimed.cli.main", "serve", "--store", store, "--port", str(port), *flags]
    with log.open("wb") as out:
        started = subprocess.Popen(command, stdout=out, stderr=out, env=dict(os.environ, COLUMNS="200"))
    address = f"http://127.0.0.1:{port}"
    try:
        wait_until(lambda: _ready(address, started, log))
        yield Processes(address, log, started)
    finally:
        started.send_signal(signal.SIGTERM)  # none, if it has ended
        try:
            started.wait(75)  # running requests have a grace of 30 s, and then everything ends
        except subprocess.TimeoutExpired:
            for pid in [*Processes(address, log, started).workers(), started.pid]:
                os.kill(pid, signal.SIGKILL)
            started.wait(10)
            raise


def _ready(address: str, started: subprocess.Popen[bytes], log: Path) -> bool:
    assert started.poll() is None, log.read_text()
    try:
        return httpx.get(f"{address}/healthz").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
