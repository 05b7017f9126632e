"""Connections that send what they have at once.

An answer leaves as headers and then a body. Several workers share one listening socket, and asyncio does not recognise
it as TCP, so it leaves the connections as they are: the body would wait until the caller has acknowledged the headers,
which takes about 40 ms.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol


class PromptProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # uvicorn chooses the class when it is imported
    """What uvicorn would use itself, without that wait."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller has connected."""
        connection = cast(socket.socket | None, transport.get_extra_info("socket"))
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
