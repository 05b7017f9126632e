"""How fast a rehearsal is against a plain loop over the live interface, and whether live trials do what it says.

    python benchmarks/rehearsal.py [--trials 100] [--live 4] [--check 0] [--large]

Both are measured in one run, in CPU seconds of one process. `--check N` plays N trials of five files through the
live interface (store, ask, tell) in the same worlds and compares every decision. `--large`: 8 arms, 20 sites, 20
seasons.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from drimed.records import Report
from drimed.rehearsal import scenarios
from drimed.rehearsal.designs import own
from drimed.rehearsal.people import Crowd
from drimed.rehearsal.play import Season, play
from drimed.rehearsal.record import played
from drimed.rehearsal.scenarios import Scenario
from drimed.rehearsal.setting import Setting
from drimed.rehearsal.world import World
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.memory import MemoryStore
from drimed.trial.trial import Trial

LARGE: dict[str, Any] = {
    "name": "large",
    "metrics": {"yield": {"range": [0, 100]}},
    "arms": {f"a{k}": {} for k in range(8)},
    "control": "a0",
    "preference": {"yield": 1.0},
    "users": {f"s{i}": {} for i in range(20)},
    "tolerance": {"absolute": 8.0},
}
SITES = LARGE | {"arms": {a: {} for a in ("a0", "a1", "a2")}, "users": {f"s{i}": {} for i in range(4)}}
FILES: dict[str, dict[str, Any]] = {
    "sites": SITES,
    "floors": SITES | {"floors": {"control": 0.2}},
    "control plots": SITES | {"feedback": "difference"},
    "no guard": SITES | {"policy": {"name": "dri_med", "guard": "off"}},
    "paper": SITES | {"model": {"kind": "paper"}},
}


def world(spec: TrialSpec, scenario: Scenario, seeds: Sequence[int], seasons: int | None = None) -> World:
    setting = Setting.of(spec, scenario, seasons)
    return World(Crowd.of(spec, setting.seasons, setting.users), setting, seeds)


def live(it: World, seasons: Sequence[Season], s: int) -> list[list[str]]:
    """The arms of a live trial with the draws and outcomes of world s."""
    spec, metrics = it.crowd.state.spec, list(it.crowd.state.spec.metrics)
    trial = Trial.create(spec.plain() | {"seed": int(it.seeds[s])}, MemoryStore())
    fields, arms = list(it.crowd.state.problem.covariates.fields), []
    for season in seasons:
        named = zip(it.crowd.seasons[season.number], it.contexts(season.number), strict=True)
        trial.open_episode({p.user: dict(zip(fields, c[s].tolist(), strict=True)) for p, c in named if c is not None})
        decisions = trial.ask()
        y, y0 = (dict(zip(range(len(v)), v.tolist(), strict=True)) for v in (season.told.y[s], season.told.control[s]))
        pair = spec.feedback == "difference"
        trial.tell_many(
            [
                Report(
                    d.id,
                    dict(zip(metrics, y[i], strict=True)),
                    dict(zip(metrics, y0[i], strict=True)) if pair else None,
                )
                for i, d in enumerate(decisions)
            ],
            confirm=True,
        )
        arms.append([d.arm for d in decisions])
    return arms


def speed(name: str, spec: TrialSpec, trials: int, loops: int, seasons: int | None) -> None:
    better = scenarios.usual(spec, seasons)["a difference that matters"]
    list(play(world(spec, better, (0, 1), 2), own(spec)))  # compiled
    it = world(spec, better, range(trials), seasons)
    start = time.process_time()
    played(it, own(spec), spec.tolerance)
    batch = (time.process_time() - start) / trials
    few = world(spec, better, range(loops), seasons)
    outcomes = list(play(few, own(spec)))
    start = time.process_time()
    for s in range(loops):
        live(few, outcomes, s)
    loop = (time.process_time() - start) / loops
    print(
        f"{name}: {1000 * batch:.0f} ms a simulated trial ({it.setting.seasons} seasons), {1000 * loop:.0f} ms live: "
        f"{loop / batch:.1f} times on one core; 1,000 trials on two cores: {500 * batch:.0f} s",
        flush=True,
    )


def check(trials: int) -> None:
    for name, data in FILES.items():
        spec = TrialSpec.read(data)
        it = world(spec, scenarios.usual(spec, 4)["a difference that matters"], range(trials))
        seasons, arms = list(play(it, own(spec))), list(spec.arms)
        rehearsed = np.stack([s.action for s in seasons], 1)  # (S, L, n)
        found = np.array([[[arms.index(a) for a in row] for row in live(it, seasons, s)] for s in range(trials)])
        print(f"{name}: {(found == rehearsed).mean():.6f} of {found.size:,} decisions are the same", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--live", type=int, default=4)
    parser.add_argument("--check", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    given = parser.parse_args()
    speed("template", TrialSpec.parse(template()), given.trials, given.live, None)
    speed("template, paper's model", _paper(), given.trials, given.live, None)
    if given.large:
        speed("8 arms, 20 sites", TrialSpec.read(LARGE), max(2, given.trials // 10), 1, 20)
    if given.check:
        check(given.check)


def _paper() -> TrialSpec:
    """The template without what only the field model knows."""
    plain = TrialSpec.parse(template()).plain() | {"model": {"kind": "paper"}}
    plain["context"] = {"rain": {"typical": 450, "spread": 120}}
    plain.pop("attributes", None)
    for user in plain["users"].values():
        user.pop("attributes", None)
    return TrialSpec.read(plain)


if __name__ == "__main__":
    main()
