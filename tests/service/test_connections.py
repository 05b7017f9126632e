"""Answers leave at once, also from workers that share a listening socket."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import httpx
import uvicorn

from drimed.service import app
from drimed.service.connections import GuardedProtocol
from drimed.service.settings import Settings
from tests.service.serving import PATIENCE, wait_until


async def hello(scope: Any, _: Any, send: Any) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


def test_connections_of_a_shared_socket_do_not_wait() -> None:
    found: list[int] = []

    class Noted(GuardedProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            connection = transport.get_extra_info("socket")
            found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    with socket.socket(socket.AF_INET) as shared:  # as uvicorn makes the one that its workers share
        shared.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(hello, http=Noted, lifespan="off", log_config=None))
        thread = threading.Thread(target=server.run, args=([shared],), daemon=True)
        thread.start()
        wait_until(lambda: server.started)
        assert httpx.get(f"http://127.0.0.1:{shared.getsockname()[1]}").text == "hello"
        server.should_exit = True
        thread.join(PATIENCE)
    assert [value > 0 for value in found] == [True]


def test_the_service_runs_with_such_connections() -> None:
    assert app.uvicorn_config(Settings(), hello).http is GuardedProtocol
