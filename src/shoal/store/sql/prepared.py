"""Statements of the hottest paths: written in SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy looks anew at a statement, its parameters and its rows at every execution, which takes longer
than SQLite needs to answer. Errors are the driver's own; `Database` gives them our names.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Delete, Insert, Select, Update
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Dialect as Compiler


class PreparedWrite:
    """An INSERT, UPDATE or DELETE for many rows. Every parameter is given by name."""

    def __init__(self, statement: Insert | Update | Delete) -> None:
        self._statement = statement
        self._compiled: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {}

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write all rows, within the transaction of this connection; how many were found."""
        if not rows:
            return 0
        sql, defaults, order = _compiled(self._compiled, self._statement, connection.dialect, rows[0])
        values: Any = [{**defaults, **row} for row in rows]
        if order is not None:
            values = [[row[name] for name in order] for row in values]
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.executemany(sql, values)
            found: int = cursor.rowcount
            return found
        finally:
            cursor.close()


class PreparedSelect:
    """A query whose rows have an attribute for each column. Types must be ones that drivers know."""

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement
        row: Any = namedtuple("Row", [column.name for column in statement.selected_columns])  # type: ignore[misc]
        self._make_row = row._make
        self._compiled: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {}

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """All rows, within the transaction of this connection."""
        sql, defaults, order = _compiled(self._compiled, self._statement, connection.dialect)
        values: dict[str, Any] = {**defaults, **parameters}
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.execute(sql, values if order is None else [values[name] for name in order])
            return list(map(self._make_row, cursor.fetchall()))
        finally:
            cursor.close()


def _compiled(
    known: dict[str, tuple[str, dict[str, Any], list[str] | None]],
    statement: Any,
    compiler: Compiler,
    columns: Iterable[str] | None = None,
) -> tuple[str, dict[str, Any], list[str] | None]:
    """The statement in the database's SQL, the values that it brings along, and the order of parameters."""
    found = known.get(compiler.name)
    if found is None:
        is_insert = isinstance(statement, Insert)
        made = statement.compile(dialect=compiler, column_keys=list(columns or ()) if is_insert else None)
        order = list(made.positiontup) if made.positiontup is not None else None
        found = known[compiler.name] = (str(made), dict(made.params), order)
    return found
