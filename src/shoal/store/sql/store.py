"""The SQL store as one object: opened from a URL, migrated, closed."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import Final

from sqlalchemy import insert, select

from shoal.core.errors import StoreBusy
from shoal.core.limits import RETRIES_MAX
from shoal.lease_port import LeaseNews
from shoal.ports import MemberView, Place, ShardEnd, StreamRoutes
from shoal.share_port import ShareNews
from shoal.store.sql.access import SQLAccess
from shoal.store.sql.catalog import SQLCatalog
from shoal.store.sql.database import Database
from shoal.store.sql.delaying import SQLDelays
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.groups import SQLGroups
from shoal.store.sql.leases import SQLLeaseTable
from shoal.store.sql.log import SQLLog
from shoal.store.sql.marks import marks
from shoal.store.sql.migration import migrate
from shoal.store.sql.positions import SQLPositions
from shoal.store.sql.routes import SQLRoutes
from shoal.store.sql.shares import SQLShares
from shoal.store.sql.tables import meta
from shoal.store.sql.touches import SQLTouches
from shoal.store.sql.transactions import SQLTransactions
from shoal.store.sql.watch import Watch

_IDENTITY: Final = "store_id"


class SQLStore(
    SQLCatalog,
    SQLRoutes,
    SQLLog,
    SQLGroups,
    SQLTouches,
    SQLShares,
    SQLPositions,
    SQLDelays,
    SQLTransactions,
):
    """See Store. All of it shares one database, so that a split and an append meet in one row."""

    def __init__(self, database: Database) -> None:
        SQLCatalog.__init__(self, database)
        SQLRoutes.__init__(self, database)
        SQLLog.__init__(self, database)
        SQLGroups.__init__(self, database)
        SQLTouches.__init__(self, database)
        SQLShares.__init__(self, database)
        SQLPositions.__init__(self, database)
        SQLDelays.__init__(self, database)
        SQLTransactions.__init__(self, database, self._known_table)
        self._database = database
        self._tables: dict[str, SQLLeaseTable] = {}
        self.access = SQLAccess(database)
        self.signal = Watch(database, self._look, partial(marks, database))

    @classmethod
    def open(cls, url: str, *, durable: bool = True, mapped: bool = False) -> SQLStore:
        """Open the database, check it, and bring its schema up to date. `mapped`: see Dialect."""
        dialect = dialect_for(url)
        dialect.reads_mapped = mapped
        database = Database(dialect)
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

    @cached_property
    def identity(self) -> str:
        """See Store."""
        query = select(meta.c.value).where(meta.c.name == _IDENTITY)
        with self._database.write() as connection, self._database.dialect.migration_lock(connection):
            found: str | None = connection.execute(query).scalar()
            if found is None:
                found = secrets.token_hex(8)
                connection.execute(insert(meta).values(name=_IDENTITY, value=found))
        return found

    def lease_table(self, name: str) -> SQLLeaseTable:
        """See Store."""
        table = SQLLeaseTable(self._database, name)
        self._tables.setdefault(name, table)  # For looks at its news, which need no state of a consumer's.
        return table

    def _known_table(self, name: str) -> SQLLeaseTable:
        return self._tables.get(name) or self.lease_table(name)

    def _look(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, bool]]:
        ends = [place for place in places if isinstance(place, ShardEnd)]
        views = [place for place in places if isinstance(place, MemberView)]
        found: dict[Place, tuple[int, bool]] = {}
        if ends:
            found |= {place: end for place, end in self.ends(ends).items()}  # noqa: C416 - for the keys' type
        if views:
            found |= {place: end for place, end in self.assigned(views).items()}  # noqa: C416
        news = [place for place in places if isinstance(place, ShareNews)]
        if news:
            found |= {place: end for place, end in self.share_news(news).items()}  # noqa: C416
        maps = [place for place in places if isinstance(place, StreamRoutes)]
        if maps:
            found |= {place: end for place, end in self.routes(maps).items()}  # noqa: C416
        for name in {place.table for place in places if isinstance(place, LeaseNews)}:
            groups = [place.group for place in places if isinstance(place, LeaseNews) and place.table == name]
            news_of = self._known_table(name).news(groups)
            found |= {LeaseNews(name, group): (number, True) for group, number in news_of.items()}
        return found

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
