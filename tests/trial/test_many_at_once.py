"""A question for many people is answered some people at a time: the memory is bounded, and the answers are the same."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from drimed.trial import ask
from drimed.trial.trial import Trial
from tests.trial.playing import new, verified

ONE_METRIC: dict[str, Any] = {"metrics": {"yield": {}}, "preference": {"yield": 1.0}, "tolerance": {"absolute": 1.0}}


def played(seasons: int = 4) -> Trial:
    trial = new(model={"kind": "people"}, users={f"u{i}": {} for i in range(7)}, **ONE_METRIC)
    rng = np.random.default_rng(0)
    for _ in range(seasons):
        for d in trial.ask_many():
            trial.tell(d.id, {"yield": {"old": 1.0, "new": 3.0, "third": 0.0}[d.arm] + float(rng.standard_normal())})
        trial.open_episode()
    return trial


@pytest.mark.parametrize("users", [2, 3])
def test_decisions_do_not_depend_on_how_many_are_taken_at_once(users: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = [(d.arm, d.probabilities) for d in played().decisions()]
    monkeypatch.setattr(ask, "NUMBERS_AT_ONCE", users * 9)
    trial = played()
    parts = [(d.arm, d.probabilities) for d in trial.decisions()]
    assert [arm for arm, _ in parts] == [arm for arm, _ in whole]
    for (_, here), (_, there) in zip(parts, whole, strict=True):
        assert here == pytest.approx(there, abs=1e-9)
    verified(trial)
