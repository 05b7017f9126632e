"""Sheets in and out: arms out, outcomes back in. (Whom to ask for: `drimed.trial.roster`.)

Every error names its row, and then nothing of the sheet is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise
from typing import Any

from drimed.errors import BatchError, InputError
from drimed.records import PENDING, Decision, Fault, Receipt, Report, TellRequest
from drimed.trial import queries, telling
from drimed.trial.columns import (
    ATTRIBUTE,
    CODE,
    CONTEXT,
    CONTROL,
    METRIC,
    NOTE,
    SHEET,
    Column,
    Columns,
    marks_of,
    refuse_split_decimals,
)
from drimed.trial.covariates import alike, shown
from drimed.trial.names import tidy
from drimed.trial.state import TrialState
from drimed.trial.tables.cells import POINT, Marks, is_missing, number, text
from drimed.trial.tables.splitting import decimal_by_comma
from drimed.trial.tables.table import Record, Row, Table, refuse
from drimed.trial.transaction import Transaction

PLACES = ("plot", "block")  # written only where there are any
DECISION = Column(SHEET, "decision")
ARM = Column(SHEET, "arm")
NOTES = Column(NOTE, "notes")  # for people: `tell` passes over them

Cells = Mapping[Column, Any]


def tell(
    tx: Transaction, table: Table, *, ignore: Iterable[str] = (), confirm: bool = False, blinded: bool = False
) -> list[Receipt]:
    """Report the outcomes of a sheet with a column `decision` and one for each metric, all or none.

    Empty cells are still to come, and rows without any outcome are passed over, so that the sheet of `ask` can be
    filled in bit by bit; a sheet without any outcome is refused. The columns that `ask` wrote may stay; a user, a plot,
    an arm or a context that is not the decision's is an error: somebody has sorted one column alone. Somebody who is
    `blinded` sends no arms: they could try which one is not refused.
    """
    columns, ignore = Columns.of(tx.state.problem), set(ignore)
    found = columns.read(table, ignore)
    if blinded and not tx.state.opened and ARM in found.values():
        raise InputError("a sheet of somebody who is blinded has no column 'arm': leave it out")
    for name in columns.unknown(table, found, ignore):
        columns.refuse(name)
    numeric = _numeric(columns)
    refuse_split_decimals(table, found, numeric, ignore)
    marks = marks_of(table, found, numeric)
    reports: dict[int, Report] = {}  # by their row
    errors: dict[int, str] = {}
    told: dict[int, Cells] = {row.number: meant(row, found) for row in table.rows}
    for row, cells in told.items():
        try:
            report = _report(cells, marks)
            if report is not None:
                reports[row] = report
        except InputError as error:
            errors[row] = str(error)
    recorded = {d.id: d for d in queries.decisions(tx.ledger, tx.state, [r.decision for r in reports.values()])}
    for row, report in reports.items():
        if report.decision in recorded and (
            wrong := _misplaced(told[row], recorded[report.decision])
            or _other(tx.state, told[row], recorded[report.decision])
        ):
            errors[row] = wrong
    first: dict[int, int] = {}  # decision -> its row
    for row, report in reports.items():
        if first.setdefault(report.decision, row) != row:
            errors[row] = (
                f"decision {report.decision} has an outcome in row {first[report.decision]} too; tell each once"
            )
    refuse(errors)
    if not reports:
        wanted = ", ".join(columns.named(METRIC, name) for name in columns.metrics)
        raise InputError(f"the sheet has no outcomes: expected a column 'decision' and values under {wanted}")
    known = {number: decision.outcome for number, decision in recorded.items()}
    new = {row: report for row, report in reports.items() if known.get(report.decision) != report.outcome}
    doubts = _split_decimals(tx.state, table, found, new)
    rows = list(reports)
    try:
        return telling.tell(
            tx, TellRequest(reports=list(reports.values()), confirm=confirm), doubts=_of_reports(doubts, rows)
        )
    except BatchError as error:
        raise type(error)(_in_rows(error.faults, rows)) from None
    except InputError as error:
        if len(reports) == 1:
            refuse({rows[0]: str(error)})
        raise


def still_empty(tx: Transaction, table: Table, told: Sequence[Receipt], ignore: Iterable[str] = ()) -> list[Decision]:
    """The decisions of a sheet that was told for which it has no outcome, and none is recorded or given up."""
    columns = Columns.of(tx.state.problem)
    found = columns.read(table, set(ignore))
    marks = marks_of(table, found, _numeric(columns))
    numbers = {decision_number(meant(row, found), marks) for row in table.rows} - {r.decision for r in told}
    return [d for d in queries.decisions(tx.ledger, tx.state, numbers) if d.state == PENDING]


def _numeric(columns: Columns) -> set[Column]:
    """The columns of a sheet of outcomes that hold numbers."""
    return {column for column in columns.all if column.part in (METRIC, CONTROL)} | {DECISION}


def _split_decimals(
    state: TrialState, table: Table, found: Mapping[str, Column], reports: Mapping[int, Report]
) -> Iterator[Fault]:
    """Whole numbers side by side where decimals are usual, and no decimal point anywhere: 8,7 may be one number."""
    metrics = [name for name, column in found.items() if column.part in (METRIC, CONTROL)]
    usual = dict(zip(state.problem.metrics, state.usual, strict=True))
    if table.separator != "," or any("." in str(cell) for name in metrics for cell in table.column(name)):
        return
    pairs = [pair for pair in pairwise(table.names) if set(pair) <= set(metrics)]
    for row in table.rows:
        for left, right in pairs if row.number in reports else ():
            decimal = decimal_by_comma([row.cells.get(left, ""), row.cells.get(right, "")])
            if decimal is not None and usual[found[left].name].fractional:
                two = f"{left} {row.cells[left]} and {right} {row.cells[right]}"
                message = f"decision {reports[row.number].decision}: {two}, or {left} {decimal}, a decimal comma?"
                yield Fault(("outcome", found[left].name), message, row=row.number)


def _of_reports(faults: Iterable[Fault], rows: Sequence[int]) -> list[Fault]:
    """Faults of rows, at their reports."""
    return [Fault(("reports", rows.index(int(f.row or 0)), *f.path), f.message) for f in faults]


def _in_rows(faults: Iterable[Fault], rows: Sequence[int]) -> list[Fault]:
    """Faults of reports, at their rows of the sheet."""
    return [replace(f, path=f.path[2:], row=rows[int(f.path[1])]) for f in faults]


def meant(row: Row, found: Mapping[str, Column]) -> Cells:
    """A row by what its columns are."""
    return {found[name]: cell for name, cell in row.cells.items() if name in found}


def _report(cells: Cells, marks: Marks) -> Report | None:
    which = decision_number(cells, marks)
    values: dict[str, dict[str, float | None]] = {METRIC: {}, CONTROL: {}}
    for column, cell in cells.items():
        if column.part in values and not is_missing(cell):
            name = column.name if column.part == METRIC else column.long
            values[column.part][column.name] = number(name, cell, marks)
    return Report(which, values[METRIC], values[CONTROL] or None) if any(values.values()) else None


def decision_number(cells: Cells, marks: Marks = POINT) -> int:
    """Which decision a row is about."""
    which = number("decision", needed(cells, DECISION), marks)
    if which != int(which) or not 0 < which < 2**31:
        raise InputError(f"decision must be a whole number from 1, got {which:g}")
    return int(which)


def _misplaced(cells: Cells, recorded: Decision) -> str | None:
    there = {name: getattr(recorded, name) for name in ("user", "plot", "block", "arm", "season")}
    for name, truth in (there | {"episode": str(recorded.episode)}).items():
        if (given := cells.get(Column(SHEET, name))) is None:
            continue
        if truth is None:
            return f"unknown column {name!r}: decision {recorded.id} has no {name}"
        if tidy(text(given)) != tidy(truth):
            return (
                f"decision {recorded.id} is for {name} {truth!r}, the sheet says {given!r}; was one column sorted "
                "without the others?"
            )
    return None


def _other(state: TrialState, cells: Cells, recorded: Decision) -> str | None:
    """What a row says about the context or the user that is not so; an empty cell says nothing."""
    known = {CONTEXT: recorded.context or {}, ATTRIBUTE: state.profile(recorded.user).definition.attributes or {}}
    for column, cell in cells.items():
        if column.part not in known or is_missing(cell):
            continue
        truth = known[column.part].get(column.name)
        if truth is None or not _reads_as(cell, truth):
            had = f"{column.name} {shown(truth)}" if truth is not None else f"no {column.name}"
            return (
                f"decision {recorded.id} is for user {recorded.user!r} with {had}, the sheet says {cell!r}; was one "
                "column sorted without the others?"
            )
    return None


def _reads_as(cell: Any, truth: float | str) -> bool:
    """Whether a cell can be read as what is recorded, with either decimal mark."""
    if isinstance(truth, str):
        return tidy(text(cell)) == tidy(truth)
    for mark in ".,":
        with suppress(InputError):
            if alike(number("", cell, Marks(comma=True, seen=frozenset(mark))), truth):
                return True
    return False


def to_fill_in(state: TrialState, decisions: Iterable[Decision]) -> list[Record]:
    """Decisions as a sheet that comes back: with columns for every outcome, those of control plots, and notes."""
    columns = Columns.of(state.problem)
    plots = state.spec.feedback == "difference"
    rows = decision_rows(columns, decisions, state.problem.metrics, plots=plots)
    return [row | {NOTES.name: None} for row in rows] if NOTES in columns.all else rows


def headings(state: TrialState, *, blinded: bool = False) -> list[str]:
    """The columns of a sheet to fill in while there is no decision to tell of."""
    columns, metrics = Columns.of(state.problem), state.problem.metrics
    plots = metrics if state.spec.feedback == "difference" else []
    return [
        *("decision", "episode", "user"),
        *(() if blinded and not state.opened else ("arm", "propensity", "reason")),
        *(columns.named(METRIC, m) for m in metrics),
        *(columns.named(CONTROL, m) for m in plots),
        *([NOTES.name] if NOTES in columns.all else []),
    ]


def decision_rows(
    columns: Columns, decisions: Iterable[Decision], metrics: Sequence[str] = (), *, plots: bool = False
) -> list[Record]:
    """Decisions as a sheet to hand out, with a column for each of these metrics to fill in.

    A sheet of decisions that are all blinded has no columns of arms; codes are there if any decision has one.
    """
    found = list(decisions)
    places, coded = places_of(found), any(d.code is not None for d in found)
    told = any(d.arm for d in found)
    seasons = columns.has_season and any(d.season is not None for d in found)
    return [
        {
            "decision": d.id,
            "episode": d.episode,
            **({"season": d.season} if seasons else {}),
            "user": d.user,
            **{name: getattr(d, name) for name in places},
            **{columns.named("context", name): value for name, value in (d.context or {}).items()},
            **({"arm": d.arm} if told else {}),
            **({CODE: d.code} if coded else {}),
            **({"propensity": d.propensity, "reason": d.reason} if any(d.reason for d in found) else {}),
            **{columns.named(METRIC, m): (d.outcome or {}).get(m) for m in metrics},
            **{columns.named(CONTROL, m): (d.control or {}).get(m) for m in (metrics if plots else ())},
        }
        for d in found
    ]


def places_of(decisions: Sequence[Decision]) -> list[str]:
    """The columns that tell plots apart, if any of the decisions has one."""
    return [name for name in PLACES if any(getattr(d, name) is not None for d in decisions)]


def needed(cells: Cells, column: Column) -> Any:
    """A cell that must be filled in."""
    if is_missing(cells.get(column)):
        raise InputError(f"column {column.name!r} is missing or empty")
    return cells[column]
