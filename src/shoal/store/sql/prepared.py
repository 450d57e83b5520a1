"""Statements of the hottest paths: written in SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy looks anew at a statement, its parameters and its rows at every execution, which takes longer
than SQLite needs to answer. Errors are the driver's own; `Database` gives them our names.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Dialect as Compiler


class PreparedSelect:
    """A query whose rows have an attribute for each column. Types must be ones that drivers know."""

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement
        row: Any = namedtuple("Row", [column.name for column in statement.selected_columns])  # type: ignore[misc]
        self._make_row = row._make
        self._compiled: dict[str, tuple[str, dict[str, Any], list[str] | None]] = {}

    def rows(self, connection: Connection, parameters: Mapping[str, Any]) -> list[Any]:
        """All rows, within the transaction of this connection."""
        compiler = connection.dialect
        sql, defaults, order = self._compiled.get(compiler.name) or self._compile(compiler)
        values: dict[str, Any] = {**defaults, **parameters}
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.execute(sql, values if order is None else [values[name] for name in order])
            return list(map(self._make_row, cursor.fetchall()))
        finally:
            cursor.close()

    def _compile(self, compiler: Compiler) -> tuple[str, dict[str, Any], list[str] | None]:
        compiled = self._statement.compile(dialect=compiler)
        order = list(compiled.positiontup) if compiled.positiontup is not None else None
        self._compiled[compiler.name] = found = (str(compiled), dict(compiled.params), order)
        return found
