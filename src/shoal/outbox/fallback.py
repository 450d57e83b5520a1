"""Where a best-tried producer puts what it could not send: an outbox, through a connection of its own."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from sqlalchemy.exc import DBAPIError

from shoal.forks import renew_in_child
from shoal.outbox.journal import user_engine
from shoal.outbox.outbox import Outbox, row_of
from shoal.outbox.writing import writer_of
from shoal.producer.setting_aside import AsideRecord
from shoal.store.sql.dialects import dialect_for
from shoal.store.sql.dialects.sqlite import SQLite


class OutboxFallback:
    """`hub.producer(…, outbox=OutboxFallback("postgresql://…"))`. A relay sends what is put there."""

    def __init__(self, database: str, outbox: Outbox | None = None) -> None:
        """`database` is the URL of the one that holds the outbox's tables."""
        self._outbox = outbox or Outbox()
        self._dialect: Final = dialect_for(database, "an outbox's database")
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._engine = user_engine(self._dialect, must_exist=True)

    def put(self, stream: str, records: Sequence[AsideRecord]) -> None:
        """All of them, in one transaction."""
        rows = [
            row_of(
                stream,
                one.record.value,
                one.record.key,
                timestamp=one.record.timestamp,
                headers=one.record.headers,
                hash_key=one.place,
                deliver_at=one.due_ms,
            )
            for one in records
        ]
        try:
            with self._lock, self._engine.connect() as connection:
                if isinstance(self._dialect, SQLite):
                    connection.exec_driver_sql("BEGIN IMMEDIATE")
                writer_of(connection).insert(self._outbox.tables.waiting, rows)
                connection.commit()
        except DBAPIError as error:
            raise self._dialect.fault(error) from error

    def close(self) -> None:
        """Give the connection back."""
        self._engine.dispose()
