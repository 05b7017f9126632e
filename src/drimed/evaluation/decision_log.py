"""Logged decisions as checked arrays, read in pieces from files and tables of any size.

A table has one row for each decision, and by default the columns action, reward, propensity, user, and for the arms A
of a trial probability_A, q_A, available_A. Polars reads CSV and Parquet files in batches, so that a log may be larger
than memory. Shapes: n decisions, K arms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import ConfigError, InputError, MissingExtraError, ShapeError
from drimed.numerics.arrays import BoolArray, FloatArray, IntArray, pick

if TYPE_CHECKING:
    import polars as pl

SUM_TOLERANCE = 1e-6  # logs are often written in single precision or rounded for print
ROWS = 65_536  # decisions at a time: the arrays of one piece stay in the processor's cache
MISSING_USER = "(missing)"
MEANING = {
    "action": "name of the arm that was played",
    "reward": "what the decision earned, in the user's own unit",
    "propensity": "probability that this arm had when it was drawn; empty: unknown",
    "user": "the user that the decision was for",
    "probabilities": "probability that arm {name} had when the arm was drawn",
    "predictions": "mean reward of arm {name} as the model predicted it before the outcome",
    "available": "1 if arm {name} could be played, else 0",
}
WIDE = ("probabilities", "predictions", "available")  # parts with a column for each arm
SINGLE = ("action", "reward", "propensity", "user")


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """n decisions with their outcomes. `make_log` checks them; a Log is trusted."""

    arms: tuple[str, ...]  # names of the K arms
    action: IntArray  # (n,), index into arms
    reward: FloatArray  # (n,)
    propensity: FloatArray  # (n,), of the arm played; NaN: unknown
    probabilities: FloatArray | None = None  # (n, K), of all arms
    predictions: FloatArray | None = None  # (n, K), a model's mean reward q of each arm
    available: BoolArray | None = None  # (n, K); None: every arm
    user: NDArray[Any] | None = None  # (n,), labels of any kind
    targets: Mapping[str, FloatArray] = field(default_factory=dict)  # prefix -> (n, K), probabilities of other policies
    start: int = 0  # number of decisions of the whole log before this piece
    first_row: int = 1  # number of the whole log's first row; 2 in a CSV file, whose first row names the columns

    def __len__(self) -> int:
        return len(self.action)

    @property
    def K(self) -> int:
        """Number of arms, played or not."""
        return len(self.arms)

    def row(self, i: int) -> int:
        """Row number of decision i of this piece in the whole log."""
        return self.first_row + self.start + i

    def rows(self, begin: int, end: int) -> Log:
        """Decisions begin, ..., end - 1 of this piece."""
        arrays = {name: array[begin:end] for name, array in self.arrays().items()}
        targets = {name: p[begin:end] for name, p in self.targets.items()}
        return replace(self, **arrays, targets=targets, start=self.start + begin)

    def arrays(self) -> dict[str, Any]:
        """Those with a row for each decision, by name."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def make_log(
    *, action: Any, reward: Any, propensity: Any = None, probabilities: Any = None, predictions: Any = None,
    arms: Sequence[str] | int | None = None, available: Any = None, user: Any = None,
    targets: Mapping[str, Any] | None = None, start: int = 0, first_row: int = 1,
) -> Log:  # fmt: skip
    """A checked log from plain arrays. Actions are indices into `arms`.

    Without `propensity` it is taken from `probabilities`. Errors name the row.
    """
    check = _Checker(first_row + start)
    r = check.finite("reward", reward, (-1,))
    n = len(r)
    names = _arm_names(arms, probabilities, predictions, action)
    K = len(names)
    a = check.actions(action, n, names)
    p = None if probabilities is None else check.distributions("probabilities", probabilities, (n, K))
    return Log(
        arms=names, action=a, reward=r, propensity=check.propensity(propensity, p, a), probabilities=p,
        predictions=None if predictions is None else check.finite("predictions", predictions, (n, K)),
        available=None if available is None else check.available(available, (n, K), a),
        user=None if user is None else _shaped("user", np.asarray(user), (n,)),
        targets={name: check.distributions(f"target {name}", t, (n, K)) for name, t in (targets or {}).items()},
        start=start, first_row=first_row,
    )  # fmt: skip


def _arm_names(arms: Sequence[str] | int | None, probabilities: Any, predictions: Any, action: Any) -> tuple[str, ...]:
    if arms is None:
        table = predictions if probabilities is None else probabilities
        arms = int(np.max(np.asarray(action), initial=0)) + 1 if table is None else int(np.shape(table)[-1])
    if isinstance(arms, int):
        return tuple(str(k) for k in range(arms))
    if len(set(arms)) != len(arms) or not len(arms):
        raise InputError(f"arms must be different names, at least one, got {list(arms)}")
    return tuple(arms)


