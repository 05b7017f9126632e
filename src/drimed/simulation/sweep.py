"""Many simulations over many cores or machines, each result stored as soon as it is finished.

An interrupted sweep continues where it stopped, and a worker that dies costs time, not results: every task is a pure
function of its description and can be repeated. Neither processes nor a cluster change a result. A cluster is a
running Dask scheduler, reached through joblib; its workers need the same version of drimed.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Generic, NamedTuple, Self, TypeVar, cast

import numpy as np

import drimed
from drimed.errors import ConfigError, InputError, MissingExtraError

BATCHES_PER_PROCESS = 4  # at least: with fewer and larger ones some processes would wait for the last
MOST_ATTEMPTS = 5  # pools that may lose a worker before it is no accident any more
SCHEDULER_TIMEOUT = 20  # seconds
SEAL = "seal"  # beside the arrays of a stored result
# Every other source file of the package can change a result.
FRONT_ENDS = ("cli", "client.py", "service", "reports", "rehearsal/page.py")


@dataclass(frozen=True)
class Record:
    """Results of a task: arrays, or tables of them, whose first axis are the seeds; `shared` ones have none."""

    shared: ClassVar[tuple[str, ...]] = ()

    def arrays(self) -> dict[str, Any]:
        """Everything, by name."""
        flat: dict[str, Any] = {}
        for name, value in ((f.name, getattr(self, f.name)) for f in fields(self)):
            flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
        return flat

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> Self:
        """Inverse of `arrays`."""
        parts: dict[str, Any] = {}
        for name, value in arrays.items():
            head, dot, key = name.partition(".")
            (parts.setdefault(head, {}) if dot else parts)[key or head] = value
        return cls(**parts)

    @classmethod
    def concatenate(cls, records: Sequence[Self]) -> Self:
        """One record of all seeds, from records that differ in nothing else."""
        first, *others = (r.arrays() for r in records)
        joined = {n: v if n in cls.shared else np.concatenate([v, *(o[n] for o in others)]) for n, v in first.items()}
        return cls.from_arrays(joined)

    def split(self, sizes: Sequence[int]) -> list[Self]:
        """Inverse of `concatenate`, for parts with so many seeds."""
        arrays, ends = self.arrays(), np.cumsum(sizes)
        return [
            self.from_arrays({n: v if n in self.shared else v[end - size : end] for n, v in arrays.items()})
            for size, end in zip(sizes, ends, strict=True)
        ]


R = TypeVar("R", bound=Record)
Name = TypeVar("Name", bound=Hashable)


@dataclass(frozen=True, kw_only=True)
class Task(Generic[R]):
    """A simulation of some seeds, as plain data: it can be named, stored, sent to any worker and repeated."""

    seeds: tuple[int, ...] = (0,)

    record_type: ClassVar[type[Record]]  # of its result

    @property
    def label(self) -> str:
        """Beside a progress bar."""
        raise NotImplementedError

    @property
    def block_size(self) -> int:
        """Seeds that are computed and stored together: fixed, so that no result depends on who ran it."""
        raise NotImplementedError

    def described(self) -> Any:
        """Everything that the result depends on besides the code, as JSON."""
        raise NotImplementedError

    def run(self) -> R:
        """The result."""
        raise NotImplementedError

    def group(self) -> str:
        """The same for tasks that are computed faster together."""
        return self.key()

    def run_with(self, others: Sequence[Self]) -> list[R]:
        """The results of this task and of others of its group."""
        return [task.run() for task in (self, *others)]

    def code(self) -> str:
        """Fingerprint of the code behind the result."""
        return code_digest()

    def key(self) -> str:
        """Name of the stored result: it changes with the description and with the code."""
        text = f"{self.code()} {json.dumps(self.described(), sort_keys=True)}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def blocks(self) -> list[Self]:
        """The task in blocks of seeds: each can be computed, stored and repeated alone."""
        n = self.block_size
        return [replace(self, seeds=self.seeds[i : i + n]) for i in range(0, len(self.seeds), n)]


class Progress(NamedTuple, Generic[R]):
    """A finished block of seeds."""

    task: Task[R]
    stored: bool  # its result was found in the store
    finished: int  # seeds so far
    seeds: int  # of all tasks


OnDone = Callable[[Progress[Any]], None]


def sweep(
    plan: Mapping[Name, Task[R]],
    store: Path | None,
    *,
    jobs: int = -1,
    cluster: str | None = None,
    on_done: OnDone | None = None,
) -> dict[Name, R]:
    """Compute what is not stored yet, and return the record of every task of the plan.

    `jobs` is the number of processes, -1 for all cores; `cluster`, "dask=tcp://host:port", replaces them. Without a
    `store` nothing is kept.
    """
    if jobs == 0 or jobs < -1:
        raise ConfigError(f"jobs must be a positive number or -1 for all cores, got {jobs}")
    if cluster is not None and not re.fullmatch("dask=.+", cluster):
        raise ConfigError(f"cluster must be dask=tcp://host:port, got {cluster!r}")
    keys = {name: [(block.key(), block) for block in task.blocks()] for name, task in plan.items()}
    blocks = {key: block for some in keys.values() for key, block in some}
    seeds = sum(len(block.seeds) for block in blocks.values())
    records: dict[str, R] = {}

    def done(key: str, record: R, stored: bool) -> None:
        records[key] = record
        if on_done is not None:
            on_done(Progress(blocks[key], stored, sum(len(blocks[k].seeds) for k in records), seeds))

    if store is not None:
        _make_writable(store)
        for key, block in blocks.items():
            if (path := store / f"{key}.npz").exists():
                done(key, cast(R, load(block.record_type, path)), stored=True)
    missing = {key: block for key, block in blocks.items() if key not in records}
    processes = (os.cpu_count() or 1) if jobs == -1 else jobs
    for key, record in _compute(_batches(missing, BATCHES_PER_PROCESS * processes), processes, cluster):
        if store is not None:
            save(record, store / f"{key}.npz")
        done(key, record, stored=False)
    by_name = {name: [records[key] for key, _ in some] for name, some in keys.items()}
    return {name: some[0] if len(some) == 1 else type(some[0]).concatenate(some) for name, some in by_name.items()}


def _batches(tasks: Mapping[str, Task[R]], fewest: int) -> list[dict[str, Task[R]]]:
    """Tasks in batches of one group each, if possible no fewer than `fewest` batches."""
    groups: dict[str, list[str]] = {}
    for key, task in tasks.items():
        groups.setdefault(task.group(), []).append(key)
    size = max(1, len(tasks) // fewest)
    return [{k: tasks[k] for k in keys[i : i + size]} for keys in groups.values() for i in range(0, len(keys), size)]


def save(record: Record, path: Path) -> None:
    """Write atomically: a reader finds the whole file or none. The result belongs to this name."""
    part, arrays = path.with_suffix(f".{os.getpid()}.part"), record.arrays()
    with part.open("wb") as f:
        np.savez_compressed(f, allow_pickle=False, **arrays, **{SEAL: _seal(path, arrays)})
    part.replace(path)


def _seal(path: Path, arrays: Mapping[str, Any]) -> str:
    """Fingerprint of a result under its name."""
    digest = hashlib.sha256(path.stem.encode())
    for name, value in sorted(arrays.items()):
        array = np.asarray(value)
        digest.update(f"{name} {array.dtype} {array.shape} ".encode() + array.tobytes())
    return digest.hexdigest()


def load(kind: type[R], path: Path) -> R:
    """Read what `save` wrote."""
    try:
        with path.open("rb") as stream, np.load(stream, allow_pickle=False) as f:
            arrays = {name: f[name] for name in f.files}
        if str(arrays.pop(SEAL)) != _seal(path, arrays):
            raise ValueError("it is another one, or was changed")
        return kind.from_arrays({name: array if array.ndim else array.item() for name, array in arrays.items()})
    except Exception as error:  # whatever is wrong with a file that was damaged
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


def _compute(todo: list[dict[str, Task[R]]], processes: int, cluster: str | None) -> Iterator[tuple[str, R]]:
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
                for records in run(delayed(_run)(batch) for batch in list(left.values())):
                    del left[min(key for key, _ in records)]
                    yield from records
            return
        except TerminatedWorkerError:
            if attempt == MOST_ATTEMPTS - 1:
                raise


def _run(batch: Mapping[str, Task[R]]) -> list[tuple[str, R]]:
    """Records under the keys of the process that planned them."""
    first, *others = batch.values()
    return list(zip(batch, first.run_with(others), strict=True))


@contextmanager
def _backend(cluster: str | None, processes: int) -> Iterator[None]:
    from joblib import parallel_config

    if cluster is None:
        # One thread per process: the matrices are tiny, and threads of several processes would fight for the cores.
        with parallel_config(backend="loky", n_jobs=processes, inner_max_num_threads=1):
            yield
        return
    address = cluster.removeprefix("dask=")
    try:
        connect: Any = import_module("distributed").Client
        client = connect(address, timeout=f"{SCHEDULER_TIMEOUT} s")
    except ImportError as error:
        raise MissingExtraError("distributed", "cluster") from error
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
