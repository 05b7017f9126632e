"""Tasks are plain data: the same description gives the same key and the same result."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from drimed.environments.world import Setting
from drimed.errors import ConfigError, InputError
from drimed.simulation.task import Summary, Task

TASK = Task(policy="oful", setting=Setting(episodes=12), seeds=(0, 1, 2), points=4)


def test_the_key_depends_on_every_field() -> None:
    others = [
        replace(TASK, policy="greedy"),
        replace(TASK, settings={"delta": 0.05}),
        replace(TASK, seeds=(0, 1)),
        replace(TASK, quantile=0.25),
        replace(TASK, setting=Setting(episodes=12, drift="none")),
        replace(TASK, instances="random"),
    ]
    assert len({t.key() for t in [TASK, *others]}) == 7
    assert replace(TASK).key() == TASK.key()


def test_a_summary_survives_the_disk_bit_for_bit(tmp_path: Path) -> None:
    summary = TASK.run()
    summary.save(tmp_path / "s.npz")
    loaded = Summary.load(tmp_path / "s.npz")
    assert loaded.curves.keys() == summary.curves.keys()
    for name in summary.curves:
        np.testing.assert_array_equal(loaded.curves[name], summary.curves[name])
    np.testing.assert_array_equal(loaded.allocation, summary.allocation)
    assert loaded.decisions == summary.decisions == 120
    assert [p.name for p in tmp_path.iterdir()] == ["s.npz"]


def test_curves_end_at_the_total_and_windows_average_to_the_rate() -> None:
    s = TASK.run()
    assert s.episodes[-1] == 12
    name = "violations.safe.realised"
    lengths = np.diff(s.episodes, prepend=0)
    assert s.rate(name) == pytest.approx(float((s.windows(name) * lengths).sum(-1).mean()) / 12)


def test_seeds_in_one_task_or_in_many_give_the_same_numbers() -> None:
    whole = TASK.run()
    for i, seed in enumerate(TASK.seeds):
        alone = replace(TASK, seeds=(seed,)).run()
        np.testing.assert_array_equal(alone.curves["regret"][0], whole.curves["regret"][i])


def test_a_broken_file_is_named_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "broken.npz"
    path.write_bytes(b"not a zip file")
    with pytest.raises(InputError, match=r"broken\.npz is not a stored result"):
        Summary.load(path)


def test_a_drift_function_cannot_be_part_of_a_task() -> None:
    with pytest.raises(ConfigError, match="name its drift"):
        Task(policy="oful", setting=Setting(episodes=5, drift=lambda e, L, m: m * e / L))
    with pytest.raises(ConfigError, match="instances must be"):
        Task(policy="oful", instances="all")
