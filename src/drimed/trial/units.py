"""Units in the headings of sheets, as people write them: `Yield (t/ha)`, `yield [t ha-1]`, `yield, t/ha`, `rain_mm`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from drimed.trial.names import tidy

_BRACKETS = re.compile(r"(.+?)\s*(?:\(([^()]+)\)|\[([^\[\]]+)\]|\{([^{}]+)\})")
_SEPARATOR = re.compile(r"\s*[,;:/_]\s*|\s+")
_WORD = re.compile(r"/|[^\s/·*×]+")
_POWER = re.compile(r"([^\d^+-]+)(?:\^?([+-]?\d+))?")
_PREFIXES = "mp"  # milli or mega, pico or peta: here capital and small letters are different units
_KNOWN = frozenset({
    "t", "dt", "kg", "g", "mg", "μg", "ug", "ng", "lb", "lbs", "oz", "bu", "ha", "ac", "acre", "acres", "m", "km",
    "cm", "mm", "l", "dl", "hl", "ml", "μl", "mol", "mmol", "μmol", "s", "sec", "min", "h", "hr", "hrs", "d", "day",
    "days", "week", "weeks", "month", "months", "yr", "year", "years", "%", "‰", "ppm", "ppb", "°c", "°f", "kj", "mj",
    "kcal", "cal", "kw", "kwh", "wh", "pa", "kpa", "hpa", "bar", "mbar", "mmhg", "mv", "db", "hz", "khz", "bpm", "eur",
    "usd", "gbp", "chf", "€", "$", "£", "¥", "iu", "plant", "plants", "point", "points", "score",
})  # fmt: skip


def splits(heading: str) -> Iterator[tuple[str, str, bool]]:
    """What a heading may be made of: a name, a unit, and whether that is in brackets.

    >>> list(splits("Yield (t/ha)")), list(splits("yield, t/ha"))[0]
    ([('Yield', 't/ha', True)], ('yield', 't/ha', False))
    """
    heading = tidy(heading)
    if (found := _BRACKETS.fullmatch(heading)) is not None:
        yield found[1], next(filter(None, found.groups()[1:])).strip(), True
        return
    for mark in _SEPARATOR.finditer(heading):
        if mark.start() and mark.end() < len(heading):
            yield heading[: mark.start()], heading[mark.end() :], False


def same(one: str, other: str) -> bool:
    """Whether two texts are one unit.

    >>> same("t/ha", "t ha⁻¹"), same("t/ha", "T/HA"), same("mg", "Mg"), same("t/ha", "kg/ha")
    (True, True, False, False)
    """
    a, b = _factors(one), _factors(other)
    return len(a) == len(b) and all(
        p == q and _alike(x, y) for (x, p), (y, q) in zip(sorted(a, key=_order), sorted(b, key=_order), strict=True)
    )


def is_one(text: str) -> bool:
    """Whether a text is a common unit, and no other word that people put behind a name.

    >>> is_one("kg/ha"), is_one("mm"), is_one("control"), is_one("2025")
    (True, True, False, False)
    """
    return all(name.casefold() in _KNOWN for name, _ in _factors(text))


def _factors(unit: str) -> list[tuple[str, int]]:
    """What is multiplied in a unit, with its powers; a text that is none is one factor."""
    text = tidy(unit).replace("\N{MINUS SIGN}", "-")
    found, sign = [], 1
    for word in _WORD.findall(text):
        if word in ("/", "per"):
            sign = -1
        elif (power := _POWER.fullmatch(word)) is not None:
            found.append((power[1], sign * int(power[2] or 1)))
        else:
            return [("".join(text.split()), 1)]
    return found


def _order(factor: tuple[str, int]) -> tuple[str, int]:
    return factor[0].casefold(), factor[1]


def _alike(one: str, other: str) -> bool:
    if one.casefold() != other.casefold():
        return False
    return len(one) == len(other) and all(
        x == y or x.casefold() not in _PREFIXES for x, y in zip(one, other, strict=True)
    )
