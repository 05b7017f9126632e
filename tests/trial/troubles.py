"""What can happen to a store in use: its server dies or freezes, its disk fills, its file is locked."""

from __future__ import annotations

import os
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

from tests.trial import servers

Trouble = Callable[[], AbstractContextManager[None]]
Troubled = tuple[str, Trouble] | str  # the address of a store and its trouble, or why this cannot be had here

DISK = 16  # megabytes: a store in use fits, and is filled up quickly
BLOCK = 64 * 1024  # bytes


@contextmanager
def server_killed(_: Path) -> Iterator[Troubled]:
    """The PostgreSQL server and all its processes, at once."""
    with servers.server() as running, running.database() as address:
        yield address, running.killed


@contextmanager
def server_frozen(_: Path) -> Iterator[Troubled]:
    """The PostgreSQL server answers nobody for a while."""
    with servers.server() as running, running.database() as address:
        yield address, running.frozen


@contextmanager
def disk_full(folder: Path) -> Iterator[Troubled]:
    """A small file system of its own for a SQLite store, filled to the last byte, and emptied again."""
    disk = folder / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "drimed-torture", disk], capture_output=True, check=False
    )
    if mounted.returncode:
        yield "a small file system cannot be mounted here, which needs root"
        return

    @contextmanager
    def full() -> Iterator[None]:
        ballast = disk / "ballast"
        with ballast.open("wb", buffering=0) as stream:
            size = BLOCK
            while size:
                try:
                    stream.write(bytes(size))
                except OSError:
                    size //= 2
            try:
                yield
            finally:
                os.unlink(ballast)

    try:
        yield f"sqlite:///{disk / 'trials.db'}", full
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


@contextmanager
def file_locked(folder: Path) -> Iterator[Troubled]:
    """Somebody else holds the SQLite file in a transaction."""
    file = folder / "trials.db"

    @contextmanager
    def locked() -> Iterator[None]:
        with closing(sqlite3.connect(file, timeout=60, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            yield
            other.execute("ROLLBACK")

    yield f"sqlite:///{file}", locked


# name: the kind of store, and its trouble
ALL: dict[str, tuple[str, Callable[[Path], AbstractContextManager[Troubled]]]] = {
    "sqlite, disk full": ("sqlite", disk_full),
    "sqlite, file locked": ("sqlite", file_locked),
    "postgresql, server killed": ("postgresql", server_killed),
    "postgresql, server frozen": ("postgresql", server_frozen),
}
