"""Connections: how many there may be, how long a caller may take, and answers that leave at once.

A caller that opens connections and sends half a request, byte by byte or not at all, would hold them for good. So the
head of a request, its body and the reading of its answer have deadlines, and the number of connections is limited, for
each address and in all. Where a limit is reached, the connection that has waited longest for the head of a request
makes room for the new one: whoever sends whole requests gets in.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import resource
import socket
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import Any, cast

from uvicorn.protocols.http.auto import AutoHTTPProtocol

from drimed.service.settings import networks

HEAD = 10.0  # seconds for the head of a request, from the connection or from its first byte
BODY, SLOWEST = 30.0, 8192  # seconds for a body, and one more for so many bytes of it
READING = 60.0  # seconds in which a caller must take something of its answer
SWEEP = 0.5  # seconds between two looks at the deadlines
OTHER_FILES = 200  # descriptors for the store, logs and libraries
MOST_FILES = 65_536
BACKLOG = 256  # connections that wait to be accepted, and that are accepted before any is looked at

_TOO_SLOW = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_FULL = b"HTTP/1.1 503 Service Unavailable\r\nconnection: close\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Deadlines:
    """In seconds."""

    head: float = HEAD
    body: float = BODY
    reading: float = READING


def raise_file_limit() -> int:
    """As many files and connections as this process may have; how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return MOST_FILES if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def origin(address: str) -> str:
    """Who counts as one caller: an address, or the network that one household or machine has of IPv6.

    >>> origin("192.0.2.7"), origin("2001:db8:1:2:3::4"), origin("::ffff:192.0.2.7")
    ('192.0.2.7', '2001:db8:1:2::/64', '192.0.2.7')
    """
    try:
        found = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv4Address):
        return str(found)
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    return str(found) if found.is_loopback else str(ipaddress.ip_network((found, 64), strict=False))


class Door:
    """The connections of one process."""

    def __init__(self, most: int, most_of_one: int, proxies: str = "", deadlines: Deadlines | None = None) -> None:
        self.most, self.most_of_one, self.deadlines = most, most_of_one, deadlines or Deadlines()
        self._proxies = networks(proxies)
        self._open: dict[GuardedProtocol, str] = {}
        self._count: Counter[str] = Counter()
        self._waiting: dict[str, dict[GuardedProtocol, None]] = defaultdict(dict)  # for a head, longest first
        self._all_waiting: dict[GuardedProtocol, None] = {}

    def enter(self, connection: GuardedProtocol, address: str) -> bool:
        """Whether a new connection may stay; one that waits for a head may have to make room."""
        who = "" if self._is_proxy(address) else origin(address)  # a proxy speaks for many, and limits them itself
        if who and self._count[who] >= self.most_of_one and not self._make_room(self._waiting[who]):
            log.warning("too many connections from one address: one was refused")
            return False
        if len(self._open) >= self.most and not self._make_room(self._all_waiting):
            log.warning("too many connections: one was refused")
            return False
        self._open[connection] = who
        self._count[who] += 1
        self.waits(connection)
        return True

    def leave(self, connection: GuardedProtocol) -> None:
        """It is closed."""
        who = self._open.pop(connection, None)
        if who is not None:
            self._count[who] -= 1
            self._forget(connection, who)
            if not self._count[who]:
                del self._count[who]
                self._waiting.pop(who, None)

    def waits(self, connection: GuardedProtocol) -> None:
        """It has no request that is being answered."""
        if (who := self._open.get(connection)) is not None:
            self._waiting[who][connection] = self._all_waiting[connection] = None

    def busy(self, connection: GuardedProtocol) -> None:
        """It has sent the head of a request."""
        if (who := self._open.get(connection)) is not None:
            self._forget(connection, who)

    async def sweeping(self) -> None:
        """Close what takes too long, for as long as the service runs."""
        while True:
            await asyncio.sleep(SWEEP)
            now = asyncio.get_running_loop().time()
            for connection in list(self._open):
                connection.check(now, self.deadlines)

    def _make_room(self, waiting: dict[GuardedProtocol, None]) -> bool:
        oldest = next(iter(waiting), None)
        if oldest is None:
            return False
        log.warning("too many connections: one that waited was closed")
        oldest.turn_out(_FULL)
        self.leave(oldest)
        return True

    def _forget(self, connection: GuardedProtocol, who: str) -> None:
        self._waiting[who].pop(connection, None)
        self._all_waiting.pop(connection, None)

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return not address  # a local socket has none
        return any(found in network for network in self._proxies)


class GuardedProtocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # uvicorn chooses the class when it is imported
    """What uvicorn would use itself, with deadlines.

    An answer leaves as headers and then a body. Several workers share one listening socket, and asyncio does not
    recognise it as TCP, so it leaves the connections as they are: the body would wait until the caller has acknowledged
    the headers, which takes about 40 ms.
    """

    _door: Door | None = None
    _current: Any = None  # the request whose head came last
    _since: float | None = None  # when the head, or the body, began; None: nothing is expected
    _received = 0  # bytes of this body
    _stalled: float | None = None  # since when the caller takes nothing of its answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A caller has connected."""
        connection = cast(socket.socket | None, transport.get_extra_info("socket"))
        if connection is not None and connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().connection_made(transport)
        self._door, self._since = self.app_state.get("door"), self.loop.time()
        if self._door is not None and not self._door.enter(self, self.client[0] if self.client else ""):
            self.turn_out(_FULL)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is over."""
        if self._door is not None:
            self._door.leave(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Something came."""
        if self.transport.is_closing():
            return
        now = self.loop.time()
        if self._since is None and self._is_idle():
            self._since = now
        super().data_received(data)
        self._notice(now)
        self._received += len(data)

    def on_response_complete(self) -> None:
        """An answer was sent."""
        self._since = None
        super().on_response_complete()
        if self._is_idle() and self._door is not None:
            self._door.waits(self)

    def pause_writing(self) -> None:
        """The caller does not take its answer."""
        self._stalled = self.loop.time()
        super().pause_writing()

    def resume_writing(self) -> None:
        """It takes it again."""
        self._stalled = None
        super().resume_writing()

    def check(self, now: float, deadlines: Deadlines) -> None:
        """Close it if the caller takes too long."""
        self._notice(now)
        if self._stalled is not None and now - self._stalled > deadlines.reading:
            log.warning("a caller did not take its answer in time")
            self.transport.abort()
        elif self._since is None:
            return
        elif self._is_idle():
            if now - self._since > deadlines.head:
                log.warning("the head of a request did not come in time")
                self.turn_out(_TOO_SLOW)
        elif self.cycle.more_body and now - self._since > deadlines.body + self._received / SLOWEST:
            log.warning("the body of a request did not come in time")
            self.transport.abort()

    def turn_out(self, answer: bytes) -> None:
        """Say why, and close it."""
        if not self.transport.is_closing():
            self.transport.write(answer)
            self.transport.close()

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _notice(self, now: float) -> None:
        """A new head has come."""
        if self.cycle is not self._current:
            self._current, self._since, self._received = self.cycle, now, 0
            if self._door is not None and not self._is_idle():
                self._door.busy(self)
