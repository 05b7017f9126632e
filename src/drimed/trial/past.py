"""Outcomes from before a trial: a table of seasons, units, arms and metrics, for the trial itself and for rehearsals.

The unit of a row stands under `user`, `site` or `group`, whichever is there first; a second of these is its group. It
is the user of this name, or some user of the group of this name, or else a unit of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from drimed.errors import InputError, UnknownNameError
from drimed.trial import tables
from drimed.trial.event_checks import why_unlikely_covariate, why_unlikely_outcome
from drimed.trial.events import HistoryRead, PastUnit
from drimed.trial.look_history import groups_of
from drimed.trial.problem import Problem, alike, number, read_outcome, shown
from drimed.trial.sheets import ARM, SEASON, Cells, Columns, Sheet
from drimed.trial.spec import ATTRIBUTE, CONTEXT, METRIC, WRONG_UNIT, Attribute, TrialSpec, tidy
from drimed.trial.state import Spread
from drimed.trial.tables import Marks, Table, is_missing

UNITS = ("user", "site", "group")  # names of the column of units
RIGHT = "correct the row, or the trial file"
FEWEST = 8  # values whose standard deviation can contradict a declared spread
MOST_SPREAD = 5.0  # a spread so many times theirs is in another unit, or, as theirs WRONG_UNIT times the spread


@dataclass(frozen=True)
class PastRow:
    number: int  # of the row in the file
    season: str
    unit: str
    group: str | None
    arm: str
    metrics: dict[str, float]  # that were measured
    attributes: dict[str, float | str]
    contexts: dict[str, float]  # a level by its number


def read_bytes(path: Path) -> tuple[Table, str]:
    """The table in a file, and the file's SHA-256."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    return tables.read(data, path.name), hashlib.sha256(data).hexdigest()


def read_rows(problem: Problem, table: Table) -> list[PastRow]:
    """All rows of a table, also those without any outcome; BatchError lists the faults with their rows."""
    names = {name.casefold(): name for name in table.names}
    present = [names[n] for n in UNITS if n in names][:2]
    columns, covariates = Columns.of(problem), problem.covariates
    known = covariates.attributes | covariates.fields
    numeric = {column for column in columns.units if column.name not in known or known[column.name].levels is None}
    sheet = Sheet(columns, table, numeric, present, texts={SEASON, ARM, *columns.units} - numeric)
    missing = [c.name for c in (SEASON, ARM) if c not in sheet.meanings.values()] + ([] if present else ["site"])
    measured = [c for c in sheet.meanings.values() if c.part == METRIC]
    if missing or not measured:
        raise InputError(
            f"the history has no column {(missing or problem.metrics)[0]!r}; it needs season, user (or site, or "
            f"group), arm and {', '.join(problem.metrics)}, and has {', '.join(table.names)}"
        )
    if sheet.unknown:
        unknown = UnknownNameError("column", sheet.unknown[0], {c.heading for c in columns.all})
        raise InputError(f"the history has a column that the trial does not: {unknown}; rename it, or take it out")
    rows, faults = [], dict[int, str]()
    for row in table.rows:
        units = [tidy(tables.text(row.cells.get(name, ""))) for name in present]
        try:
            rows.append(_row(problem, row.number, units, sheet.rows[row.number], sheet.marks))
        except InputError as error:
            faults[row.number] = str(error)
    doubts = ((fault.row or 0, fault.message) for fault in sheet.doubts(present))
    for fault_row, text in (*_contradictions(problem, rows), *doubts):
        faults.setdefault(fault_row, text)
    tables.refuse(faults)
    return rows


def _row(problem: Problem, row: int, units: list[str], cells: Cells, marks: Marks) -> PastRow:
    season, arm = (tidy(tables.text(cells.get(column, ""))) for column in (SEASON, ARM))
    for name, text in (("season", season), ("site", units[0]), ("arm", arm)):
        if not text:
            raise InputError(f"column {name!r} is empty")
    values: dict[str, dict[str, Any]] = {METRIC: {}, ATTRIBUTE: {}, CONTEXT: {}}
    for column, cell in cells.items():
        if column.part not in values or is_missing(cell):
            continue
        covariates = problem.covariates.attributes | problem.covariates.fields
        covariate = None if column.part == METRIC else covariates.get(column.name)
        if covariate is not None and covariate.levels is not None:
            level = tidy(tables.text(cell))
            if covariate.levels and level not in covariate.levels:
                raise InputError(f"{UnknownNameError(f'level of {column.name!r}', level, covariate.levels)}; {RIGHT}")
            values[column.part][column.name] = level if column.part == ATTRIBUTE else covariate.record(level, ())
            continue
        metric = problem.spec.metrics[column.name] if column.part == METRIC else None
        if metric is not None and metric.kind != "number":
            with suppress(InputError):
                cell = tables.number(column.name, cell, marks)
            values[METRIC] |= read_outcome(column.name, metric, cell)
            continue
        value = number(column.name, tables.number(column.name, cell, marks))
        if metric is not None:
            why = why_unlikely_outcome(metric, Spread(), value)
        else:
            declared = (problem.spec.context | problem.spec.attributes).get(column.name, Attribute())
            why = why_unlikely_covariate(declared, value)
        if why is not None:
            raise InputError(f"{column.name} {value:g} {why}; {RIGHT}")
        values[column.part][column.name] = value
    unit, *groups = units
    return PastRow(row, season, unit, next(filter(None, groups), None), arm, *values.values())


