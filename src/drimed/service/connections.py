"""Limits and deadlines of connections.

A caller that sends half a request, byte by byte or not at all, would hold its connection for good. So the head of a
request, its body and the reading of its answer have deadlines, and connections are limited for each address and in all.
At a limit, the connection that has waited longest for a request makes room for the new one: for its head or, where
nobody is known to have sent it, for its body or the reading of its answer. Requests that come together begin by turns,
a few of each address.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
from collections import defaultdict, deque
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from drimed.service.settings import networks

HEAD, BODY, READING = 10.0, 30.0, 60.0  # seconds for a request's head and body, and between two reads of its answer
KEPT = 150  # seconds that a connection is kept without a request: longer than proxies (nginx 60, Caddy 120) do
SLOWEST = 8192  # bytes of a body for which its deadline moves by a second
PIECE = 4096  # bytes that are parsed at once: a chunk may hold a thousand requests
LARGEST_HEAD = 65_536  # bytes; and of what is between two parts of a body
SWEEP = 0.5  # seconds between two checks of the deadlines
OTHER_FILES = 200  # descriptors for the store, logs and libraries
MOST_FILES = 65_536
CALLER = "caller"  # in the state of a request: who sent it, once that is known
BACKLOG = 256  # connections that wait to be accepted
AT_A_TIME = 20  # of the requests of one origin that wait, one in so many begins in each round of the loop
_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"

log = logging.getLogger(__name__)


def raise_file_limit() -> int:
    """Raise the limit of open files as far as allowed, and return it."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = (MOST_FILES if limit == resource.RLIM_INFINITY else limit for limit in limits)
    wanted = max(soft, min(hard, MOST_FILES))
    if wanted > soft:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    return wanted


def origin(address: str) -> str:
    """The unit that limits count: an IPv4 address, or the /64 network of an IPv6 address.

    >>> origin("192.0.2.7"), origin("2001:db8:1:2:3::4"), origin("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8:1:2::/64', '192.0.2.7')
    """
    try:
        ip = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(ip, ipaddress.IPv4Address) or ip.is_loopback:
        return str(ip)
    return str(ip.ipv4_mapped or ipaddress.ip_network((ip, 64), strict=False))


