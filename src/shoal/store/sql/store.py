"""The SQL store as one object: opened from a URL, migrated, closed."""

from __future__ import annotations

import time

from shoal.core.errors import StoreBusy
from shoal.core.limits import RETRIES_MAX
from shoal.store.sql.catalog import SQLCatalog
from shoal.store.sql.database import Database
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.log import SQLLog
from shoal.store.sql.migration import migrate
from shoal.store.sql.watch import Watch


class SQLStore(SQLCatalog, SQLLog):
    """See Store. Catalogue and log share one database, so that a split and an append meet in one row."""

    def __init__(self, database: Database) -> None:
        SQLCatalog.__init__(self, database)
        SQLLog.__init__(self, database)
        self._database = database
        self.signal = Watch(database, self)

    @classmethod
    def open(cls, url: str, *, durable: bool = True) -> SQLStore:
        """Open the database, check it, and bring its schema up to date."""
        database = Database(dialect_for(url))
        try:
            _migrate_patiently(database, durable=durable)
        except BaseException:
            database.close()
            raise
        return cls(database)

    @property
    def description(self) -> str:
        """See Store."""
        return self._database.dialect.description

    def close(self) -> None:
        """See Store."""
        self.signal.close()
        self._database.close()


def _migrate_patiently(database: Database, *, durable: bool) -> None:
    """Others may be creating, or closing, the same database at this moment: that passes."""
    for attempt in range(1, RETRIES_MAX + 1):
        try:
            return migrate(database, durable=durable)
        except StoreBusy:
            if attempt == RETRIES_MAX:
                raise
        time.sleep(0.05 * attempt)
    return None
