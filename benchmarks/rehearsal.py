"""How fast a rehearsal is against a plain loop over the live interface, measured in one run.

    python -m benchmarks.rehearsal [--trials 1000] [--live 20] [--large-trials 100] [--only NAME] [--parts]

The loop is what a user would write: a SQLite store on disk, and in every season `open_episode`, `ask`, and `tell` for
each outcome; one process. Against it stands `rehearse` on two cores. Both have compiled before, and the two processes
have been started. Each is measured by the clock, which is what a person waits for, and in processor time, which does
not depend on what else runs. Outcomes of the loop are drawn before the clock starts. `--parts` says instead how much of
a block of the template's trials is the fit of the field model.
"""

from __future__ import annotations

import argparse
import importlib
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from drimed.errors import HaltedError
from drimed.models.mixed.learner import Field
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.rehearsal import designs, scenarios
from drimed.rehearsal.results import played
from drimed.rehearsal.run import Plan, rehearse
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from drimed.trial.sql_store import SqlStore
from drimed.trial.store import open_store
from drimed.trial.trial import Trial

CORES = 2
psutil: Any = importlib.import_module("psutil")  # it comes with distributed, and has no types
LARGE: dict[str, Any] = {
    "name": "large",
    "metrics": {"yield": {"range": [0, 100]}},
    "arms": {f"a{k}": {} for k in range(8)},
    "control": "a0",
    "preference": {"yield": 1.0},
    "users": {f"s{i}": {} for i in range(20)},
    "tolerance": {"absolute": 8.0},
}


@dataclass(frozen=True)
class Outcomes:
    """What every arm would bring in each season of some worlds, before anything is decided."""

    world: SimulatedTrials

    @cached_property
    def means(self) -> list[FloatArray]:
        """In an average season: (S, n, K, M) for each."""
        w = self.world
        return [w.means(season, w.offers(season)) for season in range(w.setting.seasons)]

    @cached_property
    def drawn(self) -> list[tuple[FloatArray, FloatArray, BoolArray]]:
        """Outcomes (S, n, K, M), those of control plots (S, n, M), and which ever come (S, n)."""
        found = []
        for season, means in enumerate(self.means):
            S, n, K, _ = means.shape
            arms = [self.world.respond(season, np.full((S, n), k), means) for k in range(K)]
            found.append((np.stack([told.y for told in arms], 2), arms[0].control, arms[0].observed))
        return found

    @cached_property
    def contexts(self) -> list[list[dict[str, dict[str, float]]]]:
        """By season and world."""
        w, fields = self.world, list(self.world.population.state.problem.covariates.fields)
        found = []
        for season, places in enumerate(w.population.seasons):
            named = [(p.user, c) for p, c in zip(places, w.contexts(season), strict=True) if c is not None]
            found.append(
                [{u: dict(zip(fields, c[s].tolist(), strict=True)) for u, c in named} for s in range(len(w.seeds))]
            )
        return found


def world(spec: TrialSpec, scenario: Scenario, seeds: Sequence[int], seasons: int | None = None) -> SimulatedTrials:
    return SimulatedTrials.of(spec, scenario, seeds, seasons)


def live(store: SqlStore, there: Outcomes, s: int) -> tuple[Trial, list[list[int]]]:
    """A live trial in world s, and its arms season by season; a rule may stop it."""
    spec = there.world.population.state.spec
    seed, metrics, arms = int(there.world.seeds[s]), list(spec.metrics), list(spec.arms)
    trial = Trial.create(spec.plain() | {"seed": seed, "name": f"{spec.name}-{seed}"}, store)
    given: list[list[int]] = []
    for season, (y, beside, comes) in enumerate(there.drawn):
        try:
            trial.open_episode(there.contexts[season][s])
            decisions = trial.ask_many()
        except HaltedError:
            break
        given.append([arms.index(d.arm) for d in decisions])
        for i, d in enumerate(decisions):
            if comes[s, i]:
                plot = dict(zip(metrics, beside[s, i].tolist(), strict=True)) if spec.feedback == "difference" else None
                values = dict(zip(metrics, y[s, i, given[-1][i]].tolist(), strict=True))
                trial.tell(d.id, values, control=plot, confirm=True)
    return trial, given


