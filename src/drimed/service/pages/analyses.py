"""Analyses in the background: one for each state of a trial's log, and no request waits long for it.

A page waits a moment for the newest analysis; if that takes longer, it shows the one before and says so. Analyses share
a budget of computing time: however often pages are loaded, they take a small share of a core.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import anyio.to_thread
from anyio import CapacityLimiter
from starlette.requests import Request

from drimed.errors import DrimedError
from drimed.findings.analyse import Analysis, analyse
from drimed.findings.gather import Gathered
from drimed.service.desk import Desk, Held
from drimed.service.route import service_of
from drimed.service.service import ANALYSES
from drimed.trial.stores.store import Store
from drimed.trial.trial import Trial

PATIENCE = 2.5  # seconds that a page waits
MOST = 50  # analyses that are kept
SHARE = 0.05  # of a core, in the long run
BURST = 1.0  # seconds of computing that may be spent at once

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Worked:
    """An analysis, or why there is none."""

    hash: str  # of the event up to which it goes
    events: int
    analysis: Analysis | None
    failure: str | None = None


@dataclass
class Budget:
    """Seconds of computing; they come back slowly."""

    clock: Callable[[], float] = time.monotonic
    left: float = BURST
    since: float | None = None

    def any_left(self) -> bool:
        """Whether something may be begun."""
        now = self.clock()
        self.left = min(BURST, self.left + SHARE * (now - (self.since if self.since is not None else now)))
        self.since = now
        return self.left > 0

    def spend(self, seconds: float) -> None:
        """Something was done."""
        self.left -= seconds


class Analyst:
    """Reads one trial again and again: each time only what is new."""

    def __init__(self, name: str, store: Store, desk: Desk | None) -> None:
        self._name, self._store, self._desk, self._held = name, store, desk, Held(store)
        self._trial = Trial(name, self._held)
        self._seen: Gathered | None = None

    def work(self) -> Worked:
        """The analysis of one state, whatever others write meanwhile."""
        hash, events = "", 0
        if self._desk is not None:
            self._desk.teach(self._trial)
        try:
            with self._store.reading(self._name) as ledger, self._held.within(ledger):
                hash, events = ledger.hash, ledger.seq
                analysis = analyse(self._trial, self._seen)
        except DrimedError as error:
            return self._failed(hash, events, str(error))
        except Exception:
            log.exception("trial %s cannot be analysed", self._name)
            return self._failed(hash, events, "the service's log has more about it")
        self._seen = analysis.seen
        return Worked(hash, events, analysis)

    def _failed(self, hash: str, events: int, why: str) -> Worked:
        """The next time everything is read again."""
        self._trial, self._seen = Trial(self._name, self._held), None
        return Worked(hash, events, None, why)


class Analyses:
    """Analyses of every trial that somebody looked at."""

    def __init__(self, store: Store, budget: Budget | None = None, desk: Desk | None = None) -> None:
        self._store, self._desk = store, desk
        self._done: OrderedDict[str, Worked] = OrderedDict()
        self._analysts: dict[str, Analyst] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._limiter = CapacityLimiter(ANALYSES)
        self.budget = budget or Budget()

    @staticmethod
    def of(request: Request) -> Analyses:
        """Those of the service that a request came to."""
        state = request.app.state
        if getattr(state, "analyses", None) is None or state.analyses._store is not service_of(request).store:
            state.analyses = Analyses(service_of(request).store, desk=service_of(request).desk)
        found: Analyses = state.analyses
        return found

    def known(self, name: str) -> Worked | None:
        """The newest one that is there; never waits."""
        return self._done.get(name)

    async def get(self, name: str, hash: str, patience: float = PATIENCE, *, needed: bool = True) -> Worked | None:
        """The analysis after the event with this hash, or an older one, or (None) none yet.

        One that is `needed` is begun whatever is left of the budget, if there is none at all.
        """
        done = self._done.get(name)
        if done is not None and done.hash == hash:
            self._done.move_to_end(name)
            return done
        if name not in self._tasks and ((done is None and needed) or self.budget.any_left()):
            self._tasks[name] = asyncio.create_task(self._work(name))
        if name in self._tasks:
            await asyncio.wait([self._tasks[name]], timeout=patience)
        return self._done.get(name)

    async def _work(self, name: str) -> None:
        try:
            worked, seconds = await anyio.to_thread.run_sync(lambda: self._analyse(name), limiter=self._limiter)
            self.budget.spend(seconds)
            self._done[name] = worked
            self._done.move_to_end(name)
            if len(self._done) > MOST:
                self._analysts.pop(self._done.popitem(last=False)[0], None)
        finally:
            del self._tasks[name]

    def _analyse(self, name: str) -> tuple[Worked, float]:
        start = time.thread_time()
        worked = self._analysts.setdefault(name, Analyst(name, self._store, self._desk)).work()
        return worked, time.thread_time() - start
