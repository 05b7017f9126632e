"""The suites of `drimed bench`, from suites.toml, and what one benchmark measures."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from drimed.environments.drift import DRIFTS
from drimed.environments.field import Deviations, FieldSetting
from drimed.environments.instance import PAPER_SHAPE
from drimed.environments.world import Setting
from drimed.errors import ConfigError, UnknownNameError
from drimed.experiments.run import Run
from drimed.experiments.scenarios import AnyScenario, FieldScenario, HealthScenario, Scenario
from drimed.guards.margin import Tolerance
from drimed.learning.offer import Shape
from drimed.policies.composing import PolicySpec


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One scenario of a suite, as it stands in tables: every policy is run in each."""

    label: str  # the drift, or what was varied
    scenario: AnyScenario
    axis: str = ""  # of `scaling`: what is varied,
    value: float = 0.0  # and to what


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A family of scenarios, with the policies to compare there."""

    id: str
    about: str
    instances: int = 64
    episodes: int = 1000
    drifts: tuple[str, ...]  # or the labels of cells of its own
    policies: str
    scenario: AnyScenario
    special: tuple[Cell, ...]  # instead of one cell per drift, where there are any
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))

    @property
    def choices(self) -> list[str]:
        """The drifts and cells that may be chosen from."""
        return [*DRIFTS, *(cell.label for cell in self.special)]

    def cells(self, drifts: tuple[str, ...], episodes: int, changes: Mapping[str, Any]) -> list[Cell]:
        """The scenarios under these drifts; where the number of episodes is varied, it stays as it is."""
        cells = self.special or [Cell(label=drift, scenario=self.scenario.under(drift)) for drift in drifts]
        return [
            c if c.axis == "L" else replace(c, scenario=_sized(c.scenario, episodes, changes))
            for c in cells
            if c.label in drifts or c.scenario.drift in drifts
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
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of fields that differ from the suite's

    def __post_init__(self) -> None:
        for name in ("instances", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.instance_seed < 0:
            raise ConfigError(f"instance-seed must be at least 0, got {self.instance_seed}")
        for drift in self.drifts:
            if drift not in self.suite.choices:
                raise UnknownNameError("drift" if drift not in self.suite.drifts else "cell", drift, self.suite.choices)
        if self.changes and not isinstance(self.suite.scenario, FieldScenario):
            raise ConfigError(f"suite {self.suite.id} has no {min(self.changes)} to choose; `field` has")
        if not self.cells:
            raise ConfigError(f"suite {self.suite.id} has no cell under {', '.join(self.drifts)}")
        texts = [spec.text for spec in self.specs]
        for text in texts:
            if texts.count(text) > 1:
                raise ConfigError(f"policy {text!r} is listed twice")

    @property
    def cells(self) -> list[Cell]:
        """The scenarios."""
        return self.suite.cells(self.drifts, self.episodes, self.changes)

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


def _sized(scenario: AnyScenario, episodes: int, changes: Mapping[str, Any]) -> AnyScenario:
    if isinstance(scenario, FieldScenario):
        scenario = scenario.having(**changes)
    return scenario.lasting(episodes)


def _varied(base: Scenario, axis: str, value: float) -> Cell:
    """One size changed."""
    scenario = {
        "L": lambda: base.lasting(int(value)),
        "d": lambda: replace(base, shape=replace(base.shape, d=int(value), K=20)),
        "drift": lambda: replace(base, setting=replace(base.setting, magnitude=float(value))),
        "gap": lambda: replace(base, theta_norm=value),
    }[axis]()
    return Cell(label=f"{axis} = {value:g}", scenario=scenario, axis=axis, value=value)


def _paper(*, scenario: Any = None, vary: Any = None, drifts: Any = DRIFTS) -> dict[str, Any]:
    """Of the paper's worlds."""
    told = {"instances": "random"} | (scenario or {})
    shape, setting = Shape(**told.pop("shape", asdict(PAPER_SHAPE))), Setting(**told.pop("setting", {}))
    base = Scenario(shape=shape, setting=setting, **told)
    cells = tuple(_varied(base, axis, value) for axis, values in (vary or {}).items() for value in values)
    return {"scenario": base, "special": cells, "drifts": tuple(drifts)}


def _field(*, cells: Any, floor: float) -> dict[str, Any]:
    """Of fields: each cell changes some sizes, and all of them keep the control."""
    found = []
    for label, told in cells.items():
        changed = {"floor": floor} | told | {"deviations": Deviations(**told.get("deviations", {}))}
        found.append(Cell(label=label, scenario=FieldScenario(setting=FieldSetting(**changed))))
    return {"scenario": found[0].scenario, "special": tuple(found), "drifts": tuple(cells)}


def _mhealth(*, cells: Any) -> dict[str, Any]:
    """Of mobile health: a setting for each cell."""
    found = tuple(Cell(label=label, scenario=HealthScenario(setting=label)) for label in cells)
    return {"scenario": found[0].scenario, "special": found, "drifts": tuple(cells)}


WORLDS: dict[str, Callable[..., dict[str, Any]]] = {"paper": _paper, "field": _field, "mhealth": _mhealth}


def _suite(id: str, *, world: str = "paper", policies: str = "everything", **row: Any) -> Suite:
    own: dict[str, Any] = {f: row.pop(f) for f in ("about", "instances", "episodes") if f in row}
    if "tolerance" in row:
        own["tolerance"] = Tolerance(**row.pop("tolerance"))
    return Suite(id=id, policies=_POLICIES[policies], **own, **WORLDS[world](**row))


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_POLICIES = {name: ",".join(texts) for name, texts in _TABLE["policies"].items()}
SUITES: dict[str, Suite] = {id: _suite(id, **row) for id, row in _TABLE["suites"].items()}


def suite(name: str) -> Suite:
    """The suite of that id."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]
