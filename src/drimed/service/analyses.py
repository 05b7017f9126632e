"""Analyses in the background: one for each state of a trial's log, and no request waits long for it.

A page waits a moment for the newest analysis; if that takes longer, it shows the one before and says so. Analyses share
a budget of computing time: however often pages are loaded, they take a small share of a core. What it takes to compile
kernels, once, is not counted.
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

from drimed.errors import DrimedError, StoreError
from drimed.findings.analysis import Analysis, analyse
from drimed.linear import kernel
from drimed.service.route import service_of
from drimed.service.service import ANALYSES
from drimed.service.trials import Trials
from drimed.trial.gather import Gathered
from drimed.trial.trial import Trial

PATIENCE = 1.5  # seconds that a page waits
LOGGED = "the service's log has the details"
MOST = 50  # analyses that are kept, but
MOST_BYTES = 400e6  # in all, roughly; the newest one stays, however large it is
SHARE = 0.1  # of a core, in the long run
BURST = 5.0  # seconds of computing that may be spent at once

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

    def wait(self) -> float:
        """Seconds until something may be begun."""
        return 0.0 if self.any_left() else -self.left / SHARE

    def spend(self, seconds: float) -> None:
        """Something was done."""
        self.left -= seconds


class Analyses:
    """Analyses of every trial that somebody asked for."""

    def __init__(self, trials: Trials, budget: Budget | None = None) -> None:
        self._trials = trials
        self._done: OrderedDict[str, Worked] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._limiter = CapacityLimiter(ANALYSES)
        self.budget = budget or Budget()

    @staticmethod
    def of(request: Request) -> Analyses:
        """Those of the service that a request came to."""
        state, trials = request.app.state, service_of(request).trials
        if getattr(state, "analyses", None) is None or state.analyses._trials is not trials:
            state.analyses = Analyses(trials)
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
            self._forget()
        finally:
            del self._tasks[name]

    def _forget(self) -> None:
        """Let those go that nobody has looked at for longest."""
        sizes = {name: w.analysis.size for name, w in self._done.items() if w.analysis is not None}
        while len(self._done) > 1 and (len(self._done) > MOST or sum(sizes.values()) > MOST_BYTES):
            name, _ = self._done.popitem(last=False)
            sizes.pop(name, None)

    def _analyse(self, name: str) -> tuple[Worked, float]:
        start, compiled = time.thread_time(), kernel.spent()
        done = self._done.get(name)
        before = done.analysis.data if done is not None and done.analysis is not None else None
        try:
            worked = self._trials.read(name, lambda trial: _worked(trial, before))
        except StoreError:
            log.exception("trial %s cannot be read", name)
            worked = Worked("", 0, None, LOGGED)
        except DrimedError as error:  # the trial itself cannot be read
            worked = Worked("", 0, None, str(error))
        return worked, time.thread_time() - start - kernel.spent().since(compiled).processor


def _worked(trial: Trial, before: Gathered | None) -> Worked:
    """The analysis of a trial as it stands; what was gathered before is not read again."""
    state = trial.state()
    try:
        analysis = analyse(trial, before)
        return Worked(analysis.status.hash, analysis.status.events, analysis)
    except DrimedError as error:
        return Worked(state.hash, state.seq, None, str(error))
    except Exception:
        log.exception("trial %s cannot be analysed", trial.name)
        return Worked(state.hash, state.seq, None, LOGGED)
