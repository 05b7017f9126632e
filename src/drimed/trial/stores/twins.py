"""Texts whose lists are those of another: decisions that were taken together for users who are alike.

Only what lies between the lists is kept, compressed. The lists are read once, with the text that has them in full.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import numpy as np

from drimed.linear.arrays import FloatArray
from drimed.records import cut_lists, quoted, whole_text

MARK = 0x4D  # the first byte: no stream of zlib begins with it
LEVEL = 6
BETWEEN = "\0"  # the pieces: no text has one
PLAIN = set("0123456789.,+-eE[]")
DAMAGED = (zlib.error, ValueError, LookupError, TypeError)  # what bytes that nobody wrote lead to


@final
@dataclass(frozen=True)
class Whole:
    """A text that others are made of, and what they need of it."""

    text: str

    @cached_property
    def encoded(self) -> bytes:
        """The text, for those that are compressed against all of it."""
        return self.text.encode()

    @cached_property
    def between(self) -> bytes:
        """The text without its lists."""
        return BETWEEN.join(self._cut[0]).encode()

    @cached_property
    def numbers(self) -> Mapping[str, list[float]]:
        """The lists."""
        return {name: json.loads(numbers) for name, numbers in self._cut[1].items()}

    @cached_property
    def arrays(self) -> Mapping[str, FloatArray]:
        """The same as arrays."""
        return {name: np.array(values, dtype=np.float64) for name, values in self.numbers.items()}

    @cached_property
    def plain(self) -> bool:
        """Whether the lists are numbers and nothing else: in a JSON string they are what they are."""
        return all(set(numbers) <= PLAIN for numbers in self.lists.values())

    @property
    def lists(self) -> dict[str, str]:
        """The same as they are written."""
        return self._cut[1]

    @cached_property
    def _cut(self) -> tuple[list[str], dict[str, str]]:
        return cut_lists(self.text)


@final
@dataclass(frozen=True, eq=False)
class Twin:
    """A text as it is kept. What somebody has damaged is an empty text."""

    packed: bytes
    whole: Whole

    def text(self) -> str:
        """The text."""
        try:
            return whole_text(self._pieces(), list(self.whole.lists.values()))
        except DAMAGED:
            return ""

    def quoted(self) -> str:
        """The text as a JSON string."""
        if not self.whole.plain:
            return quoted(self.text())
        try:
            pieces = [quoted(piece)[1:-1] for piece in self._pieces()]
            return f'"{whole_text(pieces, list(self.whole.lists.values()))}"'
        except DAMAGED:
            return quoted("")

    def body(self, left_out: Sequence[str]) -> dict[str, Any]:
        """What the text says; its lists are those of all its twins."""
        rest: dict[str, Any] = json.loads("null".join(self._pieces()))
        return rest | {name: None if name in left_out else own for name, own in self.whole.numbers.items()}

    def __eq__(self, other: object) -> bool:
        return self.text() == (other.text() if isinstance(other, Twin) else other)

    __hash__ = None  # type: ignore[assignment]

    def _pieces(self) -> list[str]:
        return zlib.decompressobj(zdict=self.whole.between).decompress(self.packed[1:]).decode().split(BETWEEN)


def pack(text: str, whole: Whole) -> bytes | None:
    """What is kept of a text; None: its lists are others."""
    pieces, lists = cut_lists(text)
    if not lists or lists != whole.lists:
        return None
    packer = zlib.compressobj(LEVEL, zdict=whole.between)
    return bytes([MARK]) + packer.compress(BETWEEN.join(pieces).encode()) + packer.flush()