class Door:
    """The connections of one process."""

    def __init__(self, most: int, most_of_one: int, proxies: str = "") -> None:
        self.most, self.most_of_one, self._proxies = most, most_of_one, networks(proxies)
        # Those that have waited longest come first, among all and among those of one origin.
        self._origins: dict[GuardedProtocol, str] = {}
        self._of: defaultdict[str, dict[GuardedProtocol, None]] = defaultdict(dict)
        self._queues: dict[str, deque[asyncio.Future[None]]] = {}  # of origins of which requests begin in this round

    def enter(self, connection: GuardedProtocol, address: str) -> bool:
        """Admit a new connection; an idle one may have to make room."""
        who = "" if self._is_proxy(address) else origin(address)  # a proxy speaks for many, and limits them itself
        crowded = who and len(self._of.get(who, ())) >= self.most_of_one
        if crowded or len(self._origins) >= self.most:
            waiting = self._of[who] if crowded else self._origins
            if (oldest := next((c for c in waiting if c.makes_room), None)) is None:
                log.warning("too many connections: one was refused")
                return False
            log.warning("too many connections: one that waited was closed")
            oldest.turn_out(_FULL)
            self.leave(oldest)
        self._origins[connection] = who
        self._of[who][connection] = None
        return True

    def leave(self, connection: GuardedProtocol) -> str | None:
        who = self._origins.pop(connection, None)
        if who is not None and self._of[who].pop(connection, who) is None and not self._of[who]:
            del self._of[who]
        return who

    def waits_anew(self, connection: GuardedProtocol) -> None:
        """Note that a connection began to wait for the head or the body of a request, or for nothing."""
        if (who := self.leave(connection)) is not None:
            self._origins[connection] = who
            self._of[who][connection] = None

    async def turn(self, address: str) -> None:
        """Wait until a request from here may begin: in each round of the loop a few of each origin do.

        So a caller that sends many at once, pipelined or not, waits for itself and hardly holds up others.
        """
        who, loop = origin(address), asyncio.get_running_loop()
        if (queue := self._queues.get(who)) is None:
            self._queues[who] = deque()
            loop.call_soon(self._begin_some, who)
        else:
            queue.append(turn := loop.create_future())
            await turn

    def _begin_some(self, who: str) -> None:
        if not (queue := self._queues[who]):
            del self._queues[who]
            return
        for _ in range(1 + len(queue) // AT_A_TIME):
            if not (turn := queue.popleft()).done():  # its task may have been cancelled
                turn.set_result(None)
        asyncio.get_running_loop().call_soon(self._begin_some, who)

    async def sweep(self) -> None:
        """Close what takes too long, for as long as the service runs."""
        while True:
            await asyncio.sleep(SWEEP)
            now = asyncio.get_running_loop().time()
            for connection in list(self._origins):
                connection.check(now)

    def _is_proxy(self, address: str) -> bool:
        try:
            ip = ipaddress.ip_address(address)
        except ValueError:
            return not address  # a local socket has none
        return any(ip in network for network in self._proxies)


class GuardedProtocol(HttpToolsProtocol):
    """The protocol of uvicorn with deadlines, and a limit of what is no body: its parser has none.

    While requests wait behind the one that is answered, nothing is parsed and nothing more is read.

    An answer leaves as headers and then a body. Workers share one listening socket, which asyncio does not recognise as
    TCP: without TCP_NODELAY the body would wait some 40 ms for the acknowledgement of the headers.
    """

    cycle: Any  # the request whose head came last; others may be before it
    _door: Door | None = None
    _current: Any = None  # the same, as it was looked at last
    _since: float | None = None  # start of the head or the body; None: nothing is expected
    _received = 0  # bytes of this body
    _held = b""  # what came behind requests that wait
    _besides = 0  # bytes since the last head or part of a body
    _running: Any = None  # the request that is answered, or was answered last
    _stalled: float | None = None  # since when the caller reads nothing of its answer

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as the base has it
        connection = cast(socket.socket | None, transport.get_extra_info("socket"))
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._door, self._since = self.app_state.get("door"), self.loop.time()
        if self._door is not None and not self._door.enter(self, self.client[0] if self.client else ""):
            self.turn_out(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._door is not None:
            self._door.leave(self)
        if self._running is not None:
            self._running.disconnected = True
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._since is None and self._is_idle():
            self._since = self.loop.time()
        self._held += data
        self._parse()

    def _parse(self) -> None:
        while self._held and not self.pipeline and not self.transport.is_closing():
            piece, self._held = self._held[:PIECE], self._held[PIECE:]
            self._besides += len(piece)
            super().data_received(piece)
            self._notice_head(self.loop.time())
            self._received += len(piece)
            if self._besides > LARGEST_HEAD:
                log.warning("the head of a request was too large")
                self.turn_out(_TOO_LARGE) if self._is_idle() else self.transport.abort()
        if self.pipeline and not self.transport.is_closing():
            self.flow.pause_reading()

    def on_headers_complete(self) -> None:
        self._besides = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._besides = 0
        super().on_body(body)

    def on_response_complete(self) -> None:
        self._since = None if self._is_idle() else self.loop.time()  # the next one may lack its body
        if self._door is not None:
            self._door.waits_anew(self)
        super().on_response_complete()
        self._parse()

    def pause_writing(self) -> None:
        self._stalled = self.loop.time()
        if self._door is not None:
            self._door.waits_anew(self)
        super().pause_writing()

    def resume_writing(self) -> None:
        self._stalled = None
        super().resume_writing()

    def check(self, now: float) -> None:
        """Close the connection if the caller takes too long."""
        self._notice_head(now)
        waited = 0.0 if self._since is None else now - self._since
        if self._stalled is not None and now - self._stalled > READING:
            log.warning("a caller did not read its answer in time")
            self.transport.abort()
        elif self._is_idle() and waited > HEAD:
            log.warning("the head of a request did not come in time")
            self.turn_out(_TOO_SLOW)
        elif self._lacks_body() and waited > BODY + self._received / SLOWEST:
            log.warning("the body of a request did not come in time")
            self.transport.abort()

    def turn_out(self, answer: bytes) -> None:
        """Answer and close; where nothing is read, that would be never."""
        if self._stalled is not None:
            self.transport.abort()
        elif not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    @property
    def makes_room(self) -> bool:
        """Whether it waits for the head of a request, or for a nobody's body or reading of an answer."""
        waits = self._stalled is not None or self._lacks_body()
        return self._is_idle() or (waits and CALLER not in self._running.scope["state"])

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _lacks_body(self) -> bool:
        """Whether the rest of a body is waited for; nothing is read while requests wait for their turn."""
        return not self._is_idle() and not self.pipeline and self.cycle.more_body

    def _notice_head(self, now: float) -> None:
        if self.cycle is not self._current:
            self._current, self._since, self._received = self.cycle, now, 0
            if self._door is not None:
                self._door.waits_anew(self)
