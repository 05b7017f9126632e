"""From the records of a benchmark to the rows of results.json: means with intervals, paired differences, ratios."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed.experiments.seasons import staged
from drimed.experiments.simulate import RunRecord
from drimed.experiments.suites import Benchmark, Cell
from drimed.linear.arrays import FloatArray
from drimed.policies.composing import PolicySpec

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
