"""Sheets in and out: arms out, outcomes back in. (Whom to ask for: `drimed.trial.sheets`.)

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
from drimed.records import PENDING, AskRequest, Decision, Fault, Path, Receipt, Report, TellRequest
from drimed.trial import ask as asking
from drimed.trial import queries
from drimed.trial import tell as telling
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
    usual,
)
from drimed.trial.covariates import alike, plot_key, shown
from drimed.trial.names import folded, tidy
from drimed.trial.plots import places
from drimed.trial.seasons import COLUMNS, iso
from drimed.trial.state import TrialState
from drimed.trial.tables import (
    POINT,
    Marks,
    Record,
    Row,
    Table,
    decimal_by_comma,
    is_missing,
    number,
    refuse,
    text,
    typed_marks,
)
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
    told: dict[int, Cells] = {row.number: cells_by_column(row, found) for row in table.rows}
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
    numbers = {decision_number(cells_by_column(row, found), marks) for row in table.rows} - {r.decision for r in told}
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


def cells_by_column(row: Row, found: Mapping[str, Column]) -> Cells:
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


# Whom a sheet asks for, and what it says about them.

PLACES_roster = ("user", "plot", "block", "cohort", "group")
PARTS = {CONTEXT: "context", ATTRIBUTE: "attributes"}  # of a sheet -> of a request
CLOSE = 0.7  # how alike two names are that were probably meant to be one
ABOUT = ("enrol", "contexts", "plots")  # parameters of `ask` that are tables by user

Value = float | str
Plots = dict[str, list[str]] | list[str]


@dataclass(frozen=True)
class Roster:
    """The parameters of `ask`."""

    rows: dict[str, int]  # the users in their order, and where each first stands in the sheet
    plot_rows: dict[tuple[str, str], int]  # user and plot -> where it stands
    contexts: dict[str, dict[str, Value]]
    enrol: dict[str, dict[str, Any]]
    plots: dict[str, Plots]
    arms: dict[tuple[str, str | None], tuple[int, str]]  # user and plot -> row, and what it says
    season: str | None = None  # that the sheet is for, if it says so
    date: str | None = None  # when it begins


@dataclass(frozen=True)
class _Row:
    user: str
    plot: str | None
    block: str | None
    said: dict[tuple[str, str], Value]  # ("context", "rain") -> 400.0
    arm: str | None


def ask(
    tx: Transaction,
    table: Table,
    *,
    users: Sequence[str] | None = None,
    ignore: Iterable[str] = (),
    episode: int | None = None,
    season: str | None = None,
    date: str | None = None,
    key: str | None = None,
    confirm: bool = False,
) -> list[Decision]:
    """Decide for those in the sheet, or only for some of them; what is wrong is told with its row.

    A column `season` (and `date`) says what `season` says, if that is not given. Arms may stand beside decisions that
    were taken before, as in a sheet of decisions; nobody can choose one.
    """
    roster = read(tx.state, table, ignore)
    names = list(roster.rows) if users is None else [asking.known_name(tx.state, user) for user in users]
    asked, known = set(names), tx.state.users
    try:
        request = AskRequest(
            users=names,
            # A season is opened with everybody's context, also where only some are asked for.
            contexts={u: context for u, context in roster.contexts.items() if u in asked or u in known},
            enrol={u: definition for u, definition in roster.enrol.items() if u in asked},
            plots={u: plots for u, plots in roster.plots.items() if u in asked},
            episode=episode,
            season=roster.season if season is None else season,
            date=roster.date if date is None else date,
            key=key,
            confirm=confirm,
        )
        made = asking.ask(tx, request)
    except DrimedError as error:
        faults = [_placed(fault, roster, names) for fault in error.faults]
        if not faults or not all(f.row for f in faults):
            raise
        kind = UnconfirmedError if isinstance(error, UnconfirmedError) else BatchError
        raise kind(faults) from None
    _refuse_arms(roster, made)
    return made


def read(state: TrialState, table: Table, ignore: Iterable[str] = ()) -> Roster:
    """Everybody in the sheet; BatchError says what is wrong in which rows."""
    columns, ignore = Columns.of(state.problem), set(ignore)
    meant = columns.read(table, ignore, asks=True)
    unknown = columns.unknown(table, meant, ignore)
    _refuse_misspelled(columns, meant, unknown)
    _refuse_without(state, table, meant)
    numeric = _numeric_roster(state)
    refuse_split_decimals(table, meant, numeric, ignore)
    marks = marks_of(table, meant, numeric)
    errors: dict[int, str] = {}
    found: dict[str, list[tuple[int, _Row]]] = {}
    for row in table.rows:
        try:
            one = _row(state, cells_by_column(row, meant), marks)
            if one.user not in state.users and unknown:  # what somebody new is described by must not be lost
                columns.refuse(unknown[0])
            found.setdefault(one.user, []).append((row.number, one))
        except InputError as error:
            errors[row.number] = str(error)
    first = {user: own[0][0] for user, own in found.items()}
    plot_rows = {(user, one.plot): row for user, own in found.items() for row, one in own if one.plot is not None}
    arms = {(user, one.plot): (row, one.arm) for user, own in found.items() for row, one in own if one.arm}
    roster = Roster(first, plot_rows, {}, {}, {}, arms, *(_whole_sheet(table, meant, name, errors) for name in COLUMNS))
    for user, own in found.items():
        said, plots = _together(state, own, errors)
        if context := {name: value for (part, name), value in said.items() if part == "context"}:
            roster.contexts[user] = context
        if definition := _definition(state, user, said, plots):
            roster.enrol[user] = definition
        if plots:
            roster.plots[user] = plots
    refuse(errors)
    return roster


def _refuse_arms(roster: Roster, made: Iterable[Decision]) -> None:
    """An arm in a sheet is that of a decision which was taken before; what was drawn just now is not told."""
    errors: dict[int, str] = {}
    for decision in made:
        row, arm = roster.arms.get((decision.user, decision.plot)) or roster.arms.get((decision.user, None), (0, ""))
        if arm and not decision.repeated:
            errors[row] = f"the sheet says arm {arm!r}, and the trial draws the arm: take the column out"
        elif arm and arm != tidy(decision.arm):
            errors[row] = (
                f"decision {decision.id} for user {decision.user!r} has arm {decision.arm!r}, the sheet says {arm!r}; "
                "the trial draws the arm: take the column out"
            )
    refuse(errors)


def _whole_sheet(table: Table, found: Mapping[str, Column], name: str, errors: dict[int, str]) -> str | None:
    """What a column says that must say the same in all rows; None: it is not there, or empty."""
    said: str | None = None
    for row in table.rows:
        cell = cells_by_column(row, found).get(Column(SHEET, name))
        if is_missing(cell):
            continue
        value = (iso(text(cell)) if name == "date" else None) or text(cell)
        if said is not None and value != said:
            errors.setdefault(row.number, f"{name} is {value!r} here and {said!r} above; a sheet asks for one season")
        said = said or value
    return said


def blank(state: TrialState) -> list[Record]:
    """A sheet of all users to fill in: a row for each place, with what is known about it."""
    found = [(place, state.profile(place.user)) for user in state.users for place in places(state, user)]
    there = {name for name in ("plot", "block") for place, _ in found if getattr(place, name) is not None}
    columns = Columns.of(state.problem)
    attributes = list(state.problem.covariates.attributes) if state.spec.enrols else []
    fields = [columns.named(CONTEXT, name) for name in state.problem.fields]
    cohorts = state.spec.enrols and state.spec.cohorts
    rows = [
        {
            "user": place.user,
            **{name: getattr(place, name) for name in ("plot", "block") if name in there},
            **dict.fromkeys(fields),
            **{columns.named(ATTRIBUTE, name): (profile.definition.attributes or {}).get(name) for name in attributes},
            **({"cohort": profile.definition.cohort} if cohorts else {}),
        }
        for place, profile in found
    ]
    described = [columns.named(ATTRIBUTE, name) for name in attributes]
    names = ["user", *fields, *described, *(["cohort"] if cohorts else [])]
    return rows or [dict.fromkeys(names)]


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


def value(state: TrialState, name: str, given: Any, marks: Marks = POINT) -> Value:
    """A cell of an attribute or a context field: a number, or the level of a category."""
    levels = _levels(state, name)
    if levels is None:
        return number(name, given, marks)
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise InputError(f"{name} must be a text, one of the levels of a category, got {given!r}")
    return text(given) if text(given) in levels else tidy(text(given))


def described(state: TrialState, texts: Mapping[str, str]) -> dict[str, Value]:
    """Attributes or a context from texts; names that the trial does not know stay texts, and are refused by it."""
    known = state.problem.covariates.attributes | state.problem.covariates.fields
    marks = typed_marks(text for name, text in texts.items() if name in known)
    return {name: value(state, name, text, marks) if name in known else text for name, text in texts.items()}


def _levels(state: TrialState, name: str) -> Collection[str] | None:
    """The levels of a category, so far; None: it is a number."""
    covariates = state.problem.covariates
    known = covariates.attributes.get(name) or covariates.fields[name]
    if known.levels is None:
        return None
    return known.levels if name in covariates.fields else state.numbers.levels.get(name, known.levels)


def _numeric_roster(state: TrialState) -> set[Column]:
    """The columns that hold numbers."""
    covariates = state.problem.covariates
    named = ((CONTEXT, covariates.fields), (ATTRIBUTE, covariates.attributes))
    return {Column(part, name) for part, known in named for name, c in known.items() if c.levels is None}


def _refuse_misspelled(columns: Columns, meant: Mapping[str, Column], unknown: Sequence[str]) -> None:
    """A column that nobody knows may stay, unless it was probably meant to be one that is not there."""
    there = set(meant.values())
    free = [
        c.name for c in columns.all if c not in there and (c.part in (CONTEXT, ATTRIBUTE) or c.name in PLACES_roster)
    ]
    for name in unknown:
        if get_close_matches(folded(name), map(folded, free), n=1, cutoff=CLOSE):
            columns.refuse(name)


def _refuse_without(state: TrialState, table: Table, meant: Mapping[str, Column]) -> None:
    """Without a column that every row needs there is one thing to say, and not one for each row."""
    needed = [Column(SHEET, "user"), *(Column(CONTEXT, name) for name in state.problem.fields)]
    there = set(meant.values())
    if table.rows and (absent := [repr(c.name) for c in needed if c not in there]):
        noun = "column" if len(absent) == 1 else "columns"
        there_is = next((name for name in table.names if usual(name) == "user"), None) if "'user'" in absent else None
        hint = f"; call {there_is!r} 'user' if decisions are for them" if there_is else ""
        raise InputError(
            f"the sheet has no {noun} {', '.join(absent)}; it has {', '.join(map(repr, table.names))}{hint}"
        )


def _row(state: TrialState, cells: Cells, marks: Marks) -> _Row:
    cell = cells.get(Column(SHEET, "user"))
    if cell is None or not text(cell).strip():
        raise InputError("column 'user' is empty")
    user = asking.known_name(state, text(cell).strip())
    if user not in state.users and not state.spec.enrols:
        raise UnknownNameError("user", user, state.users)
    said: dict[tuple[str, str], Value] = {}
    for column, cell in cells.items():
        if column.part in PARTS:
            levels = _levels(state, column.name)
            if not is_missing(cell) or (levels is not None and cell in levels):
                said[PARTS[column.part], column.name] = value(state, column.name, cell, marks)
    said |= {("", name): tidied for name in ("cohort", "group") if (tidied := _text(cells, name)) is not None}
    plot, block = (_text(cells, name) for name in ("plot", "block"))
    if block is not None and plot is None:
        raise InputError("column 'plot' is missing or empty: a block has plots, each with a row of its own")
    return _Row(user, plot, block, said, None if is_missing(cells.get(ARM)) else _text(cells, "arm"))


def _text(cells: Cells, name: str) -> str | None:
    """A name or a word in a sheet."""
    cell = cells.get(Column(SHEET, name))
    return None if cell is None or not text(cell).strip() else tidy(text(cell))


def _together(
    state: TrialState, own: Sequence[tuple[int, _Row]], errors: dict[int, str]
) -> tuple[dict[tuple[str, str], Value], Plots]:
    """What the rows of one user say, and its plots; an empty cell says nothing."""
    said: dict[tuple[str, str], Value] = {}
    plots: dict[str, str | None] = {}
    user = own[0][1].user
    for i, row in own:
        for key, given in row.said.items():
            if said.setdefault(key, given) != given:
                errors[i] = f"{key[1]} of user {user!r} is {given!r} here and {said[key]!r} in another row"
        if row.plot is None:
            if len(own) > 1:
                errors[i] = f"user {user!r} is in the sheet twice; only rows with a column 'plot' may share a user"
            continue
        if row.plot in plots:
            errors[i] = f"plot {row.plot!r} of user {user!r} is in the sheet twice"
        plots[row.plot] = row.block
    first = own[0][0]
    repeats = all(part != "context" for part, _ in said) and all(_decided(state, row) for _, row in own)
    for name in () if repeats else state.problem.fields:
        if ("context", name) not in said:
            errors.setdefault(first, f"column {name!r} is empty")
    if user in state.users and ("", "group") in said:
        mine = state.profile(user).group
        if said["", "group"] != (mine if mine is None else tidy(mine)):
            where = "no group" if mine is None else f"group {mine!r}"
            errors[first] = f"user {user!r} is in {where}, the sheet says {said['', 'group']!r}"
    return said, _in_blocks(state, user, plots, own, errors)


def _decided(state: TrialState, row: _Row) -> bool:
    """Whether all that a row asks for was decided in the season that is open."""
    if row.user not in state.users:
        return False
    keys = [plot_key(row.user, row.plot)] if row.plot else [place.key for place in places(state, row.user)]
    return all(key in state.episode.asked for key in keys)


def _in_blocks(
    state: TrialState,
    user: str,
    plots: Mapping[str, str | None],
    own: Sequence[tuple[int, _Row]],
    errors: dict[int, str],
) -> Plots:
    """Plots by block, where they have one; that of a plot which the trial knows may be left out."""
    if not any(plots.values()):
        return list(plots)
    known = state.profile(user).definition.block_of() if user in state.users else {}
    found: dict[str, list[str]] = {}
    for i, row in own:
        if row.plot is None:
            continue
        block = row.block or known.get(row.plot)
        if block is None:
            errors.setdefault(i, f"column 'block' is missing or empty: other plots of user {user!r} have one")
        else:
            found.setdefault(block, []).append(row.plot)
    return found


def _definition(state: TrialState, user: str, said: Mapping[tuple[str, str], Value], plots: Plots) -> dict[str, Any]:
    """How somebody joins, or what must agree with how they joined."""
    made: dict[str, Any] = {}
    if attributes := {name: given for (part, name), given in said.items() if part == "attributes"}:
        made["attributes"] = attributes
    if ("", "cohort") in said:
        made["cohort"] = said["", "cohort"]
    if user not in state.users:
        if ("", "group") in said:
            made["group"] = said["", "group"]
        if plots:
            made["blocks" if isinstance(plots, dict) else "plots"] = plots
    return made


def _placed(fault: Fault, roster: Roster, names: Sequence[str]) -> Fault:
    """A fault of `ask` at its row; one that is about no row keeps its path."""
    user, last = _user(fault.path, names), str(fault.path[-1]) if len(fault.path) > 2 else "user"
    if user not in roster.rows:
        return fault
    of_plot = fault.path[0] == "plots"
    said = f"{'plot' if of_plot else last} {fault.message}" if fault.message.startswith("must ") else fault.message
    row = roster.plot_rows.get((user, last), roster.rows[user]) if of_plot else roster.rows[user]
    return replace(fault, path=(), message=said, row=row)


def _user(path: Path, names: Sequence[str]) -> str:
    if len(path) > 1 and path[0] == "users" and isinstance(path[1], int):
        return names[path[1]]
    return str(path[1]) if len(path) > 1 and path[0] in ABOUT else ""
