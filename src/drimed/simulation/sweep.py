"""Many simulations over many cores or machines, each result stored as soon as it is finished.

An interrupted sweep continues where it stopped, and a worker that dies costs time, not results: every task is a pure
function of its description and can be repeated. Neither processes nor a cluster change a result. A cluster is a
running Dask scheduler, reached through joblib; its workers need the same version of drimed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

import numpy as np

import drimed
from drimed.errors import ConfigError, InputError, MissingExtraError

BATCHES_PER_PROCESS = 4  # at least: with fewer and larger ones some processes would wait for the last
CLUSTER_PROCESSES = 32  # assumed: the size of a cluster may change
MOST_ATTEMPTS = 5  # pools that may lose a worker before it is no accident any more
SCHEDULER_TIMEOUT = 20  # seconds
# Every other source file of the package can change a result.
FRONT_ENDS = ("cli", "client.py", "service", "reports", "simulation/results_page.py", "rehearsal/page.py")


class Record(Protocol):
    """Results of a task: arrays that are stored, and joined over seeds."""

    def arrays(self) -> dict[str, Any]:
        """Everything, by name."""

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Inverse of `arrays`."""

    @classmethod
    def concatenate(cls, records: Sequence[Self]) -> Self:
        """One record of all seeds, from records that differ in nothing else."""


R = TypeVar("R", bound=Record)
Name = TypeVar("Name", bound=Hashable)


class Task(Protocol[R]):
    """A simulation of some seeds, as plain data: it can be named, stored, sent to any worker and repeated."""

    @property
    def seeds(self) -> tuple[int, ...]: ...

    @property
    def label(self) -> str: ...

    @property
    def record_type(self) -> type[R]: ...

    def key(self) -> str:
        """Name of the stored result: it changes with the description and with the code."""

    def blocks(self) -> Sequence[Self]:
        """The task in blocks of seeds, each computed and stored alone."""

    def group(self) -> tuple[str, int]:
        """Tasks of equal groups may be computed in one batch, at most so many."""

    def run_with(self, others: Sequence[Self]) -> list[R]:
        """Results of this task and of others of its group."""


class Progress(NamedTuple, Generic[R]):
    """A finished block of seeds."""

    task: Task[R]
    stored: bool  # its result was found in the store
    finished: int  # blocks so far
    blocks: int
    finished_seeds: int
    seeds: int


OnDone = Callable[[Progress[Any]], None]


@dataclass(frozen=True)
class Cluster:
    """A running Dask scheduler.

    >>> Cluster.parse("dask=tcp://127.0.0.1:8786")
    Cluster(address='tcp://127.0.0.1:8786')
    """

    address: str

    @staticmethod
    def parse(text: str) -> Cluster:
        """From "dask=tcp://host:port"."""
        kind, _, address = text.partition("=")
        if kind != "dask" or not address:
            raise ConfigError(f"cluster must be dask=tcp://host:port, got {text!r}")
        return Cluster(address)


def sweep(
    plan: Mapping[Name, Task[R]],
    store: Path | None,
    *,
    jobs: int = -1,
    cluster: Cluster | None = None,
    on_done: OnDone | None = None,
) -> dict[Name, R]:
    """Compute what is not stored yet, and return the record of every task of the plan.

    `jobs` is the number of processes, -1 for all cores; `cluster` replaces them. Without a `store` nothing is kept.
    """
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    keys = {name: [(block.key(), block) for block in task.blocks()] for name, task in plan.items()}
    blocks = {key: block for some in keys.values() for key, block in some}
    seeds = sum(len(block.seeds) for block in blocks.values())
    records: dict[str, R] = {}
    finished_seeds = 0

    def done(key: str, record: R, stored: bool) -> None:
        nonlocal finished_seeds
        records[key] = record
        finished_seeds += len(blocks[key].seeds)
        if on_done is not None:
            on_done(Progress(blocks[key], stored, len(records), len(blocks), finished_seeds, seeds))

    if store is not None:
        _make_writable(store)
        for key, block in blocks.items():
            if (path := store / f"{key}.npz").exists():
                done(key, load(block.record_type, path), stored=True)
    missing = {key: block for key, block in blocks.items() if key not in records}
    processes = CLUSTER_PROCESSES if cluster else (os.cpu_count() or 1) if jobs == -1 else jobs
    for key, record in _compute(batches(missing, BATCHES_PER_PROCESS * processes), processes, cluster):
        if store is not None:
            save(record, store / f"{key}.npz")
        done(key, record, stored=False)
    by_name = {name: [records[key] for key, _ in some] for name, some in keys.items()}
    return {name: some[0] if len(some) == 1 else type(some[0]).concatenate(some) for name, some in by_name.items()}


