"""Sweeps: nothing finished is run again, and neither processes nor order change a result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from drimed.environments.world import Setting
from drimed.errors import ConfigError, InputError
from drimed.simulation.sweep import sweep
from drimed.simulation.task import Task

TASKS = [Task(policy=p, setting=Setting(episodes=10), seeds=(0, 1)) for p in ("oful", "lin_med", "published_dri_med")]


def test_the_number_of_processes_does_not_change_any_result(tmp_path: Path) -> None:
    one = sweep(TASKS, tmp_path / "one", jobs=1)
    two = sweep(TASKS, tmp_path / "two", jobs=2)
    assert one.keys() == two.keys()
    for key in one:
        for name in one[key].curves:
            np.testing.assert_array_equal(one[key].curves[name], two[key].curves[name], err_msg=name)
        np.testing.assert_array_equal(one[key].allocation, two[key].allocation)


def test_what_is_finished_is_not_run_again(tmp_path: Path) -> None:
    told: list[tuple[str, bool]] = []
    sweep(TASKS[:2], tmp_path, jobs=1)
    sweep(TASKS, tmp_path, jobs=1, on_done=lambda task, stored: told.append((task.policy, stored)))
    assert told == [("oful", True), ("lin_med", True), ("published_dri_med", False)]


def test_the_same_task_twice_is_run_once(tmp_path: Path) -> None:
    told: list[bool] = []
    found = sweep([TASKS[0], TASKS[0]], tmp_path, jobs=1, on_done=lambda _, stored: told.append(stored))
    assert len(found) == 1
    assert told == [False]


def test_an_unwritable_place_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot write results to"):
        sweep(TASKS, tmp_path / "file" / "runs", jobs=1)


@pytest.mark.parametrize("jobs", [0, -2])
def test_a_senseless_number_of_jobs_is_refused(tmp_path: Path, jobs: int) -> None:
    with pytest.raises(ConfigError, match="jobs must be"):
        sweep(TASKS, tmp_path, jobs=jobs)