def _shaped(name: str, array: NDArray[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """`array` if it has this shape, decisions first; -1 stands for any length."""
    if array.ndim != len(shape) or any(want not in (-1, got) for want, got in zip(shape, array.shape, strict=True)):
        want = ", ".join("any" if n == -1 else str(n) for n in shape)
        raise ShapeError(f"{name} must have one row for each decision, shape ({want}), got {array.shape}")
    return array


@dataclass(frozen=True)
class _Checker:
    """Checks of the columns of a log."""

    first_row: int  # number of the first decision's row

    def require(self, kept: Any, rule: str, values: Any) -> None:
        """Refuse a column with rows that break the rule, naming the value and the row of the first."""
        if not kept.all():
            i = int(kept.argmin())
            raise InputError(f"{rule}, got {values[i]} in row {self.first_row + i} ({int((~kept).sum())} in all)")

    def numbers(self, name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        try:
            array = np.asarray(value, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"{name} must be numbers, got {np.asarray(value).dtype} data") from error
        return _shaped(name, array, shape)

    def finite(self, name: str, value: Any, shape: tuple[int, ...]) -> FloatArray:
        array = self.numbers(name, value, shape)
        self.require(np.isfinite(array).all(tuple(range(1, array.ndim))), f"{name} must be finite", array)
        return array

    def distributions(self, name: str, value: Any, shape: tuple[int, int]) -> FloatArray:
        p = self.finite(name, value, shape)
        self.require((p >= 0).all(-1), f"{name} must not be negative", p.min(-1))
        total = p.sum(-1)
        self.require(np.abs(total - 1) <= SUM_TOLERANCE, f"{name} must sum to 1 over the arms", total)
        return p

    def actions(self, value: Any, n: int, names: tuple[str, ...]) -> IntArray:
        array = _shaped("action", np.asarray(value), (n,))
        if array.dtype.kind not in "iu" and (array.dtype.kind != "f" or not (array == np.floor(array)).all()):
            raise InputError(f"action must be the index of an arm, got {array.dtype} data")
        a, K = array.astype(np.intp, copy=False), len(names)
        rule = f"action must be an arm from 0 to {K - 1} (give `arms` if the log has more of them)"
        self.require((a >= 0) & (a < K), rule, a)
        return a

    def propensity(self, value: Any, probabilities: FloatArray | None, action: IntArray) -> FloatArray:
        logged = None if probabilities is None else np.asarray(pick(probabilities, action))
        if value is None and logged is None:
            raise InputError(
                "a log needs the propensity of the arm played, or the probabilities of all arms; "
                "write NaN where it is unknown"
            )
        p = self.numbers("propensity", logged if value is None else value, action.shape)
        known = ~((p <= 0) | (p > 1 + SUM_TOLERANCE))  # NaN: unknown
        self.require(known, "propensity must be above 0 and at most 1", p)
        if logged is not None:
            rule = "propensity and the probability of the arm played must agree"
            self.require(~(np.abs(logged - p) > SUM_TOLERANCE), rule, np.stack([p, logged], -1))
        return p

    def available(self, value: Any, shape: tuple[int, int], action: IntArray) -> BoolArray:
        array: BoolArray = _shaped("available", np.asarray(value, dtype=bool), shape)
        self.require(np.asarray(pick(array, action)), "the arm played must be available", action)
        return array


@final
@dataclass(frozen=True, kw_only=True)
class Columns:
    """Names of the columns of a table; a prefix is followed by the name of an arm. An empty name is not read."""

    action: str = "action"
    reward: str = "reward"
    propensity: str = "propensity"
    user: str = "user"
    probabilities: str = "probability_"
    predictions: str = "q_"
    available: str = "available_"
    targets: tuple[str, ...] = ()  # prefixes of the probabilities of policies to evaluate

    def found_in(self, names: Sequence[str]) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
        """Single columns by their part of a log, and columns by part and arm."""
        single = {kind: getattr(self, kind) for kind in SINGLE if getattr(self, kind) in names}
        for kind in {"action", "reward"} - set(single):
            how = f"say which one is the {kind} with --{kind}, or columns=Columns({kind}=...) in Python"
            raise InputError(f"the log has no column {getattr(self, kind)!r}; it has {', '.join(names)}: {how}")
        prefixes = {kind: getattr(self, kind) for kind in WIDE} | {f"target {t}": t for t in self.targets}
        wide = {
            kind: {c.removeprefix(prefix): c for c in names if prefix and c.startswith(prefix) and c != prefix}
            for kind, prefix in prefixes.items()
        }
        for prefix in self.targets:
            if not wide[f"target {prefix}"]:
                raise InputError(f"no column begins with {prefix!r}; the log has {', '.join(names)}")
        return single, {kind: by_arm for kind, by_arm in wide.items() if by_arm}


def read_log(
    source: Any, *, columns: Columns | None = None, arms: Sequence[str] | None = None, rows: int = ROWS
) -> LogStream:
    """Read a CSV or Parquet file, a Polars or pandas frame, a PyArrow table, or a dictionary of arrays.

    Arms are those given, else those of the columns with one for each arm, else the actions that occur.
    """
    if rows < 1:
        raise ConfigError(f"rows must be at least 1, got {rows}")
    frame = _scan(source)
    with _reading():
        single, wide = (columns or Columns()).found_in(frame.collect_schema().names())
        if arms is None and not wide:
            occurring = frame.select(single["action"]).unique().collect(engine="streaming").to_series()
            labels = {_label(v) for v in occurring if v is not None and v == v}
            arms = sorted(labels, key=_numbers_first)
    names = tuple(str(arm) for arm in (next(iter(wide.values())) if arms is None else arms))
    if not names:
        raise InputError("the log is empty: there is nothing to evaluate")
    for kind, by_arm in wide.items():
        missing, extra = ([x for x in one if x not in other] for one, other in ((names, by_arm), (by_arm, names)))
        if missing or extra:
            what = f"no column for arm {missing[0]!r}" if missing else f"a column for unknown arm {extra[0]!r}"
            raise InputError(f"{kind} of the log have {what}; the arms are {', '.join(names)}")
    first_row = 2 if isinstance(source, str | Path) and Path(source).suffix.lower() == ".csv" else 1
    in_order = {kind: [by_arm[arm] for arm in names] for kind, by_arm in wide.items()}
    return LogStream(frame, names, single, in_order, rows, first_row)


def polars() -> Any:
    """The package that reads and writes files, which comes with the extra `evaluation`."""
    try:
        return import_module("polars")
    except ImportError as error:
        raise MissingExtraError("polars", "evaluation") from error


def _scan(source: Any) -> pl.LazyFrame:
    """Any source as a lazy table. The cells of CSV files stay text, so that a wrong one can be named."""
    pl = polars()
    if isinstance(source, str | Path):
        path = Path(source)
        if not path.exists():
            raise InputError(f"there is no log at {path}")
        if path.suffix.lower() in (".parquet", ".pq"):
            return pl.scan_parquet(path)
        if path.suffix.lower() == ".csv":
            return pl.scan_csv(path, infer_schema=False)
        raise InputError(f"a log is a .parquet or .csv file, got {path.name}")
    if isinstance(source, pl.LazyFrame):
        return source
    if hasattr(source, "to_numpy") and hasattr(source, "columns") and not hasattr(source, "lazy"):
        source = {name: source[name].to_numpy() for name in source.columns}  # pandas
    if not isinstance(source, Mapping) and not hasattr(source, "__arrow_c_stream__"):
        kinds = "a path, a Polars or pandas frame, a PyArrow table or a dictionary of arrays"
        raise InputError(f"a log is {kinds}, got {type(source)}")
    if isinstance(source, Mapping):
        arrays = {str(name): np.asarray(values) for name, values in source.items()}
        source = {name: v.tolist() if v.dtype == object else v for name, v in arrays.items()}
    with _reading():
        return pl.DataFrame(source).lazy()


@contextmanager
def _reading() -> Iterator[None]:
    """Errors of Polars as errors of the input."""
    error = polars().exceptions.PolarsError
    try:
        yield
    except error as problem:
        raise InputError(f"the log cannot be read: {problem}") from problem


@final
@dataclass(frozen=True)
class LogStream:
    """A log in pieces. It can be iterated any number of times."""

    frame: pl.LazyFrame
    arms: tuple[str, ...]
    single: dict[str, str]  # part of a log -> column
    wide: dict[str, list[str]]  # part of a log -> columns, in the order of the arms
    piece_rows: int
    first_row: int

    def __iter__(self) -> Iterator[Log]:
        names = dict.fromkeys([*self.single.values(), *(c for wide in self.wide.values() for c in wide)])
        start = 0
        with _reading():
            batches = self.frame.select(list(names)).collect_batches(chunk_size=self.piece_rows, maintain_order=True)
            for batch in batches:
                for part in batch.iter_slices(self.piece_rows):
                    yield self._log(part, start)
                    start += part.height

    def whole(self) -> Log:
        """All decisions at once, for logs that fit in memory."""
        pieces = [piece for piece in self if len(piece)]
        if not pieces:
            raise InputError("the log is empty: there is nothing to evaluate")
        joined: dict[str, Any] = {n: np.concatenate([getattr(p, n) for p in pieces]) for n in pieces[0].arrays()}
        targets = {t: np.concatenate([p.targets[t] for p in pieces]) for t in pieces[0].targets}
        return replace(pieces[0], targets=targets, **joined)

    @property
    def predicts(self) -> bool:
        """Whether the log has the predictions of the reward that model-based estimators need."""
        return "predictions" in self.wide

    def _log(self, part: pl.DataFrame, start: int) -> Log:
        first = self.first_row + start
        wide = {kind: np.stack([_floats(part[c], first) for c in names], -1) for kind, names in self.wide.items()}
        propensity = _floats(part[self.single["propensity"]], first) if "propensity" in self.single else None
        if propensity is None and "probabilities" not in wide:
            propensity = np.full(part.height, np.nan)
        return make_log(
            arms=self.arms, action=self._actions(part[self.single["action"]], first),
            reward=_floats(part[self.single["reward"]], first), propensity=propensity,
            probabilities=wide.get("probabilities"), predictions=wide.get("predictions"),
            available=wide["available"] > 0 if "available" in wide else None,
            user=_users(part[self.single["user"]]) if "user" in self.single else None,
            targets={kind.removeprefix("target "): p for kind, p in wide.items() if kind not in WIDE},
            start=start, first_row=self.first_row,
        )  # fmt: skip

    def _actions(self, column: pl.Series, first: int) -> IntArray:
        pl, index = polars(), {arm: k for k, arm in enumerate(self.arms)}
        missing = column.is_null() | column.is_nan() if column.dtype.is_float() else column.is_null()
        if missing.any():
            raise InputError(f"action is missing in row {first + int(missing.to_numpy().argmax())}")
        labels = column.unique()
        codes = pl.Series([index.get(_label(v), -1) for v in labels], dtype=pl.Int64)
        action = column.replace_strict(labels, codes, return_dtype=pl.Int64).to_numpy()
        if (action < 0).any():
            row = int((action < 0).argmax())
            raise InputError(f"arm {_label(column[row])!r} in row {first + row} is not one of {', '.join(self.arms)}")
        return action


def _floats(column: pl.Series, first: int) -> FloatArray:
    """A column as numbers; empty cells become NaN."""
    pl = polars()
    numbers = column.cast(pl.Float64, strict=False)
    wrong = numbers.is_null() & column.is_not_null()
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise InputError(f"{column.name} must be numbers, got {column[row]!r} in row {first + row}")
    return np.asarray(numbers.to_numpy(), dtype=np.float64)


def _users(column: pl.Series) -> NDArray[Any]:
    if column.dtype.is_integer() and not column.null_count():
        return column.to_numpy()
    return np.array(column.cast(polars().String).fill_null(MISSING_USER).to_list(), dtype=str)


def _label(value: Any) -> str:
    """Name of an arm; numbers of arms become floats where some are missing."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _numbers_first(label: str) -> tuple[int, float, str]:
    try:
        return (0, float(label), label)
    except ValueError:
        return (1, 0.0, label)


def write_log(log: Log, path: str | Path) -> list[Path]:
    """Write a Parquet or CSV file, and the meaning of each column beside it in NAME.dictionary.csv."""
    target = Path(path)
    if target.suffix not in (".parquet", ".csv"):
        raise InputError(f"a log is written as .parquet or .csv, got {target.name}")
    names, columns, meanings = Columns(), dict[str, Any](), dict[str, str]()
    single = {"action": np.array(log.arms)[log.action], "reward": log.reward, "propensity": log.propensity}
    for kind, values in (single | {"user": log.user}).items():
        if values is not None:
            columns[getattr(names, kind)], meanings[getattr(names, kind)] = values, MEANING[kind]
    for kind in WIDE:
        table = getattr(log, kind)
        for k, arm in enumerate(log.arms if table is not None else ()):
            name = f"{getattr(names, kind)}{arm}"
            columns[name], meanings[name] = table[:, k].astype(np.float64), MEANING[kind].format(name=arm)
    frame = polars().DataFrame(columns, nan_to_null=True)  # an unknown propensity is an empty cell
    frame.write_parquet(target) if target.suffix == ".parquet" else frame.write_csv(target)
    beside = target.with_suffix(".dictionary.csv")
    polars().DataFrame({"column": list(meanings), "meaning": list(meanings.values())}).write_csv(beside)
    return [target, beside]
