"""The service's own tables live in the store's database, in the store's transactions."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection

from drimed.errors import StoreError
from drimed.trial.stores import sql
from drimed.trial.stores.opening import open_store
from drimed.trial.stores.sql import SqlLedger, SqlStore
from drimed.trial.stores.store import Ledger


def opened(address: str, *, create: bool = True) -> SqlStore:
    """The store at an address; the service needs one that several processes can share."""
    store = open_store(address, create=create)
    if not isinstance(store, SqlStore):
        raise StoreError("the service needs a store in SQLite or PostgreSQL")
    return store


@contextmanager
def transaction(store: SqlStore, *, write: bool) -> Iterator[Connection]:
    """A transaction on no trial in particular."""
    with sql._told(store.url), store._transaction(write=write) as connection:
        yield connection


def connection_of(ledger: Ledger) -> Connection:
    """The connection whose transaction a ledger is in."""
    if not isinstance(ledger, SqlLedger):
        raise StoreError("the service needs a store in SQLite or PostgreSQL")
    return ledger._connection
