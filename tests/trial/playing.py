"""A trial of three users in memory, and what tests do with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from drimed.errors import DrimedError
from drimed.records import Decision
from drimed.trial.dataset import Dataset, load_dataset
from drimed.trial.export import Export
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify

KNOWN = {"kind": "known", "sd": {"yield": 0.5, "cost": 1.0}}


def spec_of(**changes: Any) -> dict[str, Any]:
    # Only the paper's model can be told the noise.
    model = {"model": {"kind": "paper"}} if "noise" in changes else {}
    return {
        "name": "t",
        "seed": 3,
        "metrics": {"yield": {"range": [0, 10]}, "cost": {"range": [0, 20], "better": "lower"}},
        "arms": {"old": {}, "new": {}, "third": {}},
        "control": "old",
        "preference": {"yield": 1.0, "cost": -0.1},
        "users": {"north": {}, "south": {}, "west": {}},
        "tolerance": {"absolute": 3.0},
        **model,
    } | changes


def new(**changes: Any) -> Trial:
    return Trial.create(spec_of(**changes), MemoryStore())


def asked(**changes: Any) -> Trial:
    """Everybody has a decision, and no outcome yet."""
    trial = new(**changes)
    trial.ask_many()
    return trial


def theta(trial: Trial) -> list[float]:
    """What the policy has learned."""
    found: list[float] = trial.state().policy.theta(trial.state().settled).tolist()
    return found


def records(trial: Trial) -> list[dict[str, Any]]:
    """One flat record for each decision, as an export has it."""
    return [row for rows in Export.of(trial).chunks() for row in rows]


def dataset(trial: Trial) -> Dataset:
    with trial.reading() as (ledger, state):
        return load_dataset(ledger, state)


def play(trial: Trial, rounds: int, *, seed: int = 0) -> list[Decision]:
    """Episodes in which everybody is asked and all but every fifth outcome comes."""
    rng = np.random.default_rng(seed)
    given = []
    for _ in range(rounds):
        trial.open_episode()
        for one in trial.ask_many():
            given.append(one)
            y, c = 5 + (one.arm == "new") + rng.normal(0, 0.5), 10 + rng.normal(0, 1)
            if one.id % 5:
                trial.tell(one.id, {"yield": float(y), "cost": float(c)})
    return given


@contextmanager
def nothing_written(trial: Trial) -> Iterator[None]:
    before, status = list(trial.log()), trial.status()
    yield
    assert list(trial.log()) == before
    assert trial.status() == status
    assert Trial.open(trial.name, trial.store).status() == status


def refused(trial: Trial, do: Callable[[], object], error: type[DrimedError], match: str) -> None:
    with nothing_written(trial), pytest.raises(error, match=match):
        do()


def verified(trial: Trial) -> None:
    proof = verify(trial.store, trial.name)
    assert proof.faults == []
    assert proof.exact == proof.decisions == trial.status().decisions


def rainy(**changes: Any) -> Trial:
    return new(context={"rain": {"typical": 500, "spread": 100}}, **changes)
