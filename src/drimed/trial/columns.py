"""What the columns of a sheet are: told apart by what they mean in a trial, not by how they are spelled.

A metric, a context field or an attribute is a column of its own name, or of that name after `metric.`, `context.` or
`attribute.`; what was measured on a control plot comes after `control.`. Capital and small letters make no difference.
A name that may mean two things is refused, unless the others are there under their long names. A unit may follow the
name; another one than the trial file declares is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from drimed.errors import InputError, UnknownNameError
from drimed.trial import units as trial_units
from drimed.trial.names import folded, tidy
from drimed.trial.problem import Problem
from drimed.trial.spec import Attribute, ContextField, Metric, TrialSpec
from drimed.trial.tables import Marks, Table, decimal_by_comma, marks, refuse

# Columns that sheets have of their own, whatever the trial.
OWN = ("decision", "episode", "user", "plot", "block", "cohort", "group", "arm", "propensity", "reason")
CODE = "code"
FREE = ("season", "date", CODE)  # the same, where the trial uses the word for nothing else
NOTES = ("note", "notes", "comment", "comments", "remark", "remarks")  # for people: they are passed over
USUAL = {  # what people call the columns that sheets have of their own: for hints, and never read as such
    "user": (
        "farm",
        "farmer",
        "farm name",
        "grower",
        "site",
        "field",
        "location",
        "clinic",
        "patient",
        "shop",
        "reader",
    ),
    "plot": ("parcel", "plot no", "plot no.", "plot number"),
    "arm": ("treatment", "variant"),
    "season": ("year",),
}
SHEET, NOTE, METRIC, CONTROL, CONTEXT, ATTRIBUTE = "sheet", "note", "metric", "control", "context", "attribute"
PARTS = (METRIC, CONTROL, CONTEXT, ATTRIBUTE)
_NUMBER = re.compile(r"[+-]?[\d.,]+")
RESERVED = (*OWN, *NOTES)


@dataclass(frozen=True)
class Column:
    """What a column holds."""

    part: str
    name: str

    @property
    def long(self) -> str:
        """Its name with what it is."""
        return f"{self.part}.{self.name}" if self.part in PARTS else self.name

    def __str__(self) -> str:
        if self.part == CONTROL:
            return f"the control plot's {self.long!r}"
        kinds = {CONTEXT: "context field", SHEET: "the sheet's own column"}
        return f"{kinds.get(self.part, self.part)} {self.name!r}"


SEASON = Column(SHEET, "season")


def usual(name: str) -> str | None:
    """Which of the sheet's own columns people mean by a heading that is another word for it.

    >>> usual("Farm"), usual("yield")
    ('user', None)
    """
    return next((own for own, words in USUAL.items() if folded(name) in words), None)


def control_plot(metric: str) -> str:
    """What the control plot's value of a metric is called, wherever people meet it.

    >>> control_plot("yield")
    'control.yield'
    """
    return Column(CONTROL, metric).long


@dataclass(frozen=True)
class Columns:
    """All that a sheet of a trial may have."""

    metrics: Sequence[str]
    fields: Sequence[str]
    attributes: Sequence[str]
    units: Mapping[Column, str] = field(default_factory=dict)  # as declared

    @staticmethod
    def of(problem: Problem) -> Columns:
        """Those of a trial."""
        return Columns(problem.metrics, problem.fields, list(problem.covariates.attributes), _declared(problem.spec))

    @staticmethod
    def of_metrics(spec: TrialSpec) -> Columns:
        """Those of a table that has nothing but outcomes of a trial like this."""
        return Columns(list(spec.metrics), (), (), _declared(spec))

    @cached_property
    def all(self) -> list[Column]:
        """Every one of them; seasons and notes are those words that the trial uses for nothing else."""
        named = [(METRIC, self.metrics), (CONTROL, self.metrics), (CONTEXT, self.fields), (ATTRIBUTE, self.attributes)]
        found = [Column(SHEET, name) for name in OWN] + [Column(part, name) for part, names in named for name in names]
        used = {folded(column.name) for column in found}
        free = ((part, name) for part, names in ((SHEET, FREE), (NOTE, NOTES)) for name in names)
        return found + [Column(part, name) for part, name in free if name not in used]

    @property
    def has_season(self) -> bool:
        """Whether a sheet's own column can say which season it is for."""
        return SEASON in self.all

    @cached_property
    def _spelled(self) -> tuple[dict[str, list[Column]], dict[str, list[Column]]]:
        """By each way to write them: to the letter, and without regard to capitals."""
        exact: dict[str, list[Column]] = {}
        loose: dict[str, list[Column]] = {}
        for column in self.all:
            for spelled in {column.long} if column.part == CONTROL else {column.long, column.name}:
                exact.setdefault(tidy(spelled), []).append(column)
                loose.setdefault(folded(spelled), []).append(column)
        for metric in self.metrics:  # as exports wrote it, where it means nothing else
            earlier = f"{CONTROL}_{metric}"
            if folded(earlier) not in loose:
                exact[tidy(earlier)] = loose[folded(earlier)] = [Column(CONTROL, metric)]
        return exact, loose

    def named(self, part: str, name: str) -> str:
        """How a column is called in a sheet that is written: in short, unless that may mean something else too."""
        column, loose = Column(part, name), self._spelled[1]
        return name if part != CONTROL and loose[folded(name)] == [column] else column.long

    def meant(self, name: str) -> list[Column]:
        """What a column of this name may be."""
        exact, loose = self._spelled
        return exact.get(tidy(name)) or loose.get(folded(name)) or self._split(name)[0]

    def _split(self, name: str) -> tuple[list[Column], str]:
        """What a heading with a unit may be, and the unit; one without brackets counts where a unit is declared."""
        exact, loose = self._spelled
        for base, unit, bracketed in trial_units.splits(name):
            may = [c for c in exact.get(tidy(base)) or loose.get(folded(base)) or () if c.part in PARTS]
            declared = [self.units[c] for c in may if c in self.units]
            if any(trial_units.same(unit, d) for d in declared) or (
                trial_units.is_one(unit) and (declared or (may and bracketed))
            ):
                return may, unit
        return [], ""

    def _has_other_unit(self, name: str, column: Column) -> str | None:
        """How the unit in a heading is not the declared one; None: it is, or there is none in one of them."""
        exact, loose = self._spelled
        declared = self.units.get(column, "")
        if not declared or tidy(name) in exact or folded(name) in loose:
            return None
        if trial_units.same(unit := self._split(name)[1], declared):
            return None
        plain = self.named(column.part, column.name)
        return (
            f"column {name!r} is in {unit}, and {plain} of the trial in {declared}: convert the values, or call the "
            f"column {plain!r} if they are in {declared}"
        )

    def read(self, table: Table, ignore: Iterable[str] = (), *, asks: bool = False) -> dict[str, Column]:
        """What the columns of a sheet are; those that nobody knows are left out.

        One that asks has columns for users and places, whatever metrics are called.
        """
        ignored = {folded(name) for name in ignore}
        names = [name for name in table.names if name and folded(name) not in ignored]
        long = {tidy(column.long): column for column in self.all if column.part in PARTS}
        loose = {folded(column.long): column for column in self.all if column.part in PARTS}
        known = ((name, long.get(name) or loose.get(folded(name))) for name in names)
        there = {column: name for name, column in known if column is not None}
        found: dict[str, Column] = {}
        for name in names:
            may = [column for column in self.meant(name) if there.get(column, name) == name]
            if asks and any(column.part == SHEET for column in may):
                may = [column for column in may if column.part not in (METRIC, CONTROL)]
            if len(may) > 1:
                own = [column.long for column in may if column.part != SHEET]
                they = "them" if len(own) > 1 else "the second"
                may_be = " or ".join(map(str, may))
                raise InputError(f"column {name!r} may be {may_be}; call {they} {' and '.join(own)}")
            if may and (other := self._has_other_unit(name, may[0])):
                if asks and may[0].part in (METRIC, CONTROL):  # which asking does not look at
                    continue
                raise InputError(other)
            if may:
                again = next((other for other, column in found.items() if column == may[0]), None)
                if again is not None:
                    raise InputError(f"columns {again!r} and {name!r} are the same: {may[0]}; leave one of them")
                found[name] = may[0]
        return found

    def unknown(self, table: Table, found: Mapping[str, Column], ignore: Iterable[str] = ()) -> list[str]:
        """Columns with something in them that nobody knows. A number is no name: a line end was lost before it."""
        ignored = {folded(name) for name in ignore}
        names = (n for n in table.names if n and n not in found and folded(n) not in ignored)
        return [name for name in names if _NUMBER.fullmatch(name) or any(True for _ in table.column(name))]

    def refuse(self, name: str) -> None:
        """Say that a column is not known."""
        known = {column.long if column.part == CONTROL else column.name for column in self.all}
        meant = usual(name)
        raise UnknownNameError("column", name, known, meant=meant if meant in known else None)


