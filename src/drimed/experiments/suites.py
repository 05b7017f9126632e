"""The suites of `drimed bench`, from suites.toml, and what one benchmark measures."""

from __future__ import annotations

import tomllib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from drimed.environments.drift import DRIFTS
from drimed.environments.instance import PAPER_SHAPE
from drimed.environments.world import Setting
from drimed.errors import ConfigError, UnknownNameError
from drimed.experiments.run import Run, Scenario
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Shape
from drimed.policies.composing import PolicySpec


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One scenario of a suite, as it stands in tables: every policy is run in each."""

    label: str  # the drift, or what was varied
    scenario: Scenario
    axis: str = ""  # of `scaling`: what is varied,
    value: float = 0.0  # and to what


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A family of scenarios, with the policies to compare there."""

    id: str
    about: str
    instances: int = 64
    episodes: int = 1000
    drifts: tuple[str, ...]
    policies: str
    scenario: Scenario
    special: tuple[Cell, ...]  # instead of one cell per drift, where there are any

    def cells(self, drifts: tuple[str, ...], episodes: int) -> list[Cell]:
        """The scenarios under these drifts; where the number of episodes is varied, it stays as it is."""
        cells = self.special or [Cell(label=drift, scenario=self.scenario.under(drift)) for drift in drifts]
        return [
            c if c.axis == "L" else replace(c, scenario=_lasting(c.scenario, episodes))
            for c in cells
            if c.scenario.drift in drifts
        ]


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """What one `drimed bench` measures: policies on a suite."""

    suite: Suite
    specs: list[PolicySpec]
    drifts: tuple[str, ...]
    instances: int
    instance_seed: int
    episodes: int
    tolerance: Tolerance

    def __post_init__(self) -> None:
        for name in ("instances", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.instance_seed < 0:
            raise ConfigError(f"instance-seed must be at least 0, got {self.instance_seed}")
        for drift in self.drifts:
            if drift not in DRIFTS:
                raise UnknownNameError("drift", drift, DRIFTS)
        if not self.cells:
            raise ConfigError(f"suite {self.suite.id} has no cell under {', '.join(self.drifts)}")
        texts = [spec.text for spec in self.specs]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(f"policy {text!r} is listed twice")

    @property
    def cells(self) -> list[Cell]:
        """The scenarios."""
        return self.suite.cells(self.drifts, self.episodes)

    def plan(self) -> dict[tuple[str, str], Run]:
        """(cell label, policy): the run."""
        seeds = tuple(range(self.instance_seed, self.instance_seed + self.instances))
        return {
            (cell.label, spec.text): Run(
                policy=spec.text, scenario=cell.scenario, tolerance=self.tolerance, seeds=seeds
            )
            for cell in self.cells
            for spec in self.specs
        }


def _lasting(scenario: Scenario, episodes: int) -> Scenario:
    return replace(scenario, setting=replace(scenario.setting, episodes=episodes))


def _varied(base: Scenario, axis: str, value: float) -> Cell:
    """One size changed."""
    scenario = {
        "L": lambda: _lasting(base, int(value)),
        "d": lambda: replace(base, shape=replace(base.shape, d=int(value), K=20)),
        "drift": lambda: replace(base, setting=replace(base.setting, magnitude=float(value))),
        "gap": lambda: replace(base, theta_norm=value),
    }[axis]()
    return Cell(label=f"{axis} = {value:g}", scenario=scenario, axis=axis, value=value)


def _suite(
    id: str, *, scenario: Any = None, vary: Any = None, policies: str = "everything", drifts: Any = DRIFTS, **row: Any
) -> Suite:
    told = {"instances": "random"} | (scenario or {})
    shape, setting = Shape(**told.pop("shape", asdict(PAPER_SHAPE))), Setting(**told.pop("setting", {}))
    base = Scenario(shape=shape, setting=setting, **told)
    cells = tuple(_varied(base, axis, value) for axis, values in (vary or {}).items() for value in values)
    return Suite(id=id, scenario=base, special=cells, policies=_POLICIES[policies], drifts=tuple(drifts), **row)


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_POLICIES = {name: ",".join(texts) for name, texts in _TABLE["policies"].items()}
SUITES: dict[str, Suite] = {id: _suite(id, **row) for id, row in _TABLE["suites"].items()}


def suite(name: str) -> Suite:
    """The suite of that id."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]
