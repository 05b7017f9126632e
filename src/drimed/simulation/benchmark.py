"""Benchmarks: policies on the suites of benchmark.toml, and the rows of results.json: means, differences, ratios."""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Self

import numpy as np

from drimed.errors import ConfigError, UnknownNameError
from drimed.models.offer import Shape
from drimed.numerics.arrays import FloatArray, check_settings
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import PolicySpec
from drimed.simulation.instances import (
    DRIFTS,
    PAPER_SHAPE,
    authors_instance,
    draw_instance,
    end_of_optimism,
    mixed_control,
    quantile_control,
)
from drimed.simulation.runner import LOOK, Run, RunRecord
from drimed.simulation.trial_world import Deviations, FieldSetting, HealthSetting
from drimed.simulation.worlds import Scenario, Setting, World

FAMILIES = ("authors", "random", "lonely")
AFTER = (3, 5, 10, 30)  # seasons after which a field trial is looked at
PER_10K = {"expected_violations_per_10k": "violations.safe.expected", "violations_per_10k": "violations.safe.realised"}
RESAMPLES = 2000  # of the bootstrap over instances
LEVEL = 0.95
SMALLEST_REGRET = 0.01  # of a whole run: below that, ratios compare nothing with nothing
RATIO_TO_THE_BEST = (
    "Ratio to the best: a policy's mean regret (what it loses against always giving the best arm) divided by the least "
    "one that any policy has in the same cell, a world of the suite. 1 is the best, 2 has twice its regret. It is the "
    "geometric mean over the cells in which every policy has some regret; the worst cell is the one with the largest "
    "ratio."
)
VARIED = " = "  # between the size that a cell varies and its value


@dataclass(frozen=True, kw_only=True)
class PaperScenario(Scenario):
    """The paper's world: instances, their control, and how contexts and noise behave."""

    # authors: their one instance for all seeds; random: one of the paper's generator for each seed; lonely: one of the
    # end-of-optimism family for each seed
    instances: str = "authors"
    shape: Shape = PAPER_SHAPE  # of random instances
    theta_norm: float = 1.0  # of random instances
    control: str = "quantile"  # or "mixed": a lottery over all arms
    quantile: float = 0.5  # of the control's arm among each user's arms
    judged_by: str = "preferences"
    setting: Setting = field(default_factory=Setting)

    def __post_init__(self) -> None:
        check_settings(self, {"instances": FAMILIES, "control": ("quantile", "mixed")}, positive=("theta_norm",))
        if not isinstance(self.setting.drift, str):
            raise ConfigError("a scenario is plain data: name its drift; pass a function to World instead")

    @property
    def drift(self) -> str:
        return str(self.setting.drift)

    def under(self, drift: str) -> Self:
        return replace(self, setting=replace(self.setting, drift=drift))

    def lasting(self, episodes: int) -> Self:
        return replace(self, setting=replace(self.setting, episodes=episodes))

    def world(self, seeds: Sequence[int]) -> World:
        if self.instances == "authors":
            instances = [authors_instance()]
        elif self.instances == "lonely":
            instances = [end_of_optimism(s) for s in seeds]
        else:
            instances = [draw_instance(s, self.shape, theta_norm=self.theta_norm) for s in seeds]
        controls = [quantile_control(i, self.quantile, judged_by=self.judged_by) for i in instances]
        if self.control == "mixed":
            controls = [mixed_control(i, s) for i, s in zip(instances, seeds, strict=False)]
        return World(instances=instances, seeds=seeds, controls=controls, setting=self.setting)


