"""Forecasts of running trials beside what happened: do "50 % by season 6" and "80 % by season 9" hold?

    python -m benchmarks.forecast [--trials 100] [--simulated 50] [--middle 4] [--more 6] [--first 80000]

Every trial draws its variances and effects from the model's prior (benchmarks.drawn_trials), is played to the middle,
forecast from there, and played on. In such worlds shares must be as forecast, but for Monte Carlo error.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from benchmarks.drawn_trials import drawn
from drimed.numerics.arrays import BoolArray, FloatArray
from drimed.rehearsal.designs import own
from drimed.rehearsal.forecast import CHANCES, is_shown, play_on
from drimed.rehearsal.play import Season, StoppingMonitor, member, play
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.trial_world import TrialWorld
from drimed.trial.problem import Layers
from drimed.trial.spec import TrialSpec
from drimed.trial.state import Counts, Episode, TrialState

SPEC: dict[str, Any] = {
    "name": "drawn", "metrics": {"yield": {"spread": 10.0}}, "arms": {"old": {}, "new": {}, "other": {}},
    "control": "old", "preference": {"yield": 1.0}, "tolerance": {"absolute": 12.0},
    "users": {f"site {i}": {"plots": ["1", "2"]} for i in range(4)},
}  # fmt: skip


class DrawnTrials(SimulatedTrials):
    """Trials whose control has random effects as any other arm, as the model believes."""

    @cached_property
    def world(self) -> TrialWorld:
        """The truth."""
        return replace(super().world, references=())


@dataclass
class Middle(StoppingMonitor):
    """Keeps what each trial has learned by a season."""

    season: int = 0
    learned: Any = None

    def look(self, seasons: Sequence[Season], learned: Any) -> None:
        """After the last of these seasons."""
        if seasons[-1].number == self.season - 1:
            self.learned = learned


def played(number: int, middle: int, more: int, simulated: int) -> tuple[FloatArray, BoolArray] | None:
    """The forecast chance and the truth of each season after the middle; None: it was known before."""
    spec, sd = TrialSpec.read(SPEC), drawn(number)
    kinds = {"noise": sd.residual, "spread": sd.arm} | {
        kind: getattr(sd, kind) for kind in ("site", "season", "block", "site_arm", "season_arm")
    }
    scenario = Scenario.model_validate({kind: {"yield": size} for kind, size in kinds.items()})
    some = SimulatedTrials.of(spec, scenario, [number], middle + more)
    trials = DrawnTrials(some.state, some.states, some.places, some.setting, some.seeds)
    monitor = Middle(trials, season=middle)
    looks = [season.look for season in play(trials, own(spec), monitor=monitor)]
    shown = np.array([is_shown(look, trials.typical)[0] for look in looks if look is not None])
    if shown[middle - 1]:
        return None
    foreseen = play_on(at_middle(trials, monitor, middle), seasons=more, trials=simulated, seed=1)
    (chances,) = foreseen.chances.values()
    return np.array([share.value for share in chances]), np.logical_or.accumulate(shown[middle:])


def at_middle(trials: SimulatedTrials, monitor: Middle, middle: int) -> TrialState:
    """The state of the only trial, as a live one would have it."""
    state, asked = trials.state, Layers((place.key, 0) for place in trials.places[middle - 1])
    return replace(
        state,
        learned=member(monitor.learned, state.learned, 0),
        episode=Episode(middle, asked=asked),
        counts=Counts(complete=sum(map(len, trials.places[:middle]))),
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: the mean forecast and the share of trials in which it came true, with its standard error."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("trials", 100), ("simulated", 50), ("middle", 4), ("more", 6), ("first", 80_000)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args(arguments)
    numbers = range(options.first, options.first + options.trials)
    pairs = [played(number, options.middle, options.more, options.simulated) for number in numbers]
    chance, truth = (np.array(x) for x in zip(*(p for p in pairs if p is not None), strict=True))  # (trials, L)
    print(f"{len(chance)} of {options.trials} trials had shown nothing by the middle")
    print("| shown by | trials | forecast | came true |\n|---|---|---|---|")
    rows = {f"season {options.middle + t + 1}": (chance[:, t], truth[:, t]) for t in range(options.more)}
    for level in CHANCES:
        some = np.flatnonzero(chance[:, -1] >= level)
        at = (chance[some] >= level).argmax(-1)
        rows[f"the {level:.0%} point"] = chance[some, at], truth[some, at]
    for name, (said, was) in rows.items():
        error = (was - said).std(ddof=1) / np.sqrt(len(said)) if len(said) > 1 else np.nan
        means = (f"{x.mean():.3f}" if len(x) else "" for x in (said, was))
        print(f"| {name} | {len(said)} | {' | '.join(means)} ± {error:.3f} |", flush=True)


if __name__ == "__main__":
    main()
