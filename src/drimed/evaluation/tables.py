"""A log as a table: the names of its columns, where they are read from piece by piece, and how they are written.

A table has one row for each decision, and by default the columns action, reward, propensity, user, episode, for the
arms A of a trial probability_A, q_A, available_A, and metric_NAME for metrics. Files are read by PyArrow in record
batches and frames are cut into slices, so none of them is ever held in memory as a whole, except what already is.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import ConfigError, InputError, MissingExtraError
from drimed.evaluation.log import Log

CSV_BLOCK = 1 << 22  # bytes of a CSV file that are parsed at a time
MEANING = {
    "action": "name of the arm that was played",
    "reward": "what the decision earned, in the user's own unit",
    "propensity": "probability that this arm had when it was drawn; empty: unknown",
    "user": "the user that the decision was for",
    "episode": "number of the episode, from 0",
    "probabilities": "probability that arm {name} had when the arm was drawn",
    "predictions": "mean reward of arm {name} as the model predicted it before the outcome",
    "available": "1 if arm {name} could be played, else 0",
    "metrics": "outcome of metric {name}",
}
WIDE = ("probabilities", "predictions", "available", "metrics")  # parts with a column for each arm or metric
OPTIONAL = ("user", "episode", *WIDE)


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """Which column holds what; a prefix is followed by the name of an arm or a metric."""

    action: str = "action"
    reward: str = "reward"
    propensity: str = "propensity"
    user: str = "user"
    episode: str = "episode"
    probabilities: str = "probability_"
    predictions: str = "q_"
    available: str = "available_"
    metrics: str = "metric_"
    targets: tuple[str, ...] = ()  # prefixes of the probabilities of policies to evaluate
    use: frozenset[str] = field(default_factory=lambda: frozenset(OPTIONAL))  # which of the optional ones to read

    def __post_init__(self) -> None:
        unknown = self.use - frozenset(OPTIONAL)
        if unknown:
            raise ConfigError(f"optional parts of a log are {', '.join(OPTIONAL)}; got {', '.join(sorted(unknown))}")


@final
@dataclass(frozen=True, slots=True)
class Coded:
    """A column of labels, as indices into the different ones; an index below zero stands for a missing label."""

    codes: NDArray[Any]  # (n,)
    labels: list[Any]


Column = NDArray[Any] | Coded
Piece = dict[str, Column]


@final
@dataclass(frozen=True)
class Source:
    """A table that can be read any number of times."""

    names: list[str]
    pieces: Callable[[Sequence[str], Sequence[str], int], Iterator[Piece]]  # of numbers and labels, so many rows each
    top: int = 1  # what its first row is called: a file's first row may name the columns


def open_source(source: Any) -> Source:
    """A path to a Parquet or CSV file, a Polars or pandas frame, a PyArrow table, or a dictionary of arrays."""
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise InputError(f"there is no log at {path}")
        if path.suffix.lower() in (".parquet", ".pq"):
            return _parquet(path)
        if path.suffix.lower() == ".csv":
            return _csv(path)
        raise InputError(f"a log is a .parquet or .csv file, got {path.name}")
    if isinstance(source, Mapping):
        return _arrays({str(name): np.asarray(values) for name, values in source.items()})
    package = type(source).__module__.partition(".")[0]
    if package == "polars":
        return _polars(source)
    if package == "pandas":
        return _arrays({str(name): source[name].to_numpy() for name in source.columns})
    if package == "pyarrow":
        return _arrow(source)
    raise InputError(
        f"a log is a path, a Polars or pandas frame, a PyArrow table or a dictionary of arrays, got {type(source)}"
    )


def columns(log: Log, *, metrics: Sequence[str] | None = None) -> dict[str, NDArray[Any]]:
    """One array for each column, by names that `open_source` knows.

    >>> from drimed.evaluation.log import make_log
    >>> list(columns(make_log(action=[0], reward=[1.0], propensity=[0.5], arms=["old", "new"])))
    ['action', 'reward', 'propensity']
    """
    return {name: values for name, _, values in _described(log, metrics)}


def write(log: Log, path: str | Path, *, metrics: Sequence[str] | None = None) -> list[Path]:
    """Write a Parquet or CSV file, and what each column means beside it in NAME.dictionary.csv; returns both paths."""
    target = Path(path)
    if target.suffix not in (".parquet", ".csv"):
        raise InputError(f"a log is written as .parquet or .csv, got {target.name}")
    arrow, part = pyarrow(target.suffix[1:])
    table = arrow.table(columns(log, metrics=metrics))
    if target.suffix == ".parquet":
        part.write_table(table, target)
    else:
        unknown = arrow.array(log.propensity, from_pandas=True)  # NaN becomes an empty cell
        part.write_csv(table.set_column(2, Columns().propensity, unknown), target)
    beside = target.with_suffix(".dictionary.csv")
    with beside.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file)
        rows.writerow(["column", "meaning"])
        rows.writerows((name, meaning) for name, meaning, _ in _described(log, metrics))
    return [target, beside]


def open_bandit(log: Log, *, context: NDArray[Any] | None = None) -> dict[str, Any]:
    """The log as `bandit_feedback` of the Open Bandit Pipeline; it knows no missing propensities."""
    if np.isnan(log.propensity).any():
        raise InputError("the Open Bandit Pipeline needs every propensity, and some of this log are unknown (NaN)")
    return {
        "n_rounds": len(log),
        "n_actions": log.K,
        "context": context,
        "action_context": np.eye(log.K),
        "action": log.action,
        "position": None,
        "reward": log.reward,
        "pscore": log.propensity,
        "pi_b": None if log.probabilities is None else log.probabilities[:, :, None],
    }


def pyarrow(part: str) -> tuple[Any, Any]:
    """PyArrow and one of its modules, which are only needed for files."""
    try:
        return import_module("pyarrow"), import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise MissingExtraError("pyarrow", "evaluation") from error


def _arrays(columns: Mapping[str, NDArray[Any]]) -> Source:
    lengths = {name: len(values) for name, values in columns.items()}
    if len(set(lengths.values())) > 1:
        raise InputError(f"columns must have one length, got {lengths}")

    def pieces(numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        for at in range(0, next(iter(lengths.values()), 0), rows):
            piece: Piece = {name: columns[name][at : at + rows] for name in numbers}
            yield piece | {name: _coded(columns[name][at : at + rows]) for name in labels}

    return Source(list(columns), pieces)


def _polars(frame: Any) -> Source:
    """A DataFrame in slices, or a LazyFrame in the batches of Polars' streaming engine, in the order of the frame."""

    def pieces(numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        chosen = frame.select([*numbers, *labels])
        lazy = hasattr(chosen, "collect")
        for part in chosen.collect_batches(chunk_size=rows, maintain_order=True) if lazy else chosen.iter_slices(rows):
            piece: Piece = {name: part[name].to_numpy() for name in numbers}
            yield piece | {name: _coded(part[name].to_numpy()) for name in labels}

    return Source(list(frame.collect_schema().names()), pieces)


def _arrow(table: Any) -> Source:
    def pieces(numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        for batch in table.select([*numbers, *labels]).to_batches(max_chunksize=rows):
            yield _from_batch(batch, numbers, labels)

    return Source(list(table.column_names), pieces)


def _parquet(path: Path) -> Source:
    """Only the columns that are asked for are read."""
    arrow, parquet = pyarrow("parquet")

    def opened() -> Any:
        try:
            return parquet.ParquetFile(path, pre_buffer=False)
        except arrow.ArrowException as error:
            raise InputError(f"{path} is not a Parquet file: {error}") from error

    def pieces(numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        with opened() as file:
            for batch in file.iter_batches(batch_size=rows, columns=[*numbers, *labels], use_threads=True):
                yield _from_batch(batch, numbers, labels)

    with opened() as file:
        return Source(list(file.schema_arrow.names), pieces)


def _csv(path: Path) -> Source:
    """A file with a header; how many rows a piece has depends on the length of lines."""
    arrow, parts = pyarrow("csv")

    def pieces(numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        del rows
        types = dict.fromkeys(numbers, arrow.float64()) | dict.fromkeys(labels, arrow.string())
        convert = parts.ConvertOptions(column_types=types, include_columns=list(types), strings_can_be_null=True)
        block = parts.ReadOptions(block_size=CSV_BLOCK)
        try:
            with parts.open_csv(path, read_options=block, convert_options=convert) as reader:
                for batch in reader:
                    yield _from_batch(batch, numbers, labels)
        except arrow.ArrowException as error:
            raise InputError(f"{path} cannot be read: {error}") from error

    with path.open(newline="", encoding="utf-8-sig") as file:
        return Source(next(csv.reader(file), []), pieces, top=2)


def _from_batch(batch: Any, numbers: Sequence[str], labels: Sequence[str]) -> Piece:
    piece: Piece = {name: batch.column(name).to_numpy(zero_copy_only=False) for name in numbers}  # a null becomes NaN
    for name in labels:
        column = batch.column(name)
        kind = str(column.type)
        if kind in ("float", "double") or (column.null_count == 0 and kind.startswith(("int", "uint"))):
            piece[name] = _coded(column.to_numpy(zero_copy_only=False))
            continue
        coded = column if hasattr(column, "dictionary") else column.dictionary_encode()
        indices = coded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        piece[name] = Coded(indices, coded.dictionary.to_pylist())
    return piece


def _coded(values: NDArray[Any]) -> Column:
    if values.dtype.kind in "iub":
        return values
    missing = np.zeros(len(values), bool)
    if values.dtype.kind == "f":  # numbers of arms that became floats because some were missing
        missing = np.isnan(values)
        values = np.where(missing, 0.0, values)
    elif values.dtype.kind == "O":
        missing = np.array([v is None or v != v for v in values], dtype=bool)
        values = np.where(missing, "", values).astype(str)
    found, codes = np.unique(values, return_inverse=True)
    labels = [int(v) if isinstance(v, float) and v == int(v) else v for v in found.tolist()]
    return Coded(np.where(missing, -1, codes), labels)


def _described(log: Log, metrics: Sequence[str] | None) -> list[tuple[str, str, NDArray[Any]]]:
    """Name, meaning and values of every column that the log has."""
    names = Columns()
    single = {"action": np.array(log.arms)[log.action], "reward": log.reward, "propensity": log.propensity}
    found = [
        (getattr(names, kind), MEANING[kind], values)
        for kind, values in (single | {"user": log.user, "episode": log.episode}).items()
        if values is not None
    ]
    M = 0 if log.metrics is None else log.metrics.shape[1]
    metrics = metrics or [str(m) for m in range(M)]
    if log.metrics is not None and len(metrics) != M:
        raise InputError(f"give a name for each of {M} metrics, got {list(metrics)}")
    for kind in WIDE:
        table = getattr(log, kind)
        if table is not None:
            table = table.astype(np.int8) if kind == "available" else table
            for k, name in enumerate(metrics if kind == "metrics" else log.arms):
                found.append((f"{getattr(names, kind)}{name}", MEANING[kind].format(name=name), table[:, k]))
    return found
