"""Small trials in extreme numbers: whatever the outcomes, a trial decides, records, reports and can be verified."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.errors import NumericalError
from drimed.reports.analysis import analyse
from drimed.reports.assumption_checks import withdrawn
from drimed.reports.page import report
from drimed.trial.explain import explain
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.trial.trials import SMALL

KINDS = ("field", "people", "paper")
N = 12  # outcomes of a world
RULE = {"kind": "superiority", "evidence": "model"}
COUNTED: list[tuple[dict[str, Any], list[Any]]] = [
    ({"kind": "yes/no"}, [1] * N),
    ({"kind": "yes/no", "of": "seeds"}, ["7 of 20", f"{10**30} of {10**30}"] * (N // 2)),
    ({"kind": "count"}, [1e30] + [1, 2, 3] * (N // 3)),
    ({"kind": "count"}, [1e15] * N),
    ({"kind": "count", "of": "ha"}, ["3 in 0.000001", "3 in 1000000000"] * (N // 2)),
    ({"kind": "score", "range": [0, 10]}, [10] * N),
]
SERIES = 8 + len(COUNTED)
WORLDS = len(KINDS) * SERIES  # so many have every kind of model with every kind of outcomes; more differ in numbers


def world(n: int) -> tuple[dict[str, Any], list[Any]]:
    """A trial and its outcomes."""
    rng, kind, which = np.random.default_rng(n), KINDS[n % len(KINDS)], n // len(KINDS) % SERIES
    y, at, level, place = 5 + rng.normal(size=N), np.arange(N), 10.0 ** rng.uniform(-200, 12), rng.integers(1, N)
    first, late = np.where(at == 0, 1e11, y), np.where(at == place, 10.0 ** rng.uniform(8, 29), y)
    wild = rng.choice([-1, 1], N) * 10.0 ** rng.uniform(-200, 29, N)
    numbers = [first, late, level * y, 1e-200 * y, 1e12 + y, np.full(N, level), np.zeros(N), wild]
    metric: dict[str, Any] = {"range": [0, 10]} if rng.random() < 0.5 else {}
    more: dict[str, Any] = {} if kind == "paper" else {"stopping": {"rules": {"better": RULE}}}
    outcomes = [float(value) for value in (numbers[which] if which < len(numbers) else y)]
    if which >= len(numbers) and kind != "paper":
        metric, outcomes = COUNTED[which - SERIES]
    elif which >= len(numbers):  # it has only numbers
        more = {"noise": {"kind": "known", "sd": {"y": 10.0 ** rng.uniform(-12, 6)}}}
    weight = float(rng.choice([-1.0, 1.0]) * 10.0 ** rng.uniform(-9, 9))
    spec = {"metrics": {"y": metric}, "preference": {"y": weight}, "model": {"kind": kind}} | more
    return SMALL | spec | {"users": {"a": {"group": "g"}, "b": {"group": "g"}, "c": {}}}, list(outcomes)


def check(n: int) -> None:
    """Play a world; AssertionError, or whatever else stops it."""
    spec, outcomes = world(n)
    trial = Trial.create(spec, MemoryStore())
    while outcomes:
        trial.open_episode()
        for decision, value in zip(trial.ask_many(), list(outcomes), strict=False):
            assert min(decision.probabilities.values()) >= 0
            assert sum(decision.probabilities.values()) == pytest.approx(1.0)
            assert trial.tell(decision.id, {"y": value}, confirm=True).state == "complete"
            outcomes.pop(0)
    trial.open_episode()
    last = trial.ask_many()[-1]
    status = trial.status()
    with trial.reading() as (ledger, state):
        assert explain(ledger, state, last)
    try:
        assert "<html" in report(analyse(trial))
    except NumericalError:
        assert status.failures
        assert str(withdrawn(trial)).startswith("No range can be given")
        assert "stopping" not in spec or trial.look(dry_run=True).claims[0].withdrawn
    if "stopping" in spec:
        trial.look()
    proof = verify(trial.store, trial.name)
    assert (proof.faults, proof.exact) == ([], status.decisions)
