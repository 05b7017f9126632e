"""`drimed bench` in small: the rows it promises, pairing, and suites that can be run."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from drimed.cli.main import app
from drimed.errors import ConfigError, UnknownNameError
from drimed.policies.guards.margin import Tolerance
from drimed.policies.registry import parse_list
from drimed.simulation.benchmark import SUITES, Benchmark, FieldScenario, HealthScenario, PaperScenario, suite
from drimed.simulation.instances import DRIFTS
from drimed.simulation.results_page import FAR, PANEL, _beside, bench
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.sweep import batches
from drimed.simulation.worlds import World

FIELDS = {
    "policy",
    "learner",
    "rule",
    "guard",
    "drift",
    "regret_mean",
    "regret_median",
    "regret_q95",
    "regret_ci",
    "violations_per_10k",
    "expected_violations_per_10k",
    "shortfall",
    "microseconds_per_decision",
}


def small(name: str, policies: str = "oful,dri_med,dri_med:guard=off", **changes: Any) -> Benchmark:
    chosen = suite(name)
    settings: dict[str, Any] = {
        "suite": chosen,
        "specs": parse_list(policies),
        "drifts": chosen.drifts[:2],
        "instances": 3,
        "instance_seed": 40_000,
        "episodes": 12,
        "tolerance": Tolerance(absolute=0.05),
    }
    return Benchmark(**(settings | changes))


def first_world(plan: Benchmark) -> World:
    run = next(iter(plan.plan().values()))
    world = run.scenario.world(run.seeds)
    assert isinstance(world, World)
    return world


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
        assert row["runs_with_a_strict_violation"] >= row["runs_with_a_violation"]


def test_differences_are_paired_over_instances(told: tuple[Path, dict[str, Any]]) -> None:
    _, results = told
    means = {(r["cell"], r["policy"]): r["regret_mean"] for r in results["rows"]}
    for d in results["differences"]:
        assert d["mean"] == pytest.approx(means[d["cell"], d["policy"]] - means[d["cell"], d["minus"]])
    assert {d["minus"] for d in results["differences"]} == {"dri_med"}


def test_the_page_says_what_a_ratio_to_the_best_is(told: tuple[Path, dict[str, Any]]) -> None:
    said = (told[0] / "index.html").read_text(encoding="utf-8")
    assert "1 is the best, 2 has twice its regret" in said


def test_the_page_stands_alone(told: tuple[Path, dict[str, Any]]) -> None:
    out, _ = told
    page = (out / "index.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert (out / "trade_off.pdf").read_bytes().startswith(b"%PDF")


def test_ratios_are_to_the_best_of_each_cell(told: tuple[Path, dict[str, Any]]) -> None:
    _, results = told
    worst = {r["policy"]: r["worst"] for r in results["ratios"]}
    assert min(worst.values()) >= 1
    assert min(r["geometric_mean"] for r in results["ratios"]) >= 1


@pytest.mark.parametrize("name", list(SUITES))
def test_every_suite_runs_and_its_policies_exist(name: str, tmp_path: Path) -> None:
    parse_list(SUITES[name].policies)
    if name == "scaling":
        plan = small(name, "dri_med:guard=off,oful", drifts=("gradual",), instances=1)
        cells = [c for c in plan.cells if c.axis in ("gap", "drift")]
        assert {c.axis for c in plan.cells} == {"L", "d", "drift", "gap"}
        runs = [r for (label, _), r in plan.plan().items() if label in {c.label for c in cells[:2]}]
        assert all(np.isfinite(r.run_with()[0].total("regret")).all() for r in runs)
        lasts = {c.label: c.scenario.world([0]).episodes for c in plan.cells}
        assert {lasts[c.label] for c in plan.cells if c.axis == "L"} == {250, 1000, 4000, 16000}
        assert {lasts[c.label] for c in plan.cells if c.axis != "L"} == {12}
        return
    if isinstance(SUITES[name].scenario, FieldScenario | HealthScenario):
        return  # tests/simulation/test_seasons.py
    episodes = 2 if name == "large-k" else 12
    results = bench(small(name, "w_oful,dri_med", episodes=episodes), tmp_path, jobs=1)
    assert all(math.isfinite(r["regret_mean"]) for r in results["rows"])


def test_all_drifts_are_in_each_suite_that_does_not_vary_sizes() -> None:
    for each in SUITES.values():
        if isinstance(each.scenario, PaperScenario):
            assert each.id == "scaling" or each.drifts == tuple(DRIFTS)


def test_a_mixed_control_is_not_one_hot() -> None:
    world = first_world(small("mixed-control"))
    assert (world.control < 1).all()
    np.testing.assert_allclose(world.control.sum(-1), 1)


def test_the_mean_moves_only_where_it_is_said_to() -> None:
    moving = first_world(small("mean-drift"))
    block = next(iter(moving.blocks()))
    assert not np.allclose(block.theta[0], block.theta[-1])
    np.testing.assert_allclose(np.linalg.norm(block.theta, axis=-1), 1)
    still = first_world(small("paper-random"))
    block = next(iter(still.blocks()))
    np.testing.assert_array_equal(block.theta[0], block.theta[-1])


def test_heavy_tails_have_the_covariance_of_light_ones() -> None:
    """20,000 draws at 3 degrees of freedom: the fourth moment is infinite, so the variance is only near 1."""
    plan = small("heavy-tails", instances=20, episodes=100)
    block = next(first_world(plan).blocks())
    assert float(np.median(block.noise**2)) < 0.3  # a normal's is .455
    assert 0.6 < float((block.noise**2).mean()) < 2.0


def test_senseless_plans_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'gradual'"):
        small("hard", drifts=("gradaul",))
    with pytest.raises(ConfigError, match="instances must be at least 1"):
        small("hard", instances=0)
    with pytest.raises(ConfigError, match="listed twice"):
        small("hard", "oful,oful")
    with pytest.raises(UnknownNameError, match="did you mean 'hard'"):
        suite("hrad")


def test_the_command_line_lists_suites() -> None:
    text = CliRunner().invoke(app, ["bench", "list"], env={"COLUMNS": "160"}).stdout
    assert all(name in text for name in SUITES)


@pytest.mark.parametrize(
    "name", ["paper-random", "paper-instance", "mixed-control", "lonely", "mean-drift", "heavy-tails"]
)
def test_drifts_that_run_side_by_side_are_the_same_to_the_last_bit(name: str) -> None:
    plan = small(name, "dri_med,w_ts", drifts=("none", "periodic", "decaying"), instances=3, episodes=8)
    together = batched(plan.plan().values(), fewest=1)
    assert [len(batch) for batch in together] == [3, 3]
    for batch in together:
        for run, record in zip(batch, batch[0].run_with(batch[1:]), strict=True):
            (alone,) = run.run_with()
            assert same_numbers(record, alone)


def batched(runs: Iterable[Run], fewest: int) -> list[list[Run]]:
    of_key = {run.key(): run for run in runs}
    return [[of_key[key] for key in batch] for batch in batches(of_key, fewest)]


def same_numbers(one: RunRecord, other: RunRecord) -> bool:
    curves = all(np.array_equal(one.curves[name], other.curves[name], equal_nan=True) for name in other.curves)
    return curves and np.array_equal(one.allocation, other.allocation) and one.decisions == other.decisions


def test_drifts_run_alone_where_processes_would_wait_or_worlds_are_large() -> None:
    runs = list(small("paper-random", drifts=("none", "periodic")).plan().values())
    large = list(small("large-k", drifts=("none", "periodic"), instances=20).plan().values())
    for each, fewest in ((runs, 6), (large, 1)):
        found = batched(each, fewest)
        assert all(len(batch) == 1 for batch in found)
        assert sorted(run.key() for (run,) in found) == sorted(run.key() for run in each)
    assert batched([], fewest=4) == []


def test_each_drift_is_stored_by_itself_and_used_again(tmp_path: Path) -> None:
    told: list[bool] = []
    plan = small(
        "paper-random", "oful", drifts=("none", "periodic", "decaying", "burst", "sawtooth", "abrupt", "gradual")
    )
    first = bench(plan, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert told == [False] * 7
    assert {p.stem for p in (tmp_path / "runs").glob("*.npz")} == {r.key() for r in plan.plan().values()}
    more = small("paper-random", "oful,greedy", drifts=("none", "periodic", "regime_shift"))
    told.clear()
    second = bench(more, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert sorted(told) == [False] * 4 + [True] * 2
    kept = {r["cell"]: r["regret_mean"] for r in first["rows"]}
    again = {r["cell"]: r["regret_mean"] for r in second["rows"] if r["policy"] == "oful"}
    assert {c: again[c] for c in ("none", "periodic")} == {c: kept[c] for c in ("none", "periodic")}


def test_numbers_are_written_beside_their_points_and_apart_from_each_other() -> None:
    points = np.log(np.array([[1.0, 1.0], [1.02, 1.0], [1.0, 1.03], [100.0, 50.0], [10.0, 50.0]]))
    places = _beside(points)
    at = points / np.ptp(points, axis=0) * PANEL + np.array(places)
    apart = [float(np.hypot(*(a - b))) for i, a in enumerate(at) for b in at[:i]]
    assert min(apart) > FAR / 2
    assert all(math.hypot(*place) == pytest.approx(FAR) for place in places)
    assert len(_beside(np.zeros((1, 2)))) == 1