@dataclass(frozen=True, kw_only=True)
class Suite:
    """A family of scenarios, with the policies to compare there."""

    id: str
    about: str
    policies: str
    cells: dict[str, Scenario]  # by drift, or by a name of their own: every policy is run in each
    instances: int = 64
    episodes: int = 1000
    tolerance: Tolerance = field(default_factory=lambda: Tolerance(relative=0.1, absolute=0.05))


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Policies on a suite: the plan of one `drimed bench`."""

    suite: Suite
    specs: list[PolicySpec]
    drifts: tuple[str, ...]
    instances: int
    instance_seed: int
    episodes: int
    tolerance: Tolerance
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings of fields that differ from the suite's

    def __post_init__(self) -> None:
        check_settings(self, count=("instances", "episodes"), not_negative=("instance_seed",))
        for drift in self.drifts:
            if drift not in self.suite.cells:
                raise UnknownNameError(f"drift or cell of suite {self.suite.id}", drift, self.suite.cells)
        if self.changes and not all(isinstance(s, FieldSetting) for s in self.suite.cells.values()):
            raise ConfigError(f"suite {self.suite.id} has no {min(self.changes)} to choose; `field` has")
        if twice := [text for text, count in Counter(spec.text for spec in self.specs).items() if count > 1]:
            raise ConfigError(f"policy {twice[0]!r} is listed twice")

    @property
    def cells(self) -> dict[str, Scenario]:
        """The scenarios, for as many episodes as were asked for; where that number is varied, it stays as it is."""
        chosen = {label: replace(self.suite.cells[label], **self.changes) for label in self.drifts}
        return {c: s if c.startswith(f"L{VARIED}") else s.lasting(self.episodes) for c, s in chosen.items()}

    def plan(self) -> dict[tuple[str, str], Run]:
        """(cell label, policy): the run."""
        seeds = tuple(range(self.instance_seed, self.instance_seed + self.instances))
        return {
            (cell, spec.text): Run(policy=spec.text, scenario=scenario, tolerance=self.tolerance, seeds=seeds)
            for (cell, scenario), spec in product(self.cells.items(), self.specs)
        }


@dataclass(frozen=True)
class Measured:
    """Records of every policy in every cell."""

    bench: Benchmark
    records: dict[tuple[str, str], RunRecord]  # (cell label, policy text)

    def record(self, cell: str, spec: PolicySpec) -> RunRecord:
        return self.records[cell, spec.text]

    def mean_regret(self, cell: str, spec: PolicySpec) -> float:
        """True regret, averaged over the instances; large enough to take a logarithm of."""
        return max(float(self.record(cell, spec).total("regret").mean()), SMALLEST_REGRET)

    def over_cells(self, spec: PolicySpec) -> float:
        """The geometric mean of the policy's mean regrets."""
        return geometric_mean(self.mean_regret(cell, spec) for cell in self.bench.cells)

    def row(self, cell: str, spec: PolicySpec) -> dict[str, Any]:
        """The numbers of one policy in one cell."""
        record = self.record(cell, spec)
        regret = record.total("regret")

        def share(kind: str) -> float | None:
            """Of the runs with any violation; None where the expectation has no closed form."""
            count = record.total(f"violations.safe.{kind}")
            return None if np.isnan(count).any() else float((count > 0).mean())

        expected = record.rate("violations.safe.expected")
        error = record.total("parameter_error").mean() if "parameter_error" in record.curves else np.nan
        return {
            "suite": self.bench.suite.id,
            "cell": cell,
            "policy": spec.text,
            **spec.parts(),
            "drift": self.bench.cells[cell].drift,
            "regret_mean": float(regret.mean()),
            "regret_median": float(np.median(regret)),
            "regret_q95": float(np.quantile(regret, 0.95)),
            "regret_ci": _interval(regret),
            "violations_per_10k": 1e4 * record.rate("violations.safe.realised"),
            "expected_violations_per_10k": None if np.isnan(expected) else 1e4 * expected,
            "runs_with_a_violation": share("realised"),
            "runs_with_an_expected_violation": share("expected"),
            "shortfall": float(record.total("shortfall").mean()),
            "parameter_error": None if np.isnan(error) else float(error),
            "microseconds_per_decision": record.microseconds_per_decision,
            "instances": len(regret),
            **by_season(record),
        }

    def differences(self, reference: PolicySpec) -> list[dict[str, Any]]:
        """Each policy's regret minus the reference's on the same instances and noise, with a bootstrap interval."""
        rows = []
        for cell, spec in product(self.bench.cells, self.bench.specs):
            if spec is not reference:
                gap = self.record(cell, spec).total("regret") - self.record(cell, reference).total("regret")
                names = {"cell": cell, "policy": spec.text, "minus": reference.text}
                rows.append({**names, "mean": float(gap.mean()), "ci": _interval(gap)})
        return rows

    def ratios(self) -> list[dict[str, Any]]:
        """Mean regret over the smallest of each cell: the geometric mean over cells with some regret, best first."""
        specs, cells = self.bench.specs, list(self.bench.cells)
        best = {cell: min(self.mean_regret(cell, spec) for spec in specs) for cell in cells}
        cells = [cell for cell in cells if best[cell] > SMALLEST_REGRET] or cells
        rows = []
        for spec in specs:
            ratios = [self.mean_regret(cell, spec) / best[cell] for cell in cells]
            names = {"policy": spec.text, **spec.parts()}
            rows.append({**names, "geometric_mean": geometric_mean(ratios), "worst": max(ratios)})
        return sorted(rows, key=lambda r: float(r["geometric_mean"]))

    def growth(self) -> list[dict[str, Any]]:
        """The exponent of each policy's regret in each size that was varied, by least squares on logarithms."""
        axes: dict[str, dict[str, float]] = {}  # axis -> cell -> value
        for cell in self.bench.cells:
            axis, varied, value = cell.partition(VARIED)
            if varied:
                axes.setdefault(axis, {})[cell] = float(value)
        rows = []
        for (axis, cells), spec in product(axes.items(), self.bench.specs):
            if len(cells) > 1:
                regret = [self.mean_regret(cell, spec) for cell in cells]
                exponent = np.polyfit(np.log(list(cells.values())), np.log(regret), 1)[0]
                rows.append({"axis": axis, "policy": spec.text, "exponent": float(exponent)})
        return rows


