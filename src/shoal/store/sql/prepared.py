"""Statements of the hottest paths: written in SQLAlchemy, compiled once, run on the driver's own cursor.

SQLAlchemy looks anew at a statement, its parameters and its rows at every execution, which takes longer
than SQLite needs to answer. Errors are the driver's own; `Database` gives them our names.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from sqlalchemy import Delete, Insert, Select, Update
from sqlalchemy.engine import Connection
from sqlalchemy.engine import Dialect as Compiler
from sqlalchemy.pool import PoolProxiedConnection


class Querying(Protocol):
    """A connection, as far as a query needs one."""

    @property
    def dialect(self) -> Compiler: ...
    @property
    def connection(self) -> PoolProxiedConnection: ...


_Compiled = tuple[str, dict[str, Any], list[str] | None]
_Form = tuple[str, tuple[tuple[str, int], ...]]


class PreparedWrite:
    """An INSERT, UPDATE or DELETE for many rows. Every parameter is given by name."""

    def __init__(self, statement: Insert | Update | Delete) -> None:
        self._statement = statement
        self._compiled: dict[str, _Compiled] = {}

    def run(self, connection: Connection, rows: Sequence[Mapping[str, Any]]) -> int:
        """Write all rows, within the transaction of this connection; how many were found."""
        if not rows:
            return 0
        form = self._compiled.get(connection.dialect.name)
        if form is None:
            form = _compiled(self._statement, connection.dialect, rows[0])
            self._compiled[connection.dialect.name] = form
        sql, defaults, order = form
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
    """A query whose rows have an attribute for each column. Types must be ones that drivers know.

    A parameter that is a list (`expanding`, for IN) has one form of the statement for each length it came
    with. Long ones are filled up with their last value, so that few lengths are met: to compile a form takes
    much longer than to run it.
    """

    def __init__(self, statement: Select[Any]) -> None:
        self._statement = statement
        row: Any = namedtuple("Row", [column.name for column in statement.selected_columns])  # type: ignore[misc]
        self._make_row = row._make
        self._compiled: dict[_Form, _Compiled] = {}

    def rows(self, connection: Querying, parameters: Mapping[str, Any]) -> list[Any]:
        """All rows, within the transaction of this connection."""
        values, lengths = _flattened(parameters)
        form = (connection.dialect.name, lengths)
        found = self._compiled.get(form)
        if found is None:
            if len(self._compiled) >= _FORMS_MAX:
                self._compiled.clear()
            spread = {name: _filled(value) for name, value in parameters.items()}
            found = self._compiled[form] = _compiled(self._statement, connection.dialect, spread=spread)
        sql, defaults, order = found
        values = {**defaults, **values}
        driver: Any = connection.connection.driver_connection
        cursor = driver.cursor()
        try:
            cursor.execute(sql, values if order is None else [values[name] for name in order])
            return list(map(self._make_row, cursor.fetchall()))
        finally:
            cursor.close()


def _flattened(parameters: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[tuple[str, int], ...]]:
    """Parameters with every list taken apart, under the names that SQLAlchemy gives; how long each was."""
    values: dict[str, Any] = {}
    lengths = []
    for name, value in parameters.items():
        if isinstance(value, list):
            filled = _filled(value)
            lengths.append((name, len(filled)))
            values.update({f"{name}_{place}": each for place, each in enumerate(filled, 1)})
        else:
            values[name] = value
    return values, tuple(lengths)


def _filled(value: Any) -> Any:
    """A long list with its last value again, up to the next power of two."""
    if not isinstance(value, list) or not _FEW < len(value) <= _FILLED_MAX:
        return value
    return value + value[-1:] * ((1 << (len(value) - 1).bit_length()) - len(value))


def _compiled(
    statement: Any,
    compiler: Compiler,
    columns: Iterable[str] | None = None,
    spread: Mapping[str, Any] | None = None,
) -> _Compiled:
    """The statement in the database's SQL, the values that it brings along, and the order of parameters."""
    is_insert = isinstance(statement, Insert)
    made = statement.compile(dialect=compiler, column_keys=list(columns or ()) if is_insert else None)
    if spread is None:
        order = list(made.positiontup) if made.positiontup is not None else None
        return str(made), dict(made.params), order
    state = made.construct_expanded_state(spread)
    return (
        state.statement,
        dict(state.parameters),
        None if state.positiontup is None else list(state.positiontup),
    )


_FORMS_MAX: Final = 512
"""Of one statement: a list may have any length, and few are met often."""
_FEW: Final = 8
_FILLED_MAX: Final = 8192
"""A statement may have about 32,000 parameters."""
