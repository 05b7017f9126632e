"""A scenario in numbers, for one trial: levels, effects, standard deviations and trends as arrays.

Shapes: K arms, M metrics.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from drimed.linear.arrays import FloatArray
from drimed.rehearsal import scenarios
from drimed.rehearsal.scenarios import Scenario
from drimed.trial.spec import TrialSpec


@dataclass(frozen=True)
class Setting:
    """What is drawn in a world, in the units of the metrics."""

    seasons: int
    users: int  # who come in each season; 0: those of the file come in every season
    level: FloatArray  # (M,)
    effects: FloatArray  # (K, M)
    spread: FloatArray  # (M,), of arms' effects; so are the following
    noise: FloatArray
    site: FloatArray
    season: FloatArray
    block: FloatArray
    site_arm: FloatArray
    season_arm: FloatArray
    covariates: FloatArray
    covariate_effects: FloatArray
    trend: FloatArray  # (M,), for each season
    fading: FloatArray  # (K, M), for each season
    correlation: float
    drift: float
    delay: int
    dropout: float
    bounds: FloatArray  # (M, 2), outside of which no outcome can be; infinite where no rule rests on that

    @staticmethod
    def of(spec: TrialSpec, scenario: Scenario, seasons: int | None = None) -> Setting:
        """A scenario of a trial; what it leaves out follows from the file. `seasons` comes before what it says."""
        metrics, noise = list(spec.metrics), scenarios.residuals(spec, scenario)
        usual = {
            "site": scenarios.SITE,
            "season": scenarios.SEASON if spec.model.seasons else 0.0,
            "block": scenarios.BLOCK,
            "site_arm": scenarios.SITE_ARM,
            "season_arm": scenarios.SEASON_ARM,
            "covariates": scenarios.COVARIATES,
        }
        if spec.kind == "paper":  # it believes that nothing of this kind exists
            usual = dict.fromkeys(usual, 0.0)

        def deviations(name: str) -> FloatArray:
            given: Mapping[str, float] | None = getattr(scenario, name)
            return np.array([(given or {}).get(m, usual.get(name, 0.0) * noise[m]) for m in metrics])

        def by_arm(table: Mapping[str, Mapping[str, float]]) -> FloatArray:
            return np.array([[table.get(a, {}).get(m, 0.0) for m in metrics] for a in spec.arms])

        arriving = (scenario.users or scenarios.PEOPLE) if spec.enrols else 0
        return Setting(
            seasons=min(seasons or scenario.seasons or scenarios.SEASONS, _most_seasons(spec)),
            users=arriving,
            level=np.array([scenarios.levels(spec, scenario)[m] for m in metrics]),
            effects=by_arm(scenario.effects),
            noise=np.array([noise[m] for m in metrics]),
            trend=np.array([scenario.trend.get(m, 0.0) for m in metrics]),
            fading=by_arm(scenario.fading),
            correlation=scenario.correlation,
            drift=scenario.drift,
            delay=scenario.delay,
            dropout=scenario.dropout,
            bounds=np.array([_bounds(spec, m) for m in metrics]),
            **{name: deviations(name) for name in ("spread", *usual, "covariate_effects")},
        )


def _most_seasons(spec: TrialSpec) -> int:
    """That the file allows."""
    return sys.maxsize if spec.stopping is None else spec.stopping.seasons or sys.maxsize


def _bounds(spec: TrialSpec, metric: str) -> tuple[float, float]:
    """Of a metric: a rule on exact ranges takes the file at its word, and so does the world in which it is tried."""
    rules = () if spec.stopping is None else spec.stopping.rules.values()
    exact = any(rule.evidence == "exact" for rule in rules)
    return (exact and spec.metrics[metric].range) or (-np.inf, np.inf)
