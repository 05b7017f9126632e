"""From stored runs to the numbers of results.json."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed.environments.control import quantile_control
from drimed.environments.instance import authors_instance
from drimed.linear.arrays import FloatArray
from drimed.paper.experiments import Plan
from drimed.simulation.task import Summary


@dataclass(frozen=True)
class Measured:
    """The runs of each part that was asked for, under the keys of its plan."""

    plan: Plan
    parts: dict[str, dict[Any, Summary]]

    def part(self, name: str) -> dict[Any, Summary]:
        """The runs of a part; empty if it was not asked for."""
        return self.parts.get(name, {})


def results(measured: Measured) -> dict[str, Any]:
    """Everything but claims and meta."""
    return {
        "main": _by_drift(measured.part("main")),
        "ablations": _ablations(measured),
        "allocation": _allocation(measured),
        "discount": {
            drift: {f"{g}": _numbers(s) for (dr, g), s in measured.part("discount").items() if dr == drift}
            for drift in sorted({drift for drift, _ in measured.part("discount")})
        },
        "random": _by_drift(measured.part("random")),
    }


def spread(values: FloatArray) -> dict[str, float]:
    """Median, mean and the 5 to 95 % band."""
    q05, median, q95 = np.quantile(values, [0.05, 0.5, 0.95])
    return {"median": float(median), "mean": float(values.mean()), "q05": float(q05), "q95": float(q95)}


def _numbers(s: Summary) -> dict[str, Any]:
    return {
        "regret": spread(s.total("regret")),
        "regret_as_published": spread(s.total("regret_as_published")),
        "violation_rate": s.rate("violations.safe.realised"),
        "violation_rate_as_published": s.rate("violations.published.realised"),
        "violation_rate_equation": s.rate("violations.equation.realised"),
        "estimated_violation_rate": s.rate("violations.safe.estimated"),
        "estimated_violation_rate_as_published": s.rate("violations.published.estimated"),
        "expected_violation_rate": _known(s.rate("violations.safe.expected")),
        "late_violation_rate_as_published": late_rate(s, "violations.published.realised"),
        "shortfall": spread(s.total("shortfall")),
        "parameter_error": spread(s.total("parameter_error")),
        "microseconds_per_decision": s.microseconds_per_decision,
        "seeds": len(s.allocation),
    }


def late_rate(s: Summary, name: str) -> float:
    """A count per decision in the last tenth of the episodes."""
    return float(s.windows(name)[:, s.episodes > 0.9 * s.episodes[-1]].mean())


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value  # Thompson sampling has no closed form to take an expectation of


def _by_drift(runs: dict[Any, Summary]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for (drift, policy), s in runs.items():
        out.setdefault(drift, {})[policy] = _numbers(s)
    return out


def _ablations(measured: Measured) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for (kind, value, policy), s in measured.part("ablations").items():
        low, high = np.quantile(s.total("regret_as_published"), [0.25, 0.75])
        numbers = _numbers(s) | {"interquartile_range_as_published": float(high - low)}
        out.setdefault(kind, {}).setdefault(f"{value}", {})[policy] = numbers
    return out


def _allocation(measured: Measured) -> dict[str, Any]:
    runs = measured.part("allocation")
    if not runs:
        return {}
    instance = authors_instance()
    actual = instance.means(instance.preferences)
    control = quantile_control(instance, judged_by="preference_means")
    return {
        "means": actual.tolist(),
        "means_as_published": instance.means(instance.preference_means).tolist(),
        "best_arm": actual.argmax(-1).tolist(),
        "best_arm_as_published": instance.means(instance.preference_means).argmax(-1).tolist(),
        "control": control.tolist(),
        "share": {policy: s.allocation.mean(0).tolist() for policy, s in runs.items()},
        "seeds": len(next(iter(runs.values())).allocation),
    }
