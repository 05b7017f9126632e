"""Tables into logs: `read` makes a stream of checked pieces out of any source (drimed.evaluation.tables)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from drimed.errors import ConfigError, InputError
from drimed.evaluation.evaluate import ROWS
from drimed.evaluation.log import Log, make_log
from drimed.evaluation.tables import OPTIONAL, WIDE, Coded, Column, Columns, Piece, Source, open_source
from drimed.linear.arrays import FloatArray, IntArray

MISSING = "(missing)"  # the label of decisions without a user
MOST_ARMS = 100_000  # more different actions than this are a sign that the wrong column was read


@final
@dataclass(frozen=True)
class LogStream:
    """A log in pieces; it can be iterated any number of times."""

    source: Source
    columns: Columns
    given: tuple[str, ...] | None  # names of the arms, where the caller knows them
    rows: int

    def __iter__(self) -> Iterator[Log]:
        columns = self.columns
        numbers = [c for names in self._wide.values() for c in names] + [columns.reward]
        numbers += [getattr(columns, kind) for kind in ("propensity", "episode") if self._has(kind)]
        labels = [columns.action, columns.user] if self._has("user") else [columns.action]
        start = 0
        for piece in self.source.pieces(numbers, labels, self.rows):
            log = self._log(piece, start)
            start += len(log)
            yield log

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Names of the arms: as given, else from the columns with one for each arm, else the actions that occur."""
        if self.given is not None:
            return self.given
        for kind, names in self._wide_named.items():
            if kind != "metrics" and names:
                return tuple(names)
        return self._occurring()

    @property
    def predicts(self) -> bool:
        """Whether the log has predictions of the reward, which the direct and doubly robust estimators need."""
        return bool(self._wide_named.get("predictions"))

    def whole(self) -> Log:
        """Everything at once, for logs that fit in memory."""
        pieces = list(self)
        if not pieces:
            raise InputError("the log is empty")

        def joined(name: str) -> Any:
            first = getattr(pieces[0], name)
            return None if first is None else np.concatenate([getattr(p, name) for p in pieces])

        names = ("action", "reward", "propensity", *OPTIONAL)
        targets = {t: np.concatenate([p.targets[t] for p in pieces]) for t in pieces[0].targets}
        return Log(arms=self.arms, targets=targets, top=self.source.top, **{name: joined(name) for name in names})

    def _log(self, piece: Piece, start: int) -> Log:
        def number(name: str) -> FloatArray:
            return _floats(name, piece[name], self.source.top + start)

        def table(kind: str) -> FloatArray | None:
            names = self._wide.get(kind)
            return np.stack([number(c) for c in names], axis=-1) if names else None

        columns = self.columns
        reward = number(columns.reward)
        available = table("available")
        return make_log(
            arms=self.arms,
            action=self._actions(piece[columns.action], self.source.top + start),
            reward=reward,
            propensity=number(columns.propensity) if self._has("propensity") else self._unknown(len(reward)),
            probabilities=table("probabilities"),
            predictions=table("predictions"),
            available=None if available is None else available > 0,
            user=_labels(piece[columns.user]) if self._has("user") else None,
            episode=number(columns.episode) if self._has("episode") else None,
            metrics=table("metrics"),
            targets={t: table(f"target {t}") for t in columns.targets},
            start=start,
            top=self.source.top,
        )

    def _unknown(self, n: int) -> FloatArray | None:
        """No propensity column: read it off the probabilities of all arms, else it is unknown."""
        return None if self._wide.get("probabilities") else np.full(n, np.nan)

    def _has(self, kind: str) -> bool:
        wanted = kind == "propensity" or kind in self.columns.use
        return wanted and getattr(self.columns, kind) in self._names

    @cached_property
    def _names(self) -> list[str]:
        names = self.source.names
        for kind in ("action", "reward"):
            name = getattr(self.columns, kind)
            if name not in names:
                how = f"say which one is the {kind} with --{kind}, or columns=Columns({kind}=...) in Python"
                raise InputError(f"the log has no column {name!r}; it has {', '.join(names)}: {how}")
        return names

    @cached_property
    def _wide_named(self) -> dict[str, dict[str, str]]:
        """kind -> name of arm or metric -> column."""
        found = {}
        prefixes = {kind: getattr(self.columns, kind) for kind in WIDE if kind in self.columns.use}
        for kind, prefix in (prefixes | {f"target {t}": t for t in self.columns.targets}).items():
            found[kind] = {c.removeprefix(prefix): c for c in self._names if c.startswith(prefix) and c != prefix}
            if kind.startswith("target ") and not found[kind]:
                raise InputError(f"no column begins with {prefix!r}; the log has {', '.join(self._names)}")
        return found

    @cached_property
    def _wide(self) -> dict[str, list[str]]:
        """kind -> columns, those of arms in the order of the arms."""
        ordered = {}
        for kind, named in self._wide_named.items():
            if kind == "metrics" or not named:
                ordered[kind] = list(named.values())
                continue
            missing = [arm for arm in self.arms if arm not in named]
            extra = [arm for arm in named if arm not in self.arms]
            if missing or extra:
                what = f"no column for arm {missing[0]!r}" if missing else f"a column for unknown arm {extra[0]!r}"
                raise InputError(f"{kind} of the log have {what}; the arms are {', '.join(self.arms)}")
            ordered[kind] = [named[arm] for arm in self.arms]
        return ordered

    def _occurring(self) -> tuple[str, ...]:
        seen: set[Any] = set()
        for piece in self.source.pieces([], [self.columns.action], self.rows):
            column = piece[self.columns.action]
            if isinstance(column, Coded):
                seen.update(str(column.labels[code]) for code in np.unique(column.codes[column.codes >= 0]))
            else:
                seen.update(np.unique(column).tolist())
            if len(seen) > MOST_ARMS:
                raise InputError(f"column {self.columns.action!r} has more than {MOST_ARMS} different actions")
        if not seen:
            raise InputError("the log is empty: there is nothing to evaluate")
        return tuple(str(arm) for arm in sorted(seen, key=_by_number))

    def _actions(self, column: Column, first: int) -> IntArray:
        if isinstance(column, Coded):
            labels, codes = column.labels, column.codes
            if (codes < 0).any():
                raise InputError(f"action is missing in row {first + int((codes < 0).argmax())}")
        elif self._numbered and (not column.size or (column.min() >= 0 and column.max() < len(self.arms))):
            return np.asarray(column, dtype=np.intp)
        else:
            different, codes = np.unique(column, return_inverse=True)
            labels = different.tolist()
        found = np.array([self._index.get(str(label), -1) for label in labels], dtype=np.intp)[codes]
        if (found < 0).any():
            row = int((found < 0).argmax())
            name = str(labels[codes[row]])
            raise InputError(f"arm {name!r} in row {first + row} is not one of {', '.join(self.arms)}")
        return found

    @cached_property
    def _index(self) -> dict[str, int]:
        return {arm: k for k, arm in enumerate(self.arms)}

    @cached_property
    def _numbered(self) -> bool:
        return all(arm == str(k) for k, arm in enumerate(self.arms))


