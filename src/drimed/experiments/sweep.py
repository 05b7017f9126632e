"""Many runs over many cores or machines, each record stored as soon as it is there.

An interrupted sweep continues where it stopped, and a worker that dies costs time, not results: every run is a pure
function of its description and can be repeated. A cluster is an existing Dask or Ray, through joblib; its workers need
the same version of drimed installed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from drimed.errors import ConfigError, InputError, MissingExtraError
from drimed.experiments.run import Run, run_together
from drimed.experiments.simulate import RunRecord

MOST_FEATURES = 100_000  # numbers of one user in all worlds: a larger batch falls out of the cache and gains nothing
BATCHES_PER_PROCESS = 4  # at least: with fewer and larger ones some processes would wait for the last
CLUSTER_PROCESSES = 32  # assumed: a cluster's size is not known before it is asked, and may change
PORTION = 32  # batches per call, where a backend cannot hand out results one by one
MOST_ATTEMPTS = 5  # pools that may lose a worker before it is no accident any more
SCHEDULER_TIMEOUT = 20  # seconds

Name = TypeVar("Name", bound=Hashable)
OnDone = Callable[[Run, bool], None]
Batch = tuple[Run, ...]


@dataclass(frozen=True)
class Cluster:
    """Where to run.

    >>> Cluster.parse("dask=tcp://127.0.0.1:8786")
    Cluster(kind='dask', address='tcp://127.0.0.1:8786')
    """

    kind: str  # dask | ray
    address: str

    @staticmethod
    def parse(text: str) -> Cluster:
        """From "dask=tcp://host:port" or "ray=address"; "ray=local" starts a Ray on this machine."""
        kind, separator, address = text.partition("=")
        if kind not in ("dask", "ray") or not separator or not address:
            raise ConfigError(f"cluster must be dask=tcp://host:port or ray=address, got {text!r}")
        return Cluster(kind, address)


def sweep(
    plan: Mapping[Name, Run],
    store: Path,
    *,
    jobs: int = -1,
    cluster: Cluster | None = None,
    on_done: OnDone | None = None,
) -> dict[Name, RunRecord]:
    """Run what is not stored yet, and return the record of every run of the plan.

    `jobs` is the number of processes, -1 for all cores; with `cluster` the runs go there instead. Neither changes any
    result. `on_done` is called for each finished block of seeds, with whether its record was found in the store.
    """
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    _make_writable(store)
    blocks = seed_blocks(plan.values())
    records: dict[str, RunRecord] = {}

    def done(key: str, record: RunRecord, stored: bool) -> None:
        records[key] = record
        if on_done is not None:
            on_done(blocks[key], stored)

    for key in blocks:
        if _path(store, key).exists():
            done(key, RunRecord.load(_path(store, key)), stored=True)
    missing = [run for key, run in blocks.items() if key not in records]
    processes = CLUSTER_PROCESSES if cluster else (os.cpu_count() or 1) if jobs == -1 else jobs
    for batch, found in _run_all(batches(missing, BATCHES_PER_PROCESS * processes), processes, cluster):
        for run, record in zip(batch, found, strict=True):
            record.save(_path(store, run.key()))
            done(run.key(), record, stored=False)
    return {name: RunRecord.concatenate([records[b.key()] for b in run.blocks()]) for name, run in plan.items()}


def seed_blocks(runs: Iterable[Run]) -> dict[str, Run]:
    """The different blocks of seeds of some runs, by their key: what a sweep computes and stores."""
    return {block.key(): block for run in runs for block in run.blocks()}


def batches(runs: list[Run], fewest: int) -> list[Batch]:
    """Runs that differ in nothing but their drift go together, yet into no fewer than `fewest` batches."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(replace(run, scenario=run.scenario.under("none")).key(), []).append(run)
    out: list[Batch] = []
    for group in groups.values():
        fit = MOST_FEATURES // (len(group[0].seeds) * group[0].scenario.numbers)
        parts = -(-len(group) // max(1, min(fit, len(runs) // fewest)))  # the fewest parts that are small enough,
        # and as equal as can be
        out += [tuple(group[len(group) * i // parts : len(group) * (i + 1) // parts]) for i in range(parts)]
    return out


def _run_all(todo: list[Batch], processes: int, cluster: Cluster | None) -> Iterator[tuple[Batch, list[RunRecord]]]:
    if cluster is None and min(processes, len(todo)) <= 1:
        for batch in todo:
            yield _run(batch)
        return
    try:
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError as error:
        raise MissingExtraError("joblib", "sim") from error
    left = {batch[0].key(): batch for batch in todo}
    for attempt in range(MOST_ATTEMPTS):
        try:
            with backend(cluster, min(processes, len(left))):
                in_portions = cluster is not None and cluster.kind == "ray"
                for batch, records in (_in_portions if in_portions else _as_they_finish)(list(left.values())):
                    del left[batch[0].key()]
                    yield batch, records
            return
        except TerminatedWorkerError:
            if attempt == MOST_ATTEMPTS - 1:
                raise


def _as_they_finish(todo: list[Batch]) -> Iterator[tuple[Batch, list[RunRecord]]]:
    from joblib import Parallel, delayed

    run = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
    yield from run(delayed(_run)(batch) for batch in todo)


def _in_portions(todo: list[Batch]) -> Iterator[tuple[Batch, list[RunRecord]]]:
    """For a backend that returns all results of a call at once: small calls, so that little is lost if it ends."""
    from joblib import Parallel, delayed

    for start in range(0, len(todo), PORTION):
        yield from Parallel(batch_size=1)(delayed(_run)(batch) for batch in todo[start : start + PORTION])


def _run(batch: Batch) -> tuple[Batch, list[RunRecord]]:
    return batch, run_together(batch)


def backend(cluster: Cluster | None, processes: int) -> AbstractContextManager[Any]:
    """What joblib runs on, for the duration of a with block."""
    if cluster is None:
        from joblib import parallel_config

        # One thread per process: the matrices are tiny, and threads of several processes would fight for the cores.
        return parallel_config(backend="loky", n_jobs=processes, inner_max_num_threads=1)
    return _dask(cluster.address) if cluster.kind == "dask" else _ray(cluster.address)


@contextmanager
def _dask(address: str) -> Iterator[None]:
    try:
        from distributed import Client
        from joblib import parallel_config
    except ImportError as error:
        raise MissingExtraError("distributed", "cluster") from error
    try:
        connect: Any = Client
        client = connect(address, timeout=f"{SCHEDULER_TIMEOUT} s")
    except (OSError, TimeoutError, ValueError) as error:
        raise InputError(f"no Dask scheduler answers at {address}: {error}") from error
    with client, parallel_config(backend="dask", wait_for_workers_timeout=60):
        yield


@contextmanager
def _ray(address: str) -> Iterator[None]:
    try:
        import ray
        from joblib import parallel_config
        from ray.util.joblib import register_ray
    except ImportError as error:
        raise MissingExtraError("ray", "cluster") from error
    local = address == "local"
    try:
        ray.init(address=None if local else address, ignore_reinit_error=True, log_to_driver=False)
    except (ConnectionError, ValueError) as error:
        raise InputError(f"no Ray cluster answers at {address}: {error}") from error
    register: Any = register_ray
    register()
    try:
        with parallel_config(backend="ray", n_jobs=-1):
            yield
    finally:
        ray.shutdown()


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
