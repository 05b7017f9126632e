"""The text of an event's body, and the long lists of numbers in it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

_LONG = 1000  # characters of a body from which its lists are read one by one
LISTS = ("probabilities", "estimate", "half", "without")  # of a decision, in this order: one number for each arm


def read_body(text: str, left_out: Sequence[str] = ()) -> dict[str, Any]:
    """The body of an event from its text; lists of numbers that are left out are None.

    Decisions that were taken together often have the same lists: each is read once.

    >>> read_body('{"arm":"a","half":[1.0,2.0]}')
    {'arm': 'a', 'half': [1.0, 2.0]}
    """
    if len(text) < _LONG:
        data: dict[str, Any] = json.loads(text)
        return data | dict.fromkeys(name for name in left_out if name in data) if left_out else data
    pieces, cut = cut_lists(text)
    lists = {name: None if name in left_out else list(_numbers(numbers)) for name, numbers in cut.items()}
    data = json.loads("null".join(pieces))
    return data | lists


def cut_lists(text: str) -> tuple[list[str], dict[str, str]]:
    """The text of a body without its lists of numbers, in pieces, and the lists that belong between them.

    >>> cut_lists('{"arm":"a","half":[1.0,2.0]}')
    (['{"arm":"a","half":', '}'], {'half': '[1.0,2.0]'})
    """
    pieces: list[str] = []
    lists: dict[str, str] = {}
    at = 0
    for name in LISTS:
        # No text that somebody typed can look like this: its quotes have backslashes.
        start = text.find(f'"{name}":[', at) + len(name) + 3
        end = text.find("]", start) + 1
        if start > at + len(name) + 2 and end:
            pieces.append(text[at:start])
            lists[name], at = text[start:end], end
    return [*pieces, text[at:]], lists


def quoted(text: str) -> str:
    """A text as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def whole_text(pieces: Sequence[str], lists: Sequence[str]) -> str:
    """What was cut, put together again."""
    return "".join(part for pair in zip(pieces, [*lists, ""], strict=True) for part in pair)


@lru_cache(128)
def _numbers(text: str) -> tuple[float, ...]:
    return tuple(json.loads(text))
