"""From stored runs to the rows of results.json: means with intervals, and differences paired over instances."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed.bench.suites import Cell, Suite
from drimed.linear.arrays import FloatArray
from drimed.policies.spec import PolicySpec
from drimed.simulation.task import Summary

RESAMPLES = 2000  # of the bootstrap over instances
LEVEL = 0.95


@dataclass(frozen=True)
class Measured:
    """Every policy in every cell."""

    suite: Suite
    cells: list[Cell]
    specs: list[PolicySpec]
    runs: dict[tuple[str, str], Summary]  # (cell label, policy text)

    def regret(self, cell: Cell, spec: PolicySpec) -> FloatArray:
        """True regret of each instance: (S,)."""
        return self.runs[cell.label, spec.text].total("regret")


def rows(measured: Measured) -> list[dict[str, Any]]:
    """One for each policy and cell."""
    return [_row(measured, cell, spec) for cell in measured.cells for spec in measured.specs]


def _row(measured: Measured, cell: Cell, spec: PolicySpec) -> dict[str, Any]:
    s = measured.runs[cell.label, spec.text]
    regret = s.total("regret")
    expected = s.rate("violations.safe.expected")
    return {
        "suite": measured.suite.id,
        "cell": cell.label,
        "policy": spec.text,
        **spec.parts(),
        "drift": cell.drift,
        "regret_mean": float(regret.mean()),
        "regret_median": float(np.median(regret)),
        "regret_q95": float(np.quantile(regret, 0.95)),
        "regret_ci": _interval(regret),
        "violations_per_10k": 1e4 * s.rate("violations.safe.realised"),
        "expected_violations_per_10k": None if np.isnan(expected) else 1e4 * expected,
        "strict_violations_per_10k": 1e4 * s.rate("violations.strict.realised"),
        "runs_with_a_violation": _share(s, "safe.realised"),
        "runs_with_an_expected_violation": None if np.isnan(expected) else _share(s, "safe.expected"),
        "runs_with_a_strict_violation": _share(s, "strict.realised"),
        "runs_with_a_strict_expected_violation": None if np.isnan(expected) else _share(s, "strict.expected"),
        "shortfall": float(s.total("shortfall").mean()),
        "parameter_error": float(s.total("parameter_error").mean()),
        "microseconds_per_decision": s.microseconds_per_decision,
        "instances": len(regret),
    }


def _share(s: Summary, kind: str) -> float:
    return float((s.total(f"violations.{kind}") > 0).mean())


def differences(measured: Measured, reference: PolicySpec) -> list[dict[str, Any]]:
    """Each policy's regret minus the reference's on the same instances and noise, with a bootstrap interval."""
    out = []
    for cell in measured.cells:
        base = measured.regret(cell, reference)
        for spec in measured.specs:
            if spec is not reference:
                gap = measured.regret(cell, spec) - base
                out.append(
                    {
                        "cell": cell.label,
                        "policy": spec.text,
                        "minus": reference.text,
                        "mean": float(gap.mean()),
                        "ci": _interval(gap),
                    }
                )
    return out


def ratios(measured: Measured) -> list[dict[str, Any]]:
    """Mean regret over the smallest of each cell, as a geometric mean over the cells."""
    best = {}
    for cell in measured.cells:
        means = {s.text: float(measured.regret(cell, s).mean()) for s in measured.specs}
        best[cell.label] = max(min(means.values()), SMALLEST_REGRET)
    out = []
    for spec in measured.specs:
        found = [
            max(float(measured.regret(cell, spec).mean()), SMALLEST_REGRET) / best[cell.label]
            for cell in measured.cells
        ]
        out.append(
            {
                "policy": spec.text,
                **spec.parts(),
                "geometric_mean": float(np.exp(np.log(found).mean())),
                "worst": max(found),
            }
        )
    return sorted(out, key=lambda r: float(r["geometric_mean"]))


SMALLEST_REGRET = 0.01  # of a whole run: below that, ratios compare nothing with nothing


def growth(measured: Measured) -> list[dict[str, Any]]:
    """For each policy and each size that was varied: the exponent of regret, by least squares on logarithms."""
    axes: dict[str, list[Cell]] = {}
    for cell in measured.cells:
        if cell.axis:
            axes.setdefault(cell.axis, []).append(cell)
    out = []
    for axis, cells in axes.items():
        for spec in measured.specs:
            x = np.log([cell.value for cell in cells])
            y = np.log([max(float(measured.regret(cell, spec).mean()), SMALLEST_REGRET) for cell in cells])
            slope = float(np.polyfit(x, y, 1)[0])
            out.append({"axis": axis, "policy": spec.text, "exponent": slope})
    return out


def _interval(values: FloatArray) -> list[float]:
    """Percentile bootstrap of the mean; the resampling is fixed, so the same numbers give the same interval."""
    rng = np.random.default_rng(0)
    draws = rng.integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.quantile(values[draws].mean(-1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return [float(low), float(high)]
