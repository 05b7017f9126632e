"""From the records of a benchmark to the rows of results.json: means with intervals, paired differences, ratios."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import ConfigError, UnknownNameError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import PolicySpec
from drimed.simulation.instances import DRIFTS, PAPER_SHAPE
from drimed.simulation.looks import LOOKS
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.scenarios import AnyScenario, FieldScenario, HealthScenario, Scenario
from drimed.simulation.trial_world import Deviations, FieldSetting
from drimed.simulation.worlds import Setting

# The suites of `drimed bench`, from suites.toml, and what one benchmark measures.


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


# Rows of results.json for worlds in which everybody decides at once: as they stand after some seasons.

AFTER = (3, 5, 10, 30)  # seasons at which a field trial is looked at
COUNTS = {"expected_violations_per_10k": "violations.safe.expected", "violations_per_10k": "violations.safe.realised"}


def staged(record: RunRecord) -> dict[str, Any]:
    """What a record of such a world has besides; nothing for the paper's worlds."""
    if "stage_regret" not in record.curves:
        return {}
    regret = record.total("stage_regret")
    seasons = [s for s in record.episodes.tolist() if s in AFTER] or [int(record.episodes[-1])]
    return {
        "stage_regret": float(regret.mean()),
        "stage_regret_error": _error(regret),
        "seconds_per_run": record.seconds / len(regret),
        "after": [_after(record, season) for season in seasons],
    }


def _after(record: RunRecord, season: int) -> dict[str, Any]:
    """Sums until then per decision, with the standard error over runs, and the look at its end."""
    at = record.episodes.tolist().index(season)
    decisions = record.decisions * season / int(record.episodes[-1])
    found: dict[str, Any] = {"seasons": season}
    for name, curve in {"regret_per_decision": "regret", "control_share": "control", **COUNTS}.items():
        per = (1e4 if name in COUNTS else 1.0) * record.curve(curve)[:, at] / decisions
        found |= _told(name, per)
    for name in record.curves:
        if name.startswith(LOOKS):
            found |= _told(name.removeprefix(LOOKS), record.curve(name)[:, at])
    return found


def _told(name: str, values: FloatArray) -> dict[str, float | None]:
    """Mean and standard error; None where nothing is known."""
    values = values[~np.isnan(values)]
    if not len(values):
        return {name: None, f"{name}.error": None}
    return {name: float(values.mean()), f"{name}.error": _error(values)}


def _error(values: FloatArray) -> float:
    return float(values.std() / np.sqrt(max(len(values) - 1, 1)))


RESAMPLES = 2000  # of the bootstrap over instances
LEVEL = 0.95
RATIO_TO_THE_BEST = (
    "Ratio to the best: a policy's mean regret (what it loses against always giving the best arm) divided by the least "
    "one that any policy has in the same cell, a world of the suite. 1 is the best, 2 has twice its regret. It is the "
    "geometric mean over the cells in which every policy has some regret; the worst cell is the one with the largest "
    "ratio."
)
SMALLEST_REGRET = 0.01  # of a whole run: below that, ratios compare nothing with nothing
LEARNERS = ("vector, known noise", "reward, known noise")
NOT_THE_RULES = ("guard", "confidence", "relative", "absolute", "weighting", "feedback")


@dataclass(frozen=True)
class Measured:
    """Every policy in every cell."""

    bench: Benchmark
    records: dict[tuple[str, str], RunRecord]  # (cell label, policy text)

    def record(self, cell: Cell, spec: PolicySpec) -> RunRecord:
        """One policy in one cell."""
        return self.records[cell.label, spec.text]

    def regret(self, cell: Cell, spec: PolicySpec) -> FloatArray:
        """True regret of each instance: (S,)."""
        return self.record(cell, spec).total("regret")

    def mean_regret(self, cell: Cell, spec: PolicySpec) -> float:
        """True regret, averaged over the instances; large enough to take a logarithm of."""
        return max(float(self.regret(cell, spec).mean()), SMALLEST_REGRET)

    def over_cells(self, spec: PolicySpec) -> float:
        """The geometric mean of the policy's mean regrets."""
        return geometric_mean(self.mean_regret(cell, spec) for cell in self.bench.cells)


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    return float(np.exp(np.log(list(values)).mean()))


def learner_in_words(learner: str) -> str:
    """What a learner knows, for readers.

    >>> learner_in_words("reward, none noise")
    'reward, a bound on the noise'
    """
    return learner.replace("none noise", "a bound on the noise")


def rows(measured: Measured) -> list[dict[str, Any]]:
    """One for each policy and cell."""
    return [_row(measured, cell, spec) for cell in measured.bench.cells for spec in measured.bench.specs]


def _row(measured: Measured, cell: Cell, spec: PolicySpec) -> dict[str, Any]:
    record = measured.record(cell, spec)
    regret = record.total("regret")

    def share(kind: str) -> float | None:
        """Of the runs with any violation; None where the expectation is not known in closed form."""
        count = record.total(f"violations.{kind}")
        return None if np.isnan(count).any() else float((count > 0).mean())

    def level(name: str) -> float | None:
        """The mean over instances at the end; None where the suite has no such thing."""
        found = float(record.total(name).mean()) if name in record.curves else np.nan
        return None if np.isnan(found) else found

    expected = record.rate("violations.safe.expected")
    return {
        "suite": measured.bench.suite.id,
        "cell": cell.label,
        "policy": spec.text,
        **spec.parts(),
        "drift": cell.scenario.drift,
        "regret_mean": float(regret.mean()),
        "regret_median": float(np.median(regret)),
        "regret_q95": float(np.quantile(regret, 0.95)),
        "regret_ci": _interval(regret),
        "violations_per_10k": 1e4 * record.rate("violations.safe.realised"),
        "expected_violations_per_10k": None if np.isnan(expected) else 1e4 * expected,
        "strict_violations_per_10k": 1e4 * record.rate("violations.strict.realised"),
        "runs_with_a_violation": share("safe.realised"),
        "runs_with_an_expected_violation": share("safe.expected"),
        "runs_with_a_strict_violation": share("strict.realised"),
        "runs_with_a_strict_expected_violation": share("strict.expected"),
        "shortfall": float(record.total("shortfall").mean()),
        "parameter_error": level("parameter_error"),
        "microseconds_per_decision": record.microseconds_per_decision,
        "instances": len(regret),
        **staged(record),
    }


