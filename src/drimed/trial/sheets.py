"""Spreadsheets in and out: arms out, outcomes back in. (Whom to ask for: `drimed.trial.roster`.)

A sheet is CSV (commas, semicolons or tabs) or JSON (a list of records). Every error names its row, and then nothing of
the sheet is used.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from drimed.errors import BatchError, InputError, UnknownNameError
from drimed.records import Decision, Fault, Receipt, Report
from drimed.trial import queries, telling
from drimed.trial.faults import first_twice
from drimed.trial.parts import is_whole
from drimed.trial.sentences import short
from drimed.trial.state import TrialState
from drimed.trial.transaction import Transaction

FIRST_ROW = 2  # of data in a CSV file: the first line has the names
CONTROL = "control."  # before the metrics of a control plot
# Columns that `ask` writes: they may stay when outcomes are filled in beside them.
WRITTEN = ("episode", "user", "plot", "block", "arm", "propensity", "reason")
PLACES = ("plot", "block")  # written only where there are any

Record = dict[str, Any]


def read(text: str, form: str = "csv") -> list[Record]:
    """The rows of a sheet; empty cells are left out."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    if not is_whole(text):
        raise InputError(f"the sheet {_HALF}; save it as UTF-8")
    return _read_json(text) if form == "json" else _read_csv(text)


def write(rows: Sequence[Mapping[str, Any]], form: str = "csv") -> str:
    """Rows as a sheet; their columns in the order in which they first appear."""
    if form == "json":
        return json.dumps([dict(row) for row in rows], indent=1, ensure_ascii=False) + "\n"
    names = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, names, restval="", lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: "" if value is None else value for name, value in row.items()})
    return out.getvalue()


def tell(
    tx: Transaction, rows: Sequence[Record], *, ignore: Iterable[str] = (), confirm: bool = False
) -> list[Receipt]:
    """Report the outcomes of a sheet with a column `decision` and one for each metric, all or none.

    Empty cells are still to come, and rows without any outcome are passed over, so that the sheet of `ask` can be
    filled in bit by bit. The columns that `ask` wrote may stay; a user, a plot or an arm that is not the decision's is
    an error: somebody has sorted one column alone.
    """
    state, ignore = tx.state, set(ignore)
    found: dict[int, Report] = {}  # by the place of their row
    errors: dict[int, str] = {}
    for i, row in enumerate(rows):
        try:
            report = _report(state, row, ignore)
            if report is not None:
                found[i] = report
        except InputError as error:
            errors[i] = str(error)
    recorded = {d.id: d for d in queries.decisions(tx.ledger, state, [r.decision for r in found.values()])}
    for i, report in found.items():
        if report.decision in recorded:
            row = {name: cell for name, cell in rows[i].items() if name not in {*ignore, *state.problem.metrics}}
            if wrong := _misplaced(row, recorded[report.decision]):
                errors[i] = wrong
    refuse(errors)
    places = list(found)
    try:
        return telling.tell(tx, list(found.values()), confirm=confirm)
    except BatchError as error:
        raise type(error)(_in_rows(error.faults, places)) from None
    except InputError as error:
        if len(found) == 1:
            refuse({places[0]: str(error)})
        raise


def _in_rows(faults: Iterable[Fault], places: Sequence[int]) -> list[Fault]:
    """Faults of reports, at their rows of the sheet."""
    return [Fault(f.path[2:], f.message, row=places[int(f.path[1])] + FIRST_ROW) for f in faults]


def _report(state: TrialState, row: Record, ignore: Iterable[str]) -> Report | None:
    metrics = state.problem.metrics
    known = {"decision", *WRITTEN, *state.problem.fields, *metrics, *(CONTROL + m for m in metrics), *ignore}
    for name in row:
        if name not in known:
            raise UnknownNameError("column", name, known)
    which = decision_number(row)
    outcome = {m: number(m, row[m]) for m in metrics if m in row}
    control = {m: number(CONTROL + m, row[CONTROL + m]) for m in metrics if CONTROL + m in row}
    return Report(which, outcome, control or None) if outcome or control else None


def decision_number(row: Record) -> int:
    """Which decision a row is about."""
    which = number("decision", needed(row, "decision"))
    if which != int(which) or not 0 < which < 2**31:
        raise InputError(f"decision must be a whole number from 1, got {which:g}")
    return int(which)


def _misplaced(row: Record, recorded: Decision) -> str | None:
    there = {"user": recorded.user, "plot": recorded.plot, "block": recorded.block, "arm": recorded.arm}
    for column, truth in there.items():
        if column not in row:
            continue
        if truth is None:
            return f"unknown column {column!r}: decision {recorded.id} has no {column}"
        if str(row[column]) != truth:
            return (
                f"decision {recorded.id} is for {column} {truth!r}, the sheet says {row[column]!r}; was one column "
                "sorted without the others?"
            )
    return None


