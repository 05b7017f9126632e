"""Every experiment of the paper as data: which policies, in which scenarios, with how many seeds; and their numbers.

Source: Das et al., section 5 and Appendix "Experimental Analysis". The last two experiments are ours: LinMED with its
own authors' weights, and the main comparison on random instances, because all seeds of the paper share one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from drimed.environments.instance import authors_instance, quantile_control
from drimed.environments.world import Setting
from drimed.errors import ConfigError
from drimed.experiments.run import Run
from drimed.experiments.scenarios import Scenario
from drimed.experiments.simulate import RunRecord
from drimed.guards.margin import Tolerance
from drimed.linear.arrays import FloatArray
from drimed.published.readings import reading as check_reading

PARTS = ("main", "ablations", "allocation", "discount", "random")
DRIFTS = ("none", "gradual", "periodic", "abrupt")
QUANTILES = (0.25, 0.5, 0.75)
TOLERANCES = (0.05, 0.1, 0.2, 0.3, 0.5)
DISCOUNTS = (0.99, 1.0)
FULL_SEEDS, FULL_EPISODES = 128, 1000
DRI_MED, DRI_IMED = "published_dri_med", "published_dri_imed"

# Part -> what distinguishes its runs -> the record.
Records = dict[str, dict[Any, RunRecord]]


@dataclass(frozen=True)
class Contender:
    """A policy as it appears in a figure."""

    key: str  # in results.json
    label: str
    policy: str  # {reading} stands for the one that is asked for


BASELINES = (  # with the paper's settings
    Contender("oful", "OFUL", "oful"),
    Contender("lin_ts", "LinTS", "lin_ts"),
    Contender("lin_med", "LinMED", "lin_med_swapped"),
    Contender("lin_imed", "LinIMED", "lin_imed"),
)
PUBLISHED = (
    Contender(DRI_MED, "Dri-MED", f"{DRI_MED}:reading={{reading}}"),
    Contender(DRI_IMED, "Dri-IMED", f"{DRI_IMED}:reading={{reading}}"),
)
OWN_WEIGHTS = Contender("lin_med_own_weights", "LinMED, its authors' weights", "lin_med")  # I-8
MAIN = (*BASELINES, *PUBLISHED, OWN_WEIGHTS)
ON_RANDOM = (
    *BASELINES,
    OWN_WEIGHTS,
    *(
        Contender(f"{c.key}_{reading}", f"{c.label} ({reading})", f"{c.key}:reading={reading}")
        for reading in ("printed", "code")
        for c in PUBLISHED
    ),
    Contender("w_oful", "OFUL, weighted", "w_oful"),
    Contender("dri_imed", "dri_imed of this package", "dri_imed"),
    Contender("dri_med", "dri_med of this package", "dri_med"),
)
LABELS = {c.key: c.label for c in (*MAIN, *ON_RANDOM)}


@dataclass(frozen=True, kw_only=True)
class Reproduction:
    """What one `drimed reproduce` measures."""

    seeds: int = FULL_SEEDS  # of the main comparison; the other parts scale with it
    reading: str = "code"
    parts: tuple[str, ...] = PARTS
    episodes: int = FULL_EPISODES

    def __post_init__(self) -> None:
        check_reading(self.reading)
        for name in ("seeds", "episodes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, got {getattr(self, name)}")

    def plan(self) -> dict[tuple[Any, ...], Run]:
        """Every run of the chosen parts, by the part and what distinguishes it there."""
        everything = {
            "main": {(d, c.key): self.on_authors(c, d, self.seeds) for d in DRIFTS for c in MAIN},
            "ablations": self._ablations(),
            "allocation": {
                c.key: self.on_authors(c, "abrupt", self._share(32)) for c in (BASELINES[2], OWN_WEIGHTS, PUBLISHED[0])
            },
            "discount": {
                (d, g): self.on_authors(PUBLISHED[0], d, self._share(32), f"+discount={g}")
                for d in DRIFTS
                for g in DISCOUNTS
            },
            "random": {(d, c.key): self._on_random(c, d) for d in DRIFTS for c in ON_RANDOM},
        }
        return {(part, key): run for part in self.parts for key, run in everything[part].items()}

    def on_authors(
        self,
        contender: Contender,
        drift: str,
        seeds: int,
        more: str = "",
        *,
        quantile: float = 0.5,
        tolerance: float = 0.1,
    ) -> Run:
        """A run on the authors' instance, with the control from their Dirichlet means (I-4)."""
        told = f"+tolerance={tolerance}" if contender in PUBLISHED else ""
        return Run(
            policy=contender.policy.format(reading=self.reading) + told + more,
            scenario=Scenario(quantile=quantile, judged_by="preference_means", setting=self._setting(drift)),
            tolerance=Tolerance(relative=tolerance),
            seeds=tuple(range(seeds)),
        )

    def _ablations(self) -> dict[Any, Run]:
        n = self._share(64)
        runs: dict[Any, Run] = {}
        for c in PUBLISHED:
            runs |= {("quantile", q, c.key): self.on_authors(c, "abrupt", n, quantile=q) for q in QUANTILES}
            runs |= {("tolerance", e, c.key): self.on_authors(c, "abrupt", n, tolerance=e) for e in TOLERANCES}
        return runs

    def _on_random(self, contender: Contender, drift: str) -> Run:
        """One random instance per seed, control at the median of each user's actual arms."""
        return Run(
            policy=contender.policy,
            scenario=Scenario(instances="random", setting=self._setting(drift)),
            seeds=tuple(range(1000, 1000 + self._share(64))),
        )

    def _share(self, full: int) -> int:
        """The seeds of a part that has `full` when the main comparison has 128."""
        return max(1, self.seeds * full // FULL_SEEDS)

    def _setting(self, drift: str) -> Setting:
        """The paper's. As printed, the abrupt drift keeps growing (I-25)."""
        shape = "abrupt_growing" if drift == "abrupt" and self.reading == "printed" else drift
        return Setting(episodes=self.episodes, drift=shape)


def by_part(records: dict[tuple[Any, ...], RunRecord]) -> Records:
    """The records of a plan, part by part; a part that was not asked for is empty."""
    return {part: {key: record for (p, key), record in records.items() if p == part} for part in PARTS}


def results(records: Records) -> dict[str, Any]:
    """The numbers of every part, as they stand in results.json."""
    return {
        "main": _nested(records["main"]),
        "ablations": _nested(records["ablations"]),
        "allocation": _allocation_numbers(records["allocation"]),
        "discount": dict(sorted(_nested(records["discount"]).items())),
        "random": _nested(records["random"]),
    }


def late_rate(record: RunRecord, name: str) -> float:
    """A count per decision in the last tenth of the episodes."""
    return float(record.windows(name)[:, record.episodes > 0.9 * record.episodes[-1]].mean())


def _numbers(record: RunRecord) -> dict[str, Any]:
    expected = record.rate("violations.safe.expected")
    return {
        "regret": _spread(record.total("regret")),
        "regret_as_published": _spread(record.total("regret_as_published")),
        "violation_rate": record.rate("violations.safe.realised"),
        "violation_rate_as_published": record.rate("violations.published.realised"),
        "violation_rate_equation": record.rate("violations.equation.realised"),
        "estimated_violation_rate": record.rate("violations.safe.estimated"),
        "estimated_violation_rate_as_published": record.rate("violations.published.estimated"),
        # Thompson sampling has no closed form to take an expectation of.
        "expected_violation_rate": None if np.isnan(expected) else expected,
        "late_violation_rate_as_published": late_rate(record, "violations.published.realised"),
        "shortfall": _spread(record.total("shortfall")),
        "parameter_error": _spread(record.total("parameter_error")),
        "microseconds_per_decision": record.microseconds_per_decision,
        "seeds": len(record.allocation),
    }


def _spread(values: FloatArray) -> dict[str, float]:
    """Median, mean and the 5 to 95 % band."""
    q05, median, q95 = np.quantile(values, [0.05, 0.5, 0.95])
    return {"median": float(median), "mean": float(values.mean()), "q05": float(q05), "q95": float(q95)}


def _nested(records: dict[Any, RunRecord]) -> dict[str, Any]:
    """The numbers of each record under the parts of its key, one inside the other; ablations also have a range."""
    out: dict[str, Any] = {}
    for (*path, name), record in records.items():
        inner = out
        for part in path:
            inner = inner.setdefault(f"{part}", {})
        inner[f"{name}"] = _numbers(record)
        if len(path) > 1:
            low, high = np.quantile(record.total("regret_as_published"), [0.25, 0.75])
            inner[f"{name}"]["interquartile_range_as_published"] = float(high - low)
    return out


def _allocation_numbers(records: dict[Any, RunRecord]) -> dict[str, Any]:
    if not records:
        return {}
    instance = authors_instance()
    actual, published = instance.means(instance.preferences), instance.means(instance.preference_means)
    return {
        "means": actual.tolist(),
        "means_as_published": published.tolist(),
        "best_arm": actual.argmax(-1).tolist(),
        "best_arm_as_published": published.argmax(-1).tolist(),
        "control": quantile_control(instance, judged_by="preference_means").tolist(),
        "share": {policy: record.allocation.mean(0).tolist() for policy, record in records.items()},
        "seeds": len(next(iter(records.values())).allocation),
    }
