"""Anchors: where a log stood at some moment, kept where those who can write to the store cannot.

A line has a time, the trial, the number of an event and its hash. Since every hash rests on all events before it, one
line proves that nothing up to that event was changed after that time.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from drimed.errors import InputError
from drimed.records import Head
from drimed.trial import events as kinds
from drimed.trial.store import Ledger

_LINE = re.compile(r"(?P<time>\S+) (?P<trial>\S+) (?P<event>[1-9][0-9]{0,9}) (?P<hash>[0-9a-f]{64})")

log = logging.getLogger(__name__)


def line(head: Head) -> str:
    """As it is kept.

    >>> line(Head("maize", 7, "ab" * 32, "2026-05-01T10:00:00+00:00"))[:40]
    '2026-05-01T10:00:00+00:00 maize 7 ababab'
    """
    return f"{head.time} {head.trial} {head.event} {head.hash}"


def read(text: str) -> list[Head]:
    """The anchors of a file; empty lines and comments (#) are left out."""
    found = []
    for number, one in enumerate(text.splitlines(), 1):
        if not one.strip() or one.startswith("#"):
            continue
        parts = _LINE.fullmatch(one.strip())
        if parts is None:
            raise InputError(f"line {number}: expected a time, a trial, an event's number and its hash, got {one!r}")
        found.append(Head(parts["trial"], int(parts["event"]), parts["hash"], parts["time"]))
    return found


def load(file: Path) -> list[Head]:
    """The anchors in a file."""
    try:
        return read(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read {file}: {error}") from None
    except InputError as error:
        raise InputError(f"{file}, {error}") from None


def append(file: Path, heads: Iterable[Head]) -> None:
    """Add lines at the end, durably; several processes may do so at once."""
    text = "".join(line(head) + "\n" for head in heads)
    try:
        at = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(at, text.encode())
            os.fsync(at)
        finally:
            os.close(at)
    except OSError as error:
        raise InputError(f"cannot write {file}: {error}") from None


def note(file: Path, head: Head) -> None:
    """Add a line for what was recorded just now; it is recorded, so that a file in trouble is only complained about."""
    try:
        append(file, [head])
    except InputError as error:
        log.error("trial %s: event %d has no anchor: %s", head.trial, head.event, error)


def of(ledger: Ledger, time: str) -> Head:
    """Where the log stands now."""
    return Head(ledger.name, ledger.seq, ledger.hash, time)


def missing(ledger: Ledger, known: Sequence[Head], time: str) -> Iterator[Head]:
    """What a file does not have yet: the opening of each episode, and where the log stands now."""
    there = {head.event for head in known if head.trial == ledger.name}
    for event in ledger.events(kinds=[kinds.EPISODE]):
        if event.seq not in there and event.seq < ledger.seq:
            yield Head(ledger.name, event.seq, event.hash, time)
    if ledger.seq not in there:
        yield of(ledger, time)
