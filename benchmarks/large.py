"""A large trial: many decisions, users and arms, written through the trial's own ask and tell, in whole episodes.

`python -m benchmarks.large FILE` makes one in a SQLite file that does not sync; what is there already is continued.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.trial import without_sync
from drimed.records import Decision, Report
from drimed.trial.store import open_store
from drimed.trial.trial import Trial

NAME = "large"
DECISIONS, USERS, ARMS = 200_000, 1_000, 200
WAITING = 0.02  # of the decisions whose outcome has not come


def spec(kind: str, users: int, arms: int, *, own: bool = False) -> dict[str, Any]:
    """Doses of one substance, two metrics, users in twenty groups with two preferences or one of their own each."""
    doses = np.linspace(0.0, 1.0, arms)
    known = {"noise": {"kind": "known", "sd": {"yield": 0.8, "cost": 0.3}}, "confidence": "anytime"}
    return {
        **(known if kind == "paper" else {}),
        "name": NAME,
        "seed": 1,
        "model": {"kind": kind},
        "metrics": {"yield": {"range": [0.0, 10.0]}, "cost": {"range": [0.0, 4.0]}},
        "arms": {f"dose {i:03d}": {"attributes": {"dose": float(d), "late": i % 7 / 6}} for i, d in enumerate(doses)},
        "control": "dose 000",
        "preference": {"yield": 1.0, "cost": -0.5},
        "context": {"rain": {"typical": 450, "spread": 120}},
        "users": {
            f"user {i:04d}": {"group": f"group {i % 20:02d}"}
            | ({"preference": {"yield": 1.0, "cost": -0.8 - own * i / users}} if own or i % 3 == 0 else {})
            for i in range(users)
        },
        "tolerance": {"absolute": 0.5},
    }


def grow(trial: Trial, decisions: int, tick: Any = None) -> None:
    """Ask all users, and tell nearly all outcomes, until there are so many decisions."""
    users = list(trial.state().users)
    while (done := trial.state().counts.decisions) < decisions:
        rng = np.random.default_rng(done)
        rain = rng.normal(450, 120, len(users)).round(1).tolist()
        contexts = {user: {"rain": r} for user, r in zip(users, rain, strict=True)}
        given = trial.ask_many(contexts=contexts, episode=trial.state().episode.number + 1)
        told = rng.random(len(given)) >= WAITING
        noise = rng.normal(0.0, (0.8, 0.3), (len(given), 2)).round(2)
        trial.tell_many(
            [Report(d.id, outcome(d, e)) for d, e, t in zip(given, noise.tolist(), told, strict=True) if t],
            confirm=True,
        )
        if tick is not None:
            tick()


def outcome(decision: Decision, noise: list[float]) -> dict[str, float]:
    """What came of it."""
    dose = int(decision.arm.removeprefix("dose ")) / ARMS
    return {
        "yield": round(4.0 + 3.0 * dose - 1.5 * dose**2 + noise[0], 2),
        "cost": round(1.0 + dose + noise[1], 2),
    }


def make(file: Path, kind: str, decisions: int, users: int = USERS, arms: int = ARMS, tick: Any = None) -> Trial:
    """A trial with so many decisions; one that is there already is continued."""
    store = open_store(f"sqlite:///{file}")
    without_sync(store)
    trial = Trial(NAME, store) if NAME in store.names() else Trial.create(spec(kind, users, arms), store)
    grow(trial, decisions, tick)
    return trial


def main() -> None:
    """Make one, and say what it took."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.large", description="A large trial.")
    parser.add_argument("file", type=Path)
    parser.add_argument("--kind", choices=("paper", "field", "people"), default="paper")
    parser.add_argument("--decisions", type=int, default=DECISIONS)
    parser.add_argument("--users", type=int, default=USERS)
    parser.add_argument("--arms", type=int, default=ARMS)
    chosen, console = parser.parse_args(), Console()
    start = time.perf_counter()

    def tick() -> None:
        console.print(f"{time.perf_counter() - start:.1f} s", end=" ")

    made = make(chosen.file, chosen.kind, chosen.decisions, chosen.users, chosen.arms, tick)
    size = chosen.file.stat().st_size / made.status().decisions
    console.print(f"\n{made.status().decisions:,} decisions, {size:,.0f} bytes each")


if __name__ == "__main__":
    main()
