"""A rehearsal beside a plain loop over the live interface.

The loop is what a user would write: a SQLite store on disk, and in every season `open_episode`, `ask_many`, and `tell`
for each outcome. Both run in this process and are measured in processor time; outcomes of the loop are drawn before.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import Part, Row, Size, Spread, processor_seconds
from drimed.errors import HaltedError
from drimed.rehearsal import designs, scenarios
from drimed.rehearsal.play import Rehearsal
from drimed.rehearsal.scenarios import SimulatedTrials
from drimed.trial import template
from drimed.trial.spec import TrialSpec
from drimed.trial.store import open_store
from drimed.trial.trial import Trial

TIMES_FASTER = 10.0


def run(size: Size) -> Part:
    """The template, with its model and with the paper's."""
    trials, loops, seasons = {"smallest": (2, 1, 2), "quick": (50, 2, None), "full": (400, 20, None)}[size]
    part = Part("Rehearsals", "ms", "A trial of the template. Ratio: times faster than a loop over the live interface.")
    specs = {"the template": TrialSpec.parse(template()), "with the paper's model": paper_template()}
    for name, spec in specs.items():
        scenario = scenarios.usual(spec, seasons)["a difference that matters"]
        task = Rehearsal(
            spec=spec, design=designs.own(spec), scenario=scenario, seasons=seasons, seeds=tuple(range(trials))
        )
        replace(task, seeds=(0, 1)).run()  # compiles
        loop = live_loop(SimulatedTrials.of(spec, scenario, range(loops + 1), seasons))
        with tempfile.TemporaryDirectory() as folder:
            store = open_store(f"sqlite:///{Path(folder) / 'trials.db'}")
            loop(store, loops)  # compiles
            live = sum(processor_seconds(partial(loop, store, s)) for s in range(loops)) / loops
        batch = processor_seconds(task.run) / trials
        row = Row(name, Spread.of([1000 * batch]), Spread.of([live / batch]), at_least=TIMES_FASTER)
        part.rows.append(row)
    return part


def live_loop(world: SimulatedTrials) -> Callable[[Any, int], None]:
    """A function that plays simulated trial s over the live interface; outcomes of all arms are drawn beforehand."""
    spec, fields = world.state.spec, list(world.state.problem.covariates.fields)
    drawn = []
    for season in range(world.setting.seasons):
        means = world.means(season, world.offers(season))  # (S, n, K, M)
        S, n, K, _ = means.shape
        arms = [world.respond(season, np.full((S, n), k), means) for k in range(K)]
        places = zip(world.places[season], world.contexts(season), strict=True)
        contexts = {place.user: values for place, values in places if values is not None}
        drawn.append((contexts, np.stack([told.y for told in arms], 2), arms[0].observed))
    metrics, names = list(spec.metrics), list(spec.arms)

    def play(store: Any, s: int) -> None:
        trial = Trial.create(spec.plain() | {"seed": s, "name": f"{spec.name}-{s}"}, store)
        for contexts, y, comes in drawn:
            try:
                trial.open_episode({u: dict(zip(fields, c[s].tolist(), strict=True)) for u, c in contexts.items()})
                decisions = trial.ask_many()
            except HaltedError:  # a stopping rule is met
                return
            for i, d in enumerate(decisions):
                if comes[s, i]:
                    values = y[s, i, names.index(d.arm)].tolist()
                    trial.tell(d.id, dict(zip(metrics, values, strict=True)), confirm=True)

    return play


def paper_template() -> TrialSpec:
    """The template without covariates that the paper's model does not have."""
    plain = TrialSpec.parse(template()).plain() | {"model": {"kind": "paper"}}
    plain["context"] = {"rain": {"typical": 450, "spread": 120}}
    plain.pop("attributes", None)
    for user in plain["users"].values():
        user.pop("attributes", None)
    return TrialSpec.read(plain)
