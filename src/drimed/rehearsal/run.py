"""A rehearsal: designs in scenarios, in blocks of simulated trials that are computed on all cores and stored.

An interrupted rehearsal continues where it stopped: a block is a pure function of the trial, the scenario, the design,
the seeds and the code, and its file is named by them. Neither the number of processes nor a cluster changes any number.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import drimed
from drimed.errors import ConfigError, MissingExtraError
from drimed.experiments.run import code_digest
from drimed.experiments.sweep import Cluster, backend
from drimed.rehearsal import designs
from drimed.rehearsal.designs import OWN, Design
from drimed.rehearsal.history import History
from drimed.rehearsal.people import Crowd
from drimed.rehearsal.record import Record, played
from drimed.rehearsal.scenarios import Scenario
from drimed.rehearsal.setting import Setting
from drimed.rehearsal.world import World
from drimed.trial.spec import TrialSpec

BLOCK = 50  # trials that are computed side by side
FEWER = 5  # designs beside the trial's own are rehearsed with so many times fewer trials,
FEWEST = 100  # but with no fewer than these

OnDone = Callable[[int, int], None]


@dataclass(frozen=True)
class Block:
    """Some simulated trials of one design in one scenario."""

    spec: TrialSpec  # the trial that is rehearsed: its tolerance says what harm is
    design: Design
    scenario: Scenario
    seasons: int | None
    seeds: tuple[int, ...]
    history: History | None = None

    def key(self) -> str:
        """The same for the same block and the same code, and for nothing else."""
        described = [
            self.spec.plain(), self.design.spec.plain(), self.design.allocation,
            self.scenario.model_dump(mode="json"), self.seasons, self.seeds,
            None if self.history is None or not self.scenario.history else self.history.digest,
        ]  # fmt: skip
        text = json.dumps(described, sort_keys=True)
        return hashlib.sha256(f"{digest()} {text}".encode()).hexdigest()[:32]

    def run(self) -> Record:
        """Play it."""
        setting = Setting.of(self.spec, self.scenario, self.seasons)
        crowd = Crowd.of(self.design.spec, setting.seasons, setting.users)
        past = self.history if self.scenario.history else None
        return played(World(crowd, setting, self.seeds, past), self.design, self.spec.tolerance)


@dataclass(frozen=True)
class Plan:
    """What is rehearsed."""

    spec: TrialSpec
    scenarios: dict[str, Scenario]
    designs: tuple[Design, ...]
    trials: int = 1000
    seed: int = 0
    seasons: int | None = None
    history: History | None = None

    def __post_init__(self) -> None:
        if self.trials < 2:
            raise ConfigError(f"a rehearsal needs at least 2 trials, got {self.trials}")

    @staticmethod
    def everything(spec: TrialSpec, scenarios: dict[str, Scenario], **given: Any) -> Plan:
        """The trial and all designs that are rehearsed beside it."""
        return Plan(spec, scenarios, (designs.own(spec), *designs.without_learning(spec), *designs.variants(spec)),
                    **given)  # fmt: skip

    def blocks(self, scenario: str, design: Design) -> list[Block]:
        """Of one design in one scenario."""
        n = self.trials if design.name == OWN else min(self.trials, max(FEWEST, self.trials // FEWER))
        first = self.seed * 1_000_000
        return [
            Block(
                self.spec, design, self.scenarios[scenario], self.seasons,
                tuple(range(first + i, first + min(i + BLOCK, n))), self.history,
            )
            for i in range(0, n, BLOCK)
        ]  # fmt: skip

    def hash(self) -> str:
        """Of everything that the results depend on."""
        keys = [b.key() for s in self.scenarios for d in self.designs for b in self.blocks(s, d)]
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


Records = dict[tuple[str, str], Record]  # by scenario and design


def rehearse(
    plan: Plan, store: Path | None, *, jobs: int = -1, cluster: Cluster | None = None, on_done: OnDone | None = None
) -> Records:
    """Play what is not stored yet, and return all of it; `on_done` is told how many trials are done of how many."""
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    wanted = {(s, d.name): {b.key(): b for b in plan.blocks(s, d)} for s in plan.scenarios for d in plan.designs}
    everything = {key: block for some in wanted.values() for key, block in some.items()}
    found: dict[str, Record] = {}
    total = sum(len(b.seeds) for b in everything.values())

    def done(key: str, record: Record) -> None:
        found[key] = record
        if on_done is not None:
            on_done(sum(r.trials for r in found.values()), total)

    if store is not None:
        store.mkdir(parents=True, exist_ok=True)
        for key in everything:
            if (path := store / f"{key}.npz").exists():
                done(key, Record.load(path))
    todo = {key: block for key, block in everything.items() if key not in found}
    for key, record in _computed(todo, jobs, cluster):
        if store is not None:
            record.save(store / f"{key}.npz")
        done(key, record)
    return {name: Record.joined([found[key] for key in some]) for name, some in wanted.items()}


def _computed(todo: Mapping[str, Block], jobs: int, cluster: Cluster | None) -> Iterator[tuple[str, Record]]:
    processes = (os.cpu_count() or 1) if jobs == -1 else jobs
    if cluster is None and min(processes, len(todo)) <= 1:
        for key, block in todo.items():
            yield _run(key, block)
        return
    try:
        from joblib import Parallel, delayed
    except ImportError as error:
        raise MissingExtraError("joblib", "sim") from error
    with backend(cluster, min(processes, len(todo))):
        whole = cluster is not None and cluster.kind == "ray"  # it cannot hand out results one by one
        run = Parallel(batch_size=1) if whole else Parallel(
            return_as="generator_unordered", batch_size=1, pre_dispatch="all"
        )  # fmt: skip
        yield from run(delayed(_run)(key, block) for key, block in todo.items())


def _run(key: str, block: Block) -> tuple[str, Record]:
    """With the key it came with: where the code has changed meanwhile, another process would find another."""
    return key, block.run()


@cache
def digest() -> str:
    """A fingerprint of the code that decides what a rehearsal shows."""
    root = Path(drimed.__file__).parent
    parts = [p for folder in ("rehearsal", "trial", "evaluation") for p in sorted((root / folder).glob("*.py"))]
    own = hashlib.sha256(b"".join(p.read_bytes() for p in parts))
    return hashlib.sha256(f"{code_digest()} {own.hexdigest()}".encode()).hexdigest()[:16]
