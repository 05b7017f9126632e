"""Whom a sheet asks for, and what it says about them.

A row is a user or, where there are plots, one plot of a user; what all rows of a user say must agree. With open
enrolment those who are new join, with the attributes, the cohort, the group and the plots of their rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from drimed.errors import BatchError, DrimedError, InputError, UnconfirmedError, UnknownNameError
from drimed.records import AskRequest, Decision, Fault, Path
from drimed.trial import asking, sheets
from drimed.trial.columns import ATTRIBUTE, CONTEXT, SHEET, Column, Columns, marks_of, refuse_split_decimals, usual
from drimed.trial.names import folded, tidy
from drimed.trial.numbers import plot_key
from drimed.trial.plots import places
from drimed.trial.seasons import COLUMNS, iso
from drimed.trial.sheets import Cells
from drimed.trial.state import TrialState
from drimed.trial.tables.cells import POINT, Marks, is_missing, number, text, typed_marks
from drimed.trial.tables.table import Record, Table, refuse
from drimed.trial.transaction import Transaction

PLACES = ("user", "plot", "block", "cohort", "group")
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
    numeric = _numeric(state)
    refuse_split_decimals(table, meant, numeric, ignore)
    marks = marks_of(table, meant, numeric)
    errors: dict[int, str] = {}
    found: dict[str, list[tuple[int, _Row]]] = {}
    for row in table.rows:
        try:
            one = _row(state, sheets.meant(row, meant), marks)
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
        cell = sheets.meant(row, found).get(Column(SHEET, name))
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


def _numeric(state: TrialState) -> set[Column]:
    """The columns that hold numbers."""
    covariates = state.problem.covariates
    named = ((CONTEXT, covariates.fields), (ATTRIBUTE, covariates.attributes))
    return {Column(part, name) for part, known in named for name, c in known.items() if c.levels is None}


def _refuse_misspelled(columns: Columns, meant: Mapping[str, Column], unknown: Sequence[str]) -> None:
    """A column that nobody knows may stay, unless it was probably meant to be one that is not there."""
    there = set(meant.values())
    free = [c.name for c in columns.all if c not in there and (c.part in (CONTEXT, ATTRIBUTE) or c.name in PLACES)]
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
    return _Row(user, plot, block, said, None if is_missing(cells.get(sheets.ARM)) else _text(cells, "arm"))


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
