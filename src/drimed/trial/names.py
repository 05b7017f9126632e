"""Names: one form for all that look alike and none that cannot be seen; names of columns; codes of arms.

A name is kept in Unicode's form NFKC and without spaces around it, so that full width, composed or decomposed letters
make no twins.
"""

from __future__ import annotations

import hashlib
import hmac
import unicodedata
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import count
from typing import TypeVar

T = TypeVar("T", bound=Hashable)

# Characters without a shape of their own that are not of a category that says so.
_INVISIBLE = frozenset(
    {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x180B, 0x180C, 0x180D, 0x180F, 0x2800, 0x3164, 0xFFA0}
    | set(range(0xFE00, 0xFE10))
    | set(range(0xFFF0, 0xFFF9))
    | set(range(0xE0000, 0xE1000))
)
_SPACES = " \N{OGHAM SPACE MARK}"  # what is left of all kinds of spaces; line ends are refused and not passed over


def tidy(name: str) -> str:
    """A name in its one form.

    >>> tidy(" ｎorth "), tidy("Mu\N{COMBINING DIAERESIS}ller") == "Müller"
    ('north', True)
    """
    return (name if name.isascii() else unicodedata.normalize("NFKC", name)).strip(_SPACES)


def folded(name: str) -> str:
    """The same without the difference between capital and small letters: for the names of columns."""
    return unicodedata.normalize("NFKC", tidy(name).casefold())


def hidden(name: str) -> str | None:
    """A character that is invisible, or that changes how the others are shown; None: there is none.

    >>> hidden("nor\N{ZERO WIDTH SPACE}th"), hidden("north")
    ('U+200B', None)
    """
    if name.isascii() and name.isprintable():
        return None
    for c in name:
        never = ord(c) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(c) <= 0xFDEF  # no character at all, and in no workbook
        if never or ord(c) in _INVISIBLE or unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            return f"U+{ord(c):04X}"
    return None


def is_whole(text: str) -> bool:
    """True if a text has no lone surrogate, which no file can hold."""
    return text.isascii() or not any("\ud800" <= c <= "\udfff" for c in text)


def first_twice(names: Iterable[T]) -> T | None:
    """The first name or number that comes again."""
    before: set[T] = set()
    for name in names:
        if name in before:
            return name
        before.add(name)
    return None


def short(value: object) -> str:
    """A value as a message shows it."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # thousands of digits, or of lists in lists
        return "something too long to show"
    return text if len(text) <= 60 else text[:57] + "..."


# Names of columns

# Columns that sheets have of their own, whatever the trial.
OWN_COLUMNS = ("decision", "episode", "user", "plot", "block", "cohort", "group", "arm", "propensity", "reason")
CODE = "code"
FREE_COLUMNS = ("season", "date", CODE)  # the same, where the trial uses the word for nothing else
NOTE_COLUMNS = ("note", "notes", "comment", "comments", "remark", "remarks")  # for people, and never recorded
METRIC, CONTROL, CONTEXT, ATTRIBUTE = "metric", "control", "context", "attribute"
PARTS = (METRIC, CONTROL, CONTEXT, ATTRIBUTE)  # a column of a trial is called `metric.yield`, or `yield` in short
RESERVED = (*OWN_COLUMNS, *NOTE_COLUMNS)


def control_plot(metric: str) -> str:
    """The name of the control plot's value of a metric, in sheets, messages and exports.

    >>> control_plot("yield")
    'control.yield'
    """
    return f"{CONTROL}.{metric}"


# Codes of arms

CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # without those that are easily mistaken for each other
CODE_LENGTH = 4  # about a million codes


def arm_codes(seed: int, arms: Sequence[str], declared: Mapping[str, str]) -> dict[str, str]:
    """The code of each arm: from the file, or drawn from the seed so that it tells nothing about the arm or the seed.

    >>> codes = arm_codes(7, ("old", "new"), {})
    >>> sorted(map(len, codes.values()))
    [4, 4]
    >>> arm_codes(7, ("old", "new", "third"), {"old": "A", "new": "B"})["new"]
    'B'
    """

    def drawn(arm: str) -> Iterator[str]:
        for attempt in count():
            message = f"code of arm {attempt} {arm}".encode()
            digest = hmac.new(seed.to_bytes(8, "big"), message, hashlib.sha256).digest()
            yield "".join(CODE_LETTERS[byte % len(CODE_LETTERS)] for byte in digest[:CODE_LENGTH])

    taken = {folded(text) for text in (*arms, *declared.values())}
    codes = {}
    for arm in arms:
        code = declared.get(arm) or next(c for c in drawn(arm) if folded(c) not in taken)
        taken.add(folded(code))
        codes[arm] = code
    return codes
