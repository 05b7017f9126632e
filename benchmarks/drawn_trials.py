"""The field model in fields that are as it believes fields to be: is it computed right, and what does learning cost?

    python -m benchmarks.drawn_trials [--trials 400] [--each 8] [--first 70000] [--seasons 10]

Before there are data the model believes that the variances of a trial, relative to the residual's, are spread as its
prior says. Here every trial draws its variances from that prior. Then ranges must hold as often as they say, whoever
decides and however few the seasons are: what is off is the computation's doing. (In fields like single public trials,
benchmarks/public_trials.py, it may be the prior's.) And no learner can know more of such a trial beforehand, so the
regret beside a policy that is told the variances is, for this rule and guard, the price of not knowing them.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from benchmarks.public_trials import RESIDUAL, SHOWN, VARIANCES, head, measured_in, row
from drimed import streams
from drimed.competitors.field_learners import DEVIATIONS
from drimed.models.mixed.terms import Family, Terms, field_families
from drimed.simulation.trial_world import Deviations, FieldSetting

RELATIVE = "regret, relative"


def believed() -> dict[str, Family]:
    """The families whose variances a field has, by the name of their deviation."""
    sites = FieldSetting().sites
    sizes = {"user": sites, "group": sites, "block": 1}
    return {DEVIATIONS[f.name]: f for f in field_families(Terms(), sizes) if f.name in DEVIATIONS}


def drawn(number: int) -> Deviations:
    """The deviations of a trial, from the model's prior."""
    families = believed()
    normal = streams.generator(number, "deviations").standard_normal(len(families))
    ratios = {
        name: np.sqrt(f.centre * np.exp(f.spread * z)) for (name, f), z in zip(families.items(), normal, strict=True)
    }
    return Deviations(residual=RESIDUAL, **{name: RESIDUAL * float(ratio) for name, ratio in ratios.items()})


def main() -> None:
    """Print a table: means over trials, with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--each", type=int, default=8, help="fields of each trial")
    parser.add_argument("--first", type=int, default=70_000)
    parser.add_argument("--seasons", type=int, default=10)
    given = parser.parse_args()
    shown = SHOWN | {RELATIVE: (RELATIVE, "{:.3f}")}
    print(head(shown), flush=True)
    for variances in VARIANCES:
        found: dict[int, list[dict[str, Any]]] = {}
        for trial in range(given.trials):
            size = drawn(given.first + trial)
            start = given.first + trial * given.each
            for look in measured_in(size, range(start, start + given.each), given.seasons, variances):
                # Trials whose arms differ most would make up most of the mean: so each by how much its arms differ.
                look[RELATIVE] = look["regret_per_decision"] / np.hypot(size.arm, size.site_arm)
                found.setdefault(look["seasons"], []).append(look)
        for season, looks in found.items():
            print(row("drawn", variances, {"seasons": season} | _over_trials(looks, list(shown)), shown), flush=True)


def _over_trials(looks: list[dict[str, Any]], names: list[str]) -> dict[str, float]:
    """Means over trials with their standard errors."""
    told = {name: np.array([look[name] for look in looks]) for name in names}
    return {name: float(x.mean()) for name, x in told.items()} | {
        f"{name}.error": float(x.std(ddof=1) / np.sqrt(len(x))) for name, x in told.items()
    }


if __name__ == "__main__":
    main()
