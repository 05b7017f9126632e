"""A simulated trial to look at: twelve farms, some seasons, a late report.

The same world as examples/crop_trial; everything goes through the live interface.
"""

from __future__ import annotations

import numpy as np

from drimed.records import Report
from drimed.trial.spec import TrialSpec
from drimed.trial.stores.store import Store
from drimed.trial.trial import Trial

SEASONS = 12
ACTOR = "demo"
PENDING = 4  # farms whose last report is still to come

SPEC = """\
name = "maize-demo"
about = "Simulated: nitrogen and irrigation for maize on twelve farms, compared with common practice"
seed = 2026
control = "practice"
preference = { yield = 200, leaching = -3, water = -1.5 }

[metrics.yield]
unit = "t/ha"
range = [0, 15]
[metrics.leaching]
unit = "kg N/ha"
range = [0, 80]
better = "lower"
[metrics.water]
unit = "mm"
range = [0, 200]
better = "lower"

[arms]
practice = { attributes = { nitrogen = 150, nitrogen_squared = 22500, irrigation = 0 } }
lean = { attributes = { nitrogen = 90, nitrogen_squared = 8100, irrigation = 0 } }
rich = { attributes = { nitrogen = 200, nitrogen_squared = 40000, irrigation = 0 } }
irrigated = { attributes = { nitrogen = 150, nitrogen_squared = 22500, irrigation = 1 } }
lean_irrigated = { attributes = { nitrogen = 90, nitrogen_squared = 8100, irrigation = 1 } }

[users]
birch = { group = "sand" }
heath = { group = "sand" }
dune = { group = "sand", preference = { yield = 200, leaching = -8, water = -1.5 } }
pine = { group = "sand" }
oak = { group = "loam" }
mill = { group = "loam" }
brook = { group = "loam", preference = { yield = 200, leaching = -8, water = -0.5 } }
hill = { group = "loam" }
ridge = { group = "clay" }
meadow = { group = "clay" }
marsh = { group = "clay", arms = ["practice", "lean", "rich"] }
ford = { group = "clay" }

[tolerance]
relative = 0.1
absolute = 100

[[guardrails]]
metric = "yield"
relative = 0.1
absolute = 0.5

[context.drought]
unit = "days without rain"
typical = 20
spread = 10
"""


def fill(store: Store, seasons: int = SEASONS) -> Trial:
    """A trial that has run for some seasons; the last reports of a few farms are pending."""
    spec = TrialSpec.parse(SPEC)
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
