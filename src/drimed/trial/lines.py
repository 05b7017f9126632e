"""Where in a TOML text a value stands, so that an error can point at its line.

tomllib reads values and forgets places. A value's line is found by reading beginnings of the text: it is on the first
line after which the value is there.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from drimed.errors import Fault, SpecError

Path = tuple[str | int, ...]
_LINE = re.compile(r"\(at line (\d+), column (\d+)\)")
# What may be missing at the end of a beginning that was cut inside a value.
_CLOSINGS = ("", "\n]", "\n]]", "\n]]]", "\n]}", "\n]}]")


def parse(text: str) -> dict[str, Any]:
    """The data, or a SpecError that says where the text is not TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _LINE.search(str(error))
        message = _LINE.sub("", str(error)).strip()
        raise SpecError([Fault((), f"not TOML: {message}", int(found[1]) if found else None)]) from None


def line_of(text: str, path: Path) -> int | None:
    """The line of the value at `path`, or of the deepest part of the path that is there.

    >>> line_of('name = "t"\\n[arms.a]\\nmap = [\\n  [1],\\n  ["x"],\\n]\\n', ("arms", "a", "map", 1, 0))
    5
    """
    whole = tomllib.loads(text)
    while path and not _holds(whole, path):
        path = path[:-1]
    rows = text.splitlines()
    low, high = 0, len(rows) if path else 0
    # What a beginning holds, every longer one holds too: halve the range where the first such beginning ends.
    while high - low > 1:
        middle = (low + high) // 2
        candidates = (*range(middle, high), *range(middle - 1, low, -1))
        n, data = next(((n, d) for n in candidates for d in _beginning("\n".join(rows[:n]))), (0, None))
        if n == 0:
            break
        low, high = (low, n) if _holds(data, path) else (n, high)
    for n in range(low + 1, high + 1):
        if any(_holds(data, path) for data in _beginning("\n".join(rows[:n]))):
            return n
    return None


def _beginning(text: str) -> list[Any]:
    """What the beginning of a text says, if it can be read once its open brackets are closed."""
    for closing in _CLOSINGS:
        try:
            return [tomllib.loads(text + closing)]
        except tomllib.TOMLDecodeError:
            continue
    return []


def _holds(data: Any, path: Path) -> bool:
    for key in path:
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return False
    return True