def read(
    source: Any, *, columns: Columns | None = None, arms: Sequence[str] | None = None, rows: int = ROWS
) -> LogStream:
    """A log from a Parquet or CSV file, a Polars or pandas frame, a PyArrow table, or a dictionary of arrays.

    >>> stream = read({"action": ["a", "b"], "reward": [1.0, 2.0], "propensity": [0.5, 0.5]})
    >>> stream.arms, [len(piece) for piece in stream]
    (('a', 'b'), [2])
    """
    if rows < 1:
        raise ConfigError(f"rows must be at least 1, got {rows}")
    given = None if arms is None else tuple(str(arm) for arm in arms)
    return LogStream(open_source(source), columns or Columns(), given, rows)


def _floats(name: str, column: Column, first: int) -> FloatArray:
    if isinstance(column, Coded):
        raise InputError(f"{name} must be numbers, got labels such as {column.labels[:1]}")
    if column.dtype.kind in "fiub":
        return column.astype(np.float64, copy=False)
    numbers = np.empty(len(column))
    for row, value in enumerate(column.tolist()):
        try:
            numbers[row] = np.nan if value is None else float(value)
        except (TypeError, ValueError):
            raise InputError(f"{name} must be numbers, got {value!r} in row {first + row}") from None
    return numbers


def _labels(column: Column) -> NDArray[Any]:
    if not isinstance(column, Coded):
        return column
    return np.array([*map(str, column.labels), MISSING])[column.codes]  # -1, a missing label, is the last


def _by_number(label: Any) -> tuple[int, float, str]:
    """Numbers in their order, before names in theirs."""
    try:
        return (0, float(label), str(label))
    except ValueError:
        return (1, 0.0, str(label))
