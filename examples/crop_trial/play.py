"""Plays a simulated countryside against the live interface: twelve farms, season after season.

    python examples/crop_trial/play.py --seasons 12 --store crop.db

Run it again to go on; stop it at any moment: nothing is lost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from drimed import Report, Trial, TrialSpec, open_store, verify

SPEC = Path(__file__).parent / "trial.toml"


def main() -> None:
    """One season after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seasons", type=int, default=12)
    parser.add_argument("--store", default="crop.db")
    chosen = parser.parse_args()
    spec, store = TrialSpec.load(SPEC), open_store(chosen.store)
    trial = Trial.open(spec.name, store) if spec.name in store.names() else Trial.create(spec, store)
    for season in range(trial.status().episode + 1, chosen.seasons + 1):
        weather = np.random.default_rng(season)
        drought = {farm: max(0.0, weather.normal(20 + 10 * np.sin(season), 8)) for farm in spec.users}
        decisions = trial.ask(contexts={farm: {"drought": days} for farm, days in drought.items()}, episode=season)
        harvest = [Report(d.id, outcome(spec, d.arm, drought[d.user], weather)) for d in decisions]
        weather.shuffle(harvest)  # farms report in any order
        trial.tell_many(harvest, confirm=True)
        arms = [d.arm for d in decisions]
        changed = sum(d.share is not None and d.share < 1 for d in decisions)
        shares = ", ".join(f"{arms.count(arm)} {arm}" for arm in spec.arms if arm in arms)
        print(f"season {season}: {shares}; the guard changed {changed}")
    proof = verify(store, spec.name)
    print(f"{proof.exact} of {proof.decisions} decisions reproduced; the log is {'intact' if proof.ok else 'broken'}")


def outcome(spec: TrialSpec, arm: str, drought: float, rng: np.random.Generator) -> dict[str, float | None]:
    """The countryside: linear in the attributes, noisier the further the weather is from typical."""
    doses = spec.arms[arm].attributes or {}
    n, irrigation = doses["nitrogen"], doses["irrigation"]
    noise = np.sqrt(1 + abs(drought - 20) / 10) * rng.normal(size=3)
    return {
        "yield": 3.5 + 0.068 * n - 0.00019 * n**2 + 1.0 * irrigation + 0.5 * noise[0],
        "leaching": max(0.0, 4 + 0.18 * n - 3 * irrigation + 4 * noise[1]),
        "water": max(0.0, 60 * irrigation + 5 * noise[2]),
    }


if __name__ == "__main__":
    main()
