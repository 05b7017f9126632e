"""A rehearsal: designs in scenarios, in blocks of simulated trials that are computed on all cores and stored."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError
from drimed.rehearsal import designs as rehearsal_designs
from drimed.rehearsal.designs import OWN, Design
from drimed.rehearsal.history import History
from drimed.rehearsal.results import Record, played
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.sweep import code_digest, sweep
from drimed.trial.spec import TrialSpec

BLOCK = 50  # trials that are computed side by side
FEWER = 5  # designs beside the trial's own are rehearsed with so many times fewer trials,
FEWEST = 100  # but with no fewer than these

Records = dict[tuple[str, str], Record]  # by scenario and design


@dataclass(frozen=True)
class Rehearsal:
    """Simulated trials of one design in one scenario."""

    spec: TrialSpec  # the trial that is rehearsed: its tolerance says what harm is
    design: Design
    scenario: Scenario
    seasons: int | None
    seeds: tuple[int, ...]
    history: History | None = None

    @property
    def label(self) -> str:
        """Beside a progress bar."""
        return self.design.name

    @property
    def record_type(self) -> type[Record]:
        """Of its result."""
        return Record

    def key(self) -> str:
        """The same for the same trials and the same code, and for nothing else."""
        described = [
            self.spec.plain(), self.design.spec.plain(), self.design.allocation,
            self.scenario.model_dump(mode="json"), self.seasons, self.seeds,
            None if self.history is None or not self.scenario.history else self.history.digest,
        ]  # fmt: skip
        text = json.dumps(described, sort_keys=True)
        return hashlib.sha256(f"{code_digest()} {text}".encode()).hexdigest()[:32]

    def blocks(self) -> list[Rehearsal]:
        """The trials in blocks: each can be computed, stored and repeated alone."""
        return [replace(self, seeds=self.seeds[i : i + BLOCK]) for i in range(0, len(self.seeds), BLOCK)]

    def group(self) -> tuple[str, int]:
        """A block is a batch."""
        return self.key(), 1

    def run_with(self, others: Sequence[Rehearsal] = ()) -> list[Record]:
        """Play it."""
        return [task.run() for task in (self, *others)]

    def run(self) -> Record:
        """Play it."""
        trials = SimulatedTrials.of(self.spec, self.scenario, self.seeds, self.seasons, self.history, self.design.spec)
        return played(trials, self.design, self.spec.tolerance)


@dataclass(frozen=True)
class Plan:
    """Designs and scenarios of a rehearsal."""

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
        beside = (*rehearsal_designs.without_learning(spec), *rehearsal_designs.variants(spec))
        return Plan(spec, scenarios, (rehearsal_designs.own(spec), *beside), **given)

    def tasks(self) -> dict[tuple[str, str], Rehearsal]:
        """By scenario and design."""
        return {(name, design.name): self._task(name, design) for name in self.scenarios for design in self.designs}

    def _task(self, scenario: str, design: Design) -> Rehearsal:
        n = self.trials if design.name == OWN else min(self.trials, max(FEWEST, self.trials // FEWER))
        seeds = tuple(range(self.seed * 1_000_000, self.seed * 1_000_000 + n))
        return Rehearsal(self.spec, design, self.scenarios[scenario], self.seasons, seeds, self.history)

    def hash(self) -> str:
        """Of everything that the results depend on."""
        keys = [block.key() for task in self.tasks().values() for block in task.blocks()]
        return hashlib.sha256(json.dumps(keys).encode()).hexdigest()


def rehearse(plan: Plan, store: Path | None, **how: Any) -> Records:
    """Play what is not stored yet, and return all of it; `how` is that of `sweep`."""
    return sweep(plan.tasks(), store, **how)
