"""What all requests share: the store, the trials, access, and threads for work that waits."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from starlette.requests import HTTPConnection

from drimed.errors import StoreError
from drimed.records import Proof
from drimed.service import access, problems
from drimed.service.access import Access, Buckets, Caller
from drimed.service.answers import Purge, Reply, Retry
from drimed.service.connections import origin
from drimed.service.problems import Refusal
from drimed.service.proofs import Key, Progress, Proofs
from drimed.service.settings import Settings
from drimed.service.trials import Trials
from drimed.trial.spec import TrialSpec
from drimed.trial.stores import open_store
from drimed.trial.transaction import Transaction
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

FAILURES = 5.0, 20  # a second, and at once: tokens that are not recognised, from one address
PURGE_EVERY = 3600.0  # seconds
DOORS = 2  # tokens that are looked up at a time
ANALYSES = 2  # that pages compute at a time
HEAVY = 2  # exports at a time, and one proof: each takes a while and much of a core

log = logging.getLogger(__name__)
T = TypeVar("T")


class Service:
    """One process of the service."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        connections = (
            2 * settings.threads + DOORS + HEAVY + 1 + ANALYSES
        )  # as many as there are threads that may want one
        self.store = open_store(settings.store, connections=connections)
        self.trials = Trials(self.store, Path(settings.anchors) if settings.anchors else None)
        self.access = Access(self.store, settings)
        self.stopping = False
        self._requests, self._failures = Buckets(settings.rate, settings.burst), Buckets(*FAILURES)
        # Each kind of work has its own threads: no token waits behind readers, no reader behind writers or proofs.
        self._doors = ThreadPoolExecutor(DOORS, "door")
        self._reads = ThreadPoolExecutor(settings.threads, "read")
        self._writes = ThreadPoolExecutor(settings.threads, "write")
        self._heavy = ThreadPoolExecutor(HEAVY, "heavy")
        self._parsing = ThreadPoolExecutor(1, "parse")
        self.proofs = Proofs(self._prove)
        self._purge = Purge(settings.keep_answers)
        self._turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    # Work

    async def read(self, trial: str, look: Callable[[Trial], T]) -> T:
        """Read a trial."""
        return await self.run(lambda: self.trials.read(trial, look))

    async def run(self, work: Callable[[], T]) -> T:
        """Short work on the store."""
        return await _in(self._reads, work)

    async def parse(self, work: Callable[[], T]) -> T:
        """Read a large body: one at a time, so that everything else goes on beside it."""
        return await _in(self._parsing, work)

    async def run_heavy(self, work: Callable[[], T]) -> T:
        """Long work; a second one waits for the first."""
        return await _in(self._heavy, work)

    async def write(
        self,
        trial: str,
        act: Callable[[Transaction], Reply],
        *,
        actor: str,
        retry: Retry | None = None,
        decides: bool = False,
    ) -> Reply:
        """Change a trial. Writers of one trial take turns here already, so that waiting ones fill no threads.

        What `decides` may take long and changes nothing but the trial: it may be called more than once.
        """
        turn = self._turns.get(trial)
        if turn is None:
            turn = self._turns[trial] = asyncio.Lock()
        write = self.trials.decide if decides else self.trials.write
        work = lambda: write(trial, act, actor=actor, retry=retry)  # noqa: E731
        async with turn:
            return await _in(self._writes, work)

    async def create(
        self, spec: TrialSpec, answer: Callable[[Transaction], Reply], *, actor: str, retry: Retry | None = None
    ) -> Reply:
        """A new trial."""
        work = lambda: self.trials.create(spec, answer, actor=actor, retry=retry)  # noqa: E731
        return await _in(self._writes, work)

    # Access

    async def identify(self, connection: HTTPConnection) -> Caller:
        """Who makes a request; refuses unknown callers and those who make too many."""
        text = access.text_of(connection)
        token = self.access.fresh(text)
        # Decided once: what is known to be open now may not be so a moment later, while this is still the same request.
        is_open = text is None and self.access.known_to_be_open()
        if text is None and not is_open:
            is_open = await _in(self._doors, self.access.look_whether_open)
        elif text is not None and token is None:
            address = origin(connection.client.host if connection.client else "")
            if not self.access.knew(text):
                _wait(self._failures.wait(address))
            token = await _in(self._doors, lambda: self.access.look_up(text))
            if token is None:
                self._failures.take(address)
        caller = self.access.caller(connection, text, token, is_open=is_open)
        if caller.token is not None:
            _wait(self._requests.take(caller.token))
        return caller

    # Stopping

    async def purging(self) -> None:
        """Forget old answers, for as long as the service runs."""
        while True:
            with suppress(Exception):  # the next time will do
                purged = await self.run_heavy(lambda: self._purge(self.store))
                if purged:
                    log.info("forgot %d answers", purged)
            await asyncio.sleep(PURGE_EVERY)

    def close(self) -> None:
        """Finish running work, without waiting for a turn in the store, and close everything."""
        self.store.stop_waiting()
        self.proofs.close()
        for pool in (self._doors, self._reads, self._writes, self._heavy, self._parsing):
            pool.shutdown(wait=True, cancel_futures=True)
        self.store.close()

    def _prove(self, key: Key, progress: Progress) -> Proof:
        trial, expect = key
        return verify(self.store, trial, expected_hash=expect, progress=progress)


async def _in(pool: ThreadPoolExecutor, work: Callable[[], T]) -> T:
    """Work in a thread; what is wrong with the store is for the log, not for callers."""
    try:
        return await asyncio.get_running_loop().run_in_executor(pool, work)
    except StoreError as error:
        raise problems.of_error(error) from error


def _wait(seconds: float) -> None:
    if seconds:
        after = max(1, math.ceil(seconds))
        raise Refusal(429, "too-many", f"try again in {after} s", headers={"Retry-After": str(after)})