def _contradictions(problem: Problem, rows: list[PastRow]) -> Iterator[tuple[int, str]]:
    """Rows that do not agree with the trial file, or with another row, on what is known about a unit."""
    spec = problem.spec
    first: dict[tuple[str, str], tuple[float | str, str]] = {
        (user, name): (value, "in the trial file")
        for user, definition in spec.users.items()
        for name, value in [*(definition.attributes or {}).items(), ("group", spec.resolved(definition).group)]
        if value is not None
    }
    for row in rows:
        described = {} if _is_group(spec, row) else row.attributes | ({} if row.group is None else {"group": row.group})
        for name, value in described.items():
            before, where = first.setdefault((row.unit, name), (value, f"in row {row.number}"))
            if not alike(before, value):
                yield row.number, f"{name} of {row.unit!r} is {shown(value)} here and {shown(before)} {where}; {RIGHT}"


def _is_group(spec: TrialSpec, row: PastRow) -> bool:
    """Whether a row names a group of the trial in place of a user: who it was is not known."""
    return row.group is None and row.unit not in spec.users and row.unit in groups_of(spec, spec.users)


def of_rows(problem: Problem, rows: list[PastRow], file: str, digest: str) -> HistoryRead:
    """The event that a trial learns from."""
    spec, rows = problem.spec, [row for row in rows if row.metrics]
    if not rows:
        raise InputError("the history has no row with a value of a metric; leave it out, or fill it in")
    _check_spreads(spec, rows)
    seasons, arms = (list(dict.fromkeys(getattr(row, name) for row in rows)) for name in ("season", "arm"))
    if all(name.isdecimal() for name in seasons):
        seasons.sort(key=int)
    units, numbers, places = list[PastUnit](), dict[tuple[str, int], int](), list[int]()
    for row in rows:
        group = _is_group(spec, row)
        # Some user of a site is the same one in all rows; people of a group are others each time.
        key = row.unit, row.number if group and spec.kind == "people" else -1
        if numbers.setdefault(key, len(units)) == len(units):
            name, of_group = ("", row.unit) if group else (row.unit, row.group)
            units.append({"name": name, "group": of_group, "attributes": {}})
        units[numbers[key]]["attributes"] |= row.attributes
        places.append(numbers[key])

    def columns(part: str, names: Iterable[str]) -> dict[str, list[float | None]]:
        values = {name: [getattr(row, part).get(name) for row in rows] for name in names}
        return {name: column for name, column in values.items() if any(v is not None for v in column)}

    return HistoryRead(
        file=file,
        hash=digest,
        seasons=seasons,
        units=units,
        arms=arms,
        season=[seasons.index(row.season) for row in rows],
        unit=places,
        arm=[arms.index(row.arm) for row in rows],
        metrics=columns("metrics", spec.metrics),
        contexts=columns("contexts", spec.context),
    )


def _check_spreads(spec: TrialSpec, rows: list[PastRow]) -> None:
    """Refuse a declared spread in another unit than the past: all its values scatter more than plots of one site."""
    for name, metric in spec.metrics.items():
        values = np.array([row.metrics[name] for row in rows if name in row.metrics])
        sd = values.std(ddof=1) if len(values) >= FEWEST else 0.0
        if metric.spread and sd and not 1 / WRONG_UNIT <= metric.spread / sd <= MOST_SPREAD:
            raise InputError(
                f"{name}: the trial file declares a spread of {metric.spread:g}, and all {len(values)} values of the "
                f"history have a standard deviation of {sd:.3g}; give both in the same unit"
            )


def of_trial(spec: TrialSpec, file: Path | None = None, history: Path | str | None = None) -> HistoryRead | None:
    """The history that a trial begins with: this file, the sheet in the trial file, or the one beside it."""
    own = spec.history
    if history is None and own is not None and own.sheet is not None:
        problem, digest = Problem(spec), hashlib.sha256(own.sheet.encode()).hexdigest()
        return of_rows(problem, read_rows(problem, tables.read(own.sheet)), own.file or "in the trial file", digest)
    if history is None and own is not None and own.file is not None:
        if file is None:
            fix = "put the sheet itself into the trial file, as the text of `sheet` under [history]"
            raise InputError(f"the file {own.file!r} did not come with the trial file: {fix}", ("history", "file"))
        history = file.parent / own.file
    if history is None:
        return None
    table, digest = read_bytes(Path(history))
    problem = Problem(spec)
    return of_rows(problem, read_rows(problem, table), Path(history).name, digest)
