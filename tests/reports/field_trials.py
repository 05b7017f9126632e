"""Small trials of the kinds field and people, with known truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from drimed.records import Report
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial

ARMS = ("old", "good", "bad")
EFFECT = {"old": 0.0, "good": 12.0, "bad": -8.0}
FIELD: dict[str, Any] = {
    "name": "t",
    "seed": 5,
    "metrics": {"yield": {"unit": "dt"}, "cost": {"better": "lower"}},
    "arms": {arm: {} for arm in ARMS},
    "control": "old",
    "preference": {"yield": 1.0, "cost": -0.5},
    "tolerance": {"absolute": 30.0},
    "context": {"rain": {"typical": 300.0, "spread": 60.0, "unit": "mm"}},
    "users": {
        f"s{i}": {"plots": ["a", "b"], "attributes": {"soil": "sand" if i % 2 else "loam"}} for i in range(6)
    },
}  # fmt: skip
PEOPLE: dict[str, Any] = {
    "name": "p",
    "seed": 3,
    "model": {"kind": "people"},
    "metrics": {"steps": {}},
    "arms": {arm: {} for arm in ARMS},
    "control": "old",
    "preference": {"steps": 1.0},
    "tolerance": {"absolute": 30.0},
    "users": {f"p{i}": {} for i in range(20)},
}


def grown(
    spec: dict[str, Any],
    seasons: int,
    *,
    seed: int = 1,
    slope: float = 0.0,
    untold: str = "",
    times: float = 1.0,
    rains: Sequence[float] = (),
) -> Trial:
    """Levels of users and seasons 9 apart, noise 6; `slope`: what the good arm gains with a spread of rain.

    Effects are so many `times` as large as `EFFECT` says. `rains` are those of the seasons, which all users share.
    """
    rng = np.random.default_rng(seed)
    trial = Trial.create(spec, MemoryStore())
    level = dict(zip(spec["users"], drawn("level", seasons, seed, len(spec["users"])), strict=True))
    for n, year in enumerate(drawn("year", seasons, seed)):
        rain = {user: {"rain": 300 + 60 * rng.standard_normal()} for user in spec["users"]}
        rain = {user: {"rain": rains[n]} for user in rain} if rains else rain
        trial.open_episode(rain if spec.get("context") else None)
        reports = []
        for given in trial.ask_many():
            wet = (rain[given.user]["rain"] - 300) / 60
            y = 60 + level[given.user] + year + times * EFFECT[given.arm] + 6 * rng.standard_normal()
            y += slope * wet * (given.arm == "good")
            values = {"yield": y, "cost": 20 + rng.standard_normal(), "steps": y}
            if given.user != untold:
                reports.append(Report(given.id, {m: values[m] for m in spec["metrics"]}))
        trial.tell_many(reports, confirm=True)
    return trial


def drawn(what: str, seasons: int, seed: int = 1, users: int = 6) -> list[float]:
    """The levels of users, or of seasons, that such a trial has."""
    n = users if what == "level" else seasons
    return (9 * np.random.default_rng([seed, n, what == "year"]).standard_normal(n)).tolist()
