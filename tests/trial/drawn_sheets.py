"""Random sheets with a plain model of what they mean: the values, and whether a reader may refuse them.

A sheet is drawn as decisions with numbers, then written as some person or program would: separators, quotes, decimal
marks, encodings, spare rows and columns. Then it may be damaged: a quote that is not closed, a decimal comma between
cells that are separated by commas, a cell that is lost or doubled. What is written without damage must be read as it
was meant. What is damaged, or has a number that can be read in two ways, must be read as it was meant or be refused.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

METRICS = ("yield", "leaching")
USERS = ("north", "Müller", "field, 7", 'the "old" one', "río")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "cp1252")
ENDS = ("\n", "\r\n", "\r")
MISSING = ("", "", "NA", "N/A", "n/a", "n.a.", "-")

Values = dict[int | str, dict[str, float]]  # decision -> metric -> value; or user -> attribute -> value


@dataclass(frozen=True)
class Drawn:
    """A sheet, and what it means."""

    data: bytes
    meant: Values
    sound: bool  # whether it must be read; otherwise it may be refused


def drawn(rng: random.Random) -> Drawn:
    """One sheet."""
    separator = rng.choice((",", ";", "\t"))
    comma = separator != "," and rng.random() < 0.5  # a decimal comma
    encoding, end = rng.choice(ENCODINGS), rng.choice(ENDS)
    names = ["decision", "user", *METRICS, *(["notes"] if rng.random() < 0.3 else [])]
    if rng.random() < 0.2:
        names = rng.sample(names, len(names))
    decisions = rng.sample(range(1, 5000), rng.randint(1, 6))
    meant: Values = {}
    sound = True
    lines = [[_header(rng, name) for name in names]]
    numbers: list[str] = []
    for decision in decisions:
        row = []
        for name in names:
            if name == "decision":
                row.append(str(decision))
            elif name == "user":
                row.append(USERS[decision % len(USERS)])
            elif name == "notes":
                row.append(rng.choice(("", "wet", "hail, twice", "it rained\nall day", 'the "big" one', "7")))
            elif rng.random() < 0.2:
                row.append(rng.choice(MISSING))
            else:
                text, value = _number(rng, comma)
                numbers.append(text)
                meant.setdefault(decision, {})[name] = value
                row.append(text)
        lines.append(row)
        if rng.random() < 0.1:
            lines.append([""] * rng.choice((1, len(names))))
    sound = not any(_grouped(text) for text in numbers) or separator == ","
    if separator == "," and "notes" in names:
        sound = sound and not any(line[names.index("notes")] == "7" for line in lines if len(line) == len(names))
    spare = rng.choice((0, 0, 0, 2))
    texts = [separator.join([_cell(rng, c, separator) for c in line] + [""] * spare) for line in lines]
    if rng.random() < 0.1:
        texts.insert(0, f"sep={separator}")
    text = end.join(texts) + rng.choice(("", end, end + end))
    if rng.random() < 0.4:
        text, sound = _damaged(rng, text, separator, end), False
    try:
        return Drawn(text.encode(encoding), meant, sound)
    except UnicodeEncodeError:  # not in Windows-1252
        return Drawn(text.encode("utf-8"), meant, sound)


def _header(rng: random.Random, name: str) -> str:
    return rng.choice((name, name, name.capitalize(), name.upper(), f" {name} "))


def _number(rng: random.Random, comma: bool) -> tuple[str, float]:
    digits = rng.randint(0, 4)
    value = round(rng.choice((1, 10, 1000)) * rng.random() * rng.choice((1, 1, -1)), digits)
    text = f"{value:.{digits}f}"
    value = float(text)
    if comma:
        text = text.replace(".", ",")
    return (text.replace("-", "\N{MINUS SIGN}") if rng.random() < 0.1 else text), value


def _grouped(text: str) -> bool:
    """Whether digits come as in 1.234."""
    whole, mark, rest = text.lstrip("-\N{MINUS SIGN}").replace(",", ".").partition(".")
    return bool(mark) and len(rest) == 3 and len(whole) <= 3 and whole[:1] not in ("", "0")


def _cell(rng: random.Random, cell: str, separator: str) -> str:
    if any(c in cell for c in f'{separator}"\n\r') or rng.random() < 0.05:
        return '"' + cell.replace('"', '""') + '"'
    return f" {cell}" if rng.random() < 0.05 and cell else cell


def _damaged(rng: random.Random, text: str, separator: str, end: str) -> str:
    lines = text.split(end)
    at = rng.randrange(len(lines))
    line = lines[at]
    kind = rng.randrange(10)
    if kind == 0:  # a quote that is opened and not closed, or closed and not opened
        cells = line.split(separator)
        where = rng.randrange(len(cells))
        cells[where] = rng.choice((f'"{cells[where]}', f'{cells[where]}"', f'x"{cells[where]}'))
        line = separator.join(cells)
    elif kind == 1:  # decimal commas in the place of points
        line = line.replace(".", ",")
    elif kind == 2:  # one cell more
        line += separator + rng.choice(("5", "x", "1.5"))
    elif kind == 3:  # marks for thousands
        line = line.replace("1", rng.choice(("1 0", "1_0", "1'0")), 1)
    elif kind == 4:  # a quote is lost
        line = line.replace('"', "", 1)
    elif kind == 5:  # a cell twice
        cells = line.split(separator)
        where = rng.randrange(len(cells))
        line = separator.join([*cells[:where], cells[where], *cells[where:]])
    elif kind == 6:  # the first cell is lost, and the others move
        line = line.partition(separator)[2]
    elif kind == 7 and at + 1 < len(lines):  # a line end is lost
        lines[at : at + 2] = [line + lines[at + 1]]
        return end.join(lines)
    elif kind == 8:  # decimal commas everywhere
        return text.replace(".", ",")
    else:  # text behind a closing quote
        line = line.replace('"' + separator, '"x' + separator, 1)
    lines[at] = line
    return end.join(lines)
