"""Statements in the driver's own words.

SQLAlchemy takes several times as long to run a small statement as the database does. Those that every decision and
every outcome need are written by it once, and run as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.engine import Dialect
from sqlalchemy.exc import DBAPIError

from drimed.errors import InputError


@final
class Prepared:
    """One statement for one kind of database."""

    def __init__(self, statement: sa.Select[Any] | sa.Insert | sa.Update | str, dialect: Dialect) -> None:
        self._error = dialect.loaded_dbapi.Error
        if isinstance(statement, str):
            self._text, self._order = statement, None
            return
        compiled = statement.compile(dialect=dialect)
        self._text, self._order = compiled.string, getattr(compiled, "positiontup", None)

    def __call__(self, connection: Connection, *rows: Mapping[str, Any]) -> Any:
        """Run with one row of values, with several, or without any; the driver's cursor. Errors are SQLAlchemy's."""
        values = rows if self._order is None else [tuple(row[name] for name in self._order) for row in rows]
        cursor = connection.connection.cursor()
        try:
            if len(rows) > 1:
                cursor.executemany(self._text, values)
            else:
                cursor.execute(self._text, *values)
        except UnicodeError:
            raise InputError("a text has a character that is not Unicode, and no database keeps it") from None
        except self._error as error:
            raise DBAPIError.instance(self._text, None, error, self._error, dialect=connection.dialect) from error
        return cursor
