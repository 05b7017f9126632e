"""From cells to values: numbers as people and spreadsheets write them, and what stands for a missing one.

A number that could be read in two ways is refused, with both readings.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from drimed.errors import InputError
from drimed.trial.sentences import short

MISSING = frozenset({"", "na", "n/a", "n.a.", "n.a", "#n/a", "-", "–", "—", "\N{MINUS SIGN}"})
WORKBOOK = "workbook"  # what separates the cells of one, for `marks`
FORMULA = "=+-@\t\r"  # what a spreadsheet takes for the beginning of a formula
_STARTS = frozenset(FORMULA)
_POINT = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)
_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?", re.ASCII)
_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}[.,]\d{3}", re.ASCII)  # 1.234: a decimal, or one thousand
_JOINED = re.compile(r"[+-]?\d{1,3}(?:[ \u00a0\u2009\u202f_'’.,]\d+)+(?:[.,]\d+)?", re.ASCII)


@dataclass(frozen=True)
class Marks:
    """How the numbers of a sheet are written."""

    comma: bool = False  # whether a decimal comma is possible: cells are not separated by commas
    seen: frozenset[str] = frozenset()  # decimal marks that are beyond doubt


POINT = Marks()
# One number that somebody types: with a point, as everywhere in our documents; a comma is as good where it is plain.
TYPED = Marks(comma=True, seen=frozenset("."))


def marks(separator: str, cells: Iterable[Any]) -> Marks:
    """How the numbers are written in these cells.

    >>> marks(";", ["8,7", "1,234", "12"])
    Marks(comma=True, seen=frozenset({','}))
    """
    if separator not in (";", "\t", WORKBOOK):
        return POINT
    texts = [c for cell in cells if isinstance(cell, str) and not _GROUPED.fullmatch(c := _with_hyphen(cell))]
    seen = {","} if any(_COMMA.fullmatch(t) for t in texts) else set()
    return Marks(True, frozenset(seen | ({"."} if any("." in t and _POINT.fullmatch(t) for t in texts) else set())))


def typed_marks(texts: Iterable[str]) -> Marks:
    """How numbers that somebody types together are written.

    >>> number("yield", "7,2", typed_marks(["7,2"])), number("yield", "1.234", typed_marks(["1.234"]))
    (7.2, 1.234)
    """
    found = marks(WORKBOOK, texts)
    return found if found.seen else TYPED


def is_missing(value: Any) -> bool:
    """Whether a cell for a number says that there is none.

    >>> [is_missing(text) for text in ("", "NA", "n.a.", "-", "0")]
    [True, True, True, True, False]
    """
    return value is None or (isinstance(value, str) and value.strip().casefold() in MISSING)


def number(name: str, value: Any, written: Marks = POINT) -> float:
    """A cell as a finite number.

    >>> number("yield", "\N{MINUS SIGN}8,7", Marks(comma=True))
    -8.7
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise InputError(f"{name} must be a number, got {short(value)}")
    if isinstance(value, str):
        return _finite(name, value, _parsed(name, _with_hyphen(value), written))
    try:
        return _finite(name, value, float(value))
    except OverflowError:
        return _finite(name, value, float("inf"))


def text(value: Any) -> str:
    """A cell as a text: a number as it is written without needless decimals.

    >>> text("north"), text(7.0), text(7.5)
    ('north', '7', '7.5')
    """
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def guarded(value: Any) -> Any:
    """A cell as it is written to CSV: no text is ever a formula.

    >>> guarded("=1+1"), guarded(-1.5), guarded("north"), guarded(None)
    ("'=1+1", -1.5, 'north', '')
    """
    if isinstance(value, str):
        return f"'{value}" if value.lstrip()[:1] in _STARTS else value
    return "" if value is None else value


def unguarded(cell: str) -> str:
    """What `guarded` has written."""
    return cell[1:] if cell[:1] == "'" and cell[1:].lstrip()[:1] in _STARTS else cell


def _parsed(name: str, given: str, written: Marks) -> float:
    if _POINT.fullmatch(given):
        if written.comma and _GROUPED.fullmatch(given) and written.seen != {"."}:
            raise InputError(_two_readings(name, given, "."))
        return float(given)
    if _COMMA.fullmatch(given):
        if _GROUPED.fullmatch(given) and (not written.comma or written.seen != {","}):
            raise InputError(_two_readings(name, given, ","))
        if written.comma:
            return float(given.replace(",", "."))
        raise InputError(f"{name} must be a number, got {short(given)}; write decimals with a point")
    if given.strip().casefold().lstrip("+-") in ("nan", "inf", "infinity"):
        raise InputError(f"{name} must be finite, got {short(given)}; leave the cell empty if it is not known")
    hint = "; write digits only, with a point for decimals, such as 1234.5" if _JOINED.fullmatch(given) else ""
    raise InputError(f"{name} must be a number, got {short(given)}{hint}")


def _two_readings(name: str, given: str, mark: str) -> str:
    whole, _, digits = given.partition(mark)
    both = f"{whole}{digits} or as {whole}.{digits}"
    return f"{name} {given} can be read as {both}; write {whole}{digits} or {whole}.{digits}0"


def _finite(name: str, given: Any, value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise InputError(f"{name} must be finite, got {short(given)}; leave the cell empty if it is not known")
    return value


def _with_hyphen(text: str) -> str:
    return text.strip().replace("\N{MINUS SIGN}", "-")
