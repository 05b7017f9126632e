"""Anchors: ends of logs at some time, kept in a file where writers to the store cannot change them.

A line has a time, the trial, the number of an event and its hash. Since every hash rests on all events before it, one
line proves that nothing up to that event was changed after that time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from drimed.errors import InputError
from drimed.records import Head
from drimed.trial import events as kinds
from drimed.trial.store import Ledger

_LINE = re.compile(r"(?P<time>\S+) (?P<trial>\S+) (?P<event>[1-9][0-9]{0,9}) (?P<hash>[0-9a-f]{64})")


def line(head: Head) -> str:
    """An anchor as a line of a file.

    >>> line(Head("maize", 7, "ab" * 32, "2026-05-01T10:00:00+00:00"))[:40]
    '2026-05-01T10:00:00+00:00 maize 7 ababab'
    """
    return f"{head.time} {head.trial} {head.event} {head.hash}"


def load(file: Path) -> list[Head]:
    """The anchors in a file; empty lines and comments (#) are left out."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    heads = []
    for number, one in enumerate(text.splitlines(), 1):
        if not one.strip() or one.startswith("#"):
            continue
        parts = _LINE.fullmatch(one.strip())
        if parts is None:
            expected = "expected a time, a trial, an event's number and its hash"
            raise InputError(f"{file}, line {number}: {expected}, got {one!r}")
        heads.append(Head(parts["trial"], int(parts["event"]), parts["hash"], parts["time"]))
    return heads


def append(file: Path, heads: Iterable[Head]) -> None:
    """Add lines at the end, durably; several processes may do so at once."""
    text = "".join(line(head) + "\n" for head in heads)
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, text.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error}") from None


def missing(ledger: Ledger, known: Sequence[Head], time: str) -> Iterator[Head]:
    """Anchors that a file does not have yet: the opening of each episode, and the end of the log."""
    anchored = {head.event for head in known if head.trial == ledger.name}
    for event in ledger.events(kinds=[kinds.EPISODE]):
        if event.seq not in anchored and event.seq < ledger.seq:
            yield Head(ledger.name, event.seq, event.hash, time)
    if ledger.seq not in anchored:
        yield Head(ledger.name, ledger.seq, ledger.hash, time)