def _declared(spec: TrialSpec) -> dict[Column, str]:
    """The units in the trial file."""
    parts: list[tuple[str, Mapping[str, Metric | ContextField | Attribute]]] = [
        (METRIC, spec.metrics), (CONTROL, spec.metrics), (CONTEXT, spec.context), (ATTRIBUTE, spec.attributes)
    ]  # fmt: skip
    return {Column(part, name): x.unit for part, named in parts for name, x in named.items() if x.unit}


def marks_of(table: Table, found: Mapping[str, Column], numeric: Collection[Column]) -> Marks:
    """How the numbers of a sheet are written."""
    names = [name for name, column in found.items() if column in numeric]
    return marks(table.separator, (cell for name in names for cell in table.column(name)))


def refuse_split_decimals(
    table: Table, found: Mapping[str, Column], numeric: Collection[Column], ignore: Iterable[str] = ()
) -> None:
    """A number beside a column for people that has digits only: 400,5 may have been one number."""
    if table.separator != ",":
        return
    ignored = {folded(name) for name in ignore}
    errors: dict[int, str] = {}
    for left, right in zip(table.names, table.names[1:], strict=False):
        passed_over = right not in found or found[right].part == NOTE
        if found.get(left) not in numeric or not passed_over or folded(right) in ignored:
            continue
        for row in table.rows:
            pair = [str(row.cells.get(name, "")) for name in (left, right)]
            if (decimal := decimal_by_comma(pair)) is not None:
                errors[row.number] = (
                    f"{left} {pair[0]} and {right} {pair[1]!r}, or {left} {decimal} with a decimal comma? Write "
                    f"{decimal.replace(',', '.')}, or words in {right}"
                )
    refuse(errors)
