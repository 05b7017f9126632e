"""The mixed model in fields as it believes fields to be, and in fields like six public trials.

    python -m benchmarks.drawn_trials [--trials 400] [--each 8] [--first 70000] [--seasons 10] [--public]

Every trial draws its variances from the model's prior. Then ranges must hold as often as they say, whoever decides and
however few the seasons are: what is off is the computation's doing. No learner can know more of such a trial
beforehand, so the regret beside a policy that is told the variances is, for this rule and guard, the price of not
knowing them. With --public, variances are those of public trials (deviations relative to the residual's, estimated by
marginal likelihood): there a difference may be the prior's, which is right on average over trials, never in each.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from drimed import streams
from drimed.competitors.field_learners import DEVIATIONS, Known
from drimed.models.mixed.terms import Family, Terms, field_families
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.simulation.benchmark import by_season
from drimed.simulation.runner import RunRecord, simulate
from drimed.simulation.trial_world import Deviations, FieldSetting, FieldWorld

RESIDUAL = 10.0
TOLERANCE = Tolerance(relative=0.0, absolute=6.0)
FLOOR = 0.05  # under the control, as in the template of a trial
BLOCK = 64  # fields at a time
LEARNED, KNOWN, LATER = VARIANCES = ("learned", "known", "known, later")
PUBLIC = {  # block, season, site, arm, site x arm, season x arm
    "barley": (1.73, 1.21, 1.16, 0.65, 0.23, 0.40),
    "maize": (1.29, 0.58, 1.65, 0.52, 0.47, 0.35),
    "soybean yield": (0.58, 0.65, 0.56, 1.07, 0.86, 0.16),
    "soybean protein": (1.02, 1.02, 0.84, 1.70, 0.88, 0.59),
    "soybean oil": (0.83, 0.83, 0.99, 2.27, 0.63, 0.17),
    "soybean lodging": (1.36, 0.78, 0.97, 1.34, 0.41, 0.36),
}
RELATIVE = "regret, relative"  # to how much the arms differ: trials whose arms differ most would make up most of a mean
SHOWN = {
    "regret_per_decision": "{:.1f}",
    RELATIVE: "{:.3f}",
    "control_share": "{:.2f}",
    "expected_violations_per_10k": "{:.0f}",
    "holds.0.95": "{:.3f}",
    "holds.0.99": "{:.3f}",
    "width.0.99": "{:.0f}",
    "held_at_all_times": "{:.3f}",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over trials, with their standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--each", type=int, default=8, help="fields of each trial")
    parser.add_argument("--first", type=int, default=70_000)
    parser.add_argument("--seasons", type=int, default=10)
    parser.add_argument("--public", action="store_true", help="variances of public trials instead of drawn ones")
    options = parser.parse_args(arguments)
    deviations = [drawn(options.first + trial) for trial in range(options.trials)]
    if options.public:
        names = ("block", "season", "site", "arm", "site_arm", "season_arm")
        scaled = [[RESIDUAL * ratio for ratio in ratios] for ratios in PUBLIC.values()]
        deviations = [Deviations(residual=RESIDUAL, **dict(zip(names, values, strict=True))) for values in scaled]
    print(f"| variances | seasons | {' | '.join(SHOWN)} |\n{'|---' * (2 + len(SHOWN))}|", flush=True)
    for variances in VARIANCES:
        by_season: dict[int, list[dict[str, Any]]] = {}
        for trial, size in enumerate(deviations):
            start = options.first + trial * options.each
            for look in measured_in(size, range(start, start + options.each), options.seasons, variances):
                look[RELATIVE] = look["regret_per_decision"] / np.hypot(size.arm, size.site_arm)
                by_season.setdefault(look["seasons"], []).append(look)
        for season, looks in by_season.items():
            cells = []
            for name, form in SHOWN.items():
                values = np.array([look[name] for look in looks])
                error = float(values.std(ddof=1) / np.sqrt(len(values))) if len(values) > 1 else np.nan
                cells.append(f"{form.format(values.mean())} ± {form.format(error)}")
            print(f"| {variances} | {season} | {' | '.join(cells)} |", flush=True)


def believed() -> dict[str, Family]:
    """The families whose variances a field has, by the name of their deviation."""
    sizes = {"member": 1, "block": 1}  # every site is one user
    return {DEVIATIONS[f.name]: f for f in field_families(Terms(), sizes) if f.name in DEVIATIONS}


def drawn(number: int) -> Deviations:
    """The deviations of a trial, from the model's prior."""
    families = believed()
    normal = streams.generator(number, "deviations").standard_normal(len(families))
    ratios = {
        name: np.sqrt(f.centre * np.exp(f.spread * z)) for (name, f), z in zip(families.items(), normal, strict=True)
    }
    return Deviations(residual=RESIDUAL, **{name: RESIDUAL * float(ratio) for name, ratio in ratios.items()})


def measured_in(size: Deviations, seeds: range, seasons: int, variances: str) -> list[dict[str, Any]]:
    """Results after some seasons in fields with these deviations; the policy is told the variances, or learns them."""
    policy = make("dri_field", relative=TOLERANCE.relative, absolute=TOLERANCE.absolute)
    if not isinstance(policy, Policy):
        raise TypeError("dri_field is learner x rule x guard")
    if variances != LEARNED:
        policy = replace(policy, learner=Known(deviations=size, correlation=0.0, from_start=variances == KNOWN))
    setting = FieldSetting(seasons=seasons, deviations=size, floor=FLOOR)
    blocks = [seeds[i : i + BLOCK] for i in range(0, len(seeds), BLOCK)]
    records = [simulate(policy, FieldWorld(setting, block), tolerance=TOLERANCE) for block in blocks]
    return list(by_season(RunRecord.concatenate(records))["after"])


if __name__ == "__main__":
    main()
