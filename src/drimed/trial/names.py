"""Names that people type: one form for all that look alike, and none that cannot be seen.

A name is kept in Unicode's form NFKC and without spaces around it, so that full width, composed or decomposed letters
make no twins.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Hashable, Iterable
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
_CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")


def tidy(name: str) -> str:
    """A name in the one form of it.

    >>> tidy(" ｎorth "), tidy("Mu\N{COMBINING DIAERESIS}ller") == "Müller"
    ('north', True)
    """
    return (name if name.isascii() else unicodedata.normalize("NFKC", name)).strip(_SPACES)


def folded(name: str) -> str:
    """The same without the difference between capital and small letters: for the names of columns."""
    return unicodedata.normalize("NFKC", tidy(name).casefold())


def hidden(name: str) -> str | None:
    """A character that is not to be seen, or that changes how the others are shown; None: there is none.

    >>> hidden("nor\N{ZERO WIDTH SPACE}th"), hidden("north")
    ('U+200B', None)
    """
    if name.isascii() and name.isprintable():
        return None
    for c in name:
        never = ord(c) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(c) <= 0xFDEF  # no character at all, and in no workbook
        if never or ord(c) in _INVISIBLE or unicodedata.category(c) in _CONTROL:
            return f"U+{ord(c):04X}"
    return None


def first_twice(names: Iterable[T]) -> T | None:
    """The first name or number that comes again."""
    seen: set[T] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None
