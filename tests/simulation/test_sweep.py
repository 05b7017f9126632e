"""Sweeps: nothing finished is run again, and neither processes nor order change a result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.policies.guards.margin import Tolerance
from drimed.simulation.benchmark import PaperScenario
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.sweep import Progress, Task, batches, sweep
from drimed.simulation.worlds import Setting

SHORT = PaperScenario(setting=Setting(episodes=10))
PLAN = {p: Run(policy=p, scenario=SHORT, seeds=(0, 1)) for p in ("oful", "lin_med", "published_dri_med")}
PLAN_KEYS = {run.key(): policy for policy, run in PLAN.items()}


def assert_same(one: RunRecord, other: RunRecord) -> None:
    assert one.curves.keys() == other.curves.keys()
    for name in one.curves:
        np.testing.assert_array_equal(one.curves[name], other.curves[name], err_msg=name)
    np.testing.assert_array_equal(one.allocation, other.allocation)


def test_the_number_of_processes_does_not_change_any_result(tmp_path: Path) -> None:
    one = sweep(PLAN, tmp_path / "one", jobs=1)
    two = sweep(PLAN, tmp_path / "two", jobs=2)
    assert one.keys() == two.keys()
    for key in one:
        assert_same(one[key], two[key])


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    sweep({p: PLAN[p] for p in ("oful", "lin_med")}, tmp_path, jobs=1)
    sweep(PLAN, tmp_path, jobs=1, on_done=lambda done: told.append((PLAN_KEYS[done.task.key()], done.stored)))
    assert told == [("oful", True), ("lin_med", True), ("published_dri_med", False)]


def test_the_same_run_twice_is_computed_once(tmp_path: Path) -> None:
    told: list[bool] = []
    plan = {"one": PLAN["oful"], "other": PLAN["oful"]}
    found = sweep(plan, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert found.keys() == plan.keys()
    assert found["one"] is found["other"]
    assert told == [False]


def test_an_unwritable_place_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write results to"):
        sweep(PLAN, tmp_path / "file" / "runs", jobs=1)


@pytest.mark.parametrize("jobs", [0, -2])
def test_a_senseless_number_of_jobs_is_refused(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(ConfigError, match="jobs must be"):
        sweep(PLAN, tmp_path, jobs=jobs)


def test_many_seeds_are_computed_and_stored_in_blocks_and_give_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(policy="dri_med", scenario=replace(SHORT, instances="random"), seeds=tuple(range(5)))
    whole = sweep({"run": run}, tmp_path / "whole", jobs=1)["run"]
    monkeypatch.setattr(PaperScenario, "seeds_per_block", 2)
    assert [block.seeds for block in run.blocks()] == [(0, 1), (2, 3), (4,)]
    told: list[bool] = []
    sweep({"block": run.blocks()[1]}, tmp_path / "blocks", jobs=1)
    found = sweep({"run": run}, tmp_path / "blocks", jobs=2, on_done=lambda done: told.append(done.stored))["run"]
    assert_same(found, whole)
    assert sorted(told) == [False, False, True]
    assert {p.stem for p in (tmp_path / "blocks").glob("*.npz")} == {block.key() for block in run.blocks()}


def test_an_interrupted_sweep_keeps_what_is_finished(tmp_path: Path) -> None:
    def interrupt(done: Progress[RunRecord]) -> None:
        if PLAN_KEYS[done.task.key()] == "lin_med":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweep(PLAN, tmp_path, jobs=1, on_done=interrupt)
    told: list[bool] = []
    sweep(PLAN, tmp_path, jobs=1, on_done=lambda done: told.append(done.stored))
    assert told == [True, True, False]


def test_runs_are_computed_together_only_if_nothing_but_the_drift_differs() -> None:
    drifts = [Run(policy="oful", scenario=SHORT.under(d), seeds=(0, 1)) for d in ("none", "gradual")]
    others = [
        replace(drifts[0], policy="greedy"),
        replace(drifts[0], seeds=(0, 2)),
        replace(drifts[0], tolerance=Tolerance(relative=0.2)),
        replace(drifts[0], scenario=replace(SHORT.under("none"), quantile=0.25)),
    ]
    keyed: dict[str, Task[RunRecord]] = {run.key(): run for run in (*drifts, *others)}
    found = [list(batch.values()) for batch in batches(keyed, fewest=1)]
    assert found == [drifts, *([run] for run in others)]
