"""Whether live trials do what a rehearsal forecasts: five trial files, each forecast and played in worlds of its own.

    python -m benchmarks.forecasts [--trials 500] [--forecast 1000] [--only NAME]

The forecast is `rehearse` with seed 0. The live trials have other seeds, a SQLite store on disk, and go through
`open_episode`, `ask` and `tell`; what they claim is what the report says of all users, and which rules their looks
found met. Each number is printed from both sides with its standard error, and z is their difference in standard errors.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rehearsal import Outcomes, live, world
from drimed.findings.effects import EVERYBODY, REWARD, all_effects
from drimed.findings.regression import fit_now
from drimed.linear.arrays import FloatArray
from drimed.rehearsal import designs
from drimed.rehearsal.designs import OWN
from drimed.rehearsal.looks import weights
from drimed.rehearsal.measures import LIKELY, Measured, Number, measures
from drimed.rehearsal.run import Plan, rehearse
from drimed.rehearsal.scenarios import Scenario
from drimed.trial.gather import gather
from drimed.trial.model_ranges import known, offers_now
from drimed.trial.spec import TrialSpec
from drimed.trial.stores import open_store
from drimed.trial.trial import Trial

LIVE_SEEDS = 7_000_000  # far from those of the forecast
RULE = "better"
FOUR, EIGHT = ([str(i) for i in range(n)] for n in (4, 8))
PLAIN: dict[str, Any] = {
    "name": "forecast",
    "metrics": {"yield": {"range": [0, 100]}},
    "arms": {a: {} for a in ("control", "better", "same", "worse")},
    "control": "control",
    "preference": {"yield": 1.0},
    "users": {u: {"plots": FOUR} for u in ("north", "south", "hill")},
    "tolerance": {"relative": 0.0, "absolute": 2.0},
    "confidence": 0.6,
    "stopping": {"rules": {RULE: {"kind": "superiority", "evidence": "model", "confidence": 0.5}}},
}
STOPS = {"rules": {RULE: PLAIN["stopping"]["rules"][RULE] | {"then": "stop"}}}
FREE = {"rules": {RULE: {"kind": "superiority", "confidence": 0.5}}}
GROUPS = {"users": {u: {"plots": FOUR, "group": g} for u, g in (("north", "a"), ("south", "a"), ("hill", "b"))}}
BY_GROUP = {"rules": {RULE: PLAIN["stopping"]["rules"][RULE] | {"each": "group"}}}
FILES: dict[str, dict[str, Any]] = {
    "sites": PLAIN,
    "floors, and a rule that stops": PLAIN | {"floors": {"control": 0.2, "arms": 0.1}, "stopping": STOPS},
    "control plots": PLAIN | {"feedback": "difference"},
    "no guard, a rule for each group": PLAIN
    | GROUPS
    | {"policy": {"name": "dri_med", "guard": "off"}, "stopping": BY_GROUP},
    "the paper's model": PLAIN
    | {
        "model": {"kind": "paper"},
        "floors": {"arms": 0.2},
        "stopping": FREE,
        "tolerance": {"absolute": 8.0, "relative": 0.0},
        "users": {"one": {"plots": EIGHT}, "two": {"plots": EIGHT}},
    },
}
SCENARIO = Scenario(
    effects={"better": {"yield": 14.0}, "worse": {"yield": -8.0}},
    noise={"yield": 8.0},
    season={"yield": 4.0},
    site_arm={"yield": 6.0},
    season_arm={"yield": 2.0},
    seasons=4,
)
SHOWN = (
    f"power, {LIKELY}", f"false claims, {LIKELY}", f"rule {RULE} met", f"rule {RULE} met by a false claim",
    "share of control", "users harmed beyond the tolerance", "seasons",
)  # fmt: skip


def played(spec: TrialSpec, trials: int) -> Measured:
    """What so many live trials show, by the names of a rehearsal's measures."""
    there = Outcomes(world(spec, SCENARIO, range(LIVE_SEEDS, LIVE_SEEDS + trials)))
    w = there.world
    truth = np.einsum("hk,shk->sk", weights(w.typical), w.effects[..., 0])
    control = list(spec.arms).index(str(spec.control))
    found: dict[str, list[float]] = {name: [] for name in SHOWN}
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(str(Path(folder) / "trials.db"))
        for s in range(trials):
            trial, given = live(store, there, s)
            if len(given) == w.setting.seasons:
                trial.look()
            claimed = _likely(trial)
            better, named = truth[s] > 0, list(spec.arms)
            found[f"power, {LIKELY}"].append(any(named[k] == "better" and better[k] for k in claimed))
            found[f"false claims, {LIKELY}"].append(any(not better[k] for k in claimed))
            met = trial.state().looked.met.get(RULE, {})
            found[f"rule {RULE} met"].append(bool(met))
            wrong = [key for key in met if not _holds(there, s, key)]
            found[f"rule {RULE} met by a false claim"].append(bool(wrong))
            found["share of control"].append(float(np.mean([[a == control for a in arms] for arms in given])))
            found["users harmed beyond the tolerance"].append(_harmed(there, s, given, control))
            found["seasons"].append(len(given))
    shares = {name: np.array(values, bool) if _is_share(name) else np.array(values) for name, values in found.items()}
    return {name: Number.of(values, share=True) for name, values in shares.items()}


