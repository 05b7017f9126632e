"""Many tasks over many cores or machines, each result stored as soon as it is there.

An interrupted sweep goes on where it was, and a worker that dies costs time, not results: every task is a pure function
of its description, so it is simply run again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from drimed.errors import ConfigError, InputError, MissingExtraError
from drimed.simulation.cluster import Cluster
from drimed.simulation.task import Summary, Task

PORTION = 32  # tasks per call, where a backend cannot hand out results one by one
MOST_ATTEMPTS = 5  # pools that may lose a worker before it is no accident any more


def sweep(
    tasks: Iterable[Task],
    store: Path,
    *,
    jobs: int = -1,
    cluster: Cluster | None = None,
    on_done: Callable[[Task, bool], None] | None = None,
) -> dict[str, Summary]:
    """Run what is not stored yet, and return every task's summary by its key.

    `jobs` is the number of processes, -1 for all cores; with `cluster` the tasks run there instead. Neither changes any
    result. `on_done` is told each finished task, and whether its result was found in the store.
    """
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    _make_writable(store)
    by_key = {task.key(): task for task in tasks}
    summaries: dict[str, Summary] = {}

    def done(key: str, summary: Summary, stored: bool) -> None:
        summaries[key] = summary
        if on_done is not None:
            on_done(by_key[key], stored)

    for key in by_key:
        if _path(store, key).exists():
            done(key, Summary.load(_path(store, key)), stored=True)
    for key, summary in _run_all({k: t for k, t in by_key.items() if k not in summaries}, jobs, cluster):
        summary.save(_path(store, key))
        done(key, summary, stored=False)
    return summaries


def _run_all(todo: dict[str, Task], jobs: int, cluster: Cluster | None) -> Iterator[tuple[str, Summary]]:
    count = (os.cpu_count() or 1) if jobs == -1 else jobs
    if cluster is None and min(count, len(todo)) <= 1:
        for key, task in todo.items():
            yield _run(key, task)
        return
    try:
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError as error:
        raise MissingExtraError("joblib", "sim") from error
    left = dict(todo)
    for attempt in range(MOST_ATTEMPTS):
        try:
            with cluster.backend() if cluster else _processes(min(count, len(left))):
                streams = cluster is None or cluster.streams
                for key, summary in _as_they_finish(left) if streams else _in_portions(left):
                    del left[key]
                    yield key, summary
            return
        except TerminatedWorkerError:
            if attempt == MOST_ATTEMPTS - 1:
                raise


def _processes(count: int) -> AbstractContextManager[Any]:
    from joblib import parallel_config

    # One thread per process: the matrices are tiny, and threads of several processes would fight for the cores.
    return parallel_config(backend="loky", n_jobs=count, inner_max_num_threads=1)


def _as_they_finish(todo: dict[str, Task]) -> Iterator[tuple[str, Summary]]:
    from joblib import Parallel, delayed

    run = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
    yield from run(delayed(_run)(key, task) for key, task in list(todo.items()))


def _in_portions(todo: dict[str, Task]) -> Iterator[tuple[str, Summary]]:
    """For a backend that returns all results of a call at once: small calls, so that little is lost if it ends."""
    from joblib import Parallel, delayed

    items = list(todo.items())
    for start in range(0, len(items), PORTION):
        yield from Parallel(batch_size=1)(delayed(_run)(*item) for item in items[start : start + PORTION])


def _run(key: str, task: Task) -> tuple[str, Summary]:
    return key, task.run()


def _path(store: Path, key: str) -> Path:
    return store / f"{key}.npz"


def _make_writable(store: Path) -> None:
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe = store / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write results to {store}: {error.strerror}; choose another --out") from error
