"""The price of `goal = "find"`: a small field trial that earns, that finds out about every arm, or that is balanced.

    python -m benchmarks.goals [--trials 80] [--seasons 5] [--tolerance 168 60]
    python -m benchmarks.goals --plots 5 8 --metrics 1 --tolerance 168      # and that of a plot of the control
    python -m benchmarks.goals --metrics 1 --policy guard=off confidence=0.9      # and that of the guard
    python -m benchmarks.goals --metrics 1 --known --spread 1 1.5 0.667      # and that of learning variances

With --plots farms have so many plots each, as many as arms or more; designs are then those that always have a plot of
the control on each farm, as long as it is open, or never, and balanced. With --spread the deviation of plots is
declared so many times its value; with --known, of one metric, a design is added that is told every variance.

Eight farms with 18 plots a season; a control and plans with +41, +35, +121 and -148 on the average farm; deviations of
single plots 100, farms 130, seasons 100, plans by farm 40 and by season 20. With two metrics half of the farms weigh
the first one three times as much as the second, and the others the other way round: on average the farms' rewards are
the same. Shown: called better, or worse, than the control for all farms together by the end, as in a report. Lost: the
mean reward of a plot below that of its best plan. Promise broken: decisions whose expected reward is below the
control's by more than the tolerance.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from drimed import TrialSpec
from drimed.competitors.field_learners import Known
from drimed.models.mixed.learner import Field
from drimed.numerics.arrays import FloatArray
from drimed.policies.policy import Policy
from drimed.policies.protocol import AnyPolicy
from drimed.policies.registry import PolicySpec
from drimed.policies.rules.base import PLOT
from drimed.rehearsal.play import BLOCK, FIXED, Design, StoppingMonitor, play, record
from drimed.rehearsal.results import LIKELY, REWARD, Number, Record
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.simulation.trial_world import RANGE, Deviations

ARMS = ("practice", "plan 1", "plan 2", "plan 3", "plan 4")
BEST, WORST = 3, 4
# Of one metric, or of two whose sums are the same: effects of the plans, and deviations where noise correlates by 0.3.
EFFECTS = {1: [(41.0, 35.0, 121.0, -148.0)], 2: [(61.0, -5.0, 81.0, -94.0), (-20.0, 40.0, 40.0, -54.0)]}
DEVIATIONS = {"noise": 100.0, "site": 130.0, "season": 100.0, "block": 0.0, "site_arm": 40.0, "season_arm": 20.0}
WEIGHTS = ((1.5, 0.5), (0.5, 1.5))
LEVEL = 1000.0
KNOWN = "variances told"
HEADINGS = (
    "metrics",
    "tolerance",
    "design",
    "best shown",
    "worst shown",
    "lost",
    "control",
    "control, season 1",
    "promise broken, of 10,000",
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print a table: means over trials."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=80)
    parser.add_argument("--seasons", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="seed of the first trial")
    parser.add_argument("--tolerance", type=float, nargs="*", default=[168.0, 60.0])
    parser.add_argument("--metrics", type=int, choices=EFFECTS, nargs="*", default=list(EFFECTS))
    parser.add_argument("--plots", type=int, nargs="*", default=[])
    parser.add_argument("--policy", nargs="*", default=[], help="settings, of one design each that earns")
    parser.add_argument("--spread", type=float, nargs="*", default=[], help="declared, over the true one")
    parser.add_argument("--known", action="store_true", help="the policy that is told every variance")
    options = parser.parse_args(arguments)
    seeds = tuple(range(options.first, options.first + options.trials))
    print(f"| {' | '.join(HEADINGS)} |\n{'|---' * len(HEADINGS)}|")
    for metrics in options.metrics:
        for tolerance in options.tolerance:
            earn, find = (trial(metrics, tolerance, goal) for goal in ("earn", "find"))
            designs = [Design("earn", earn), Design("find", find), Design("balanced", earn, FIXED)]
            if options.plots:
                designs = [design for plots in options.plots for design in with_plots(metrics, tolerance, plots)]
            if options.policy or options.spread or options.known:
                designs = [with_setting(text, earn) for text in options.policy]
                designs += [
                    Design(f"spread x {by:g}", trial(metrics, tolerance, "earn", by=by)) for by in options.spread
                ]
                designs += [Design(KNOWN, earn)] * options.known
            for design in designs:
                cells = [str(metrics), f"{tolerance:g}", design.name, *judged(metrics, design, seeds, options.seasons)]
                print(f"| {' | '.join(cells)} |", flush=True)


def with_plots(metrics: int, tolerance: float, plots: int) -> list[Design]:
    """Farms with so many plots each."""
    specs = {keep: trial(metrics, tolerance, "earn", plots, keep) for keep in PLOT}
    balanced = Design(f"{plots} plots, balanced", specs["open"], FIXED)
    return [*(Design(f"{plots} plots, {keep}", spec) for keep, spec in specs.items()), balanced]


def with_setting(text: str, spec: TrialSpec) -> Design:
    """The same trial with a setting of its policy: guard=off, or confidence=0.9."""
    policy = PolicySpec.parse(f"dri_field:{text}")
    return Design(text, TrialSpec.read(spec.plain() | {"policy": {"name": policy.name, **policy.settings}}))


def judged(metrics: int, design: Design, seeds: Sequence[int], seasons: int) -> list[str]:
    """Cells of the table."""
    tolerance, known = design.spec.tolerance, design.name == KNOWN
    records, lost, control, broken = list[Record](), list[FloatArray](), list[FloatArray](), list[float]()
    for first in range(0, len(seeds), BLOCK):
        trials = SimulatedTrials.of(design.spec, world(metrics), seeds[first : first + BLOCK], seasons)
        if known:
            trials = replace(trials, state=replace(trials.state, policy=told(trials.state.policy)))
        monitor = None if known else StoppingMonitor(trials)
        played = list(play(trials, design, looks=(), monitor=monitor, estimates=not known))
        for season in played:
            expected, controls = (np.vecdot(p, season.means) for p in (season.probabilities, season.control))
            broken += (expected < controls - tolerance.absolute).ravel().tolist()
        given = [np.take_along_axis(s.means, s.action[..., None], -1)[..., 0] for s in played]
        lost.append(np.mean([(s.means.max(-1) - g).mean(-1) for s, g in zip(played, given, strict=True)], 0))
        control.append(np.stack([(s.action == 0).mean(-1) for s in played], -1))  # (S, L)
        records += [] if monitor is None else [record(monitor, played, tolerance)]
    shown = [""] * 2
    if records:
        whole = Record.concatenate(records)
        shown = [Number.of(whole.called(LIKELY, side)[:, -1, arm]).text() for side, arm in ((1, BEST), (-1, WORST))]
    shares = np.concatenate(control)
    numbers = Number.of(np.concatenate(lost), REWARD), Number.of(shares.mean(-1)), Number.of(shares[:, 0])
    return [*shown, *(n.text() for n in numbers), f"{1e4 * np.mean(broken):.3g}"]


def told(policy: AnyPolicy) -> Policy:
    """The policy that knows every variance; that of effects is around those of this world."""
    if not (isinstance(policy, Policy) and isinstance(policy.learner, Field)):
        raise TypeError(f"a policy of the field model has variances to be told, got {policy}")
    arm = float(np.std([0.0, *EFFECTS[1][0]], ddof=1))
    sizes = {name: RANGE * size for name, size in (DEVIATIONS | {"arm": arm}).items() if name != "noise"}
    deviations = Deviations(residual=RANGE * DEVIATIONS["noise"], **sizes)
    return replace(policy, learner=Known(inner=policy.learner, deviations=deviations))


def trial(metrics: int, tolerance: float, goal: str, plots: int = 0, keep: str = "open", by: float = 1.0) -> TrialSpec:
    """The trial file; two farms have three plots, the others two, or all `plots`; `by` of the scatter is declared."""
    names = [f"metric {m}" for m in range(metrics)]
    weights = [dict(zip(names, WEIGHTS[i % 2] if metrics == 2 else (1.0,), strict=True)) for i in range(8)]
    return TrialSpec.read(
        {
            "name": "goals",
            "goal": goal,
            "metrics": {name: {"spread": by * sizes(metrics)["noise"]} for name in names},
            "arms": {arm: {} for arm in ARMS},
            "control": ARMS[0],
            "tolerance": {"relative": 0.0, "absolute": tolerance},
            "floors": {"plot": keep},
            "users": {
                f"farm {i}": {"preference": weights[i], "plots": [str(j) for j in range(plots or (3 if i < 2 else 2))]}
                for i in range(8)
            },
        }
    )


def world(metrics: int) -> Scenario:
    names = [f"metric {m}" for m in range(metrics)]
    effects = {arm: {name: EFFECTS[metrics][m][k] for m, name in enumerate(names)} for k, arm in enumerate(ARMS[1:])}
    level = dict.fromkeys(names, LEVEL / metrics)
    return Scenario.model_validate(
        {kind: dict.fromkeys(names, size) for kind, size in sizes(metrics).items()}
        | {"effects": effects, "level": level}
    )


def sizes(metrics: int) -> dict[str, float]:
    """Deviations of each metric, so that those of an average farm's reward are the same."""
    share = dict.fromkeys(DEVIATIONS, metrics ** (-0.5)) | {"noise": 1.0 if metrics == 1 else 2.6**-0.5}
    return {kind: size * share[kind] for kind, size in DEVIATIONS.items()}


if __name__ == "__main__":
    main()
