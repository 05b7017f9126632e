"""Bounds of calibrated rules: that they hold their error rate, and that the looks are those of a live trial."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError, SpecError
from drimed.rehearsal import designs
from drimed.rehearsal.calibration import PlannedTrials, at_margin, calibrate, nuisances, upper_quantile
from drimed.rehearsal.play import StoppingMonitor, play
from drimed.rehearsal.scenarios import Scenario, SimulatedTrials
from drimed.trial.events import Calibration
from drimed.trial.spec import TrialSpec
from drimed.trial.store import MemoryStore
from drimed.trial.trial import Trial
from drimed.trial.verify import verify
from tests.rehearsal.test_live import PLAIN, SEEDS
from tests.rehearsal.test_rules import GROUPS, WIDE, last_look, lived

BETTER: dict[str, Any] = {"kind": "superiority", "evidence": "calibrated", "confidence": 0.8, "then": "stop"}
WORSE: dict[str, Any] = {"kind": "harm", "evidence": "calibrated", "confidence": 0.7, "then": "drop"}
EVEN: dict[str, Any] = GROUPS | {"policy": {"name": "uniform"}, "floors": None}
STOPPING: dict[str, Any] = {"seasons": 3, "rules": {"better": BETTER, "worse": WORSE}}
WORLD = Scenario(season={"yield": 10.0}, trend={"yield": 5.0})


def spec(stopping: dict[str, Any] = STOPPING, **more: Any) -> TrialSpec:
    fields = PLAIN | EVEN | WIDE | {"stopping": stopping} | more
    return TrialSpec.read({name: value for name, value in fields.items() if value is not None})


@pytest.fixture(scope="module")
def bounds() -> Calibration:
    found = calibrate(spec(), {"own": WORLD}, trials=200, jobs=1)
    assert found is not None
    return found


def test_false_claims_in_new_worlds_are_no_more_than_alpha(bounds: Calibration) -> None:
    """400 trials of each; the limit is alpha and three standard errors."""
    for name, rule in spec().calibrated.items():
        world = at_margin(spec(), name, next(iter(nuisances(spec(), {"own": WORLD}).values())))
        task = PlannedTrials(spec=spec(), scenario=world, seeds=tuple(range(400)), thresholds=bounds["thresholds"])
        wrong = np.concatenate([block.run().wrong for block in task.blocks()])
        alpha, r = 1 - rule.confidence, list(spec().rules).index(name)
        assert wrong[:, -1, r].mean() <= alpha + 3 * np.sqrt(alpha * (1 - alpha) / 400)
        assert wrong[:, -1, r].any(), "or the test shows nothing"


def test_planned_looks_of_a_batch_are_those_of_each_live_trial(bounds: Calibration) -> None:
    """Claims, dropped arms and the end, in a world with differences; by the monitor of rehearsals, too."""
    effects = {"new": {"yield": 30.0}, "other": {"yield": -40.0}}
    world = nuisances(spec(), {"own": WORLD})["own"].model_copy(update={"effects": effects})
    own, thresholds = spec(), bounds["thresholds"]
    fast = PlannedTrials(spec=own, scenario=world, seeds=SEEDS, thresholds=thresholds).run()
    trials = SimulatedTrials.of(own, world, SEEDS, calibration=bounds)
    watch = StoppingMonitor(trials)
    seasons = list(play(trials, designs.own(own), monitor=watch))
    stopped = np.asarray(fast.met[..., 0].any(1))
    assert stopped.any(), "or the test shows nothing"
    assert fast.left.min() < 2, "or the test shows nothing"
    for s in range(len(SEEDS)):
        ends = int(fast.met[s, :, 0].argmax()) if stopped[s] else 2
        np.testing.assert_array_equal(np.stack(watch.met, 1)[s, : ends + 1], fast.met[s, : ends + 1])
    s = len(SEEDS) - 1
    trial, _ = lived(own, watch.trials, seasons, s, bounds)
    names, state = list(own.rules), trial.state()
    assert {names.index(name) for name in state.looked.met} == set(np.flatnonzero(watch.met[-1][s]))
    assert set(state.retired) == {arm for arm, gone in zip(own.arms, watch.dropped[s], strict=True) if gone}
    assert last_look(trial)["planned"] == state.looked.planned
    proof = verify(trial.store, trial.name)
    assert proof.ok, proof.faults


def test_rehearsals_that_were_finished_are_not_repeated_and_the_hash_names_them(tmp_path: Path) -> None:
    played = []
    found = [
        calibrate(spec(), {"own": WORLD}, trials=60, store=tmp_path, jobs=1, on_done=lambda p: played.append(p.stored))
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert played == [False] * (len(played) // 2) + [True] * (len(played) // 2)
    other = calibrate(spec(), {"own": WORLD.model_copy(update={"noise": {"yield": 3.0}})}, trials=60, jobs=1)
    assert other is not None
    assert found[0] is not None
    assert other["hash"] != found[0]["hash"]


def test_scenarios_of_a_calibration_have_no_effects_and_come_once() -> None:
    usual = nuisances(spec())
    assert list(usual) == ["no difference", "a trend", "pessimistic noise"]
    assert all(not world.effects and world.seasons == 3 for world in usual.values())
    people = spec({"looks": 50, "first": 100, "decisions": 300, "rules": {"better": BETTER}},
                  model={"kind": "people"}, users={}, floors=None)  # fmt: skip
    (world,) = nuisances(people, {"own": WORLD.model_copy(update={"effects": {"new": {"yield": 1.0}}})}).values()
    assert (world.seasons, world.users, world.effects) == (6, 50, {})


def test_a_rule_with_a_margin_is_rehearsed_at_its_margin() -> None:
    rules = {"safe": {"kind": "non_inferiority", "margin": 2.0, "evidence": "calibrated"}, "better": BETTER}
    own = spec({"seasons": 3, "rules": rules})
    effects = at_margin(own, "safe", WORLD).effects
    assert {arm: effect["yield"] for arm, effect in effects.items()} == pytest.approx({"new": -2.0, "other": -2.0})
    assert at_margin(own, "better", WORLD) == WORLD


def test_a_bound_allows_for_monte_carlo_error() -> None:
    """Of 3,000 samples of 200, nine in ten bounds have their coverage; the tolerance is four standard errors."""
    u = np.random.default_rng(8).random((3000, 200))
    bounds = np.array([upper_quantile(row, 0.05) for row in u])
    assert (bounds >= 0.95).mean() >= 0.9 - 4 * np.sqrt(0.09 / 3000)
    assert bounds.mean() < 0.98
    with pytest.raises(ConfigError, match="20 rehearsals are too few"):
        upper_quantile(u[0, :20], 0.05)


def test_a_calibrated_rule_without_its_bound_is_refused(bounds: Calibration) -> None:
    with pytest.raises(InputError, match="`drimed trial init FILE` finds it"):
        Trial.create(spec(), MemoryStore())
    with pytest.raises(InputError, match="every calibrated rule needs a bound"):
        Trial.create(spec({"seasons": 3, "rules": {"better": BETTER}}), MemoryStore(), calibration=bounds)
    trial = Trial.create(spec(), MemoryStore(), calibration=bounds)
    assert trial.state().thresholds == bounds["thresholds"]
    with pytest.raises(InputError, match="a calibrated rule and its looks are fixed before the first decision"):
        trial.change_rules(STOPPING | {"seasons": 4}, reason="more")
    with pytest.raises(InputError, match="a calibrated rule and its looks are fixed"):
        trial.change_rules({"seasons": 3, "rules": {"better": BETTER | {"confidence": 0.9}}}, reason="more")
    trial.change_rules({"seasons": 3, "rules": {"better": BETTER}}, reason="one is enough")


FAULTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"rules": {"r": BETTER}}, {}, "its looks are planned"),
    ({"rules": {"r": BETTER}, "seasons": 3, "looks": "by hand"}, {}, "its looks are planned"),
    ({"rules": {"r": BETTER}, "decisions": 90, "looks": 30}, {}, 'write looks = "season"'),
    (
        {"rules": {"r": BETTER}, "decisions": 90, "looks": 40},
        {"model": {"kind": "people"}, "users": {}},
        "multiples of",
    ),
    ({"rules": {"r": BETTER}, "seasons": 3, "first": 4}, {}, "planned looks up to 3 seasons"),
    ({"rules": {"r": {"kind": "harm", "shape": "pocock"}}}, {}, "which have a bound at each look"),
    ({"rules": {"r": BETTER | {"then": "drop"}}, "seasons": 3}, {}, "an arm is dropped for all users"),
    ({"rules": {"r": WORSE | {"each": "group"}}, "seasons": 3}, {}, "an arm is dropped for all users"),
    ({"rules": {"r": BETTER}, "seasons": 3}, {"model": {"kind": "paper"}}, "the paper's model has no such ranges"),
]


@pytest.mark.parametrize(("stopping", "more", "message"), FAULTS)
def test_faults_of_planned_looks_say_what_to_do(stopping: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec(stopping, **more)
