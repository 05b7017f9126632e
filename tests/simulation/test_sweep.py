"""Sweeps: nothing finished is run again, and neither processes, a Dask cluster nor a dead worker change a result."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from drimed.errors import ConfigError, InputError
from drimed.simulation.benchmark import PaperScenario
from drimed.simulation.runner import Run, RunRecord
from drimed.simulation.sweep import Progress, sweep
from drimed.simulation.worlds import Setting
from tests.rehearsal.test_rehearsals import plan

SHORT = PaperScenario(setting=Setting(episodes=10))
PLAN = {p: Run(policy=p, scenario=SHORT, seeds=(0, 1)) for p in ("oful", "lin_med", "published_dri_med")}
PLAN_KEYS = {run.key(): policy for policy, run in PLAN.items()}


def assert_same(found: Mapping[Any, RunRecord], expected: Mapping[Any, RunRecord]) -> None:
    assert found.keys() == expected.keys()
    for key, record in expected.items():
        assert found[key].curves.keys() == record.curves.keys()
        for name, curve in record.curves.items():
            np.testing.assert_array_equal(found[key].curves[name], curve, err_msg=name)
        np.testing.assert_array_equal(found[key].allocation, record.allocation)


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


def test_many_seeds_are_computed_and_stored_in_blocks_and_give_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(policy="dri_med", scenario=replace(SHORT, instances="random"), seeds=tuple(range(5)))
    whole = sweep({"run": run}, tmp_path / "whole", jobs=1)
    monkeypatch.setattr(PaperScenario, "seeds_per_block", 2)
    assert [block.seeds for block in run.blocks()] == [(0, 1), (2, 3), (4,)]
    told: list[bool] = []
    sweep({"block": run.blocks()[1]}, tmp_path / "blocks", jobs=1)
    found = sweep({"run": run}, tmp_path / "blocks", jobs=2, on_done=lambda done: told.append(done.stored))
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


# Dask leaves sockets and deprecations of their own behind.
THIRD_PARTY_WARNINGS = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore::ResourceWarning",
    "ignore::FutureWarning",
    "ignore::UserWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
LONG = {
    seed: Run(
        policy="lin_med", scenario=PaperScenario(instances="random", setting=Setting(episodes=120)), seeds=(seed,)
    )
    for seed in range(12)
}


class DaskOnLoopback:
    """A scheduler and workers as separate processes."""

    def __init__(self) -> None:
        self.scheduler = self._start(["scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard"])
        self.address = self._address()
        self.workers = [self.add_worker() for _ in range(2)]

    def add_worker(self) -> subprocess.Popen[str]:
        return self._start(
            ["worker", self.address, "--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1"]
        )

    def stop(self) -> None:
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()
            if process.stderr is not None:
                process.stderr.close()

    def _start(self, arguments: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
            stderr=subprocess.PIPE if arguments[0] == "scheduler" else subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            text=True,
        )

    def _address(self) -> str:
        assert self.scheduler.stderr is not None
        for line in self.scheduler.stderr:
            found = re.search(r"Scheduler at:\s+(tcp://127\.0\.0\.1:\d+)", line)
            if found:
                return found[1]
        raise AssertionError("the scheduler did not say where it listens")


@pytest.fixture
def dask() -> Iterator[DaskOnLoopback]:
    running = DaskOnLoopback()
    yield running
    running.stop()


@pytest.fixture(scope="module")
def long_here(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, RunRecord]:
    return dict(sweep(LONG, tmp_path_factory.mktemp("here"), jobs=1))


@THIRD_PARTY_WARNINGS
def test_a_dask_cluster_gives_the_same_bits_and_a_killed_worker_costs_time_and_no_result(
    dask: DaskOnLoopback, long_here: dict[Any, RunRecord], tmp_path: Path
) -> None:
    rehearsal = plan()  # of two blocks of simulated trials
    here, cluster = rehearsal.run(tmp_path / "here", jobs=1), f"dask={dask.address}"
    there = rehearsal.run(tmp_path / "there", cluster=cluster)
    for name, record in here.items():
        for part, array in record.arrays().items():
            np.testing.assert_array_equal(there[name].arrays()[part], array, err_msg=part)

    killed: list[int] = []

    def kill_one(block: Progress[RunRecord]) -> None:
        del block
        if not killed:
            killed.append(dask.workers[0].pid)
            os.kill(dask.workers[0].pid, signal.SIGKILL)

    swept = sweep(LONG, tmp_path / "there", cluster=cluster, on_done=kill_one)
    assert killed
    assert dask.workers[0].wait(timeout=10) == -signal.SIGKILL
    assert_same(swept, long_here)


def test_a_killed_process_of_the_pool_costs_time_and_no_result(long_here: dict[Any, RunRecord], tmp_path: Path) -> None:
    killed: list[int] = []

    def kill_one(block: Progress[RunRecord]) -> None:
        del block
        if not killed:
            children = Path(f"/proc/{os.getpid()}/task").glob("*/children")
            pids = [int(pid) for file in children for pid in file.read_text().split()]
            workers = [pid for pid in pids if b"LokyProcess" in Path(f"/proc/{pid}/cmdline").read_bytes()]
            if workers:
                killed.append(workers[0])
                os.kill(workers[0], signal.SIGKILL)

    there = sweep(LONG, tmp_path / "there", jobs=2, on_done=kill_one)
    assert killed, "no worker process was found to kill"
    assert_same(there, long_here)


@pytest.mark.parametrize(
    ("where", "message"),
    [({"jobs": n}, "jobs must be") for n in (0, -2)]
    + [
        ({"cluster": text}, "cluster must be dask=") for text in ("", "dask", "dask=", "ray=local", "tcp://127.0.0.1:1")
    ],
)
def test_no_processes_and_what_is_not_a_cluster_are_refused(where: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sweep(PLAN, None, **where)


def test_a_scheduler_that_does_not_answer_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("drimed.simulation.sweep.SCHEDULER_TIMEOUT", 1)
    start = time.monotonic()
    with pytest.raises(InputError, match=r"no Dask scheduler answers at tcp://127\.0\.0\.1:1"):
        sweep(PLAN, tmp_path, cluster="dask=tcp://127.0.0.1:1")
    assert time.monotonic() - start < 60
