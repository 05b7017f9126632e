"""A small trial with one good and one bad arm, to lay floors under."""

from __future__ import annotations

from typing import Any

import numpy as np

from drimed.records import Report
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

MEANS = {"old": 10.0, "new": 14.0, "bad": 4.0}
SPEC: dict[str, Any] = {
    "name": "t",
    "seed": 3,
    "metrics": {"yield": {"range": [0.0, 20.0]}},
    "arms": {arm: {} for arm in MEANS},
    "control": "old",
    "preference": {"yield": 1.0},
    "tolerance": {"absolute": 1.0},
    "users": {f"u{i}": {} for i in range(4)},
}


def played(spec: dict[str, Any], seasons: int = 8) -> Trial:
    """Some seasons with outcomes; the last one stays open."""
    trial, rng = Trial.create(spec, MemoryStore()), np.random.default_rng(0)
    for _ in range(seasons):
        trial.open_episode()
        y = {d.id: MEANS[d.arm] + float(rng.standard_normal()) for d in trial.ask_many()}
        trial.tell_many([Report(number, {"yield": value}) for number, value in y.items()])
    return trial
