"""Where columns come from: files, frames and plain arrays, piece by piece.

A source knows the names of its columns and yields dictionaries of arrays. Files are read by PyArrow in record batches;
frames are cut into slices. None of them is ever held in memory as a whole, except what already is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import InputError, MissingExtraError

EXTRA = "evaluation"
CSV_BLOCK = 1 << 22  # bytes of a CSV file that are parsed at a time


@final
@dataclass(frozen=True, slots=True)
class Coded:
    """A column of labels, as indices into the different ones; an index below zero stands for a missing label."""

    codes: NDArray[Any]  # (n,)
    labels: list[Any]

    def __len__(self) -> int:
        return len(self.codes)


Column = NDArray[Any] | Coded
Piece = dict[str, Column]


class Source(Protocol):
    """Columns by name, in pieces."""

    def names(self) -> list[str]: ...

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]: ...


def open_source(source: Any) -> Source:
    """A path to a Parquet or CSV file, a Polars or pandas frame, a PyArrow table, or a dictionary of arrays."""
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise InputError(f"there is no log at {path}")
        if path.suffix.lower() in (".parquet", ".pq"):
            return ParquetFile(path)
        if path.suffix.lower() == ".csv":
            return CsvFile(path)
        raise InputError(f"a log is a .parquet or .csv file, got {path.name}")
    if isinstance(source, Mapping):
        return Arrays({str(name): np.asarray(values) for name, values in source.items()})
    package = type(source).__module__.partition(".")[0]
    if package == "polars":
        return PolarsFrame(source)
    if package == "pandas":
        return Arrays({str(name): source[name].to_numpy() for name in source.columns})
    if package == "pyarrow":
        return ArrowTable(source)
    raise InputError(
        f"a log is a path, a Polars or pandas frame, a PyArrow table or a dictionary of arrays, got {type(source)}"
    )


@final
@dataclass(frozen=True)
class Arrays:
    """Columns that are in memory."""

    columns: Mapping[str, NDArray[Any]]

    def __post_init__(self) -> None:
        lengths = {name: len(values) for name, values in self.columns.items()}
        if len(set(lengths.values())) > 1:
            raise InputError(f"columns must have one length, got {lengths}")

    def names(self) -> list[str]:
        return list(self.columns)

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        """Views of `rows` rows."""
        n = len(next(iter(self.columns.values()))) if self.columns else 0
        for at in range(0, n, rows):
            piece: Piece = {name: self.columns[name][at : at + rows] for name in numbers}
            yield piece | {name: _coded(self.columns[name][at : at + rows]) for name in labels}


@final
@dataclass(frozen=True)
class PolarsFrame:
    """A Polars DataFrame, or a LazyFrame, which is collected batch by batch."""

    frame: Any

    def names(self) -> list[str]:
        return list(self.frame.collect_schema().names())

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        """Slices of `rows` rows, or the batches of Polars' streaming engine in the order of the frame."""
        chosen = self.frame.select([*numbers, *labels])
        if hasattr(chosen, "collect"):
            slices = chosen.collect_batches(chunk_size=rows, maintain_order=True)
        else:
            slices = chosen.iter_slices(rows)
        for part in slices:
            piece: Piece = {name: part[name].to_numpy() for name in numbers}
            yield piece | {name: _coded(part[name].to_numpy()) for name in labels}


@final
@dataclass(frozen=True)
class ArrowTable:
    """A PyArrow table."""

    table: Any

    def names(self) -> list[str]:
        return list(self.table.column_names)

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        """Record batches of at most `rows` rows."""
        for batch in self.table.select([*numbers, *labels]).to_batches(max_chunksize=rows):
            yield _from_batch(batch, numbers, labels)


@final
@dataclass(frozen=True)
class ParquetFile:
    """A Parquet file."""

    path: Path

    def names(self) -> list[str]:
        return list(self._open().schema_arrow.names)

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        """Record batches of `rows` rows; only the columns that are asked for are read."""
        with self._open() as file:
            for batch in file.iter_batches(batch_size=rows, columns=[*numbers, *labels], use_threads=True):
                yield _from_batch(batch, numbers, labels)

    def _open(self) -> Any:
        arrow, parquet = pyarrow("parquet")
        try:
            return parquet.ParquetFile(self.path, pre_buffer=False)
        except arrow.ArrowException as error:
            raise InputError(f"{self.path} is not a Parquet file: {error}") from error


@final
@dataclass(frozen=True)
class CsvFile:
    """A CSV file with a header."""

    path: Path

    def names(self) -> list[str]:
        import csv

        with self.path.open(newline="", encoding="utf-8-sig") as file:
            return next(csv.reader(file), [])

    def pieces(self, numbers: Sequence[str], labels: Sequence[str], rows: int) -> Iterator[Piece]:
        """Blocks of the file; their rows depend on the length of lines, not on `rows`."""
        del rows
        arrow, csv = pyarrow("csv")
        types = dict.fromkeys(numbers, arrow.float64()) | dict.fromkeys(labels, arrow.string())
        convert = csv.ConvertOptions(column_types=types, include_columns=[*numbers, *labels], strings_can_be_null=True)
        try:
            with csv.open_csv(
                self.path, read_options=csv.ReadOptions(block_size=CSV_BLOCK), convert_options=convert
            ) as reader:
                for batch in reader:
                    yield _from_batch(batch, numbers, labels)
        except arrow.ArrowException as error:
            raise InputError(f"{self.path} cannot be read: {error}") from error


def pyarrow(part: str) -> tuple[Any, Any]:
    """PyArrow and one of its modules, which are only needed for files."""
    try:
        return import_module("pyarrow"), import_module(f"pyarrow.{part}")
    except ImportError as error:
        raise MissingExtraError("pyarrow", EXTRA) from error


def _from_batch(batch: Any, numbers: Sequence[str], labels: Sequence[str]) -> Piece:
    piece: Piece = {}
    for name in numbers:
        column = batch.column(name)
        piece[name] = column.to_numpy(zero_copy_only=False)  # a null becomes NaN
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
    if values.dtype.kind == "f":  # numbers of arms that became floats because some were missing
        missing = np.isnan(values)
        found, codes = np.unique(np.where(missing, 0.0, values), return_inverse=True)
        named = [int(v) if v == int(v) else v for v in found.tolist()]
        return Coded(np.where(missing, -1, codes), named)
    if values.dtype.kind == "O":
        missing = np.array([v is None or v != v for v in values], dtype=bool)
        values = np.where(missing, "", values).astype(str)
        labels, codes = np.unique(values, return_inverse=True)
        return Coded(np.where(missing, -1, codes), labels.tolist())
    labels, codes = np.unique(values, return_inverse=True)
    return Coded(codes, labels.tolist())