def batches(tasks: Mapping[str, Task[R]], fewest: int) -> list[dict[str, Task[R]]]:
    """Tasks in batches of one group each, if possible no fewer than `fewest` batches."""
    groups: dict[str, dict[str, Task[R]]] = {}
    largest: dict[str, int] = {}
    for key, task in tasks.items():
        group, largest_batch = task.group()
        groups.setdefault(group, {})[key] = task
        largest[group] = largest_batch
    out: list[dict[str, Task[R]]] = []
    for group, members in groups.items():
        items, n = list(members.items()), len(members)
        parts = -(-n // max(1, min(largest[group], len(tasks) // fewest)))  # of equal size, or nearly
        out += [dict(items[n * i // parts : n * (i + 1) // parts]) for i in range(parts)]
    return out


def save(record: Record, path: Path) -> None:
    """Write atomically: a reader finds the whole file or none."""
    part = path.with_suffix(f".{os.getpid()}.part")
    with part.open("wb") as f:
        np.savez_compressed(f, allow_pickle=False, **record.arrays())
    part.replace(path)


def load(kind: type[R], path: Path) -> R:
    """Read what `save` wrote."""
    try:
        with np.load(path, allow_pickle=False) as f:
            return kind.from_arrays({name: f[name] for name in f.files})
    except (OSError, KeyError, ValueError, EOFError, TypeError) as error:
        raise InputError(f"{path} is not a stored result ({error}); delete it and run again") from error


@cache
def code_digest() -> str:
    """Fingerprint of all code that can change a result: a stored result of other code is not used."""
    root = Path(drimed.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.suffix in (".py", ".toml") and name.partition("/")[0] not in FRONT_ENDS and name not in FRONT_ENDS:
            digest.update(name.encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def _compute(todo: Sequence[dict[str, Task[R]]], processes: int, cluster: Cluster | None) -> Iterator[tuple[str, R]]:
    """Keys and records, in the order in which they are finished; a batch of a worker that dies is repeated."""
    if cluster is None and min(processes, len(todo)) <= 1:
        for batch in todo:
            yield from _run(batch)
        return
    try:
        from joblib import Parallel, delayed
        from joblib.externals.loky.process_executor import TerminatedWorkerError
    except ImportError as error:
        raise MissingExtraError("joblib", "sim") from error
    left = {min(batch): batch for batch in todo}
    for attempt in range(MOST_ATTEMPTS):
        try:
            with _backend(cluster, min(processes, len(left))):
                run = Parallel(return_as="generator_unordered", batch_size=1, pre_dispatch="all")
                for results in run(delayed(_run)(batch) for batch in list(left.values())):
                    del left[min(key for key, _ in results)]
                    yield from results
            return
        except TerminatedWorkerError:
            if attempt == MOST_ATTEMPTS - 1:
                raise


def _run(batch: Mapping[str, Task[R]]) -> list[tuple[str, R]]:
    """Records under the keys of the process that planned them."""
    first, *others = batch.values()
    return list(zip(batch, first.run_with(others), strict=True))


def _backend(cluster: Cluster | None, processes: int) -> AbstractContextManager[Any]:
    from joblib import parallel_config

    if cluster is not None:
        return _dask(cluster.address)
    # One thread per process: the matrices are tiny, and threads of several processes would fight for the cores.
    return parallel_config(backend="loky", n_jobs=processes, inner_max_num_threads=1)


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


def _make_writable(store: Path) -> None:
    try:
        store.mkdir(parents=True, exist_ok=True)
        probe = store / f".probe-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write results to {store}: {error.strerror}; choose another --out") from error
