"""The field model in fields like public variety trials: what it promises, on average over trials and in each of them.

    python -m benchmarks.public_trials [--instances 500] [--first 50000] [--seasons 10]

Variances are learned, so before there are data the model believes what trials are usually like. Such a belief is right
on average over trials, never in each: ranges hold too often where arms differ little and too rarely where they differ
much. Deviations relative to the residual's, estimated by marginal likelihood: barley, 6 sites, 48 years; maize, 4
sites, 3 years; soybean, 4 sites, 2 years, four traits. Beside the default policy stands the same that is told all
variances, from the start or after the first season, before which nobody can know the scale of outcomes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np

from drimed.competitors.field_learners import Known
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.registry import make
from drimed.simulation.benchmark import AFTER, staged
from drimed.simulation.runner import RunRecord, simulate
from drimed.simulation.trial_world import Deviations, FieldSetting, FieldWorld

RESIDUAL = 10.0
TOLERANCE = Tolerance(relative=0.0, absolute=6.0)
FLOOR = 0.05  # under the control, as in the template of a trial
BLOCK = 64  # fields at a time
LEARNED, KNOWN, LATER = VARIANCES = ("learned", "known", "known, later")
RATIOS = {  # block, season, site, arm, site x arm, season x arm
    "barley": (1.73, 1.21, 1.16, 0.65, 0.23, 0.40),
    "maize": (1.29, 0.58, 1.65, 0.52, 0.47, 0.35),
    "soybean yield": (0.58, 0.65, 0.56, 1.07, 0.86, 0.16),
    "soybean protein": (1.02, 1.02, 0.84, 1.70, 0.88, 0.59),
    "soybean oil": (0.83, 0.83, 0.99, 2.27, 0.63, 0.17),
    "soybean lodging": (1.36, 0.78, 0.97, 1.34, 0.41, 0.36),
}
SHOWN = {
    "regret_per_decision": ("regret", "{:.1f}"),
    "control_share": ("control", "{:.2f}"),
    "expected_violations_per_10k": ("violations per 10,000", "{:.0f}"),
    "holds.0.95": ("95 % hold", "{:.3f}"),
    "holds.0.99": ("99 % hold", "{:.3f}"),
    "width.0.99": ("width of 99 %", "{:.0f}"),
    "held_at_all_times": ("held at all times", "{:.3f}"),
    "times_as_wide": ("times as wide", "{:.2f}"),
}


def deviations(trial: str) -> Deviations:
    """Of the fields that are like this trial."""
    block, season, site, arm, site_arm, season_arm = (RESIDUAL * ratio for ratio in RATIOS[trial])
    return Deviations(
        residual=RESIDUAL, block=block, season=season, site=site, arm=arm, site_arm=site_arm, season_arm=season_arm
    )


def policy(known: Deviations | None, *, from_start: bool = True) -> Policy:
    """As live field trials have it; or told all variances."""
    made = make("field_med", relative=TOLERANCE.relative, absolute=TOLERANCE.absolute, ties="shared")
    if not isinstance(made, Policy):
        raise TypeError("field_med is learner x rule x guard")
    return made if known is None else replace(made, learner=Known(known, 0.0, from_start))


def measured_in(size: Deviations, seeds: range, seasons: int, variances: str) -> list[dict[str, Any]]:
    """How things stand after some seasons in fields with these deviations."""
    one = policy(None if variances == LEARNED else size, from_start=variances == KNOWN)
    setting = FieldSetting(seasons=seasons, deviations=size, floor=FLOOR)
    blocks = [seeds[i : i + BLOCK] for i in range(0, len(seeds), BLOCK)]
    records = [simulate(one, FieldWorld(setting, block), tolerance=TOLERANCE) for block in blocks]
    return list(staged(RunRecord.concatenate(records))["after"])


def main() -> None:
    """Print a table of each trial, and of their average."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=500)
    parser.add_argument("--first", type=int, default=50_000)
    parser.add_argument("--seasons", type=int, default=10)
    given = parser.parse_args()
    seeds = range(given.first, given.first + given.instances)
    print(head(SHOWN), flush=True)
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for trial in RATIOS:
        for variances in VARIANCES:
            for look in measured_in(deviations(trial), seeds, given.seasons, variances):
                found.setdefault((variances, look["seasons"]), []).append(look)
                print(row(trial, variances, look, SHOWN), flush=True)
    for season in AFTER:
        for variances in VARIANCES:
            if looks := found.get((variances, season)):
                average = {"seasons": season} | _average(looks)
                print(row("**average**", variances, average, SHOWN), flush=True)


def head(shown: dict[str, tuple[str, str]]) -> str:
    """Of a table with these columns."""
    titles = ["trial", "variances", "seasons", *(title for title, _ in shown.values())]
    return f"| {' | '.join(titles)} |\n{'|---' * len(titles)}|"


def row(trial: str, variances: str, look: dict[str, Any], shown: dict[str, tuple[str, str]]) -> str:
    """Of that table: means and their standard errors."""
    cells = [f"{form.format(look[name])} ± {form.format(look[f'{name}.error'])}" for name, (_, form) in shown.items()]
    return f"| {trial} | {variances} | {look['seasons']} | {' | '.join(cells)} |"


def _average(looks: list[dict[str, Any]]) -> dict[str, float]:
    """Over trials that count alike, with the standard error over fields."""
    found = {}
    for name in SHOWN:
        found[name] = float(np.mean([look[name] for look in looks]))
        errors = np.array([look[f"{name}.error"] for look in looks])
        found[f"{name}.error"] = float(np.sqrt((errors**2).sum()) / len(looks))
    return found


if __name__ == "__main__":
    main()
