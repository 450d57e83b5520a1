"""Creates the schema and brings an older one up to date, in place, one version at a time."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Column, insert, inspect, select, update
from sqlalchemy.engine import Connection

from shoal.core.errors import NotAShoalStore, StoreTooNew
from shoal.store.sql.database import Database
from shoal.store.sql.tables import (
    ADDED_COLUMNS,
    EPOCHS,
    MIGRATIONS,
    PRODUCER_EPOCHS,
    SCHEMA_VERSION,
    meta,
    sequences,
)


def migrate(database: Database, *, durable: bool, upto: int = SCHEMA_VERSION) -> None:
    """Look, check the durability settings, and run the migrations that are missing.

    `upto` stops at an older version: it exists so that the upgrade of an older database can be tested.
    """
    database.inspect()
    with database.read() as connection:
        if durable:
            database.dialect.check_durable(connection)
        if _found(connection, database) == upto:
            return
    with database.write() as connection, database.dialect.migration_lock(connection):
        found = _found(connection, database)
        if found == upto:
            return
        if found == 0:
            meta.create(connection, checkfirst=True)
        for tables, columns in zip(MIGRATIONS[found:upto], ADDED_COLUMNS[found:upto], strict=True):
            for table in tables:
                table.create(connection, checkfirst=True)
            for column in columns:
                _add(connection, column)
            if sequences in tables:
                _begin_epochs(connection)
        _save(connection, upto)
        connection.commit()  # Before the lock is given back: who gets it next must see all of this.


def _add(connection: Connection, column: Column[Any]) -> None:
    """A column of an older table, unless that was made with it, or an upgrade was cut short after it."""
    table = column.table.name
    if column.name not in {known["name"] for known in inspect(connection).get_columns(table)}:
        kind = column.type.compile(connection.dialect)
        connection.exec_driver_sql(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}")


def _begin_epochs(connection: Connection) -> None:
    """MariaDB commits each table by itself: an upgrade that was cut short may have come past this."""
    there = set(connection.execute(select(sequences.c.name)).scalars())
    for name in {EPOCHS, PRODUCER_EPOCHS} - there:
        connection.execute(insert(sequences).values(name=name, value=0))


def _found(connection: Connection, database: Database) -> int:
    """The version that is there, 0 for none."""
    if not inspect(connection).has_table(meta.name):
        return 0
    value = connection.execute(select(meta.c.value).where(meta.c.name == _VERSION)).scalar()
    if value is None:
        return 0
    if not value.isdigit():
        raise NotAShoalStore(database.dialect.description, f"schema version {value!r} is not a number")
    if int(value) > SCHEMA_VERSION:
        raise StoreTooNew(where=database.dialect.description, found=int(value), known=SCHEMA_VERSION)
    return int(value)


def _save(connection: Connection, version: int) -> None:
    changed = connection.execute(update(meta).where(meta.c.name == _VERSION).values(value=str(version)))
    if changed.rowcount == 0:
        connection.execute(insert(meta).values(name=_VERSION, value=str(version)))


_VERSION = "schema_version"
