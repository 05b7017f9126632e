"""The numerical code is compiled, or loaded, when a worker starts: nobody waits for it at the first ask.

A small trial of each model is played in memory, by a thread of its own: the service answers meanwhile. Whoever needs a
kernel that is being compiled waits for that one.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import Any

from drimed.findings.analysis import analyse
from drimed.linear import kernel
from drimed.records import Report
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial

SEASONS = 3
KINDS = ("field", "paper", "people")
SPEC: dict[str, Any] = {
    "name": "warming-up",
    "seed": 1,
    "metrics": {"gain": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 10.0], "better": "lower"}},
    "arms": {"old": {}, "new": {}},
    "control": "old",
    "preference": {"gain": 1.0, "cost": -1.0},
    "tolerance": {"absolute": 9.0},
    "users": {f"u{i}": {"group": f"g{i % 2}"} for i in range(6)},
}

log = logging.getLogger(__name__)


def start() -> threading.Thread:
    """Begin, and do not wait."""
    thread = threading.Thread(target=_warmed, name="warming", daemon=True)
    thread.start()
    return thread


def warm() -> float:
    """Play the trials; returns the seconds of the clock that compiling and loading took."""
    before = kernel.spent()
    for kind in KINDS:
        trial = Trial.create(SPEC | {"model": {"kind": kind}}, MemoryStore())
        for season in range(1, SEASONS + 1):
            told = [Report(d.id, _outcome(d.id)) for d in trial.ask_many(list(SPEC["users"]), episode=season)]
            trial.tell_many(told)
        analyse(trial)
    return kernel.spent().since(before).clock


def _outcome(decision: int) -> dict[str, float]:
    """Some numbers; they need not mean anything."""
    return {"gain": 4.0 + decision * 7919 % 13 / 6, "cost": 3.0 + decision * 104729 % 11 / 5}


def _warmed() -> None:
    start = time.perf_counter()
    try:
        seconds = warm()
    except Exception:  # what is wrong is found again, and told, by whoever asks
        log.exception("the numerical code could not be prepared")
        return
    log.info(
        "the numerical code is ready after %.1f s (%.1f s to compile or load it)", time.perf_counter() - start, seconds
    )