def differences(measured: Measured, reference: PolicySpec) -> list[dict[str, Any]]:
    """Each policy's regret minus the reference's on the same instances and noise, with a bootstrap interval."""
    out = []
    for cell in measured.bench.cells:
        for spec in measured.bench.specs:
            if spec is not reference:
                gap = measured.regret(cell, spec) - measured.regret(cell, reference)
                names = {"cell": cell.label, "policy": spec.text, "minus": reference.text}
                out.append({**names, "mean": float(gap.mean()), "ci": _interval(gap)})
    return out


def ratios(measured: Measured) -> list[dict[str, Any]]:
    """Mean regret over the smallest of each cell, as a geometric mean over the cells where there is one to compare."""
    specs = measured.bench.specs
    best = {cell.label: min(measured.mean_regret(cell, spec) for spec in specs) for cell in measured.bench.cells}
    told = [cell for cell in measured.bench.cells if best[cell.label] > SMALLEST_REGRET]
    cells = told or measured.bench.cells
    out = []
    for spec in specs:
        found = [measured.mean_regret(cell, spec) / best[cell.label] for cell in cells]
        names = {"policy": spec.text, **spec.parts()}
        out.append({**names, "geometric_mean": geometric_mean(found), "worst": max(found)})
    return sorted(out, key=lambda r: float(r["geometric_mean"]))


def growth(measured: Measured) -> list[dict[str, Any]]:
    """For each policy and each size that was varied: the exponent of regret, by least squares on logarithms."""
    out = []
    for axis, cells in by_axis(measured.bench.cells).items():
        for spec in measured.bench.specs:
            x = np.log([cell.value for cell in cells])
            y = np.log([measured.mean_regret(cell, spec) for cell in cells])
            out.append({"axis": axis, "policy": spec.text, "exponent": float(np.polyfit(x, y, 1)[0])})
    return out


def by_axis(cells: Iterable[Cell]) -> dict[str, list[Cell]]:
    """The cells in which a size was varied, for each size."""
    axes: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.axis:
            axes.setdefault(cell.axis, []).append(cell)
    return axes


def _interval(values: FloatArray) -> list[float]:
    """Percentile bootstrap of the mean; the resampling is fixed, so the same numbers give the same interval."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(-1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]


def overall(results: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Over many suites, each rule's regret over the best rule's that knew as much: the geometric mean, best first.

    Rows of results.json are compared within a cell (suite and drift) and a learner (feedback, and what is known of the
    noise): all of them face the same worlds with the same information, and only the rule differs. Guarded, published
    and forgetting policies are left out: they solve other problems. So is a rule that did not run in every cell, and a
    cell with one rule. With one metric a vector is a reward: run the rules with one of the two learners there.

    >>> rows = [{"suite": "s", "cell": "none", "learner": LEARNERS[0], "guard": "off", "rule": rule, "policy": rule,
    ...          "regret_mean": regret} for rule, regret in [("MED", 2.0), ("OFUL", 3.0)]]
    >>> [(r["rule"], r["geometric_mean"]) for r in overall([{"rows": rows}])]
    [('MED', 1.0), ('OFUL', 1.5)]
    """
    cells: dict[tuple[str, str, str], dict[str, float]] = {}
    for row in (row for each in results for row in each["rows"]):
        if row["learner"] in LEARNERS and row["guard"] == "off":
            cell = cells.setdefault((row["suite"], row["cell"], row["learner"]), {})
            cell[rule_name(row)] = max(row["regret_mean"], SMALLEST_REGRET)
    cells = {key: cell for key, cell in cells.items() if len(cell) > 1}
    everywhere = set.intersection(*(set(cell) for cell in cells.values())) if cells else set()
    out = []
    for rule in everywhere:
        ratios = {key: cell[rule] / min(cell[r] for r in everywhere) for key, cell in cells.items()}
        worst = max(ratios, key=lambda key: ratios[key])
        by_suite: dict[str, list[float]] = {}
        for (suite, _, learner), ratio in ratios.items():
            by_suite.setdefault(f"{suite}, {learner.split(',')[0]}", []).append(ratio)
        out.append(
            {
                "rule": rule,
                "geometric_mean": geometric_mean(ratios.values()),
                "worst": ratios[worst],
                "worst_cell": ", ".join(worst),
                "by_suite": {name: geometric_mean(found) for name, found in by_suite.items()},
                "cells": len(ratios),
            }
        )
    return sorted(out, key=lambda r: float(str(r["geometric_mean"])))


def rule_name(row: dict[str, Any]) -> str:
    """The rule and its own settings, whatever learner feeds it.

    >>> rule_name({"rule": "OFUL", "policy": "v_oful:width_squared=2+guard=off"})
    'OFUL width_squared=2'
    """
    settings = [part for part in re.split("[:+]", str(row["policy"])) if "=" in part]
    mine = [s for s in settings if s.partition("=")[0] not in NOT_THE_RULES]
    return " ".join([row["rule"], *mine])
