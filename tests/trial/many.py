"""A trial with many arms, decided and told whole episodes at a time."""

from __future__ import annotations

from typing import Any

from drimed.records import Report
from drimed.trial.store import Store
from drimed.trial.trial import Trial

ARMS, USERS = 60, 50


def spec(*, own: bool = False, name: str = "many") -> dict[str, Any]:
    """Doses of one substance; users with two preferences, or (own) with one of their own each."""
    return {
        "name": name,
        "seed": 1,
        "model": {"kind": "paper"},
        "noise": {"kind": "known", "sd": {"yield": 0.8, "cost": 0.3}},
        "confidence": "anytime",
        "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
        "arms": {f"dose {i:02d}": {"attributes": {"dose": i / ARMS}} for i in range(ARMS)},
        "control": "dose 00",
        "preference": {"yield": 1.0, "cost": -0.5},
        "users": {
            f"user {i:02d}": {"group": f"group {i % 5}"}
            | ({"preference": {"yield": 1.0, "cost": -0.6 - i * own / USERS}} if own or i % 3 == 0 else {})
            for i in range(USERS)
        },
        "tolerance": {"absolute": 0.5},
    }


def made(store: Store, episodes: int, **options: Any) -> Trial:
    """After so many episodes; of each tenth decision the outcome is pending, of each eleventh partial."""
    trial = Trial.create(spec(**options), store)
    grow(trial, episodes)
    return trial


def grow(trial: Trial, episodes: int) -> None:
    """Some more episodes."""
    for _ in range(episodes):
        given = trial.ask_many(episode=trial.state().episode.number + 1)
        told = []
        for d in given:
            dose = int(d.arm.removeprefix("dose ")) / ARMS
            outcome = {"yield": 4.0 + 2.0 * dose + d.id * 7919 % 97 / 97}
            if d.id % 11:
                outcome["cost"] = 1.0 + dose + d.id * 104729 % 89 / 89
            if d.id % 10:
                told.append(Report(d.id, outcome))
        trial.tell_many(told, confirm=True)
