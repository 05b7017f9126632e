"""Calibrated stopping rules on the published example of adaptr: how often they are right, and how often wrong.

    python -m benchmarks.calibrated [--trials 1000] [--calibrations 4000] [--jobs 1] [--out out/calibrated]

The example (Overview of adaptr 1.5.0, Granholm et al. 2022): an undesirable outcome in 25, 20 and 30 % of people, who
come once; 18 looks at 300 to 2,000 outcomes, with 100 people whose outcomes are still to come. Its thresholds are
calibrated to at most 5 % false superiority, and arms are given adaptively. Here arms are drawn evenly, and one that
cannot be better than the control by so much as MARGIN is dropped. Both count the people who were waiting as well.

Bounds come from rehearsals without difference and without drift; the other worlds, which they do not know, check them.
Finished blocks are kept: run it again to go on.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from drimed import TrialSpec
from drimed.rehearsal.calibration import PlannedRecord, PlannedTrials, calibrate, nuisances
from drimed.rehearsal.scenarios import Scenario
from drimed.simulation.sweep import sweep

RATES = {"a": 0.25, "b": 0.20, "c": 0.30}
LOOKS, FIRST, MOST, WAITING = 100, 300, 2000, 100
MARGIN, CONFIDENCE = 0.04, 0.6  # of the rule that drops arms
ADAPTR = {"superior": 0.719, "false": 0.045, "size": 1245.1, "size, no difference": 1757.2}
SPEC: dict[str, Any] = {
    "name": "adaptr",
    "model": {"kind": "people", "seasons": False},
    "metrics": {"event": {"kind": "yes/no", "better": "lower", "typical": RATES["a"]}},
    "arms": {arm: {} for arm in RATES},
    "control": "a",
    "preference": {"event": -1.0},
    "tolerance": {"absolute": 0.1},
    "policy": {"name": "uniform"},
    "stopping": {
        "looks": LOOKS,
        "first": FIRST,
        "decisions": MOST,
        "rules": {
            "better": {"kind": "superiority", "evidence": "calibrated", "shape": "wang-tsiatis", "then": "stop"},
            "no use": {
                "kind": "futility", "margin": MARGIN, "confidence": CONFIDENCE, "evidence": "calibrated",
                "then": "drop",
            },
        },
    },
}  # fmt: skip
NOTHING: dict[str, Any] = {kind: {"event": 0.0} for kind in ("site", "season", "block", "site_arm", "season_arm")}
WORLDS = {
    "no difference": NOTHING,
    "25, 20 and 30 %": NOTHING,
    "no difference, rates rise from 25 to 44 %": NOTHING | {"trend": {"event": 0.01}},
    "no difference, rates differ by 5 points between looks": NOTHING | {"season": {"event": 0.05}},
}


def main() -> None:
    """Calibrate, play all worlds, and print the table."""
    parser = argparse.ArgumentParser(description="Calibrated stopping rules on the published example of adaptr.")
    parser.add_argument("--trials", type=int, default=1000, help="in each world (%(default)s)")
    parser.add_argument("--calibrations", type=int, default=4000, help="trials that find the bounds (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="processes (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("out/calibrated"), help="folder of blocks (%(default)s)")
    options = parser.parse_args()
    spec, how = TrialSpec.read(SPEC), dict[str, Any]()
    how |= {"jobs": options.jobs, "on_done": lambda done: print(done.finished, done.seeds, flush=True)}
    bounds = calibrate(spec, {"plain": Scenario(**NOTHING)}, trials=options.calibrations, store=options.out, **how)
    if bounds is None:
        raise RuntimeError("the file has calibrated rules")
    print(bounds)
    effects = {arm: {"event": rate - RATES["a"]} for arm, rate in RATES.items() if arm != "a"}
    for name, world in WORLDS.items():
        (scenario,) = nuisances(spec, {name: Scenario(**world)}).values()
        if name == "25, 20 and 30 %":
            scenario = scenario.model_copy(update={"effects": effects})
        task = PlannedTrials(
            spec=spec, scenario=scenario, seeds=tuple(range(options.trials)), thresholds=bounds["thresholds"]
        )
        print(name, summary(sweep({name: task}, options.out, **how)[name]), flush=True)
    print("adaptr", ADAPTR)


def summary(record: PlannedRecord) -> dict[str, str]:
    """Shares of trials with their standard errors, and people in a trial: the rule or the last arm's end stops it."""
    stopped = record.met[..., 0] | (record.left == 0)  # (S, T)
    # A trial whose arms are dropped at the look of a claim was stopped by the claim.
    end = np.where(stopped.any(1), stopped.argmax(1), stopped.shape[1] - 1)
    at = np.arange(len(end)), end
    size = np.minimum(FIRST + LOOKS * end + WAITING, MOST)
    shares = {
        "superior": record.met[..., 0][at],
        "false": record.wrong[..., 0][at],
        "no arm left": record.left[at] == 0,
    }
    out = {name: f"{x.mean():.3f} (± {(x.mean() * (1 - x.mean()) / len(x)) ** 0.5:.3f})" for name, x in shares.items()}
    return out | {"people": f"{size.mean():.0f} (± {size.std() / len(size) ** 0.5:.0f})"}


if __name__ == "__main__":
    main()
