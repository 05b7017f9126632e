"""Columns of sheets, whatever their spelling.

A metric, a context field or an attribute is a column of its own name, or of that name after `metric.`, `context.` or
`attribute.`; values of a control plot come after `control.`. A unit may follow the name; another one than the trial
file declares is refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from drimed.errors import InputError, UnknownNameError
from drimed.trial import tables
from drimed.trial.names import (
    ATTRIBUTE,
    CONTEXT,
    CONTROL,
    FREE_COLUMNS,
    METRIC,
    NOTE_COLUMNS,
    OWN_COLUMNS,
    PARTS,
    folded,
    tidy,
)
from drimed.trial.problem import Problem
from drimed.trial.spec import TrialSpec
from drimed.trial.tables import Marks, Table, refuse

SHEET, NOTE = "sheet", "note"  # parts of columns beside those of the trial
USUAL_WORDS = {  # for the sheet's own columns: for hints, and never read as such
    "user": ("farm", "farmer", "grower", "site", "field", "location", "clinic", "patient", "shop", "reader"),
    "plot": ("parcel", "plot no", "plot no.", "plot number"),
    "arm": ("treatment", "variant"),
    "season": ("year",),
}
_NUMBER = re.compile(r"[+-]?[\d.,]+")


# Units, as people write them: `Yield (t/ha)`, `yield [t ha-1]`, `yield, t/ha`, `rain_mm`

_BRACKETS = re.compile(r"(.+?)\s*(?:\(([^()]+)\)|\[([^\[\]]+)\]|\{([^{}]+)\})")
_SEPARATOR = re.compile(r"\s*[,;:/_]\s*|\s+")
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


def split_unit(heading: str) -> Iterator[tuple[str, str, bool]]:
    """The ways to split a heading into a name and a unit, and whether that is in brackets.

    >>> list(split_unit("Yield (t/ha)")), list(split_unit("yield, t/ha"))[0]
    ([('Yield', 't/ha', True)], ('yield', 't/ha', False))
    """
    heading = tidy(heading)
    if (match := _BRACKETS.fullmatch(heading)) is not None:
        yield match[1], next(filter(None, match.groups()[1:])).strip(), True
        return
    for mark in _SEPARATOR.finditer(heading):
        if mark.start() and mark.end() < len(heading):
            yield heading[: mark.start()], heading[mark.end() :], False


def same_unit(one: str, other: str) -> bool:
    """True if two texts are one unit.

    >>> same_unit("t/ha", "t ha⁻¹"), same_unit("t/ha", "T per HA"), same_unit("mg", "Mg"), same_unit("t/ha", "kg/ha")
    (True, True, False, False)
    """

    def key(unit: str) -> str:
        return "".join(c if c.casefold() in _PREFIXES else c.casefold() for c in _TIMES.sub("", _with_slashes(unit)))

    return key(one) == key(other)


def is_unit(text: str) -> bool:
    """True if a text is a common unit, and no other word that people put behind a name.

    >>> is_unit("kg/ha"), is_unit("mm"), is_unit("control"), is_unit("2025")
    (True, True, False, False)
    """
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
        return f"{self.part}.{self.name}" if self.part in PARTS else self.name

    @property
    def heading(self) -> str:
        """Its name where it is written."""
        return self.long if self.part == CONTROL else self.name

    def __str__(self) -> str:
        if self.part == CONTROL:
            return f"the control plot's {self.long!r}"
        kinds = {CONTEXT: "context field", SHEET: "the sheet's own column"}
        return f"{kinds.get(self.part, self.part)} {self.name!r}"


DECISION, USER, ARM, SEASON = (Column(SHEET, name) for name in ("decision", "user", "arm", "season"))
NOTES = Column(NOTE, "notes")

Cells = Mapping[Column, Any]


@dataclass(frozen=True)
class Columns:
    """The columns that a sheet of a trial may have."""

    metrics: Sequence[str]
    fields: Sequence[str]
    attributes: Sequence[str]
    units: Mapping[Column, str] = field(default_factory=dict)  # as declared

    @staticmethod
    def of(problem: Problem) -> Columns:
        """Those of a trial."""
        return Columns(
            problem.metrics, problem.fields, list(problem.covariates.attributes), _declared_units(problem.spec)
        )

    @staticmethod
    def of_metrics(spec: TrialSpec) -> Columns:
        """Those of a table of outcomes of a trial like this."""
        return Columns(list(spec.metrics), (), (), _declared_units(spec))

    @cached_property
    def all(self) -> list[Column]:
        """Every one of them; seasons and notes only if the trial uses these words for nothing else."""
        named = [(METRIC, self.metrics), (CONTROL, self.metrics), (CONTEXT, self.fields), (ATTRIBUTE, self.attributes)]
        columns = [Column(SHEET, name) for name in OWN_COLUMNS]
        columns += [Column(part, name) for part, names in named for name in names]
        used = {folded(column.name) for column in columns}
        free = [(SHEET, name) for name in FREE_COLUMNS] + [(NOTE, name) for name in NOTE_COLUMNS]
        return columns + [Column(part, name) for part, name in free if name not in used]

    @cached_property
    def _by_heading(self) -> dict[str, Column]:
        headings = {folded(column.long): column for column in self.all}
        return {folded(column.name): column for column in self.all if column.part != CONTROL} | headings

    def match(self, heading: str) -> tuple[Column | None, str]:
        """The meaning of a heading, and the unit in it; a unit without brackets must be declared."""
        if (column := self._by_heading.get(folded(heading))) is not None:
            return column, ""
        for base, unit, bracketed in split_unit(heading):
            column = self._by_heading.get(folded(base))
            if column is not None and column.part in PARTS:
                declared = self.units.get(column, "")
                if same_unit(unit, declared) or (is_unit(unit) and (declared or bracketed)):
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
                raise InputError(f"columns {again!r} and {heading!r} are the same: {column}; leave one of them")
            meanings[heading] = column
        return meanings

    def refuse(self, name: str) -> None:
        """Raise an unknown column."""
        known = {column.heading for column in self.all}
        usual = usual_word(name)
        raise UnknownNameError("column", name, known, meant=usual if usual in known else None)


class Sheet:
    """A table, and the meanings of its columns; `numeric` ones hold numbers."""

    def __init__(
        self, columns: Columns, table: Table, numeric: Collection[Column], ignore: Iterable[str], *, asks: bool = False
    ) -> None:
        self.columns, self.table, self.numeric = columns, table, numeric
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
        return [name for name in names if _NUMBER.fullmatch(name) or any(True for _ in self.table.column(name))]

    @cached_property
    def marks(self) -> Marks:
        """The decimal marks.

        A number beside a column for people that has digits only is refused: 400,5 may have been one number.
        """
        errors: dict[int, str] = {}
        for left, right in pairwise(self.table.names) if self.table.separator == "," else ():
            passed_over = right not in self.meanings or self.meanings[right].part == NOTE
            if self.meanings.get(left) not in self.numeric or not passed_over or folded(right) in self.ignored:
                continue
            for row in self.table.rows:
                pair = [str(row.cells.get(name, "")) for name in (left, right)]
                if (decimal := tables.decimal_by_comma(pair)) is not None:
                    errors[row.number] = (
                        f"{left} {pair[0]} and {right} {pair[1]!r}, or {left} {decimal} with a decimal comma? Write "
                        f"{decimal.replace(',', '.')}, or words in {right}"
                    )
        refuse(errors)
        names = [name for name, column in self.meanings.items() if column in self.numeric]
        return tables.marks(self.table.separator, (cell for name in names for cell in self.table.column(name)))


def usual_word(heading: str) -> str | None:
    """The sheet's own column for which people use this word."""
    return next((own for own, words in USUAL_WORDS.items() if folded(heading) in words), None)


def _declared_units(spec: TrialSpec) -> dict[Column, str]:
    units = {Column(part, name): m.unit for name, m in spec.metrics.items() for part in (METRIC, CONTROL)}
    units |= {Column(CONTEXT, name): c.unit for name, c in spec.context.items()}
    units |= {Column(ATTRIBUTE, name): a.unit for name, a in spec.attributes.items()}
    return {column: unit for column, unit in units.items() if unit}
