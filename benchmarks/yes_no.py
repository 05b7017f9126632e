"""Trials with yes-or-no outcomes, through the live interface: do ranges hold, and does anybody fall short?

    python -m benchmarks.yes_no [--trials 100]

Five sites with three plots, or fifteen new people, in each of six seasons; tolerance 10 points of a hundred, confidence
0.99. Printed are the share of likely ranges (95 %, all users together, at the end) that hold, their median width,
the decisions of 10,000 whose expected loss is above the tolerance, and how often a better arm was named wrongly.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from drimed.findings.analysis import analyse
from drimed.findings.effects import EVERYBODY, MODEL, REWARD
from drimed.records import Report
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial

SEASONS, POINTS, TOLERANCE = 6, 100.0, 10.0
CONTROL = "usual"
WORLDS: tuple[dict[str, float], ...] = (
    {CONTROL: 0.97, "b": 0.6, "c": 0.97},
    {CONTROL: 0.5, "b": 0.3, "c": 0.7},
    {CONTROL: 0.05, "b": 0.05, "c": 0.05},
)
KINDS: dict[str, dict[str, Any]] = {
    "people": {"model": {"kind": "people"}, "decisions": "any number"},
    "field": {"users": {f"s{i}": {"plots": ["1", "2", "3"]} for i in range(5)}},
}


class Played(NamedTuple):
    """One trial."""

    holds: list[bool]
    widths: list[float]
    short: list[bool]
    wrong: bool


def play(kind: str, world: Mapping[str, float], seed: int) -> Played:
    """With chances of a yes for each arm."""
    spec = {
        "name": kind,
        "seed": seed,
        "metrics": {"alive": {"range": [0, 1]}},
        "arms": {arm: {} for arm in world},
        "control": CONTROL,
        "preference": {"alive": POINTS},
        "tolerance": {"relative": 0.0, "absolute": TOLERANCE},
    }
    trial, rng = Trial.create(spec | KINDS[kind], MemoryStore()), np.random.default_rng([seed, 1])
    effect = {arm: POINTS * (chance - world[CONTROL]) for arm, chance in world.items()}
    short = []
    for season in range(1, SEASONS + 1):
        people = [f"p{season}.{i}" for i in range(15)]
        given = trial.ask_many(None if kind == "field" else people, episode=season)
        short += [sum(p * effect[arm] for arm, p in d.probabilities.items()) < -TOLERANCE - 1e-9 for d in given]
        outcomes = [Report(d.id, {"alive": float(rng.random() < world[d.arm])}) for d in given]
        trial.tell_many(outcomes, confirm=True)
    found = [x for x in analyse(trial).effects if (x.who, x.on, x.source) == (EVERYBODY, REWARD, MODEL)]
    found = [x for x in found if x.arm != CONTROL]
    return Played(
        [x.likely_ends[0] <= effect[x.arm] <= x.likely_ends[1] for x in found],
        [x.likely_ends[1] - x.likely_ends[0] for x in found],
        short,
        any(x.likely > 0 and effect[x.arm] <= 0 for x in found),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=100)
    given = parser.parse_args()
    print("| kind | chances | 95 % hold | width | short, per 10,000 | a better arm named wrongly |")
    print("|---|---|---|---|---|---|")
    for kind in KINDS:
        for world in WORLDS:
            played = [play(kind, world, seed) for seed in range(given.trials)]
            holds, widths, short = (
                np.concatenate([getattr(p, n) for p in played]) for n in ("holds", "widths", "short")
            )
            chances = " / ".join(f"{chance:g}" for chance in world.values())
            print(
                f"| {kind} | {chances} | {holds.mean():.3f} | {np.median(widths):.0f} | {1e4 * short.mean():.0f} | "
                f"{np.mean([p.wrong for p in played]):.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
