"""Rows through the user's own connection: DB-API's or SQLAlchemy's. Nothing here commits or rolls back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, Final, Protocol

from sqlalchemy import Table, insert
from sqlalchemy.dialects import mysql, postgresql, sqlite
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateTable

from shoal.core.errors import InvalidInput

Row = Mapping[str, Any]


class Writer(Protocol):
    """A connection of the user's, as far as an outbox needs one."""

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        """Add rows, within the transaction that the connection is in."""

    def create(self, table: Table) -> None:
        """Make a table, unless it is there."""

    def is_empty(self, table: Table) -> bool: ...


def writer_of(connection: Any) -> Writer:
    """What to write through, or an error that says what can be given."""
    if isinstance(connection, Connection):
        return _Core(connection)
    module = type(connection).__module__
    if module.startswith("sqlalchemy.orm"):  # A session, or one for each thread.
        return _Core(connection.connection())
    inner = getattr(connection, "driver_connection", None)
    if module.startswith("sqlalchemy.") and inner is not None:
        return writer_of(inner)
    # Users have classes of their own, made of a driver's.
    packages = [kind.__module__.partition(".")[0] for kind in type(connection).__mro__]
    driver = next((_DRIVERS[package] for package in packages if package in _DRIVERS), None)
    if driver is None or not hasattr(connection, "cursor"):
        raise InvalidInput(
            "connection",
            type(connection).__qualname__,
            f"a connection or session of SQLAlchemy, or of one of {', '.join(sorted(_DRIVERS))}",
        )
    return _Driver(connection, *driver)


class _Core:
    """See Writer."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        self._connection.execute(insert(table), list(rows))

    def create(self, table: Table) -> None:
        table.create(self._connection, checkfirst=True)

    def is_empty(self, table: Table) -> bool:
        return self._connection.execute(table.select().limit(1)).first() is None


class _Driver:
    """See Writer. The statements are ours, with the marks that the driver knows."""

    def __init__(self, connection: Any, dialect: type[Dialect], mark: str) -> None:
        self._connection, self._dialect, self._mark = connection, dialect, mark

    def insert(self, table: Table, rows: Sequence[Row]) -> None:
        dialect: Any = self._dialect
        statement = _insertion(table.name, tuple(rows[0]), dialect, self._mark)
        if self._dialect is mysql.dialect:
            values = [tuple(_hexadecimal(name, value) for name, value in row.items()) for row in rows]
        else:
            values = [tuple(row.values()) for row in rows]
        with closing(self._connection.cursor()) as cursor:
            if len(values) == 1:
                cursor.execute(statement, values[0])
            else:
                cursor.executemany(statement, values)

    def create(self, table: Table) -> None:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(ddl(table, self._dialect()))

    def is_empty(self, table: Table) -> bool:
        with closing(self._connection.cursor()) as cursor:
            cursor.execute(f"SELECT 1 FROM {table.name} LIMIT 1")  # noqa: S608
            return cursor.fetchone() is None


@lru_cache(maxsize=64)
def _insertion(table: str, names: tuple[str, ...], dialect: Any, mark: str) -> str:
    quoted = dialect().identifier_preparer
    columns = ", ".join(quoted.quote_identifier(name) for name in names)
    marks = ", ".join(
        f"UNHEX({mark})" if dialect is mysql.dialect and name in _BYTES else mark for name in names
    )
    return f"INSERT INTO {table} ({columns}) VALUES ({marks})"  # noqa: S608 - the names are ours


def _hexadecimal(name: str, value: Any) -> Any:
    """Not every driver of MySQL marks bytes as such, and the server would take them for text."""
    return value.hex() if name in _BYTES and value is not None else value


def ddl(table: Table, dialect: Dialect) -> str:
    """The statement that makes a table, for those who keep their schema themselves."""
    return str(CreateTable(table, if_not_exists=True).compile(dialect=dialect)).strip()


DIALECTS: Final[dict[str, type[Dialect]]] = {
    "sqlite": sqlite.dialect,
    "postgresql": postgresql.dialect,
    "mysql": mysql.dialect,
    "mariadb": mysql.dialect,
}
_BYTES: Final = frozenset({"key", "value"})
_DRIVERS: Final[dict[str, tuple[type[Dialect], str]]] = {
    "sqlite3": (sqlite.dialect, "?"),
    "pysqlite3": (sqlite.dialect, "?"),
    "psycopg": (postgresql.dialect, "%s"),
    "psycopg2": (postgresql.dialect, "%s"),
    "pg8000": (postgresql.dialect, "%s"),
    "pymysql": (mysql.dialect, "%s"),
    "MySQLdb": (mysql.dialect, "%s"),
    "mysql": (mysql.dialect, "%s"),
    "mariadb": (mysql.dialect, "?"),
}
"""Drivers by the name of their package, with the mark that each takes for a value."""