def _is_share(name: str) -> bool:
    return name.startswith(("power", "false", "rule"))


def _likely(trial: Trial) -> list[int]:
    """The arms that the report calls likely to be better than the control for all users."""
    with trial.reading() as (ledger, state):
        seen = gather(ledger, state)
    fit = known(state, offers_now(state)) or fit_now(seen).fit
    return [
        state.problem.arm(e.arm)
        for e in all_effects(seen, fit)
        if e.who == EVERYBODY and e.on == REWARD and e.source == "model" and e.likely > 0
    ]


def _holds(there: Outcomes, s: int, key: str) -> bool:
    """Whether a claim such as "group:a|better" is true in world s."""
    w = there.world
    whom, _, arm = key.partition("|")
    by, _, who = whom.partition(":")
    mine = np.array([by == "all" or who == p.group for p in w.population.looked_at])
    effect: FloatArray = np.einsum("hk,hk->k", weights(w.typical, mine), w.effects[s, ..., 0])
    return bool(effect[w.population.state.problem.arm(arm)] > 0)


def _harmed(there: Outcomes, s: int, given: Sequence[Sequence[int]], control: int) -> float:
    """The share of users whose mean expected loss is beyond the tolerance."""
    w = there.world
    loss = np.zeros(len(w.population.users))
    count = np.zeros_like(loss)
    for season, arms in enumerate(given):
        user, means = w.population.user(season), there.means[season][s, ..., 0]  # one metric, which is the reward
        np.add.at(loss, user, means[:, control] - means[np.arange(len(arms)), list(arms)])
        np.add.at(count, user, 1.0)
    return float((loss / count > w.population.state.spec.tolerance.absolute).mean())


def main() -> None:
    """A table for docs/rehearse.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=500, help="live trials of each file")
    parser.add_argument("--forecast", type=int, default=1000, help="rehearsed trials of each file")
    parser.add_argument("--only", help="a part of the name of one of the files")
    given = parser.parse_args()
    apart = []
    for name, data in FILES.items():
        if given.only is not None and given.only not in name:
            continue
        spec = TrialSpec.read(data)
        plan = Plan(spec, {"s": SCENARIO}, (designs.own(spec),), trials=given.forecast)
        forecast = measures(rehearse(plan, None, jobs=1)["s", OWN], [RULE])
        lived = played(spec, given.trials)
        print(f"\n{name}", flush=True)
        for measure in SHOWN:
            one, other = forecast[measure], lived[measure]
            assert one is not None
            assert other is not None
            error = (one.error**2 + other.error**2) ** 0.5
            z = (other.value - one.value) / error if error > 0 else 0.0
            apart.append(z)
            print(
                f"| {measure} | {one.value:.3f} ± {one.error:.3f} | {other.value:.3f} ± {other.error:.3f} | {z:.1f} |"
            )
    print(
        f"\n{len(apart)} numbers: |z| > 2 in {sum(abs(z) > 2 for z in apart)}, at most {max(map(abs, apart)):.1f}; "
        f"root mean square {np.sqrt(np.mean(np.square(apart))):.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
