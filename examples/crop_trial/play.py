"""Plays a simulated countryside against the live interface: six farms of four plots, season after season.

    python examples/crop_trial/play.py --seasons 8 --store crop.db
    drimed trial report maize-nitrogen-water --store crop.db

Run it again to go on; stop it at any moment: nothing is lost.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from drimed import Decision, Report, Trial, TrialSpec, open_store, verify

SPEC = Path(__file__).parent / "trial.toml"


def main() -> None:
    """One season after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seasons", type=int, default=8)
    parser.add_argument("--store", default="crop.db")
    chosen = parser.parse_args()
    spec, store = TrialSpec.load(SPEC), open_store(chosen.store)
    trial = Trial.open(spec.name, store) if spec.name in store.names() else Trial.create(spec, store)
    countryside = Countryside(spec)
    for season in range(trial.status().episode + 1, chosen.seasons + 1):
        drought = countryside.drought(season)
        decisions = trial.ask_many(contexts={farm: {"drought": days} for farm, days in drought.items()}, episode=season)
        harvest = [Report(d.id, countryside.outcome(d, season)) for d in decisions]
        np.random.default_rng(season).shuffle(harvest)  # farms report in any order
        trial.tell_many(harvest, confirm=True)
        arms = [d.arm for d in decisions]
        changed = sum(d.share is not None and d.share < 1 for d in decisions)
        shares = ", ".join(f"{arms.count(arm)} {arm}" for arm in spec.arms if arm in arms)
        print(f"season {season}: {shares}; the guard changed {changed}")
    proof = verify(store, spec.name)
    print(f"{proof.exact} of {proof.decisions} decisions reproduced; the log is {'intact' if proof.ok else 'broken'}")


class Countryside:
    """What grows: farms, seasons, blocks and the weather all have their part in it."""

    def __init__(self, spec: TrialSpec, seed: int = 7) -> None:
        self.spec, self.seed = spec, seed
        rng = np.random.default_rng(seed)
        self.level = {farm: rng.normal(0, 0.9) for farm in spec.users}
        self.response = {(farm, arm): rng.normal(0, 0.2) for farm in spec.users for arm in spec.arms}

    def drought(self, season: int) -> dict[str, float]:
        """Days without rain, much the same on all farms."""
        rng = np.random.default_rng((self.seed, season, 1))
        dry = rng.normal(20, 7)
        return {farm: round(max(0.0, dry + rng.normal(0, 2)), 1) for farm in self.spec.users}

    def outcome(self, decision: Decision, season: int) -> dict[str, float | None]:
        """Yield and leaching of one plot."""
        farm, dry = decision.user, self.drought(season)[decision.user] - 20
        year = np.random.default_rng((self.seed, season, 2))
        season_level, leached = year.normal(0, 1.0), year.normal(0, 4.0)
        block = np.random.default_rng((self.seed, season, *(farm + str(decision.block)).encode())).normal(0, 0.4)
        plot = np.random.default_rng((self.seed, season, 3, decision.id)).normal(size=2)
        doses = self.spec.arms[decision.arm].attributes or {}
        n, irrigated = doses["nitrogen"], doses["irrigation"]
        grown = 9 + 0.012 * (n - 150) - 0.00016 * (n - 150) ** 2 + irrigated * (0.5 + 0.05 * dry) - 0.06 * dry
        shared = self.level[farm] + season_level + block + self.response[farm, decision.arm]
        nitrate = 25 + 0.17 * (n - 150) - 3 * irrigated + leached
        return {
            "yield": round(grown + shared + 0.5 * plot[0], 2),
            "leaching": round(max(0.0, nitrate + 4 * plot[1]), 1),
        }


if __name__ == "__main__":
    main()
