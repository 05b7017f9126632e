"""Proofs: one of a trial at a time for everybody who asks, and none for nobody.

A proof takes about as long as all decisions took. Whoever asks for one that has not begun yet shares it; a proof that
nobody waits for any more is not begun, or stops where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from starlette.requests import ClientDisconnect

from drimed.records import Proof
from drimed.service.problems import Refusal

MOST_WAITING = 16  # proofs that have not begun
GLANCE = 0.5  # seconds between two looks whether the caller is still there

Key = tuple[str, str | None]  # the trial, and the hash that must be in its log
Progress = Callable[[int, int], None]
Prove = Callable[[Key, Progress], Proof]


class _Abandoned(BaseException):
    """Ends a proof that nobody waits for. No fault of the log: a proof takes any Exception for one."""


@dataclass
class _Job:
    waiters: int = 0
    begun: bool = False
    future: Future[Proof] = field(default_factory=Future)


class Proofs:
    """Those of one process."""

    def __init__(self, prove: Prove) -> None:
        self._prove = prove
        self._pool = ThreadPoolExecutor(1, "proof")
        self._waiting: dict[Key, _Job] = {}

    async def get(self, key: Key, gone: Callable[[], Awaitable[bool]]) -> Proof:
        """A proof of the log as it stands now or later; `gone` says whether the caller has hung up."""
        job = self._waiting.get(key)
        if job is None or job.begun:
            if sum(not other.begun for other in self._waiting.values()) >= MOST_WAITING:
                raise Refusal(429, "too-many", "too many proofs are waiting; try again", headers={"Retry-After": "10"})
            job = self._waiting[key] = _Job(waiters=1)  # before it begins: one that nobody waits for stops
            job.future = self._pool.submit(self._run, key, job)
        else:
            job.waiters += 1
        done = asyncio.wrap_future(job.future)
        done.add_done_callback(lambda found: found.cancelled() or found.exception())  # perhaps nobody waits for it
        try:
            while not done.done():
                await asyncio.wait([done], timeout=GLANCE)
                if not done.done() and await gone():
                    raise ClientDisconnect
            return done.result()
        except _Abandoned:
            detail = "the service is stopping; try again"
            raise Refusal(503, "unavailable", detail, headers={"Retry-After": "1"}) from None
        finally:
            job.waiters -= 1
            if not job.waiters and not job.future.done():
                job.future.cancel()
                if self._waiting.get(key) is job:
                    del self._waiting[key]

    def close(self) -> None:
        """Begin nothing more, and stop what runs."""
        for job in self._waiting.values():
            job.waiters = 0
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _run(self, key: Key, job: _Job) -> Proof:
        job.begun = True  # who asks from now on may know of later events, and gets a proof of its own

        def progress(_: int, __: int) -> None:
            if not job.waiters:
                raise _Abandoned

        try:
            return self._prove(key, progress)
        finally:
            if self._waiting.get(key) is job:
                del self._waiting[key]
