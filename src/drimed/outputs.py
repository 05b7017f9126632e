"""Output files: written beside their place and moved there as a whole, over an existing file only if told to."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from drimed.errors import InputError


@contextmanager
def replacing(path: Path, *, force: bool = False) -> Iterator[Path]:
    """Yield a temporary path whose file is moved to `path` at the end of the block, if all goes well."""
    place = Path(os.path.realpath(path))
    if place.exists() and not place.is_file() and not place.is_dir():
        yield place  # a pipe or a terminal
        return
    check_free(path, force=force)
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


def put(path: Path, data: bytes, *, force: bool = False) -> None:
    """Write a whole file."""
    with replacing(path, force=force) as beside:
        beside.write_bytes(data)


def check_free(path: Path, *, force: bool = False) -> None:
    """Refuse a folder, and without `force` a file that has something in it."""
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder; give the name of a file")
        if not force and path.is_file() and path.stat().st_size:
            raise InputError(f"{path} exists: choose another name, or write over it with --force")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from None
