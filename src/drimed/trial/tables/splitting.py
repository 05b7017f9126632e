"""From the text of a sheet to its cells, strictly: a doubt about where a cell ends is an error with its row.

Cells are separated by commas, semicolons or tabs; a first line `sep=;` says which. A cell in quotes may hold separators
and line ends, and a quote is written twice in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from drimed.errors import InputError

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}
LONGEST = 128 * 1024  # characters of a cell
_SEP = re.compile(r'"?sep=(.)"?[,;\t ]*', re.IGNORECASE)
_QUOTED = re.compile(r'[ ]*"([^"]*+(?:""[^"]*+)*+)"[ ]*')
_INTEGER, _DIGITS = re.compile(r"[+\N{MINUS SIGN}-]?\d+", re.ASCII), re.compile(r"\d+", re.ASCII)


@dataclass(frozen=True)
class Line:
    """A row of a sheet as it was written."""

    number: int  # as a spreadsheet counts, from 1
    cells: list[Any]  # texts without spaces around them; those of a workbook have their types


def split(text: str) -> tuple[str, list[Line]]:
    """The separator, and the rows that have something in them."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    head, _, rest = text.partition("\n")
    said = _SEP.fullmatch(head.strip(" "))
    if said is not None:
        separator, text = said[1], rest
        if separator not in SEPARATORS:
            raise InputError(f"the first line says that cells are separated by {separator!r}; use commas, ; or tabs")
    else:
        separator = _separator(text)
    lines = [line for line in _lines(text, separator) if any(line.cells)]
    return separator, lines


def decimal_by_comma(cells: Sequence[Any]) -> str | None:
    """Two cells that may be one number with a decimal comma, as they would be written; None: there are none.

    >>> decimal_by_comma(["1", "north", "8", "7", ""]), decimal_by_comma(["1", "north", "8.7", "7"])
    ('8,7', None)
    """
    for left, right in pairwise(map(str, cells)):
        if _INTEGER.fullmatch(left) and _DIGITS.fullmatch(right):
            return f"{left},{right}"
    return None


def _separator(text: str) -> str:
    """What separates most cells of the first row."""
    counts: dict[str, int] = {}
    for separator in SEPARATORS:
        try:
            first = next((line for line in _lines(text, separator) if any(line.cells)), None)
        except InputError:
            continue  # quotes do not fit together with this one
        counts[separator] = 0 if first is None else len(first.cells)
    if not counts:
        next((line for line in _lines(text, ",") if any(line.cells)), None)  # says what is wrong with the quotes
    best = max(counts.values())
    found = [separator for separator, n in counts.items() if n == best]
    if best > 1 and len(found) > 1:
        names = " or ".join(SEPARATORS[s] for s in found)
        raise InputError(f"row 1: are cells separated by {names}? Say so in a first line, such as sep=;")
    return found[0]


def _lines(text: str, separator: str) -> Iterator[Line]:
    plain = re.compile(rf"[^{separator}\n]*")
    at, number, end = 0, 1, len(text)
    while at < end:
        cells: list[str] = []
        while True:
            quoted = _QUOTED.match(text, at)
            if quoted is not None:
                cell, at = quoted[1].replace('""', '"'), quoted.end()
                _refuse_swallowed_rows(cell, separator, number)
            else:
                unquoted = plain.match(text, at)
                assert unquoted is not None  # it may be empty
                cell, at = unquoted[0], unquoted.end()
                _refuse_stray_quotes(cell, separator, number)
            if len(cell) > LONGEST:
                raise InputError(f"row {number}: a cell is too long; is a quote not closed?")
            cells.append(cell.strip())
            if at >= end or text[at] == "\n":
                at += 1
                break
            if text[at] != separator:
                rest = text[at : at + 20].split("\n")[0]
                raise InputError(
                    f"row {number}: {rest!r} follows a closing quote; is a quote missing, or one too many?"
                )
            at += 1
        yield Line(number, cells)
        number += 1


def _refuse_stray_quotes(cell: str, separator: str, number: int) -> None:
    if cell.lstrip().startswith('"'):
        raise InputError(f"row {number}: a quote is opened and never closed: {cell.strip()[:40]!r}")
    if '"' in cell and separator != "\t":  # what is copied from a spreadsheet has quotes as they are
        raise InputError(
            f"row {number}: there is a quote inside of {cell.strip()[:40]!r}; put the whole cell in quotes, and write "
            "the quote inside of it twice"
        )


def _refuse_swallowed_rows(cell: str, separator: str, number: int) -> None:
    """A quote that is closed rows later may have been meant to end in its own row."""
    if "\n" in cell and any(separator in line for line in cell.split("\n")[1:]):
        raise InputError(
            f"row {number}: a cell in quotes goes on over several lines, and they look like rows; is a quote not "
            f"closed? It begins with {cell[:40]!r}"
        )
