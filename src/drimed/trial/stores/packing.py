"""Long texts of events in little room: compressed, against one that they share most of their words with.

Decisions that were taken together from one state often have the same probabilities and estimates, thousands of digits
each: only the first of them is kept in full, the others by what they differ in (twins.py), or as mixtures of a few
(mixtures.py). The hash of an event is that of its text, so nothing that is proven depends on how it is kept. A row that
has a text is read as it is.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from drimed.records import Event, Kept
from drimed.trial.stores import mixtures, twins
from drimed.trial.stores.twins import Whole

LEAST = 1000  # characters; shorter texts are kept as they are
TAIL = 200  # characters: texts that end with the same ones are probably alike
MOST_KEPT = 64  # texts that a reader remembers, because others are compressed against them
DEEPEST = 2  # steps from a text to those that it is made of
LEVEL = 6


class Row(NamedTuple):
    """A text as it is stored."""

    text: str | bytes  # empty: it is packed; SQLite takes bytes for text
    base: int | None  # the event whose text it is compressed against, or the first that it is a mixture of
    packed: bytes | None


def rows(events: Iterable[Event]) -> list[Row]:
    """How the texts of events that are written together are kept."""
    events = list(events)
    first: dict[str, int] = {}
    alone = [e for e in events if len(e.text) >= LEAST and first.setdefault(e.text[-TAIL:], e.seq) == e.seq]
    texts, mixed = {e.seq: Whole(e.text) for e in alone}, mixtures.pack(alone)
    return [_row(e, first, texts, mixed) for e in events]


def _row(e: Event, first: Mapping[str, int], texts: Mapping[int, Whole], mixed: Mapping[int, tuple[int, bytes]]) -> Row:
    if len(e.text) < LEAST:
        return Row(e.text, None, None)
    base = first[e.text[-TAIL:]]
    if base == e.seq:
        return Row("", *(mixed.get(e.seq) or (None, zlib.compress(e.text.encode(), LEVEL))))
    if (kept := twins.pack(e.text, texts[base])) is not None:
        return Row("", base, kept)
    packer = zlib.compressobj(LEVEL, zdict=texts[base].encoded)
    return Row("", base, packer.compress(e.text.encode()) + packer.flush())


class Reader:
    """Texts from stored rows; those that others need are fetched once and remembered for a while."""

    def __init__(self, fetch: Callable[[Sequence[int]], Mapping[int, Row]]) -> None:
        self._fetch = fetch
        self._known: dict[int, Whole] = {}

    def events(self, stored: Iterable[Sequence[Any]]) -> list[Event]:
        """Events from rows: the fields of an event, then base and packed."""
        found = [(row[:-2], Row(row[_TEXT], row[-2], row[-1])) for row in stored]
        self._need({fields[0]: row for fields, row in found}, [row for _, row in found], DEEPEST)
        texts = [self._known[n].text if (n := fields[0]) in self._known else self._kept(row) for fields, row in found]
        for seq in list(self._known)[: max(0, len(self._known) - MOST_KEPT)]:
            del self._known[seq]
        return [Event(*(*fields[:_TEXT], text, fields[-1])) for (fields, _), text in zip(found, texts, strict=True)]

    def _need(self, there: Mapping[int, Row], made: Iterable[Row], deep: int) -> None:
        """Know the texts that some are made of, and first those that these are made of."""
        missing = sorted({seq for row in made for seq in _needs(row)} - self._known.keys())
        elsewhere = [seq for seq in missing if seq not in there]
        found = {seq: there[seq] for seq in missing if seq in there}
        found |= self._fetch(elsewhere) if elsewhere else {}
        if found and deep:
            self._need(there, found.values(), deep - 1)
        for seq, row in found.items():
            kept = self._kept(row)
            self._known[seq] = Whole(kept if isinstance(kept, str) else kept.text())

    def _kept(self, row: Row) -> str | Kept:
        """The text, or what it is made of; one that somebody has damaged is empty, and its hash will not be right."""
        if row.text or row.packed is None:
            return row.text if isinstance(row.text, str) else ""
        try:
            if row.base is None:
                return zlib.decompress(row.packed).decode()
            wholes = [self._known[seq] for seq in _needs(row)]
            if row.packed[0] == twins.MARK:
                return twins.Twin(row.packed, wholes[0])
            if row.packed[0] == mixtures.MARK:
                return mixtures.Mixture(row.packed, wholes)
            return zlib.decompressobj(zdict=wholes[0].encoded).decompress(row.packed).decode()
        except twins.DAMAGED:
            return ""


def _needs(row: Row) -> list[int]:
    """The events whose texts one is made of."""
    if row.base is None or not row.packed:
        return []
    return mixtures.needs(row.base, row.packed) if row.packed[0] == mixtures.MARK else [row.base]


_TEXT = 7  # the place of an event's text among its fields; its hash is the last
