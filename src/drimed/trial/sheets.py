"""Sheets in and out: users in, arms out, outcomes back in. An error names its row, and then nothing is used.

A metric, a context field or an attribute is a column of its own name, or of that name after `metric.`, `context.` or
`attribute.`; values of a control plot come after `control.`. Capital and small letters make no difference. A unit may
follow the name; another one than the trial file declares is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cached_property
from itertools import pairwise
from typing import Any

from drimed.errors import BatchError, DrimedError, InputError, UnconfirmedError, UnknownNameError, few_hints
from drimed.records import AskRequest, Decision, Fault, Receipt, Report, Told
from drimed.trial import ask, tables, tell
from drimed.trial import spec as trial_file
from drimed.trial.ask import Place, places, resolve_user
from drimed.trial.blinding import asking_as, blinded_decision
from drimed.trial.problem import Problem, alike, outcome_text
from drimed.trial.seasons import COLUMNS, UNNAMED, iso
from drimed.trial.spec import ATTRIBUTE, CONTEXT, CONTROL, METRIC, Attribute, Metric, control_plot, folded, tidy
from drimed.trial.state import RecordedDecision, TrialState, recorded_decisions
from drimed.trial.tables import POINT, WORKBOOK, Marks, Record, Table, is_missing, number, refuse, text
from drimed.trial.transaction import Transaction
from drimed.trial.workbooks import GENERAL, letters, shown

SHEET, NOTE = "sheet", "note"  # parts of columns beside those of the trial
PLACES = ("plot", "block")  # columns that are written only where there are any
NO_ARMS = "a sheet of a blinded person has no column 'arm': leave it out"
CLOSE = 0.7  # the similarity of two names that were probably meant to be one
_USERS = ("farm", "farmer", "grower", "site", "field", "location", "clinic", "patient", "shop", "reader")
USUAL_WORDS = dict.fromkeys(_USERS, "user") | {  # for the sheet's own columns: for hints, and never read as such
    "parcel": "plot", "plot number": "plot", "treatment": "arm", "variant": "arm", "year": "season"
}  # fmt: skip
_NUMBER = re.compile(r"[+-]?[\d.,]+")

Value = float | str
Plots = dict[str, list[str]] | list[str]


# Units, as people write them: `Yield (t/ha)`, `yield [t ha-1]`, `yield, t/ha`, `rain_mm`

_BRACKETS, _AROUND = "([{", " ,;:/_()[]{}"  # that a unit is in, and characters between a name and a unit
_INVERSE = re.compile(r"[\s·*×]*([^\W\d_]+)\^?-(\d+)")
_PER = re.compile(r"\s*(?:/|\bper\b)\s*")
_TIMES = re.compile(r"[\s·*×^]+")
_PREFIXES = "mp"  # milli or mega, pico or peta: here capital and small letters are different units
_COMMON_UNITS = frozenset({
    "t", "dt", "kg", "g", "mg", "μg", "ug", "ng", "lb", "lbs", "oz", "bu", "ha", "ac", "acre", "acres", "m", "km",
    "cm", "mm", "l", "dl", "hl", "ml", "μl", "mol", "mmol", "μmol", "s", "sec", "min", "h", "hr", "hrs", "d", "day",
    "days", "week", "weeks", "month", "months", "yr", "year", "years", "%", "‰", "ppm", "ppb", "°c", "°f", "kj", "mj",
    "kcal", "cal", "kw", "kwh", "wh", "pa", "kpa", "hpa", "bar", "mbar", "mmhg", "mv", "db", "hz", "khz", "bpm", "eur",
    "usd", "gbp", "chf", "€", "$", "£", "¥", "iu", "plant", "plants", "point", "points", "score",
})  # fmt: skip


def same_unit(one: str, other: str) -> bool:
    """True if two texts are one unit.

    >>> same_unit("t/ha", "t ha⁻¹"), same_unit("t/ha", "T per HA"), same_unit("mg", "Mg"), same_unit("t/ha", "kg/ha")
    (True, True, False, False)
    """

    def key(unit: str) -> str:
        return "".join(c if c.casefold() in _PREFIXES else c.casefold() for c in _TIMES.sub("", _with_slashes(unit)))

    return key(one) == key(other)


def _is_unit(text: str) -> bool:
    """True if a text is a common unit, and no other word that people put behind a name."""
    factors = re.split(r"[\s/·*×]+", _with_slashes(text))
    return all(factor.rstrip("^0123456789").casefold() in _COMMON_UNITS for factor in factors)


def _with_slashes(unit: str) -> str:
    """A unit with slashes in place of negative powers and of `per`."""
    text = tidy(unit).replace("\N{MINUS SIGN}", "-")
    return _PER.sub("/", _INVERSE.sub(lambda m: "/" + m[1] + ("" if m[2] == "1" else m[2]), text))


# Columns


@dataclass(frozen=True)
class Column:
    """The meaning of a column."""

    part: str
    name: str

    @property
    def long(self) -> str:
        """Its name after its part."""
        return f"{self.part}.{self.name}" if self.part in trial_file.COLUMN_PARTS else self.name

    @property
    def heading(self) -> str:
        """Its name where it is written."""
        return self.long if self.part == CONTROL else self.name


DECISION, USER, ARM, SEASON = (Column(SHEET, name) for name in ("decision", "user", "arm", "season"))
GIVEN, GIVEN_REASON = Column(SHEET, trial_file.GIVEN), Column(SHEET, trial_file.GIVEN_REASON)
NOTES = Column(NOTE, "notes")

Cells = Mapping[Column, Any]


@dataclass(frozen=True)
class Columns:
    """The columns that a sheet of a trial may have."""

    units: Mapping[Column, str]  # of metrics, context fields and attributes, as declared; empty: none is

    @staticmethod
    def of(problem: Problem) -> Columns:
        """Those of a trial."""
        spec = problem.spec
        attributes = {name: spec.attributes.get(name, Attribute()) for name in problem.covariates.attributes}
        named: list[Mapping[str, Any]] = [spec.metrics, spec.metrics, spec.context, attributes]
        parts = zip(trial_file.COLUMN_PARTS, named, strict=True)
        return Columns({Column(part, name): one.unit for part, declared in parts for name, one in declared.items()})

    @cached_property
    def all(self) -> list[Column]:
        """Every one of them; seasons and notes only if the trial uses these words for nothing else."""
        columns = [*(Column(SHEET, name) for name in trial_file.OWN_COLUMNS), *self.units]
        used = {folded(column.name) for column in columns}
        free = [(SHEET, name) for name in trial_file.FREE_COLUMNS] + [(NOTE, name) for name in trial_file.NOTE_COLUMNS]
        return columns + [Column(part, name) for part, name in free if name not in used]

    @cached_property
    def _by_heading(self) -> dict[str, Column]:
        headings = {folded(column.long): column for column in self.all}
        return {folded(column.name): column for column in self.all if column.part != CONTROL} | headings

    def match(self, heading: str) -> tuple[Column | None, str]:
        """The meaning of a heading, and the unit in it; a unit without brackets must be declared."""
        if (column := self._by_heading.get(folded(heading))) is not None:
            return column, ""
        for name, column in self._by_heading.items():
            rest = tidy(heading)[len(name) :]
            if column in self.units and folded(heading).startswith(name) and rest[:1] in _AROUND:
                unit, declared = rest.strip(_AROUND), self.units[column]
                if same_unit(unit, declared) or (_is_unit(unit) and (declared or rest.lstrip()[:1] in _BRACKETS)):
                    return column, unit
        return None, ""

    def read(self, table: Table, ignored: Collection[str] = (), *, asks: bool = False) -> dict[str, Column]:
        """The meaning of each column of a sheet; unknown ones are left out. A sheet that asks needs no outcomes."""
        meanings: dict[str, Column] = {}
        for heading in table.names:
            column, unit = self.match(heading) if heading and folded(heading) not in ignored else (None, "")
            if column is None:
                continue
            declared = self.units.get(column, "")
            if unit and declared and not same_unit(unit, declared):
                if asks and column.part in (METRIC, CONTROL):
                    continue
                raise InputError(
                    f"column {heading!r} is in {unit}, and {column.heading} of the trial in {declared}: convert the "
                    f"values, or call the column {column.heading!r} if they are in {declared}"
                )
            if again := next((other for other, known in meanings.items() if known == column), None):
                raise InputError(f"columns {again!r} and {heading!r} are both {column.long!r}; leave one of them")
            meanings[heading] = column
        return meanings

    def refuse(self, name: str) -> None:
        known, usual = {column.heading for column in self.all}, USUAL_WORDS.get(folded(name), "")
        raise UnknownNameError("column", name, known, meant=usual if usual in known else "")


class Sheet:
    """A table, and the meanings of its columns; `numeric` ones hold numbers, and `texts` are compared to the letter."""

    def __init__(
        self,
        columns: Columns,
        table: Table,
        numeric: Collection[Column],
        ignore: Iterable[str],
        *,
        texts: Collection[Column] = (),
        asks: bool = False,
    ) -> None:
        self.columns, self.table, self.numeric, self.texts = columns, table, numeric, texts
        self.ignored = {folded(name) for name in ignore}
        self.meanings = columns.read(table, self.ignored, asks=asks)
        self.rows: dict[int, Cells] = {
            row.number: {self.meanings[name]: cell for name, cell in row.cells.items() if name in self.meanings}
            for row in table.rows
        }

    @cached_property
    def unknown(self) -> list[str]:
        """Unknown columns with something in them. A number is no name: a line end was lost before it."""
        names = (n for n in self.table.names if n and n not in self.meanings and folded(n) not in self.ignored)
        filled = {name for row in self.table.rows for name in row.cells}
        return [name for name in names if _NUMBER.fullmatch(name) or name in filled]

    def doubts(self, units: Iterable[str] = ()) -> Iterator[Fault]:
        """Doubts about cells of a workbook that show something else than they hold, and about what is hidden.

        `units` are more columns of texts.
        """
        if self.table.separator != WORKBOOK or not self.table.rows:
            return
        first: dict[
            tuple[str, str], tuple[int, str, int]
        ] = {}  # column and format -> row, what is there, and how often
        used = {n: c in self.texts for n, c in self.meanings.items() if c in self.numeric or c in self.texts}
        used |= dict.fromkeys(units, True)
        for row in self.table.rows:
            for name in used.keys() & row.cells.keys():
                cell, code = row.cells[name], row.formats.get(name, GENERAL)
                if isinstance(cell, str) and name not in row.formats:
                    continue
                seen, same = shown(cell, code)
                if (seen != text(cell)) if used[name] else not same:
                    at = f"cell {letters(self.table.names.index(name))}{row.number}"
                    number, what, n = first.get(
                        (name, code), (row.number, f"{at} shows {seen} and holds {text(cell)}", 0)
                    )
                    first[name, code] = number, what, n + 1
        for (name, _), (number, what, n) in first.items():
            more = f", and {n - 1:,} more cells of the column are like it" if n > 1 else ""
            yield Fault((), f"{name}: {what}{more}; is what it holds right?", row=number, severity="unlikely")
        if hidden := [row.number for row in self.table.rows if row.hidden and row.cells.keys() & used.keys()]:
            what = f"the row is hidden, and so are {len(hidden) - 1:,} more" if len(hidden) > 1 else "the row is hidden"
            yield Fault((), f"{what}; is it meant?", row=hidden[0], severity="unlikely")
        for name in self.table.hidden:
            if name in used:
                yield Fault((), f"column {name!r} is hidden; is it meant?", row=self.table.top, severity="unlikely")

    @cached_property
    def marks(self) -> Marks:
        """The decimal marks. Digits alone in a column for people are refused beside a number, which they may end."""
        refuse(
            {
                row: f"is {decimal} under {left} and {right} one number? Write {decimal.replace(',', '.')}, or words"
                for row, left, right, decimal in self.split_numbers()
                if right not in self.meanings or self.meanings[right].part == NOTE
            }
        )
        names = [name for name, column in self.meanings.items() if column in self.numeric]
        return tables.marks(self.table.separator, (cell for name in names for cell in self.table.column(name)))

    def split_numbers(self) -> Iterator[tuple[int, str, str, str]]:
        """Whole numbers side by side where commas separate cells: row, both columns, and the one number it may be."""
        for left, right in pairwise(self.table.names) if self.table.separator == "," else ():
            if self.meanings.get(left) in self.numeric and folded(right) not in self.ignored:
                for row in self.table.rows:
                    if decimal := tables.decimal_by_comma([row.cells.get(left, ""), row.cells.get(right, "")]):
                        yield row.number, left, right, decimal


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
    doubts: list[Fault]

    def row(self, user: str, plot: str | None) -> _AskRow:
        """The row of a plot, or else the first of its user."""
        return self._by_place.get((user, plot), self.rows[user][0])

    @cached_property
    def _by_place(self) -> dict[tuple[str, str | None], _AskRow]:
        return {(row.user, row.plot): row for rows in self.rows.values() for row in reversed(rows)}


def ask_sheet(
    tx: Transaction,
    table: Table,
    request: AskRequest | None = None,
    ignore: Iterable[str] = (),
    *,
    blinded: bool = False,
) -> list[Decision]:
    """Decide for the users of the sheet, or only for those of the request; faults have their rows.

    A column `season` (and `date`) is used where the request has none. Arms may stand beside decisions that were taken
    before, as in a sheet of decisions; they cannot be chosen. A `blinded` person sends none, and gets none.
    """
    sheet, request = read_ask_sheet(tx.state, table, ignore), request or AskRequest()
    if blinded and not tx.state.opened and any(row.arm for rows in sheet.rows.values() for row in rows):
        raise InputError(NO_ARMS)
    asked, known = sheet.request, tx.state.users
    names = list(sheet.rows if request.users is None else [resolve_user(tx.state, user) for user in request.users])
    wanted = set(names)
    request = replace(
        request,
        users=names,
        # A season is opened with the contexts of all users, also where only some are asked for.
        contexts={u: c for u, c in asked.contexts.items() if u in wanted or u in known},
        enrol={u: definition for u, definition in asked.enrol.items() if u in wanted},
        plots={u: plots for u, plots in asked.plots.items() if u in wanted},
        season=asked.season if request.season is None else request.season,
        date=asked.date if request.date is None else request.date,
    )
    try:
        with asking_as(tx.state, request, blinded=blinded):
            decisions = ask.ask(tx, request, doubts=sheet.doubts)
    except DrimedError as error:
        faults = [_at_row(fault, sheet, names) for fault in error.faults]
        if not faults or not all(f.row for f in faults):
            raise
        raise (UnconfirmedError if isinstance(error, UnconfirmedError) else BatchError)(faults) from None
    errors: dict[int, str] = {}
    for d in decisions:
        row = sheet.row(d.user, d.plot)
        if row.arm and (not d.repeated or row.arm != tidy(d.arm)):  # an arm that was drawn just now is not told
            errors[row.number] = f"the sheet says arm {row.arm!r}, and the trial draws the arm: take the column out"
    refuse(errors)
    return [blinded_decision(tx.state, d) for d in decisions] if blinded else decisions


@few_hints()
def read_ask_sheet(state: TrialState, table: Table, ignore: Iterable[str] = ()) -> AskSheet:
    """The users of a sheet; BatchError lists the faults with their rows.

    A row is a user or, where there are plots, one plot of a user; all rows of a user must agree. With open enrolment
    new users join, with the attributes, the cohort, the group and the plots of their rows.
    """
    covariates = state.problem.covariates
    named = ((CONTEXT, covariates.fields), (ATTRIBUTE, covariates.attributes))
    numeric = {Column(part, name) for part, known in named for name, c in known.items() if c.levels is None}
    texts = {Column(SHEET, name) for name in ("user", *PLACES, "cohort", "group", "season")}
    texts |= {Column(part, name) for part, known in named for name in known} - numeric
    sheet = Sheet(Columns.of(state.problem), table, numeric, ignore, texts=texts, asks=True)
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
    fields: dict[str, Any] = {"contexts": {}, "plots": {}, "enrol": {}}
    for user, own in rows.items():
        values, plots = _user_of_rows(state, own, errors)
        of = {part: {n: v for (p, n), v in values.items() if p == part} for part in ("contexts", "attributes", "")}
        definition: dict[str, Any] = of[""] | {"attributes": of["attributes"]}
        if user not in state.users:
            definition["blocks" if isinstance(plots, dict) else "plots"] = plots
        stated = {name: value for name, value in definition.items() if value}
        for field, value in zip(fields, (of["contexts"], plots, stated), strict=True):
            if value:
                fields[field][user] = value
    refuse(errors)
    return AskSheet(AskRequest(users=list(rows), season=season, date=date, **fields), rows, list(sheet.doubts()))


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
        noun, there = "column" if len(absent) == 1 else "columns", ", ".join(map(repr, table.names))
        usual = next((n for n in table.names if repr(USUAL_WORDS.get(folded(n))) in absent), None)
        hint = (
            "rename one, or add it" if usual is None else f"call {usual!r} {USUAL_WORDS[folded(usual)]!r} if it is that"
        )
        raise InputError(f"the sheet has no {noun} {', '.join(absent)}; it has {there}: {hint}")


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
        if column.part in (CONTEXT, ATTRIBUTE) and (not is_missing(cell) or cell in _levels(state, column.name)):
            values[f"{column.part}s", column.name] = covariate_value(state, column.name, cell, marks)
    values |= {("", word): own for word in ("cohort", "group") if (own := name(word)) is not None}
    if name("block") is not None and name("plot") is None:
        raise InputError("column 'plot' is missing or empty: a block has plots, each with a row of its own")
    arm = None if is_missing(cells.get(ARM)) else name("arm")
    return _AskRow(number, user, name("plot"), name("block"), values, arm)


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
    """The values of one user, on which all of its rows agree, and its plots, in blocks if any row has one."""
    values: dict[tuple[str, str], Value] = {}
    user, in_blocks = own[0].user, any(row.block for row in own)
    known = state.profile(user).definition.block_of() if user in state.users else {}
    blocks, seen = dict[str, list[str]](), set[str]()
    for row in own:
        for key, value in row.values.items():
            if values.setdefault(key, value) != value:
                errors[row.number] = f"{key[1]} of user {user!r} is {value!r} here and {values[key]!r} in another row"
        block = row.block or known.get(row.plot or "") or ""  # that of a plot which the trial knows may be left out
        if row.plot is not None:
            if row.plot in seen:
                errors[row.number] = f"plot {row.plot!r} of user {user!r} is in the sheet twice"
            seen.add(row.plot)
            blocks.setdefault(block if in_blocks else "", []).append(row.plot)
        elif len(own) > 1:
            errors[row.number] = f"user {user!r} is in the sheet twice; only rows with a column 'plot' may share a user"
        if in_blocks and not block:
            errors.setdefault(row.number, f"column 'block' is missing or empty: other plots of user {user!r} have one")
    given, plots = {name for part, name in values if part == "contexts"}, {row.plot for row in own}
    own_places = places(state, user) if user in state.users else []
    asked = [place.key in state.episode.asked for place in own_places if plots == {None} or place.plot in plots]
    for name in state.problem.fields:
        if name not in given and (given or not asked or not all(asked)):  # a decision is repeated without its context
            errors.setdefault(own[0].number, f"column {name!r} is empty")
    return values, blocks if in_blocks else blocks.get("", [])


def _at_row(fault: Fault, sheet: AskSheet, names: Sequence[str]) -> Fault:
    """A fault of an ask request at its row; one that is about no row keeps its path."""
    if fault.row:
        return fault
    part, name, *rest = (*fault.path, "", "")[: max(2, len(fault.path))]
    user = names[name] if part == "users" and isinstance(name, int) else str(name)
    if part not in ("users", "enrol", "contexts", "plots") or user not in sheet.rows:
        return fault
    last = str(rest[-1]) if rest else "user"
    subject = "plot" if part == "plots" else last
    message = f"{subject} {fault.message}" if fault.message.startswith("must ") else fault.message
    return replace(fault, path=(), message=message, row=sheet.row(user, last if part == "plots" else None).number)


def blank_sheet(state: TrialState) -> list[Record]:
    """A sheet of all users to fill in: a row for each place, with what is known about it."""
    all_places = [place for user in state.users for place in places(state, user)]
    present = places_of(all_places)
    attributes = list(state.problem.covariates.attributes) if state.spec.enrols else []

    def row(place: Place | None) -> Record:
        definition = trial_file.User() if place is None else state.profile(place.user).definition
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
    covariates = state.problem.covariates
    if (covariates.attributes.get(name) or covariates.fields[name]).levels is None:
        return number(name, cell, marks)
    if isinstance(cell, bool) or not isinstance(cell, str | int | float):
        raise InputError(f"{name} must be a text, one of the levels of a category, got {cell!r}")
    return text(cell) if text(cell) in _levels(state, name) else tidy(text(cell))


def covariate_values(state: TrialState, texts: Mapping[str, str]) -> dict[str, Value]:
    """Attributes or a context from texts; names that the trial does not know stay texts, and are refused by it."""
    known = state.problem.covariates.attributes | state.problem.covariates.fields
    marks = tables.typed_marks(text for name, text in texts.items() if name in known)
    return {name: covariate_value(state, name, text, marks) if name in known else text for name, text in texts.items()}


def _levels(state: TrialState, name: str) -> Collection[str]:
    """The levels of a category, so far; a number has none."""
    field = state.problem.covariates.fields.get(name)
    return state.numbers.levels.get(name, ()) if field is None else field.levels or ()


# Sheets of outcomes


def tell_sheet(
    tx: Transaction, table: Table, ignore: Iterable[str] = (), *, confirm: bool = False, blinded: bool = False
) -> list[Receipt]:
    """Record the outcomes of a sheet with a column `decision` and one for each metric, all or none.

    Empty cells are still to come, and rows without any outcome are passed over, so that the sheet of `ask` can be
    filled in bit by bit; a sheet without any outcome is refused. The columns that `ask` wrote may stay; a user, a plot,
    an arm or a context that is not the decision's is an error: one column was sorted alone. A `blinded` person sends no
    arms: it could be tried which one is not refused.
    """
    columns = Columns.of(tx.state.problem)
    numeric = {column for column in columns.all if column.part in (METRIC, CONTROL)} | {DECISION}
    sheet = Sheet(columns, table, numeric, ignore)
    if blinded and not tx.state.opened and ARM in sheet.meanings.values():
        raise InputError(NO_ARMS)
    for name in sheet.unknown:
        columns.refuse(name)
    reports: dict[int, Report] = {}  # by their row
    errors: dict[int, str] = {}
    first_rows: dict[int, int] = {}  # decision -> its row
    for row, cells in sheet.rows.items():
        try:
            report = report_of(tx.state.spec.metrics, cells, sheet.marks)
        except InputError as error:
            errors[row] = str(error)
            continue
        if report.outcome or report.control or report.given:
            reports[row] = report
            if (first := first_rows.setdefault(report.decision, row)) != row:
                errors[row] = f"decision {report.decision} has an outcome in row {first} too; tell each once"
    recorded = {one.decision: one for one in recorded_decisions(tx.ledger, tx.state, first_rows)}
    for row, report in reports.items():
        if report.decision in recorded and (wrong := _mismatch(tx.state, sheet.rows[row], recorded[report.decision])):
            errors.setdefault(row, wrong)
    refuse(errors)
    if not reports:
        wanted = ", ".join(tx.state.problem.metrics)
        raise InputError(f"the sheet has no outcomes: expected a column 'decision' and values under {wanted}")
    doubts = [*_split_decimals(tx.state, sheet, reports, recorded), *sheet.doubts()]
    try:
        return tell.tell(tx, list(reports.values()), doubts, confirm=confirm, blinded=blinded)
    except InputError as error:
        if not error.faults:
            raise
        kind, rows = UnconfirmedError if isinstance(error, UnconfirmedError) else BatchError, list(reports)
        raise kind(
            f if f.row else replace(f, path=f.path[2:], row=rows[int(f.path[1])]) for f in error.faults
        ) from None


def report_of(metrics: Mapping[str, Metric], cells: Cells, marks: Marks) -> Report:
    """The outcome in a row; words of metrics that are not numbers are read when they are told."""
    if is_missing(cells.get(DECISION)):
        raise InputError("column 'decision' is missing or empty")
    decision = number("decision", cells[DECISION], marks)
    if not decision.is_integer() or not 0 < decision < 2**31:
        raise InputError(f"decision must be a whole number from 1, got {decision:g}")
    values: dict[str, dict[str, Told]] = {METRIC: {}, CONTROL: {}}
    for column, cell in cells.items():
        if column.part in values and not is_missing(cell):
            values[column.part][column.name] = metric_value(metrics.get(column.name), column.heading, cell, marks)
    given, reason = (None if is_missing(cells.get(c)) else text(cells[c]) for c in (GIVEN, GIVEN_REASON))
    return Report(int(decision), values[METRIC], values[CONTROL] or None, given, reason)


def metric_value(metric: Metric | None, heading: str, cell: Any, marks: Marks = POINT) -> Told:
    """A cell for a metric: a number, or as it is where the metric has words (yes, 7 of 20, <0.5)."""
    below = metric is not None and metric.detection is not None and str(cell).lstrip().startswith("<")
    if metric is None or (metric.kind == "number" and not below):
        return number(heading, cell, marks)
    with suppress(InputError):
        return number(heading, cell, marks)
    return cell if isinstance(cell, bool | str) else str(cell)


def _split_decimals(
    state: TrialState, sheet: Sheet, reports: Mapping[int, Report], recorded: Mapping[int, RecordedDecision]
) -> Iterator[Fault]:
    """New whole numbers side by side where decimals are usual, and no decimal point anywhere: 8,7 may be one number."""
    metrics = {name: column.name for name, column in sheet.meanings.items() if column.part in (METRIC, CONTROL)}
    if any("." in str(cell) for name in metrics for cell in sheet.table.column(name)):
        return
    usual, numbers = dict(zip(state.problem.metrics, state.usual, strict=True)), {r: i for i, r in enumerate(reports)}
    for row, left, right, decimal in sheet.split_numbers():
        if row not in reports or not {left, right} <= metrics.keys() or not usual[metrics[left]].fractional:
            continue
        report = reports[row]
        before = recorded[report.decision].outcome if report.decision in recorded else None
        if (before or {}).get("metrics") != report.outcome:
            message = f"decision {report.decision}: is {decimal} under {left} and {right} one number, a decimal comma?"
            yield Fault(("reports", numbers[row], "outcome", metrics[left]), message, severity="unlikely")


def _mismatch(state: TrialState, cells: Cells, recorded: RecordedDecision) -> str | None:
    """The difference of a row from its decision: another user, place, arm, season, context or attribute."""
    body, user, which = recorded.body, str(recorded.event.user), recorded.decision
    truths = {Column(SHEET, name): getattr(body, name) for name in ("episode", "plot", "block", "arm")}
    truths |= {USER: user, SEASON: state.seasons.get(body.episode, UNNAMED).name}
    truths |= {Column(CONTEXT, name): value for name, value in state.context_of(body.context or ()).items()}
    attributes = state.profile(user).definition.attributes or {}
    truths |= {Column(ATTRIBUTE, name): value for name, value in attributes.items()}
    for column, cell in cells.items():
        if is_missing(cell) or (column not in truths and column.part not in (CONTEXT, ATTRIBUTE)):
            continue
        truth = truths.get(column)
        if truth is None or not _reads_as(cell, truth):
            known = f"has no {column.name}" if truth is None else f"is for {column.name} {truth!r}"
            hint = f" If that was given, put it into a column {GIVEN.name!r}, and why into {GIVEN_REASON.name!r}"
            asked = f"was one column sorted without the others?{hint if column == ARM else ''}"
            return f"decision {which} {known}, the sheet says {cell!r}; {asked}"
    return None


def _reads_as(cell: Any, truth: Value) -> bool:
    """True if a cell can be read as a recorded value, with either decimal mark."""
    if isinstance(truth, str):
        return tidy(text(cell)) == tidy(truth)
    with suppress(InputError):
        return alike(number("", text(cell).replace(",", ".")), truth)
    return False


# Sheets to hand out


def decision_rows(state: TrialState, decisions: Iterable[Decision], *, fill_in: bool = True) -> list[Record]:
    """Decisions as a sheet to hand out; to `fill_in`, with columns for outcomes, those of control plots, and notes.

    Seasons, places, arms and codes have columns if any decision has one: of blinded ones there are no arms.
    """
    free = Columns.of(state.problem).all
    metrics = state.problem.metrics if fill_in else []
    plots = metrics if state.spec.feedback == "difference" else []
    rows = [
        {
            "decision": d.id,
            **({"episode": d.episode} if fill_in else {"season": d.season or d.episode}),
            **({"season": d.season} if fill_in and SEASON in free else {}),
            **{name: getattr(d, name) for name in ("user", *PLACES)},
            **(d.context or {}),
            "arm": d.arm,
            **({trial_file.CODE: d.code} if d.code else {}),
            **({GIVEN.name: d.given} if GIVEN in free else {}),
            **{name: getattr(d, name) for name in ("propensity", "reason")},
            **{m: _cell(state.spec.metrics[m], d.outcome, m) for m in metrics},
            **{control_plot(m): (d.control or {}).get(m) for m in plots},
            **({NOTES.name: None} if fill_in and NOTES in free else {}),
        }
        for d in decisions
    ]
    optional = ("season", *PLACES, "arm", *([GIVEN.name] if GIVEN in free else []), "propensity", "reason")
    empty = {name for name in optional if all(row.get(name) in (None, "") for row in rows)}
    return [{name: cell for name, cell in row.items() if name not in empty} for row in rows]


def _cell(metric: Metric, outcome: Mapping[str, float] | None, name: str) -> float | str | None:
    """A recorded value as a sheet takes it back: a number, or words."""
    if metric.kind == "number" and name in (outcome or {}):
        return (outcome or {})[name]
    return outcome_text(name, metric, outcome or {}) or None


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


def titles(state: TrialState) -> dict[str, str]:
    """The headings of a workbook in place of names: with the units that the trial file declares."""
    columns = Columns.of(state.problem)
    with_units = {c: (f"{c.heading} ({unit})", unit) for c, unit in columns.units.items() if unit}
    return {c.heading: title for c, (title, unit) in with_units.items() if columns.match(title) == (c, unit)}


def places_of(decisions: Sequence[Decision | Place]) -> list[str]:
    """The columns that tell plots apart, if any of the decisions has one."""
    return [name for name in PLACES if any(getattr(d, name) is not None for d in decisions)]
