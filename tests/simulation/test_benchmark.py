"""Benchmarks in small: rows, pairing, suites that can be run, fields and mobile health."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.drawn_trials import FLOOR

from drimed.competitors.field_learners import KNOWN, OWN, Apart
from drimed.errors import ConfigError, UnknownNameError
from drimed.models.linear_regression import Learner
from drimed.models.mixed import effects
from drimed.models.mixed.learner import Field
from drimed.models.offer import Outcome, Shape
from drimed.policies.guards.margin import Tolerance
from drimed.policies.policy import Policy
from drimed.policies.registry import PolicySpec, make, parse_list
from drimed.reports.results_page import bench
from drimed.simulation.benchmark import SUITES, Benchmark, PaperScenario, suite
from drimed.simulation.runner import Looks, RunRecord, simulate
from drimed.simulation.trial_world import RANGE, Deviations, FieldSetting, FieldWorld
from drimed.simulation.worlds import AnyWorld
from drimed.trial import template
from drimed.trial.spec import TrialSpec

FIELDS = {
    "policy", "learner", "rule", "guard", "drift", "regret_mean", "regret_median", "regret_q95", "regret_ci",
    "violations_per_10k", "expected_violations_per_10k", "shortfall", "microseconds_per_decision",
}  # fmt: skip


def small(name: str, policies: str = "oful,dri_med,dri_med:guard=off", **changes: Any) -> Benchmark:
    chosen = suite(name)
    settings: dict[str, Any] = {
        "suite": chosen,
        "specs": parse_list(policies),
        "drifts": tuple(chosen.cells)[:2],
        "instances": 3,
        "instance_seed": 40_000,
        "episodes": 12,
        "tolerance": Tolerance(absolute=0.05),
    }
    return Benchmark(**(settings | changes))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("bench")
    bench(small("paper-random"), out, jobs=1)
    return out, json.loads((out / "results.json").read_text())


def test_there_is_a_row_for_each_policy_and_drift_with_every_field(told: tuple[Path, dict[str, Any]]) -> None:
    _, results = told
    assert len(results["rows"]) == 6
    for row in results["rows"]:
        assert set(row) >= FIELDS
        assert row["regret_ci"][0] <= row["regret_mean"] <= row["regret_ci"][1]
        assert (row["runs_with_a_violation"] > 0) == (row["violations_per_10k"] > 0)
        assert (row["runs_with_an_expected_violation"] > 0) == (row["expected_violations_per_10k"] > 0)


def test_differences_are_paired_over_instances(told: tuple[Path, dict[str, Any]]) -> None:
    _, results = told
    means = {(r["cell"], r["policy"]): r["regret_mean"] for r in results["rows"]}
    for d in results["differences"]:
        assert d["mean"] == pytest.approx(means[d["cell"], d["policy"]] - means[d["cell"], d["minus"]])
    assert {d["minus"] for d in results["differences"]} == {"dri_med"}


def test_the_page_stands_alone(told: tuple[Path, dict[str, Any]]) -> None:
    out, _ = told
    page = (out / "index.html").read_text()
    assert page.count('<figure class="card"') == 2
    assert not re.search(r'(src|href)="(?!#)', page), "the page must not load anything from elsewhere"


def test_ratios_are_to_the_best_of_each_cell(told: tuple[Path, dict[str, Any]]) -> None:
    _, results = told
    worst = {r["policy"]: r["worst"] for r in results["ratios"]}
    assert min(worst.values()) >= 1
    assert min(r["geometric_mean"] for r in results["ratios"]) >= 1


@pytest.mark.parametrize("name", list(SUITES))
def test_every_suite_runs_and_its_policies_exist(name: str) -> None:
    parse_list(SUITES[name].policies)
    if not isinstance(next(iter(SUITES[name].cells.values())), PaperScenario):
        return  # below
    if name == "scaling":
        plan = small(name, "dri_med:guard=off,oful", drifts=tuple(SUITES[name].cells), instances=1)
        lasts = {label: scenario.world([0]).episodes for label, scenario in plan.cells.items()}
        assert {lasts[c] for c in lasts if c.startswith("L = ")} == {250, 1000, 4000, 16000}
        assert {lasts[c] for c in lasts if not c.startswith("L = ")} == {12}
        assert {c.partition(" = ")[0] for c in lasts} == {"L", "d", "drift", "gap"}
        runs = [run for (cell, _), run in plan.plan().items() if cell in ("gap = 0.5", "d = 8", "drift = 1000")]
        assert all(np.isfinite(r.run().total("regret")).all() for r in runs)
        return
    episodes = 2 if name == "large-k" else 12
    for each in small(name, "w_oful,dri_med", episodes=episodes).plan().values():
        assert np.isfinite(each.run().total("regret")).all()


def test_growth_is_the_slope_of_logarithms(tmp_path: Path) -> None:
    cells = ("drift = 1", "drift = 10", "drift = 100", "gap = 1")
    told = bench(small("scaling", "oful,dri_med", drifts=cells, instances=2), tmp_path, jobs=1)
    regret = {(row["policy"], row["cell"]): np.log(row["regret_mean"]) for row in told["rows"]}
    assert {(row["axis"], row["policy"]) for row in told["growth"]} == {("drift", "oful"), ("drift", "dri_med")}
    for row in told["growth"]:  # of three equally spaced points the slope is that between the outer ones
        want = (regret[row["policy"], cells[2]] - regret[row["policy"], cells[0]]) / np.log(100)
        assert row["exponent"] == pytest.approx(want)
    assert "Growth" in (tmp_path / "index.html").read_text()


def test_senseless_plans_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gradual'"):
        small("hard", drifts=("gradaul",))
    with pytest.raises(ConfigError, match="instances must be a number from 1"):
        small("hard", instances=0)
    with pytest.raises(ConfigError, match="listed twice"):
        small("hard", "oful,oful")
    with pytest.raises(UnknownNameError, match="did you mean 'hard'"):
        suite("hrad")


@pytest.mark.parametrize("name", ["paper-random", "paper-instance", "mean-drift"])
def test_drifts_that_run_side_by_side_are_the_same_to_the_last_bit(name: str) -> None:
    plan = small(name, "dri_med,w_ts", drifts=("none", "periodic", "decaying"), instances=3, episodes=8)
    runs = list(plan.plan().values())
    for some in ([r for r in runs if r.policy == policy] for policy in ("dri_med", "w_ts")):
        assert len({run.group() for run in some}) == 1 < len(some)
        for record, run in zip(some[0].run_with(some[1:]), some, strict=True):
            alone = run.run()
            np.testing.assert_array_equal(record.allocation, alone.allocation)
            for curve, values in alone.curves.items():
                np.testing.assert_array_equal(record.curves[curve], values, curve)


def test_each_drift_is_stored_by_itself_and_used_again(tmp_path: Path) -> None:
    told: list[bool] = []
    plan = small("paper-random", "oful", drifts=("none", "periodic", "decaying"))
    first = bench(plan, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert told == [False] * 3
    assert {p.stem for p in (tmp_path / "runs").glob("*.npz")} == {r.key() for r in plan.plan().values()}
    more = small("paper-random", "oful,greedy", drifts=("none", "periodic", "regime_shift"))
    told.clear()
    second = bench(more, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert sorted(told) == [False] * 4 + [True] * 2
    kept = {r["cell"]: r["regret_mean"] for r in first["rows"]}
    again = {r["cell"]: r["regret_mean"] for r in second["rows"] if r["policy"] == "oful"}
    assert {c: again[c] for c in ("none", "periodic")} == {c: kept[c] for c in ("none", "periodic")}


RIVALS = "drimed.competitors.field_learners"
PROMISE = "relative=0+absolute=6"
GUARDED = f"dri_field:{PROMISE}"
FIELD_POLICIES = (GUARDED, "dri_field:guard=off", f"dri_field:learner={RIVALS}:KNOWN+{PROMISE}",
                  f"dri_med:learner={RIVALS}:ALONE+{PROMISE}", f"lin_ts:learner={RIVALS}:SITES+v=24")  # fmt: skip


def field(seeds: Any = (3, 4), **setting: Any) -> FieldWorld:
    return FieldWorld(FieldSetting(**({"seasons": 3, "sites": 3, "arms": 3} | setting)), seeds)


def run(text: str, world: AnyWorld) -> RunRecord:
    return simulate(PolicySpec.parse(text).build(), world, tolerance=Tolerance(relative=0.0, absolute=6.0))


def small_field(name: str, policies: str, **changes: Any) -> Benchmark:
    return small(name, policies, **{"episodes": 3, "tolerance": suite(name).tolerance} | changes)


@pytest.mark.parametrize("text", FIELD_POLICIES)
def test_a_field_does_not_depend_on_its_neighbours(text: str) -> None:
    whole, alone = run(text, field(metrics=2)), run(text, field([4], metrics=2))
    for name, curve in whole.curves.items():
        assert np.array_equal(curve[1], alone.curves[name][0], equal_nan=True), name


def test_regret_is_against_the_best_arm_of_the_site_and_the_control_breaks_no_promise() -> None:
    world = field()
    best = world.rewards.max(-1)
    record = run("control", world)
    np.testing.assert_allclose(record.total("regret"), (2 * 3 * (best - world.rewards[..., 0])).sum(-1))
    np.testing.assert_allclose(record.total("stage_regret"), record.total("regret") / 6)
    assert record.rate("control") == 1.0
    assert not record.total("violations.safe.realised").any()
    assert (run("uniform", world).total("violations.safe.realised") > 0).any()


def seasons(world: FieldWorld, policy: Policy, arms: list[int]) -> Iterator[Any]:
    """The state after each season in which these arms are given, and all but the control bring 500 more."""
    state = policy.init(world.shape, (len(world.seeds),))
    for stage in world.blocks():
        state, action = policy.settle(policy.begin_episode(state, stage.offered)), np.tile(arms, (len(world.seeds), 1))
        found = stage.outcomes(action)
        assert found.vector is not None
        better = replace(found, vector=found.vector + 500.0 * (action > 0)[..., None])
        state = policy.settle(policy.observe(state, stage.offered, action, better))
        yield state


def test_nothing_is_called_better_after_one_season() -> None:
    world, policy, said = field(seeds=range(4), sites=2, plots=9, seasons=2), PolicySpec.parse(GUARDED).build(), []
    assert isinstance(policy, Policy)
    looks = Looks(world.offers(np.arange(2)), np.full((4, 2, 2), -1.0))
    for state in seasons(world, policy, [0, 1, 2] * 6):
        mean, half, _ = policy.effects(state, world.offers(np.arange(2)), 0.975)
        assert (mean - half)[..., 1:].max() > 0, "by the range alone it would be"
        said.append(looks.take(policy, state))
    for name in ("look.likely.wrong", "look.certainly.wrong"):
        assert [float(one[name].max()) for one in said] == [0.0, 1.0]


def test_looks_tell_holding_ranges_from_others_and_right_words_from_wrong_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    world, policy = field(seeds=range(4), sites=2), PolicySpec.parse(GUARDED).build()
    assert isinstance(policy, Policy)
    assert isinstance(policy.learner, Field)
    *_, state = seasons(world, policy, [0, 1, 2, 0])
    offers = world.offers(np.arange(2))
    model = effects.FittedModel.of(policy.learner, state.evidence)
    mean, deviation, prior, *_ = effects.effects_of_users(model, offers).at((..., slice(1, None), 0))
    assert (deviation < prior).all()
    here = Looks(offers, mean).take(policy, state)
    assert (here["look.holds.0.95"] == 1).all()
    assert (here["look.held_at_all_times"] == 1).all()
    there = Looks(offers, mean - 100 * deviation).take(policy, state)
    assert (there["look.holds.0.99"] == 0).all()
    said = Looks(offers, np.full(mean.shape, -1.0)).take(policy, state)
    assert (mean - 1.959964 * deviation > 0).any((-2, -1)).all()
    assert (said["look.likely.wrong"] == 1).all()
    assert (said["look.likely.right"] == 0).all()
    monkeypatch.setattr(effects, "density_bound", lambda known, _: np.where(known > 0, 99.0, 0.0))
    said = Looks(offers, np.full(mean.shape, -1.0)).take(policy, state)
    assert (said["look.likely.wrong"] == 0).all(), "what is known counts"
    assert not Looks(offers, mean).take(make("uniform"), make("uniform").init(world.shape, (4,)))


def test_a_cell_in_which_a_policy_has_no_regret_has_no_ratios(tmp_path: Path) -> None:
    """Where every arm falls short the control is best: all others would be endless times worse."""
    told = bench(small_field("field", "control,uniform", drifts=("barley", "all short")), tmp_path)
    worst = {row["policy"]: row["worst"] for row in told["ratios"]}
    assert max(worst.values()) < 100


def test_a_learner_that_is_told_variances_after_the_first_season_begins_on_the_control() -> None:
    world = field()
    for from_start in (True, False):
        policy = make("dri_field", learner=replace(KNOWN, from_start=from_start), relative=0, absolute=6)
        first = simulate(policy, world).curve("control")[:, 0] / (world.shape.H * world.setting.plots)
        assert bool((first == 1.0).all()) is not from_start


def test_known_variances_are_the_worlds() -> None:
    d = Deviations()
    state = KNOWN.start(Shape(d=2, K=3, M=2, H=2))
    structure = KNOWN.inner.structure(state)
    x = KNOWN.parameters(structure.parameters)
    v = structure.parameters.variances(x) * d.residual**2
    by_name = dict(zip([f.name for f in structure.families], v[0], strict=True))
    assert by_name["arm"] == pytest.approx(d.arm**2)
    assert by_name["season x group"] == pytest.approx(d.block**2)
    R = structure.parameters.residual(x)[0] * d.residual**2
    np.testing.assert_allclose(R, [[100.0, 50.0], [50.0, 100.0]])
    assert float(state.fitted.scale.unit[-1]) == pytest.approx(d.residual / RANGE)


def test_regressions_apart_are_those_of_each_user_alone() -> None:
    """Users 0 and 1 with two decisions each, in turns: what user 1 learns is what a regression of its own would."""
    learner = Learner(weighting="none", feedback="reward")
    apart = Apart(inner=learner, what="alone")
    world = field([5], sites=2)
    stage = next(world.blocks())
    action = np.array([[0, 1, 2, 1]])
    outcome = stage.outcomes(action)
    evidence = apart.add(apart.start(world.shape, (1,)), stage.offered, action, outcome)
    alone = learner.start(world.shape, (1,))
    assert outcome.reward is not None
    one = replace(world.offers(np.array([1])), user=0)
    for at in (2, 3):
        offer = replace(one, features=one.features[:, 0], control=one.control[:, 0])
        alone = learner.add(alone, offer, action[:, at], Outcome(outcome.reward[:, at]))
    np.testing.assert_allclose(evidence.ridge.theta[:, 1], alone.ridge.theta)
    with pytest.raises(ConfigError, match="take no outcome back"):
        OWN.remove(evidence, stage.offered, action, outcome)


@pytest.mark.parametrize(
    ("name", "policies"),
    [
        ("field", f"control,{GUARDED},lin_ts:learner={RIVALS}:SITES+v=24"),
        ("mhealth", "uniform,dri_people:guard=off+covariates=2"),
    ],
)
def test_suites_with_cells_of_their_own_run_and_continue(name: str, policies: str, tmp_path: Path) -> None:
    plan, told = small_field(name, policies), list[bool]()
    first = bench(plan, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert told == [False] * len(plan.plan())
    again = bench(plan, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert told[len(plan.plan()) :] == [True] * len(plan.plan())
    assert first["rows"] == again["rows"]
    written = json.loads((tmp_path / "results.json").read_text())
    for row in written["rows"]:
        assert [look["seasons"] for look in row["after"]] == [3]
        assert row["stage_regret"] >= 0
        assert ("holds.0.95" in row["after"][0]) == row["policy"].startswith("dri_field")
    page = (tmp_path / "index.html").read_text()
    assert "After so many seasons" in page
    assert page.count('<figure class="card"') == 2


def test_sites_seasons_and_the_floor_are_to_choose_and_cells_have_names() -> None:
    plan = small_field("field", "control", changes={"sites": 4, "floor": 0.1}, episodes=7)
    world = next(iter(plan.plan().values())).scenario.world([0])
    assert (world.shape.H, world.episodes) == (4, 7)
    assert isinstance(world, FieldWorld)
    assert world.setting.floor == 0.1
    with pytest.raises(ConfigError, match="has no sites to choose"):
        small_field("mhealth", "control", changes={"sites": 4})
    with pytest.raises(UnknownNameError, match="did you mean 'barley'"):
        small_field("field", "control", drifts=("barly",))


def test_fields_keep_the_control_as_the_template_of_a_trial_does() -> None:
    floors = TrialSpec.parse(template()).floors
    assert floors is not None
    cells = list(suite("field").cells.values())
    assert {cell.floor for cell in cells if isinstance(cell, FieldSetting)} == {floors.control} == {FLOOR}


@pytest.mark.parametrize("text", ["dri_field", "dri_people"])
def test_the_model_of_the_field_plays_the_papers_worlds_too(text: str) -> None:
    from tests.worlds import world

    record = simulate(make(text, guard="off"), world(seeds=[0, 1], episodes=4))
    assert np.isfinite(record.total("regret")).all()
    assert np.isnan(record.total("parameter_error")).all()