def timed(act: Callable[[], Any]) -> tuple[float, float]:
    """Seconds by the clock, and of processor time of this process and those that it has started."""
    clock, before = time.perf_counter(), _processor()
    act()
    return time.perf_counter() - clock, _processor() - before


def _processor() -> float:
    me = psutil.Process()
    used = [p.cpu_times() for p in (me, *me.children(recursive=True))]
    return float(sum(t.user + t.system for t in used))


def speed(name: str, spec: TrialSpec, trials: int, loops: int, seasons: int | None) -> None:
    """Print one line of the table."""
    scenario = scenarios.usual(spec, seasons)["a difference that matters"]

    def run(n: int, seed: int, seasons: int | None = seasons) -> None:
        plan = Plan(spec, {"s": scenario}, (designs.own(spec),), trials=n, seed=seed, seasons=seasons)
        rehearse(plan, None, jobs=CORES)

    run(100, 1, 2)  # two blocks: both processes have compiled
    there = Outcomes(world(spec, scenario, range(loops + 1), seasons))
    assert there.drawn
    assert there.contexts
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "trials.db"))
        live(store, there, loops)  # compiled
        loop = [t / loops for t in timed(lambda: [live(store, there, s) for s in range(loops)])]
    batch = [t / trials for t in timed(lambda: run(trials, 0))]
    print(
        f"{name}, {there.world.setting.seasons} seasons: live {1000 * loop[0]:.0f} ms a trial by the clock, "
        f"{1000 * loop[1]:.0f} ms of processor; rehearsed on {CORES} cores {1000 * batch[0]:.1f} ms by the clock, "
        f"{1000 * batch[1]:.1f} ms of processor; {loop[0] / batch[0]:.1f} times faster by the clock, "
        f"{CORES * loop[1] / batch[1]:.1f} times by processor time on {CORES} free cores; "
        f"1,000 trials in {1000 * batch[0]:.0f} s by the clock, {1000 * batch[1] / CORES:.0f} s on free cores",
        flush=True,
    )


def parts(spec: TrialSpec, trials: int = 50) -> None:
    """Print how much processor time of a trial is the fit, and how much is around it."""
    scenario = scenarios.usual(spec)["a difference that matters"]
    played(world(spec, scenario, range(2), 2), designs.own(spec), spec.tolerance)  # compiled
    spent, ready = [0.0], Field.ready

    def counted(*given: Any, **more: Any) -> Any:
        start = time.process_time()
        found = ready(*given, **more)
        spent[0] += time.process_time() - start
        return found

    with patch.object(Field, "ready", counted):
        _, all_of_it = timed(lambda: played(world(spec, scenario, range(trials)), designs.own(spec), spec.tolerance))
    fit, around = (1000 * t / trials for t in (spent[0], all_of_it - spent[0]))
    print(f"the template, of processor time of a trial: {fit:.1f} ms are the fit, {around:.1f} ms are around it")


def main() -> None:
    """The three trials of docs/rehearse.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=1000, help="that are rehearsed")
    parser.add_argument("--live", type=int, default=20, help="trials of the loop")
    parser.add_argument("--large-trials", type=int, default=100, help="that are rehearsed of the large file")
    parser.add_argument("--only", help="a part of the name of one of the three")
    parser.add_argument("--parts", action="store_true", help="the fit, and what is around it")
    given = parser.parse_args()
    if given.parts:
        parts(TrialSpec.parse(template()))
        return
    for name, spec, trials, loops, seasons in (
        ("the template", TrialSpec.parse(template()), given.trials, given.live, None),
        ("the template with the paper's model", paper(), given.trials, given.live, None),
        ("8 arms, 20 sites", TrialSpec.read(LARGE), given.large_trials, max(1, given.live // 10), 20),
    ):
        if given.only is None or given.only in name:
            speed(name, spec, trials, loops, seasons)


def paper() -> TrialSpec:
    """The template without what only the field model knows."""
    plain = TrialSpec.parse(template()).plain() | {"model": {"kind": "paper"}}
    plain["context"] = {"rain": {"typical": 450, "spread": 120}}
    plain.pop("attributes", None)
    for user in plain["users"].values():
        user.pop("attributes", None)
    return TrialSpec.read(plain)


if __name__ == "__main__":
    main()
