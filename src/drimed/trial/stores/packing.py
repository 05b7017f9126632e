"""Long texts of events in little room: compressed, against one that they share most of their words with.

Decisions that were taken together from one state often have the same probabilities and estimates, thousands of digits
each: only the first of them is kept in full, the others by what they differ in. The hash of an event is that of its
text, so nothing that is proven depends on how it is kept. A row that has a text is read as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drimed.records import Event

LEAST = 1000  # characters; shorter texts are kept as they are
TAIL = 200  # characters: texts that end with the same ones are probably alike
MOST_KEPT = 64  # texts that a reader remembers, because others are compressed against them
LEVEL = 6


class Row(NamedTuple):
    """A text as it is stored."""

    text: str  # empty: it is packed
    base: int | None  # the event whose text it is compressed against, which has none itself
    packed: bytes | None


def rows(events: Iterable[Event]) -> list[Row]:
    """How the texts of events that are written together are kept."""
    made: list[Row] = []
    bases: dict[str, tuple[int, bytes]] = {}
    for event in events:
        if len(event.text) < LEAST:
            made.append(Row(event.text, None, None))
            continue
        plain, tail = event.text.encode(), event.text[-TAIL:]
        seq, base = bases.setdefault(tail, (event.seq, plain))
        if seq == event.seq:
            made.append(Row("", None, zlib.compress(plain, LEVEL)))
        else:
            packer = zlib.compressobj(LEVEL, zdict=base)
            made.append(Row("", seq, packer.compress(plain) + packer.flush()))
    return made


class Reader:
    """Texts from stored rows; those that others need are fetched once and remembered for a while."""

    def __init__(self, fetch: Callable[[Sequence[int]], Mapping[int, Row]]) -> None:
        self._fetch = fetch
        self._known: dict[int, str] = {}

    def events(self, stored: Iterable[Sequence[Any]]) -> list[Event]:
        """Events from rows: the fields of an event, then base and packed."""
        found = [(row[:-2], Row(row[_TEXT], row[-2], row[-1])) for row in stored]
        self._need({row.base for _, row in found if row.base is not None}, found)
        return [Event(*(*fields[:_TEXT], self._text(row), fields[-1])) for fields, row in found]

    def _need(self, bases: set[int], found: Sequence[tuple[Sequence[Any], Row]]) -> None:
        there = {fields[0]: row for fields, row in found if fields[0] in bases}
        missing = [seq for seq in sorted(bases) if seq not in self._known and seq not in there]
        there |= self._fetch(missing) if missing else {}
        for seq in sorted(there):
            self._known[seq] = self._text(there[seq]) if there[seq].base is None else ""
        for seq in [seq for seq in self._known if seq not in bases][: max(0, len(self._known) - MOST_KEPT)]:
            del self._known[seq]

    def _text(self, row: Row) -> str:
        """The text; one that somebody has damaged is empty, and its hash will not be right."""
        if row.text or row.packed is None:
            return row.text
        try:
            if row.base is None:
                return zlib.decompress(row.packed).decode()
            return zlib.decompressobj(zdict=self._known.get(row.base, "").encode()).decompress(row.packed).decode()
        except (zlib.error, UnicodeDecodeError):
            return ""


_TEXT = 7  # the place of an event's text among its fields; its hash is the last
