"""So many requests a second: a bucket of tokens that fills steadily. It is kept by each process for itself."""

from __future__ import annotations

import time
from collections.abc import Callable

MOST_BUCKETS = 10_000  # then those that are full again are forgotten: nothing is lost with them


class Buckets:
    """One bucket for everybody who asks.

    >>> moment = 0.0
    >>> buckets = Buckets(rate=2.0, burst=1, clock=lambda: moment)
    >>> buckets.take("north"), buckets.take("north")
    (0.0, 0.5)
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._levels: dict[str, tuple[float, float]] = {}  # who -> what was left, when

    def wait(self, who: str) -> float:
        """In how many seconds a request may pass; 0: now."""
        return 0.0 if not self._rate else max(0.0, (1 - self._level(who, self._clock())) / self._rate)

    def take(self, who: str) -> float:
        """One request: 0 if it may pass, else in how many seconds it may."""
        if not self._rate:
            return 0.0
        now = self._clock()
        level = self._level(who, now)
        if level < 1:
            return (1 - level) / self._rate
        if len(self._levels) >= MOST_BUCKETS:
            self._forget(now)
        self._levels[who] = level - 1, now
        return 0.0

    def _level(self, who: str, now: float) -> float:
        level, then = self._levels.get(who, (self._burst, now))
        return min(self._burst, level + (now - then) * self._rate)

    def _forget(self, now: float) -> None:
        self._levels = {w: (n, t) for w, (n, t) in self._levels.items() if n + (now - t) * self._rate < self._burst}
        if len(self._levels) >= MOST_BUCKETS:
            self._levels.clear()
