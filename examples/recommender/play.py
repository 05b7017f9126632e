"""Plays simulated readers against the live interface: they come, join, read, and some never answer.

    python examples/recommender/play.py --days 20 --store readers.db

Run it again to go on.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from drimed import Trial, TrialSpec, open_store, verify

SPEC = Path(__file__).parent / "trial.toml"
MINUTES = {"news": 2.0, "sport": 1.8, "culture": 2.6, "local": 3.1, "puzzle": 1.2}
COMPLAINTS = {"news": 0.02, "sport": 0.02, "culture": 0.02, "local": 0.03, "puzzle": 0.10}


def main() -> None:
    """One day after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days", type=int, default=20)
    parser.add_argument("--visits", type=int, default=40, help="a day")
    parser.add_argument("--store", default="readers.db")
    chosen = parser.parse_args()
    spec, store = TrialSpec.load(SPEC), open_store(chosen.store)
    trial = Trial.open(spec.name, store) if spec.name in store.names() else Trial.create(spec, store)
    for day in range(trial.status().episode + 1, chosen.days + 1):
        chance = np.random.default_rng(day)
        trial.open_episode(number=day)
        reader = f"reader-{day}"
        if reader not in trial.state().users:
            trial.add_user(reader, {})
        readers = list(trial.state().users)
        shown = []
        for visit in range(chosen.visits):
            decision = trial.ask(str(chance.choice(readers)), key=f"day {day} visit {visit}")
            shown.append(decision.arm)
            if chance.random() < 0.1:
                trial.mark_missing(decision.id, reason="the reader closed the page")
                continue
            minutes = max(0.0, chance.normal(MINUTES[decision.arm], 1.0))
            complains = float(chance.random() < COMPLAINTS[decision.arm])
            trial.tell(decision.id, {"minutes": minutes, "complaint": complains})
        print(f"day {day}: " + ", ".join(f"{shown.count(arm)} {arm}" for arm in spec.arms if arm in shown))
    proof = verify(store, spec.name)
    print(f"{proof.exact} of {proof.decisions} decisions reproduced; the log is {'intact' if proof.ok else 'broken'}")


if __name__ == "__main__":
    main()
