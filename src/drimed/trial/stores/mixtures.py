"""Lists of numbers that are mixtures of others, kept by their weights and by the last digits that these leave open.

Decisions that were taken together for users with preferences of their own have estimates and ranges that all differ,
and yet most of them are weighted sums of a few: two metrics, two lists. Those few are kept in full. The sums are taken
number by number in one order, so that they are the same to the last bit wherever they are taken, and what is packed is
unpacked once before it is trusted. Shapes: n texts, k of them in full, K numbers in a list.
"""

from __future__ import annotations

import struct
import zlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from drimed.linear.arrays import FloatArray
from drimed.records import LISTS, Event, cut_lists, quoted, read_body, whole_text
from drimed.trial.stores import twins
from drimed.trial.stores.twins import BETWEEN, Whole

MARK = 0x4C  # the first byte: no stream of zlib begins with it
MOST = 8  # texts in full, for all others that were written with them
FEWEST = 4 * MOST  # texts among which it is worth looking
LEAST = 16  # numbers in a list, from which on weights take less room than they do
CLOSE = 1e-11  # relative to the largest number of a list: what is left then fits into two bytes
LARGEST = 1e150  # numbers whose squares can be added up
LEVEL = 9
DAMAGED = (*twins.DAMAGED, struct.error)
_HEAD = struct.Struct("<BB")  # the mark, and how many texts in full
_PARTS = struct.Struct("<IB")  # bytes of the compressed rest of the text, lists

Lists = Mapping[str, FloatArray]


def pack(events: Sequence[Event]) -> dict[int, tuple[int, bytes]]:
    """Those of some events whose texts can be kept so: by number, the first event that it needs and what is kept."""
    groups: dict[tuple[tuple[str, int], ...], dict[int, Lists]] = defaultdict(dict)
    if len(events) >= FEWEST:
        for event in events:
            found = lists(event.body)
            groups[tuple((name, len(values)) for name, values in found.items())][event.seq] = found
    texts = {event.seq: event.text for event in events}
    made: dict[int, tuple[int, bytes]] = {}
    for group in groups.values():
        if len(group) >= FEWEST:
            made |= _packed(texts, group)
    return made


def needs(base: int, packed: bytes) -> list[int]:
    """The texts that one is made of; none that can be told of what somebody has damaged."""
    try:
        k = _HEAD.unpack_from(packed)[1]
        return [base + away for away in struct.unpack_from(f"<{k}i", packed, _HEAD.size)]
    except struct.error:
        return []


@final
@dataclass(frozen=True, eq=False)
class Mixture:
    """A text as it is kept, with those that it needs. What somebody has damaged is an empty text."""

    packed: bytes
    wholes: Sequence[Whole]  # (k,)

    def text(self) -> str:
        """The text."""
        try:
            pieces, lists = self._parts()
            return whole_text(pieces, [f"[{','.join(map(repr, values().tolist()))}]" for values in lists.values()])
        except DAMAGED:
            return ""

    def quoted(self) -> str:
        """The text as a JSON string."""
        return quoted(self.text())

    def body(self, left_out: Sequence[str]) -> dict[str, Any]:
        """What the text says, lists that are left out aside: theirs are not worked out."""
        try:
            pieces, lists = self._parts()
        except struct.error as error:
            raise ValueError("this text was damaged") from error
        rest = read_body("null".join(pieces), left_out)
        return rest | {name: None if name in left_out else values().tolist() for name, values in lists.items()}

    def __eq__(self, other: object) -> bool:
        return self.text() == (other.text() if isinstance(other, Mixture) else other)

    __hash__ = None  # type: ignore[assignment]

    def _parts(self) -> tuple[list[str], dict[str, Callable[[], FloatArray]]]:
        """The text without its mixed lists, in pieces, and how each list is worked out."""
        k = len(self.wholes)
        at = _HEAD.size + 4 * k
        size, count = _PARTS.unpack_from(self.packed, at)
        at += _PARTS.size
        rest = zlib.decompressobj(zdict=self.wholes[0].encoded).decompress(self.packed[at : at + size])
        data, at = zlib.decompress(self.packed[at + size :]), 0
        found: dict[str, Callable[[], FloatArray]] = {}
        for _ in range(count):
            name = data[at + 1 : at + 1 + data[at]].decode()
            at += 1 + data[at]
            K = len(self.wholes[0].arrays[name])
            weights = np.frombuffer(data, "<f8", k, at)
            left = np.frombuffer(data, np.uint8, 8 * K, at + 8 * k).reshape(8, K)
            at += 8 * (k + K)
            found[name] = partial(_values, weights, left, [one.arrays[name] for one in self.wholes])
        return rest.decode().split(BETWEEN), found