def refuse(errors: Mapping[int, str]) -> None:
    """Say what is wrong in which rows, as a spreadsheet counts them, names in the first."""
    if errors:
        raise BatchError(Fault((), message, row=i + FIRST_ROW) for i, message in sorted(errors.items()))


def decision_rows(decisions: Iterable[Decision], metrics: Sequence[str] = (), *, plots: bool = False) -> list[Record]:
    """Decisions as a sheet to hand out, with a column for each of these metrics to fill in."""
    found = list(decisions)
    places = places_of(found)
    for name in places:
        if name in metrics or any(name in (d.context or {}) for d in found):
            raise InputError(f"a metric or a context field has the name {name!r}, which a sheet needs for plots")
    return [
        {
            "decision": d.id,
            "episode": d.episode,
            "user": d.user,
            **{name: getattr(d, name) for name in places},
            **(d.context or {}),
            "arm": d.arm,
            "propensity": d.propensity,
            "reason": d.reason,
            **{m: (d.outcome or {}).get(m) for m in metrics},
            **{CONTROL + m: (d.control or {}).get(m) for m in (metrics if plots else ())},
        }
        for d in found
    ]


def places_of(decisions: Sequence[Decision]) -> list[str]:
    """The columns that tell plots apart, if any of the decisions has one."""
    return [name for name in PLACES if any(getattr(d, name) is not None for d in decisions)]


def needed(row: Record, name: str) -> Any:
    """A cell that must be filled in."""
    if name not in row:
        raise InputError(f"column {name!r} is missing or empty")
    return row[name]


def number(name: str, value: Any) -> float:
    """A cell as a finite number."""
    if isinstance(value, bool):
        raise InputError(f"{name} must be a number, got {value!r}")
    try:
        number = float(value)
    except (TypeError, ValueError):
        hint = "; write decimals with a point" if isinstance(value, str) and "," in value else ""
        raise InputError(f"{name} must be a number, got {short(value)}{hint}") from None
    except OverflowError:
        number = float("inf")
    if number != number or number in (float("inf"), float("-inf")):
        raise InputError(f"{name} must be finite, got {short(value)}; leave the cell empty if it is not known")
    return number


def _read_json(text: str) -> list[Record]:
    try:
        data = json.loads(text, object_pairs_hook=_Pairs)
    except json.JSONDecodeError as error:
        raise InputError(f"line {error.lineno}: not JSON: {error.msg}") from None
    except ValueError:
        raise InputError("not JSON: a number has too many digits") from None
    except RecursionError:
        raise InputError("not JSON: lists or records are nested too deeply") from None
    if not isinstance(data, list) or not all(isinstance(row, _Pairs) for row in data):
        raise InputError("expected a list of records: [{...}, {...}]")
    rows: list[Record] = []
    errors: dict[int, str] = {}
    for i, row in enumerate(data):
        twice = first_twice([name for name, _ in row])
        if twice is not None:
            errors[i] = f"two fields have the name {twice!r}"
        elif not all(is_whole(text) for pair in row for text in pair if isinstance(text, str)):
            errors[i] = f"a text {_HALF}"
        rows.append({k: "[...]" if isinstance(v, list) else v for k, v in row if v is not None})
    refuse(errors)
    return rows


def _read_csv(text: str) -> list[Record]:
    first = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=first.count)
    reader = csv.reader(io.StringIO(text), delimiter=delimiter)
    names: list[str] = []
    rows: list[Record] = []
    errors: dict[int, str] = {}
    try:
        names = [name.strip() for name in next(reader, [])]
        if not any(names):
            raise InputError("the sheet is empty; its first line must name the columns")
        if (twice := first_twice(names)) is not None:
            raise InputError(f"two columns have the name {twice!r}")
        for i, cells in enumerate(reader):
            if len(cells) > len(names):
                errors[i] = f"expected {len(names)} cells, got {len(cells)}"
            rows.append({n: c.strip() for n, c in zip(names, cells, strict=False) if n and c.strip()})
    except csv.Error:  # more than 128 KiB in one cell
        row = len(rows) + FIRST_ROW if names else 1
        raise InputError(f"row {row}: a cell is too long; is a quote not closed?") from None
    refuse(errors)
    while rows and not rows[-1]:
        rows.pop()  # empty lines at the end
    return rows


class _Pairs(list[tuple[str, Any]]):
    """A record of JSON, before a name that comes twice is lost."""


_HALF = "has a character that is not valid Unicode (a lone surrogate)"
