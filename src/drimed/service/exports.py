"""Every decision with what came of it, as a file: made at once, so that a slow reader holds no transaction open."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator
from typing import IO, Any

from drimed.trial.export import records
from drimed.trial.trial import Trial

IN_MEMORY = 1024 * 1024  # bytes; larger files go to the disk
PIECE = 64 * 1024


def export(trial: Trial, form: str) -> IO[bytes]:
    """A file of all decisions, csv or json, at its beginning; the caller closes it."""
    out: IO[bytes] = tempfile.SpooledTemporaryFile(IN_MEMORY)  # noqa: SIM115  # it is handed on
    try:
        _json(trial, out) if form == "json" else _csv(trial, out)
        out.seek(0)
    except BaseException:
        out.close()
        raise
    return out


def pieces(file: IO[bytes]) -> Iterator[bytes]:
    """A file bit by bit, closed at the end."""
    with file:
        while piece := file.read(PIECE):
            yield piece


def _json(trial: Trial, out: IO[bytes]) -> None:
    out.write(b"[")
    for i, row in enumerate(records(trial)):
        out.write(b",\n " if i else b"\n ")
        out.write(json.dumps(row, ensure_ascii=False, allow_nan=False).encode())
    out.write(b"\n]\n")


def _csv(trial: Trial, out: IO[bytes]) -> None:
    """Twice over the rows: an arm that came late has columns that the first row does not know."""
    names: dict[str, None] = {}
    with tempfile.SpooledTemporaryFile(IN_MEMORY) as rows:
        for row in records(trial):
            names |= dict.fromkeys(row)
            rows.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
        rows.seek(0)
        columns = list(names)
        out.write(_line(columns))
        for line in rows:
            data: dict[str, Any] = json.loads(line)
            out.write(_line(["" if data.get(name) is None else data[name] for name in columns]))


def _line(cells: list[Any]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