def lists(body: Mapping[str, Any]) -> Lists:
    """The lists of numbers in what a text says."""
    found: dict[str, FloatArray] = {}
    for name in LISTS:
        if isinstance(values := body.get(name), list) and len(values) >= LEAST:
            numbers = np.array(values, dtype=np.float64)  # (K,); nan: null
            if (np.abs(numbers) < LARGEST).all():
                found[name] = numbers
    return found


def _packed(texts: Mapping[int, str], group: Mapping[int, Lists]) -> dict[int, tuple[int, bytes]]:
    seqs, chosen = list(group), list[int]()
    tables: dict[str, FloatArray] = {}
    for name in group[seqs[0]]:
        table = np.array([group[seq][name] for seq in seqs])  # (n, K)
        if (more := _span(table, chosen)) is not None:
            chosen, tables[name] = more, table
    if not chosen:
        return {}
    weights = {name: np.linalg.lstsq(t[chosen].T, t.T, rcond=None)[0].T for name, t in tables.items()}  # (n, k)
    full, needed = [group[seqs[i]] for i in chosen], [seqs[i] for i in chosen]
    wholes, made = [Whole(texts[seq]) for seq in needed], dict[int, tuple[int, bytes]]()
    for i, seq in enumerate(seqs):
        if seq in needed:
            continue
        own = {n: w[i] for n, w in weights.items()}
        kept = _head(needed) + _written(texts[seq], wholes[0].encoded, own, group[seq], full)
        if Mixture(kept, wholes).text() == texts[seq]:
            made[seq] = needed[0], kept
    return made


def _span(table: FloatArray, chosen: Sequence[int]) -> list[int] | None:
    """Rows of which all are weighted sums, those that were chosen among them; None: there are too many."""
    largest = np.abs(table).max(-1, keepdims=True)
    rest, chosen = table / np.where(largest > 0, largest, 1.0), list(chosen)  # (n, K)
    for row in chosen:
        _taken_out(rest, row)
    while np.abs(rest).max() > CLOSE:
        if len(chosen) == MOST:
            return None
        chosen.append(int(np.abs(rest).max(-1).argmax()))
        _taken_out(rest, chosen[-1])
    return chosen


def _taken_out(rest: FloatArray, row: int) -> None:
    """What of the rows points where this one does."""
    if (length := float(np.linalg.norm(rest[row]))) > CLOSE:
        way = rest[row] / length
        rest -= np.outer(rest @ way, way)


def _head(needed: Sequence[int]) -> bytes:
    return _HEAD.pack(MARK, len(needed)) + struct.pack(f"<{len(needed)}i", *(seq - needed[0] for seq in needed))


def _written(text: str, known: bytes, weights: Mapping[str, FloatArray], own: Lists, full: Sequence[Lists]) -> bytes:
    pieces, cut = cut_lists(text)
    data = b""
    for name, w in weights.items():
        left = _left(own[name], _mixed(w, [one[name] for one in full]))
        data += bytes([len(name)]) + name.encode() + w.astype("<f8").tobytes() + left.tobytes()
    joined = list(pieces[:1])
    for piece, (name, numbers) in zip(pieces[1:], cut.items(), strict=True):
        if name in weights:
            joined.append(piece)
        else:
            joined[-1] += numbers + piece
    packer = zlib.compressobj(LEVEL, zdict=known)
    rest = packer.compress(BETWEEN.join(joined).encode()) + packer.flush()
    return _PARTS.pack(len(rest), len(weights)) + rest + zlib.compress(data, LEVEL)


def _mixed(weights: FloatArray, full: Sequence[FloatArray]) -> FloatArray:
    """The weighted sum: products and sums of two numbers at a time, which every machine rounds alike."""
    with np.errstate(all="ignore"):  # weights that nobody wrote lead anywhere
        made = weights[0] * full[0]
        for w, values in zip(weights[1:], full[1:], strict=True):
            made = made + w * values
    return made


def _left(values: FloatArray, guess: FloatArray) -> NDArray[np.uint8]:
    """How many doubles lie between: the bytes of all numbers, the lowest of each first, small either way."""
    away = (_bits(values) - _bits(guess)).view(np.int64)
    folded = ((away << 1) ^ (away >> 63)).view(np.uint64)  # 0, -1, 1, -2, ... as 0, 1, 2, 3, ...
    return np.ascontiguousarray(folded.astype("<u8").view(np.uint8).reshape(-1, 8).T)


def _values(weights: FloatArray, left: NDArray[np.uint8], full: Sequence[FloatArray]) -> FloatArray:
    folded = np.ascontiguousarray(left.T).view("<u8").ravel().astype(np.uint64)
    away = (folded >> np.uint64(1)) ^ -(folded & np.uint64(1))
    return (_bits(_mixed(weights, full)) + away).view(np.float64)


def _bits(values: FloatArray) -> NDArray[np.uint64]:
    return values.view(np.uint64)
