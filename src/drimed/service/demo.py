"""A simulated trial to look at: twelve farms, some seasons, a late report.

The same world as examples/crop_trial; everything goes through the live interface.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

from drimed.records import Report
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.store import Store
from drimed.trial.trial import Trial

SEASONS = 12
ACTOR = "demo"
PENDING = 4  # farms whose last report is still to come


def fill(store: Store, seasons: int = SEASONS) -> Trial:
    """A trial that has run for some seasons; the last reports of a few farms are pending."""
    spec = TrialSpec.parse((resources.files(__package__) / "demo.toml").read_text(encoding="utf-8"))
    trial = Trial.create(spec, store, actor=ACTOR)
    for season in range(1, seasons + 1):
        weather = np.random.default_rng(season)
        drought = {farm: max(0.0, weather.normal(20 + 10 * np.sin(season), 8)) for farm in spec.users}
        given = trial.ask(contexts={farm: {"drought": days} for farm, days in drought.items()}, episode=season)
        harvest = [Report(g.id, outcome(spec, g.arm, drought[g.user], weather)) for g in given]
        if season == 3:
            lost = harvest.pop()
            trial.mark_missing(lost.decision, reason="hail")
        weather.shuffle(harvest)
        trial.tell_many(harvest[PENDING:] if season == seasons else harvest)
        if season == 5:
            first = harvest[0]
            value = round(float(first.outcome["yield"] or 0.0) + 0.3, 2)
            trial.amend(first.decision, {"yield": value}, reason="the scale was off by 0.3 t/ha")
    return trial


def outcome(spec: TrialSpec, arm: str, drought: float, rng: np.random.Generator) -> dict[str, float | None]:
    """What a field yields: linear in the attributes, noisier the further the weather is from typical."""
    doses = spec.arms[arm].attributes or {}
    n, irrigation = doses["nitrogen"], doses["irrigation"]
    noise = np.sqrt(1 + abs(drought - 20) / 10) * rng.normal(size=3)
    return {
        "yield": round(3.5 + 0.068 * n - 0.00019 * n**2 + 1.0 * irrigation + 0.5 * noise[0], 2),
        "leaching": round(max(0.0, 4 + 0.18 * n - 3 * irrigation + 4 * noise[1]), 1),
        "water": round(max(0.0, 60 * irrigation + 5 * noise[2]), 1),
    }