def by_season(record: RunRecord) -> dict[str, Any]:
    """Results of worlds whose users decide at once, as they stand after some seasons; empty for the paper's worlds."""
    if "stage_regret" not in record.curves:
        return {}
    regret = record.total("stage_regret")
    seasons = [s for s in record.episodes.tolist() if s in AFTER] or [int(record.episodes[-1])]
    return {
        "stage_regret": float(regret.mean()),
        "stage_regret_error": _standard_error(regret),
        "seconds_per_run": float(record.seconds.mean()),
        "after": [_after(record, season) for season in seasons],
    }


def _after(record: RunRecord, season: int) -> dict[str, Any]:
    """Sums until then per decision, and the look at its end: each mean with its standard error over runs."""
    at = record.episodes.tolist().index(season)
    decisions = record.decisions * season / int(record.episodes[-1])
    values = {
        name: (1e4 if name in PER_10K else 1.0) * record.curve(curve)[:, at] / decisions
        for name, curve in {"regret_per_decision": "regret", "control_share": "control", **PER_10K}.items()
    } | {name.removeprefix(LOOK): record.curve(name)[:, at] for name in record.curves if name.startswith(LOOK)}
    row: dict[str, Any] = {"seasons": season}
    for name, each in values.items():
        finite = each[~np.isnan(each)]
        row[name] = float(finite.mean()) if len(finite) else None
        row[f"{name}.error"] = _standard_error(finite) if len(finite) else None
    return row


def geometric_mean(values: Iterable[float]) -> float:
    """exp of the mean logarithm."""
    return float(np.exp(np.log(list(values)).mean()))


def learner_text(learner: str) -> str:
    """A learner's information, for readers."""
    return learner.replace("none noise", "a bound on the noise")


def _standard_error(values: FloatArray) -> float:
    return float(values.std() / np.sqrt(max(len(values) - 1, 1)))


def _interval(values: FloatArray) -> list[float]:
    """Percentile bootstrap of the mean; the resampling is fixed, so the same numbers give the same interval."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(-1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]


def _paper(*, scenario: Any = None, vary: Any = None) -> dict[str, Scenario]:
    """The paper's worlds, under each drift; or under the gradual one, with one size varied at a time."""
    fields = {"instances": "random"} | (scenario or {})
    shape, setting = Shape(**fields.pop("shape", asdict(PAPER_SHAPE))), Setting(**fields.pop("setting", {}))
    whole = PaperScenario(shape=shape, setting=setting, **fields)
    if vary is None:
        return {drift: whole.under(drift) for drift in DRIFTS}
    varied: dict[str, Callable[[Any], Scenario]] = {
        "L": whole.lasting,
        "d": lambda d: replace(whole, shape=replace(shape, d=d, K=20)),
        "drift": lambda kappa: replace(whole, setting=replace(setting, magnitude=float(kappa))),
        "gap": lambda gap: replace(whole, theta_norm=gap),
    }
    return {f"{axis}{VARIED}{value:g}": varied[axis](value) for axis, values in vary.items() for value in values}


def _field(*, cells: Any, floor: float) -> dict[str, Scenario]:
    """Fields: each cell changes some sizes, and all of them keep the control."""
    deviations = {label: Deviations(**sizes.get("deviations", {})) for label, sizes in cells.items()}
    return {c: FieldSetting(**{"floor": floor} | sizes | {"deviations": deviations[c]}) for c, sizes in cells.items()}


def _suite(id: str, *, world: str = "paper", policies: str = "everything", **row: Any) -> Suite:
    own: dict[str, Any] = {f: row.pop(f) for f in ("about", "instances", "episodes") if f in row}
    if "tolerance" in row:
        own["tolerance"] = Tolerance(**row.pop("tolerance"))
    worlds: dict[str, Callable[..., dict[str, Scenario]]] = {
        "paper": _paper, "field": _field, "mhealth": lambda *, cells: {kind: HealthSetting(kind=kind) for kind in cells}
    }  # fmt: skip
    return Suite(id=id, policies=",".join(_TABLE["policies"][policies]), **own, cells=worlds[world](**row))


_TABLE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
SUITES: dict[str, Suite] = {id: _suite(id, **row) for id, row in _TABLE["suites"].items()}


def suite(name: str) -> Suite:
    """The suite of that id."""
    if name not in SUITES:
        raise UnknownNameError("suite", name, SUITES)
    return SUITES[name]
