"""Sheets in and out: users in, arms out, outcomes back in.

Every error names its row, and then nothing of the sheet is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import pairwise
from typing import Any

from drimed.errors import BatchError, DrimedError, InputError, UnconfirmedError, UnknownNameError
from drimed.records import PENDING, AskRequest, Decision, Fault, Receipt, Report, TellRequest
from drimed.trial import ask, queries, tables, tell
from drimed.trial.ask import Place, places, resolve_user
from drimed.trial.columns import (
    ARM,
    DECISION,
    NOTES,
    SEASON,
    SHEET,
    USER,
    Cells,
    Column,
    Columns,
    Sheet,
    usual_word,
)
from drimed.trial.covariates import alike, plot_key, shown
from drimed.trial.names import ATTRIBUTE, CODE, CONTEXT, CONTROL, METRIC, control_plot, folded, tidy
from drimed.trial.seasons import COLUMNS, iso
from drimed.trial.spec import User
from drimed.trial.state import TrialState
from drimed.trial.tables import POINT, Marks, Record, Table, is_missing, number, refuse, text
from drimed.trial.transaction import Transaction

PLACES = ("plot", "block")  # columns that are written only where there are any
CLOSE = 0.7  # the similarity of two names that were probably meant to be one

Value = float | str
Plots = dict[str, list[str]] | list[str]


# Sheets that ask


@dataclass(frozen=True)
class _AskRow:
    number: int
    user: str
    plot: str | None
    block: str | None
    values: dict[tuple[str, str], Value]  # ("contexts", "rain") -> 400.0
    arm: str | None


@dataclass(frozen=True)
class AskSheet:
    """A sheet as an ask request, with the rows of each user that it came from."""

    request: AskRequest
    rows: dict[str, list[_AskRow]]

    def row(self, user: str, plot: str | None) -> _AskRow:
        """The row of a plot, or else the first of its user."""
        return next((row for row in self.rows[user] if row.plot == plot), self.rows[user][0])


def ask_sheet(
    tx: Transaction, table: Table, request: AskRequest | None = None, *, ignore: Iterable[str] = ()
) -> list[Decision]:
    """Decide for the users of the sheet, or only for those of the request; faults have their rows.

    A column `season` (and `date`) is used where the request has none. Arms may stand beside decisions that were taken
    before, as in a sheet of decisions; they cannot be chosen.
    """
    read, request = read_ask_sheet(tx.state, table, ignore), request or AskRequest()
    of_sheet, known = read.request, tx.state.users
    names = list(read.rows if request.users is None else [resolve_user(tx.state, user) for user in request.users])
    wanted = set(names)
    request = replace(
        request,
        users=names,
        # A season is opened with the contexts of all users, also where only some are asked for.
        contexts={u: c for u, c in of_sheet.contexts.items() if u in wanted or u in known},
        enrol={u: definition for u, definition in of_sheet.enrol.items() if u in wanted},
        plots={u: plots for u, plots in of_sheet.plots.items() if u in wanted},
        season=of_sheet.season if request.season is None else request.season,
        date=of_sheet.date if request.date is None else request.date,
    )
    try:
        decisions = ask.ask(tx, request)
    except DrimedError as error:
        faults = [_at_row(fault, read, names) for fault in error.faults]
        if not faults or not all(f.row for f in faults):
            raise
        kind = UnconfirmedError if isinstance(error, UnconfirmedError) else BatchError
        raise kind(faults) from None
    _refuse_arms(read, decisions)
    return decisions


def read_ask_sheet(state: TrialState, table: Table, ignore: Iterable[str] = ()) -> AskSheet:
    """The users of a sheet; BatchError lists the faults with their rows.

    A row is a user or, where there are plots, one plot of a user; all rows of a user must agree. With open enrolment
    new users join, with the attributes, the cohort, the group and the plots of their rows.
    """
    covariates = state.problem.covariates
    named = ((CONTEXT, covariates.fields), (ATTRIBUTE, covariates.attributes))
    numeric = {Column(part, name) for part, known in named for name, c in known.items() if c.levels is None}
    sheet = Sheet(Columns.of(state.problem), table, numeric, ignore, asks=True)
    _refuse_headings(state, sheet)
    errors: dict[int, str] = {}
    rows: dict[str, list[_AskRow]] = {}
    for row, cells in sheet.rows.items():
        try:
            one = _ask_row(state, row, cells, sheet.marks)
            if one.user not in state.users and sheet.unknown:  # a property of a new user must not be lost
                sheet.columns.refuse(sheet.unknown[0])
            rows.setdefault(one.user, []).append(one)
        except InputError as error:
            errors[row] = str(error)
    season, date = (_same_in_all_rows(sheet, name, errors) for name in COLUMNS)
    contexts, enrol, all_plots = dict[str, dict[str, Value]](), dict[str, dict[str, Any]](), dict[str, Plots]()
    for user, own in rows.items():
        values, plots = _user_of_rows(state, own, errors)
        of = {part: {n: v for (p, n), v in values.items() if p == part} for part in ("contexts", "attributes", "")}
        definition: dict[str, Any] = {"attributes": of["attributes"], "cohort": of[""].get("cohort")}
        if user not in state.users:
            definition |= {"group": of[""].get("group"), "blocks" if isinstance(plots, dict) else "plots": plots}
        contexts[user], all_plots[user] = of["contexts"], plots
        enrol[user] = {name: value for name, value in definition.items() if value}
    refuse(errors)
    request = AskRequest(
        users=list(rows),
        contexts={user: context for user, context in contexts.items() if context},
        enrol={user: definition for user, definition in enrol.items() if definition},
        plots={user: plots for user, plots in all_plots.items() if plots},
        season=season,
        date=date,
    )
    return AskSheet(request, rows)


def _refuse_headings(state: TrialState, sheet: Sheet) -> None:
    """Refuse misspelled columns, and a sheet without a column that every row needs. Other unknown columns may stay."""
    table, present = sheet.table, set(sheet.meanings.values())
    places = ("user", "plot", "block", "cohort", "group")
    free = [c for c in sheet.columns.all if c not in present and (c.part in (CONTEXT, ATTRIBUTE) or c.name in places)]
    for name in sheet.unknown:
        if get_close_matches(folded(name), [folded(c.name) for c in free], n=1, cutoff=CLOSE):
            sheet.columns.refuse(name)
    needed = [USER, *(Column(CONTEXT, name) for name in state.problem.fields)]
    if table.rows and (absent := [repr(c.name) for c in needed if c not in present]):
        noun = "column" if len(absent) == 1 else "columns"
        other = next((n for n in table.names if usual_word(n) == "user"), None) if "'user'" in absent else None
        hint = f"; call {other!r} 'user' if decisions are for them" if other else ""
        raise InputError(
            f"the sheet has no {noun} {', '.join(absent)}; it has {', '.join(map(repr, table.names))}{hint}"
        )


def _ask_row(state: TrialState, number: int, cells: Cells, marks: Marks) -> _AskRow:
    def name(column: str) -> str | None:
        cell = cells.get(Column(SHEET, column))
        return None if cell is None or not text(cell).strip() else tidy(text(cell))

    if name("user") is None:
        raise InputError("column 'user' is empty")
    user = resolve_user(state, text(cells[USER]).strip())
    if user not in state.users and not state.spec.enrols:
        raise UnknownNameError("user", user, state.users)
    values: dict[tuple[str, str], Value] = {}
    for column, cell in cells.items():
        if column.part in (CONTEXT, ATTRIBUTE):
            levels = _levels(state, column.name)
            if not is_missing(cell) or (levels is not None and cell in levels):
                values[f"{column.part}s", column.name] = covariate_value(state, column.name, cell, marks)
    values |= {("", word): own for word in ("cohort", "group") if (own := name(word)) is not None}
    if name("block") is not None and name("plot") is None:
        raise InputError("column 'plot' is missing or empty: a block has plots, each with a row of its own")
    return _AskRow(
        number, user, name("plot"), name("block"), values, None if is_missing(cells.get(ARM)) else name("arm")
    )


def _same_in_all_rows(sheet: Sheet, name: str, errors: dict[int, str]) -> str | None:
    """The value of a column that must be the same in all rows; None: it is empty or not there."""
    first: str | None = None
    for row, cells in sheet.rows.items():
        if is_missing(cell := cells.get(Column(SHEET, name))):
            continue
        value = (iso(text(cell)) if name == "date" else None) or text(cell)
        if first is not None and value != first:
            errors.setdefault(row, f"{name} is {value!r} here and {first!r} above; a sheet asks for one season")
        first = first or value
    return first


def _user_of_rows(
    state: TrialState, own: Sequence[_AskRow], errors: dict[int, str]
) -> tuple[dict[tuple[str, str], Value], Plots]:
    """The values and plots of one user, on which all of its rows agree."""
    values: dict[tuple[str, str], Value] = {}
    plots: dict[str, str | None] = {}
    user, first = own[0].user, own[0].number
    for row in own:
        for key, value in row.values.items():
            if values.setdefault(key, value) != value:
                errors[row.number] = f"{key[1]} of user {user!r} is {value!r} here and {values[key]!r} in another row"
        if row.plot is None:
            if len(own) > 1:
                errors[row.number] = (
                    f"user {user!r} is in the sheet twice; only rows with a column 'plot' may share a user"
                )
            continue
        if row.plot in plots:
            errors[row.number] = f"plot {row.plot!r} of user {user!r} is in the sheet twice"
        plots[row.plot] = row.block
    repeats = all(part != "contexts" for part, _ in values) and all(_was_decided(state, row) for row in own)
    for name in () if repeats else state.problem.fields:
        if ("contexts", name) not in values:
            errors.setdefault(first, f"column {name!r} is empty")
    if user in state.users and ("", "group") in values:
        group = state.profile(user).group
        if values["", "group"] != (group if group is None else tidy(group)):
            where = "no group" if group is None else f"group {group!r}"
            errors[first] = f"user {user!r} is in {where}, the sheet says {values['', 'group']!r}"
    if not any(plots.values()):
        return values, list(plots)
    known = state.profile(user).definition.block_of() if user in state.users else {}
    blocks: dict[str, list[str]] = {}
    for row in own:
        if row.plot is not None:
            block = row.block or known.get(row.plot)  # that of a plot which the trial knows may be left out
            if block is None:
                errors.setdefault(
                    row.number, f"column 'block' is missing or empty: other plots of user {user!r} have one"
                )
            else:
                blocks.setdefault(block, []).append(row.plot)
    return values, blocks


def _was_decided(state: TrialState, row: _AskRow) -> bool:
    """True if all that a row asks for was decided in the open season."""
    if row.user not in state.users:
        return False
    keys = [plot_key(row.user, row.plot)] if row.plot else [place.key for place in places(state, row.user)]
    return all(key in state.episode.asked for key in keys)


def _at_row(fault: Fault, sheet: AskSheet, names: Sequence[str]) -> Fault:
    """A fault of an ask request at its row; one that is about no row keeps its path."""
    part, name, *rest = (*fault.path, "", "")[: max(2, len(fault.path))]
    user = names[name] if part == "users" and isinstance(name, int) else str(name)
    if part not in ("users", "enrol", "contexts", "plots") or user not in sheet.rows:
        return fault
    last = str(rest[-1]) if rest else "user"
    subject = "plot" if part == "plots" else last
    message = f"{subject} {fault.message}" if fault.message.startswith("must ") else fault.message
    row = sheet.row(user, last if part == "plots" else None)
    return replace(fault, path=(), message=message, row=row.number)


def _refuse_arms(sheet: AskSheet, decisions: Iterable[Decision]) -> None:
    """Refuse arms in a sheet that are not those of earlier decisions; an arm that was drawn just now is not told."""
    errors: dict[int, str] = {}
    for d in decisions:
        row = sheet.row(d.user, d.plot)
        arm = row.arm
        if arm and not d.repeated:
            errors[row.number] = f"the sheet says arm {arm!r}, and the trial draws the arm: take the column out"
        elif arm and arm != tidy(d.arm):
            errors[row.number] = (
                f"decision {d.id} for user {d.user!r} has arm {d.arm!r}, the sheet says {arm!r}; the trial draws the "
                "arm: take the column out"
            )
    refuse(errors)


def blank_sheet(state: TrialState) -> list[Record]:
    """A sheet of all users to fill in: a row for each place, with what is known about it."""
    all_places = [place for user in state.users for place in places(state, user)]
    present = places_of(all_places)
    attributes = list(state.problem.covariates.attributes) if state.spec.enrols else []

    def row(place: Place | None) -> Record:
        definition = User() if place is None else state.profile(place.user).definition
        return {
            "user": None if place is None else place.user,
            **{name: getattr(place, name) for name in present},
            **dict.fromkeys(state.problem.fields),
            **{name: (definition.attributes or {}).get(name) for name in attributes},
            **({"cohort": definition.cohort} if state.spec.enrols and state.spec.cohorts else {}),
        }

    return [row(place) for place in all_places] or [row(None)]


def plots_of(texts: Sequence[str]) -> dict[str, Any]:
    """The plots of a user from texts: A1, or A/A1 in block A; names have no slashes of their own.

    >>> plots_of(["A1", "A2"]), plots_of(["A/A1", "A/A2", "B/B1"]), plots_of([])
    ({'plots': ['A1', 'A2']}, {'blocks': {'A': ['A1', 'A2'], 'B': ['B1']}}, {})
    """
    blocks: dict[str, list[str]] = {}
    for named in texts:
        block, _, plot = named.rpartition("/")
        blocks.setdefault(block.strip(), []).append(plot.strip())
    if set(blocks) <= {""}:
        return {"plots": blocks[""]} if blocks else {}
    if "" in blocks:
        example = f"write A/{blocks[''][0]} if it is in block A"
        raise InputError(f"plot {blocks[''][0]!r} has no block, and others have one: {example}", ("plots",))
    return {"blocks": blocks}


def covariate_value(state: TrialState, name: str, cell: Any, marks: Marks = POINT) -> Value:
    """A cell of an attribute or a context field: a number, or the level of a category."""
    levels = _levels(state, name)
    if levels is None:
        return number(name, cell, marks)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise InputError(f"{name} must be a text, one of the levels of a category, got {cell!r}")
    return text(cell) if text(cell) in levels else tidy(text(cell))


def covariate_values(state: TrialState, texts: Mapping[str, str]) -> dict[str, Value]:
    """Attributes or a context from texts; names that the trial does not know stay texts, and are refused by it."""
    known = state.problem.covariates.attributes | state.problem.covariates.fields
    marks = tables.typed_marks(text for name, text in texts.items() if name in known)
    return {name: covariate_value(state, name, text, marks) if name in known else text for name, text in texts.items()}


def _levels(state: TrialState, name: str) -> Collection[str] | None:
    """The levels of a category, so far; None: it is a number."""
    covariates = state.problem.covariates
    known = covariates.attributes.get(name) or covariates.fields[name]
    if known.levels is None:
        return None
    return known.levels if name in covariates.fields else state.numbers.levels.get(name, known.levels)


# Sheets of outcomes


def tell_sheet(
    tx: Transaction, table: Table, *, ignore: Iterable[str] = (), confirm: bool = False, blinded: bool = False
) -> list[Receipt]:
    """Record the outcomes of a sheet with a column `decision` and one for each metric, all or none.

    Empty cells are still to come, and rows without any outcome are passed over, so that the sheet of `ask` can be
    filled in bit by bit; a sheet without any outcome is refused. The columns that `ask` wrote may stay; a user, a plot,
    an arm or a context that is not the decision's is an error: one column was sorted alone. A `blinded` person sends no
    arms: it could be tried which one is not refused.
    """
    sheet = _outcome_sheet(tx.state, table, ignore)
    if blinded and not tx.state.opened and ARM in sheet.meanings.values():
        raise InputError("a sheet of a blinded person has no column 'arm': leave it out")
    for name in sheet.unknown:
        sheet.columns.refuse(name)
    reports: dict[int, Report] = {}  # by their row
    errors: dict[int, str] = {}
    first_rows: dict[int, int] = {}  # decision -> its row
    for row, cells in sheet.rows.items():
        try:
            report = _report(cells, sheet.marks)
        except InputError as error:
            errors[row] = str(error)
            continue
        if report is not None:
            reports[row] = report
            if (before := first_rows.setdefault(report.decision, row)) != row:
                errors[row] = f"decision {report.decision} has an outcome in row {before} too; tell each once"
    recorded = {d.id: d for d in queries.decisions(tx.ledger, tx.state, [r.decision for r in reports.values()])}
    for row, report in reports.items():
        if report.decision in recorded and (wrong := _mismatch(tx.state, sheet.rows[row], recorded[report.decision])):
            errors.setdefault(row, wrong)
    refuse(errors)
    if not reports:
        wanted = ", ".join(sheet.columns.metrics)
        raise InputError(f"the sheet has no outcomes: expected a column 'decision' and values under {wanted}")
    rows = list(reports)
    doubts = list(_split_decimals(tx.state, sheet, reports, recorded))
    try:
        request = TellRequest(reports=list(reports.values()), confirm=confirm)
        return tell.tell(tx, request, doubts=doubts)
    except BatchError as error:
        raise type(error)(replace(f, path=f.path[2:], row=rows[int(f.path[1])]) for f in error.faults) from None
    except InputError as error:
        if len(reports) == 1:
            refuse({rows[0]: str(error)})
        raise


def still_empty(
    tx: Transaction, table: Table, receipts: Sequence[Receipt], ignore: Iterable[str] = ()
) -> list[Decision]:
    """The decisions of a sheet for which it has no outcome, and none is recorded or given up."""
    sheet = _outcome_sheet(tx.state, table, ignore)
    ids = {decision_number(cells, sheet.marks) for cells in sheet.rows.values()}
    ids -= {receipt.decision for receipt in receipts}
    return [d for d in queries.decisions(tx.ledger, tx.state, ids) if d.state == PENDING]


def decision_number(cells: Cells, marks: Marks = POINT) -> int:
    """The decision that a row is about."""
    if is_missing(cells.get(DECISION)):
        raise InputError("column 'decision' is missing or empty")
    which = number("decision", cells[DECISION], marks)
    if which != int(which) or not 0 < which < 2**31:
        raise InputError(f"decision must be a whole number from 1, got {which:g}")
    return int(which)


def _outcome_sheet(state: TrialState, table: Table, ignore: Iterable[str]) -> Sheet:
    columns = Columns.of(state.problem)
    numeric = {column for column in columns.all if column.part in (METRIC, CONTROL)} | {DECISION}
    return Sheet(columns, table, numeric, ignore)


def _report(cells: Cells, marks: Marks) -> Report | None:
    which = decision_number(cells, marks)
    values: dict[str, dict[str, float | None]] = {METRIC: {}, CONTROL: {}}
    for column, cell in cells.items():
        if column.part in values and not is_missing(cell):
            values[column.part][column.name] = number(column.heading, cell, marks)
    return Report(which, values[METRIC], values[CONTROL] or None) if any(values.values()) else None


def _split_decimals(
    state: TrialState, sheet: Sheet, reports: Mapping[int, Report], recorded: Mapping[int, Decision]
) -> Iterator[Fault]:
    """Whole numbers side by side where decimals are usual, and no decimal point anywhere: 8,7 may be one number."""
    table, meanings = sheet.table, sheet.meanings
    metrics = [name for name, column in meanings.items() if column.part in (METRIC, CONTROL)]
    if table.separator != "," or any("." in str(cell) for name in metrics for cell in table.column(name)):
        return
    usual = dict(zip(state.problem.metrics, state.usual, strict=True))
    pairs = [(a, b) for a, b in pairwise(table.names) if a in metrics and b in metrics]
    cells = {row.number: row.cells for row in table.rows}
    for i, (row, report) in enumerate(reports.items()):
        if report.decision in recorded and recorded[report.decision].outcome == report.outcome:
            continue  # it was told before
        for left, right in pairs:
            decimal = tables.decimal_by_comma([cells[row].get(left, ""), cells[row].get(right, "")])
            if decimal is not None and usual[meanings[left].name].fractional:
                two = f"{left} {cells[row][left]} and {right} {cells[row][right]}"
                message = f"decision {report.decision}: {two}, or {left} {decimal}, a decimal comma?"
                yield Fault(("reports", i, "outcome", meanings[left].name), message, severity="unlikely")


def _mismatch(state: TrialState, cells: Cells, recorded: Decision) -> str | None:
    """The difference of a row from its decision in the user, the place, the arm, the context or an attribute."""
    sorted_alone = "was one column sorted without the others?"
    own = {name: getattr(recorded, name) for name in ("user", "plot", "block", "arm", "season")}
    for name, truth in (own | {"episode": str(recorded.episode)}).items():
        if (cell := cells.get(Column(SHEET, name))) is None:
            continue
        if truth is None:
            return f"unknown column {name!r}: decision {recorded.id} has no {name}"
        if tidy(text(cell)) != tidy(truth):
            return f"decision {recorded.id} is for {name} {truth!r}, the sheet says {cell!r}; {sorted_alone}"
    known = {CONTEXT: recorded.context or {}, ATTRIBUTE: state.profile(recorded.user).definition.attributes or {}}
    for column, cell in cells.items():
        if column.part not in known or is_missing(cell):
            continue
        value = known[column.part].get(column.name)
        if value is None or not _reads_as(cell, value):
            had = f"{column.name} {shown(value)}" if value is not None else f"no {column.name}"
            return (
                f"decision {recorded.id} is for user {recorded.user!r} with {had}, the sheet says {cell!r}; "
                f"{sorted_alone}"
            )
    return None


def _reads_as(cell: Any, value: float | str) -> bool:
    """True if a cell can be read as a recorded value, with either decimal mark."""
    if isinstance(value, str):
        return tidy(text(cell)) == tidy(value)
    for mark in ".,":
        with suppress(InputError):
            if alike(number("", cell, Marks(comma=True, seen=frozenset(mark))), value):
                return True
    return False


# Sheets to hand out


def decision_rows(state: TrialState, decisions: Iterable[Decision], *, fill_in: bool = True) -> list[Record]:
    """Decisions as a sheet to hand out; to `fill_in`, with columns for outcomes, those of control plots, and notes.

    A sheet of decisions that are all blinded has no columns of arms; codes are there if any decision has one.
    """
    rows, free = list(decisions), Columns.of(state.problem).all
    present, coded = places_of(rows), any(d.code is not None for d in rows)
    arms, reasons = any(d.arm for d in rows), any(d.reason for d in rows)
    seasons = SEASON in free and any(d.season is not None for d in rows)
    metrics = state.problem.metrics if fill_in else []
    plots = metrics if state.spec.feedback == "difference" else []
    return [
        {
            "decision": d.id,
            "episode": d.episode,
            **({"season": d.season} if seasons else {}),
            "user": d.user,
            **{name: getattr(d, name) for name in present},
            **(d.context or {}),
            **({"arm": d.arm} if arms else {}),
            **({CODE: d.code} if coded else {}),
            **({"propensity": d.propensity, "reason": d.reason} if reasons else {}),
            **{m: (d.outcome or {}).get(m) for m in metrics},
            **{control_plot(m): (d.control or {}).get(m) for m in plots},
            **({NOTES.name: None} if fill_in and NOTES in free else {}),
        }
        for d in rows
    ]


def headings(state: TrialState, *, blinded: bool = False) -> list[str]:
    """The columns of a sheet to fill in without any decision."""
    metrics = state.problem.metrics
    return [
        *("decision", "episode", "user"),
        *(() if blinded and not state.opened else ("arm", "propensity", "reason")),
        *metrics,
        *(map(control_plot, metrics) if state.spec.feedback == "difference" else ()),
        *([NOTES.name] if NOTES in Columns.of(state.problem).all else []),
    ]


def places_of(decisions: Sequence[Decision | Place]) -> list[str]:
    """The columns that tell plots apart, if any of the decisions has one."""
    return [name for name in PLACES if any(getattr(d, name) is not None for d in decisions)]
