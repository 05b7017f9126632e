"""Files that are written: beside their place first, then moved there as a whole, and never over somebody else's file.

A file that is there already is written over only if it is an earlier output of the same kind, which its first bytes
show.
"""

from __future__ import annotations

import csv
import os
import re
import secrets
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from drimed.errors import InputError

HEAD = 64 * 1024  # bytes of a file that show what it is

Kind = Callable[[Path], bool]  # whether a file is an earlier output


@contextmanager
def replacing(path: Path, kind: Kind, what: str) -> Iterator[Path]:
    """Where to write a file that takes the place of `path` at the end of the block, if all goes well."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file() and not place.is_dir():
        yield place  # a pipe or a terminal
        return
    _refuse_others(path, place, kind, what)
    beside = place.with_name(f".{place.stem}.{secrets.token_hex(4)}{place.suffix}")
    try:
        yield beside
        with beside.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(beside, place)
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
    finally:
        beside.unlink(missing_ok=True)


def put(path: Path, data: bytes, kind: Kind, what: str) -> None:
    """Write a whole file."""
    with replacing(path, kind, what) as beside:
        beside.write_bytes(data)


def table_with(*names: str, first: Sequence[str] = ()) -> Kind:
    """CSV files with these columns, of which some are the first ones."""

    def is_one(path: Path) -> bool:
        line = _head(path).decode("utf-8-sig", errors="replace").split("\n")[0]
        columns = next(csv.reader([line]), [])
        if not columns:
            return not _head(path).strip()  # a table without rows
        return set(names) <= set(columns) and list(first) == columns[: len(first)]

    return is_one


def text_with(pattern: str) -> Kind:
    """Text files that have this in their beginning."""
    wanted = re.compile(pattern, re.DOTALL)
    return lambda path: wanted.search(_head(path).decode("utf-8", errors="replace")) is not None


def archive_with(*members: str) -> Kind:
    """ZIP archives with these files in them."""

    def is_one(path: Path) -> bool:
        try:
            with zipfile.ZipFile(path) as packed:
                return set(members) <= set(packed.namelist())
        except zipfile.BadZipFile:
            return False

    return is_one


def _refuse_others(path: Path, place: Path, kind: Kind, what: str) -> None:
    try:
        if place.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file")
        if place.exists() and place.stat().st_size and not kind(place):
            raise InputError(f"{path} exists and is not {what} that drimed has written: choose another name")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(HEAD)
