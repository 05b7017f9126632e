"""What a decision costs where nothing tells many arms apart yet: each of them leads in turn."""

from __future__ import annotations

import time
from typing import Any

import pytest

from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

LONGEST = 6.0  # seconds of computing


def spec(name: str, kind: str, arms: int) -> dict[str, Any]:
    return {
        "name": name,
        "model": {"kind": kind},
        "metrics": {"yield": {}},
        "arms": {f"arm {i}": {} for i in range(arms)},
        "control": "arm 0",
        "preference": {"yield": 1.0},
        "users": {"north": {}},
        "tolerance": {"absolute": 0.5},
    }


@pytest.mark.parametrize(("kind", "arms"), [("field", 400), ("paper", 1200)])
def test_many_arms_that_tie_are_decided_on_quickly(kind: str, arms: int) -> None:
    store = MemoryStore()
    Trial.create(spec("small", kind, 40), store).ask("north")  # kernels are compiled
    trial = Trial.create(spec("large", kind, arms), store)
    start = time.thread_time()
    decision = trial.ask("north")
    assert time.thread_time() - start < LONGEST
    assert sum(decision.probabilities.values()) == pytest.approx(1.0)
