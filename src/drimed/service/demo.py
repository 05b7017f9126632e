"""A simulated trial to look at: six farms with four plots each, some seasons, a late report.

The same countryside as in examples/crop_trial; everything goes through the live interface.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from drimed.records import Decision, Report
from drimed.trial.spec import TrialSpec
from drimed.trial.store import Store
from drimed.trial.trial import Trial

SEASONS = 6
FIRST_YEAR = 2019  # the year before the first season
SEED = 7  # of the countryside
ACTOR = "demo"
PENDING = 4  # plots whose last report is still to come


def show(store: Store, address: str) -> str:
    """Fill a store that is empty; what was done, in words."""
    names, demo = store.names(), _spec().name
    if demo in names:
        return f"the demo is there already: trial {demo}"
    if names:
        return f"a demo needs an empty store, and {address} has trials; to see it: drimed serve --demo --store demo.db"
    return f"simulated a trial to look at: {fill(store).name}"


def _spec() -> TrialSpec:
    return TrialSpec.parse((resources.files(__package__) / "demo.toml").read_text(encoding="utf-8"))


def fill(store: Store, seasons: int = SEASONS) -> Trial:
    """A trial that has run for some seasons; the last reports of a few plots are pending."""
    spec = _spec()
    trial = Trial.create(spec, store, actor=ACTOR)
    for season in range(1, seasons + 1):
        dry = drought(spec, season)
        contexts = {farm: {"drought": days} for farm, days in dry.items()}
        given = trial.ask_many(contexts=contexts, season=str(FIRST_YEAR + season), date=f"{FIRST_YEAR + season}-04-15")
        harvest = [Report(d.id, outcome(spec, d, season)) for d in given]
        if season == 3:
            lost = harvest.pop()
            trial.mark_missing(lost.decision, reason="hail")
        np.random.default_rng(season).shuffle(harvest)  # farms report in any order
        trial.tell_many(harvest[PENDING:] if season == seasons else harvest, confirm=True)
        if season == 5:
            first = harvest[0]
            value = round(float(first.outcome["yield"] or 0.0) + 0.3, 2)
            trial.amend(first.decision, {"yield": value}, reason="the scale was off by 0.3 t/ha", confirm=True)
    return trial


def drought(spec: TrialSpec, season: int) -> dict[str, float]:
    """Days without rain, much the same on all farms."""
    rng = np.random.default_rng((SEED, season, 1))
    dry = rng.normal(20, 7)
    return {farm: round(max(0.0, dry + rng.normal(0, 2)), 1) for farm in spec.users}


def outcome(spec: TrialSpec, decision: Decision, season: int) -> dict[str, float | None]:
    """The yield of a plot: its farm, the season, its block and the weather all have their part in it."""
    farm, doses = decision.user, spec.arms[decision.arm].attributes or {}
    n, irrigated = doses["nitrogen"] - 150, doses["irrigation"]
    dry = drought(spec, season)[farm] - 20
    level = _normal(1.0, season, 2) + _normal(0.9, farm) + _normal(0.2, farm, decision.arm)
    level += _normal(0.4, season, farm, str(decision.block))
    grown = 9 + 0.012 * n - 0.00016 * n**2 + irrigated * (0.5 + 0.05 * dry) - 0.06 * dry
    nitrate = 25 + 0.17 * n - 3 * irrigated + _normal(4.0, season, 3)
    return {
        "yield": round(grown + level + _normal(0.5, season, 4, decision.id), 2),
        "leaching": round(max(0.0, nitrate + _normal(4.0, season, 5, decision.id)), 1),
    }


def _normal(deviation: float, *which: int | str) -> float:
    """The same number whenever it is asked for."""
    key = [SEED, *(x for part in which for x in ([part] if isinstance(part, int) else [len(part), *part.encode()]))]
    return float(np.random.default_rng(key).normal(0, deviation))
