"""Where trials are kept: in SQLite, in PostgreSQL, or in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from drimed.errors import MissingExtraError

if TYPE_CHECKING:
    from drimed.trial.stores.sql import SqlStore

DEFAULT = "drimed.db"


def open_store(address: str = DEFAULT, *, create: bool = True, connections: int | None = None) -> SqlStore:
    """The store at an address; a plain path is a SQLite file. `connections`: for as many threads at a time."""
    try:
        from drimed.trial.stores.sql import SqlStore
    except ImportError as error:
        raise MissingExtraError("SQLAlchemy", "trial") from error
    url = address if "://" in address else f"sqlite:///{address}"
    try:
        more = {} if connections is None else {"connections": connections}
        return SqlStore(url, create=create, **more)
    except ModuleNotFoundError as error:
        raise MissingExtraError("psycopg", "postgres") from error
