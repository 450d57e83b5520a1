"""The SQL store as one object: opened from a URL, migrated, closed."""

from __future__ import annotations

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
            migrate(database, durable=durable)
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
