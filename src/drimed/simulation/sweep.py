"""Many tasks over many cores, each result stored as soon as it is there: an interrupted sweep goes on where it was."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from drimed.errors import ConfigError, InputError, MissingExtraError
from drimed.simulation.task import Summary, Task


def sweep(
    tasks: Iterable[Task],
    store: Path,
    *,
    jobs: int = -1,
    on_done: Callable[[Task, bool], None] | None = None,
) -> dict[str, Summary]:
    """Run what is not stored yet, and return every task's summary by its key.

    `jobs` is the number of processes, -1 for all cores; it does not change any result. `on_done` is told each finished
    task, and whether its result was found in the store.
    """
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    _make_writable(store)
    by_key = {task.key(): task for task in tasks}
    summaries: dict[str, Summary] = {}
    todo: dict[str, Task] = {}
    for key, task in by_key.items():
        if _path(store, key).exists():
            summaries[key] = Summary.load(_path(store, key))
            if on_done is not None:
                on_done(task, True)
        else:
            todo[key] = task
    for key in _run_all(todo, store, jobs):
        summaries[key] = Summary.load(_path(store, key))
        if on_done is not None:
            on_done(by_key[key], False)
    return summaries


def _run_all(todo: dict[str, Task], store: Path, jobs: int) -> Iterable[str]:
    count = (os.cpu_count() or 1) if jobs == -1 else jobs
    if not todo:
        return
    if min(count, len(todo)) == 1:
        for key, task in todo.items():
            yield _run_and_store(key, task, store)
        return
    try:
        from joblib import Parallel, delayed, parallel_config
    except ImportError as error:
        raise MissingExtraError("joblib", "sim") from error
    # One thread per process: the matrices are tiny, and threads of several processes would fight for the cores.
    with parallel_config(backend="loky", n_jobs=min(count, len(todo)), inner_max_num_threads=1):
        finished = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")(
            delayed(_run_and_store)(key, task, store) for key, task in todo.items()
        )
        yield from finished


def _run_and_store(key: str, task: Task, store: Path) -> str:
    task.run().save(_path(store, key))
    return key


def _path(store: Path, key: str) -> Path:
    return store / f"{key}.npz"


def _make_writable(store: Path) -> None:
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe = store / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write results to {store}: {error.strerror}; choose another --out") from error
