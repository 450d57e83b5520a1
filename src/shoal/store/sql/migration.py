"""Creates the schema and brings an older one up to date, in place, one version at a time."""

from __future__ import annotations

from sqlalchemy import insert, inspect, select, update
from sqlalchemy.engine import Connection

from shoal.core.errors import NotAShoalStore, StoreTooNew
from shoal.store.sql.database import Database
from shoal.store.sql.tables import EPOCHS, MIGRATIONS, SCHEMA_VERSION, meta, sequences


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
        for tables in MIGRATIONS[found:upto]:
            for table in tables:
                table.create(connection, checkfirst=True)
            if sequences in tables:
                _begin_epochs(connection)
        _save(connection, upto)


def _begin_epochs(connection: Connection) -> None:
    """MariaDB commits each table by itself: an upgrade that was cut short may have come past this."""
    there = connection.execute(select(sequences.c.name).where(sequences.c.name == EPOCHS)).scalar()
    if there is None:
        connection.execute(insert(sequences).values(name=EPOCHS, value=0))


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
