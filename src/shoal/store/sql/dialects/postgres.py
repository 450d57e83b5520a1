"""PostgreSQL, through psycopg 3. Waiting processes are told by NOTIFY, sent with the commit itself."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from sqlalchemy import create_engine, text
from sqlalchemy.engine import URL, Connection, Engine

from shoal.core.errors import (
    MissingDriver,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailure,
    StoreFull,
    StoreNotDurable,
    StoreReadOnly,
    StoreRefused,
    StoreUnavailable,
)
from shoal.core.limits import STORE_LOCK_WAIT_S, STORE_STILL_S
from shoal.store.sql.dialects.dialect import HINT_WAIT_S, Dialect, Hints, first_line

CHANNEL: Final = "shoal"
_MIGRATION_KEY: Final = 0x73686F616C


class Postgres(Dialect):
    """A database on a PostgreSQL server."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        if importlib.util.find_spec("psycopg") is None:
            raise MissingDriver(scheme=url.drivername, package="psycopg", extra="postgres")

    def engine(self) -> Engine:
        """Lock waits and idle transactions are bounded by the server, whatever becomes of us."""
        bound_ms, still_ms = int(STORE_LOCK_WAIT_S * 1000), int(STORE_STILL_S * 1000)
        return create_engine(
            self.url.set(drivername="postgresql+psycopg"),
            pool_size=8,
            max_overflow=56,
            pool_timeout=STORE_LOCK_WAIT_S,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": 10,
                "application_name": "shoal",
                "cursor_factory": _cursors(),
                "options": f"-c lock_timeout={bound_ms} -c idle_in_transaction_session_timeout={still_ms}"
                " -c synchronous_commit=on -c statement_timeout=0",
            },
        )

    def check_durable(self, connection: Connection) -> None:
        """`synchronous_commit` is set by us for each session; the rest is the server's."""
        for setting, wanted in (("fsync", "on"), ("full_page_writes", "on"), ("synchronous_commit", "on")):
            found = connection.execute(text(f"SHOW {setting}")).scalar_one()
            if found != wanted:
                raise StoreNotDurable(where=self.description, setting=setting, found=found, wanted=wanted)

    def migration_lock(self, connection: Connection) -> AbstractContextManager[None]:
        return _advisory_lock(connection)

    def begin_read(self, connection: Connection) -> None:
        """One moment for several statements."""
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"))

    def announce(self, connection: Connection, topics: Sequence[object]) -> None:
        """One notification for each topic; the server drops equal ones within a transaction."""
        for topic in topics:
            connection.execute(text(f"SELECT pg_notify('{CHANNEL}', :topic)"), {"topic": str(topic)})

    def hints(self, engine: Engine) -> Hints:
        return _Listener(engine)

    def fault(self, error: BaseException) -> StoreError:
        """By SQLSTATE; a connection that broke has none."""
        state: str = getattr(getattr(error, "orig", error), "sqlstate", None) or ""
        detail = f"{self.description}: {first_line(error)}"
        # What fails before the session begins comes without a state.
        if "password authentication failed" in detail or ("FATAL" in detail and "does not exist" in detail):
            return StoreRefused(detail)
        for starts, kind in _FAULTS.items():
            if any(state.startswith(start) for start in starts):
                return StoreBusy(detail, STORE_LOCK_WAIT_S) if kind is StoreBusy else kind(detail)
        return StoreFailure(detail) if state else StoreUnavailable(detail)


# Looked at in this order: 53300 is one of the 53s.
_FAULTS: Final[dict[tuple[str, ...], Any]] = {
    ("28", "3D"): StoreRefused,
    ("08", "57P", "53300"): StoreUnavailable,
    ("53",): StoreFull,
    ("40", "55P03", "57014", "25P03"): StoreBusy,
    ("25006",): StoreReadOnly,
    ("XX00",): StoreCorrupt,
}


def _cursors() -> Any:
    """Cursors whose results come in binary form, and after which the server watches an idle transaction.

    A payload in text form is twice as long, in hexadecimal. And the driver ends many rows with a Sync and a
    Flush: the server stops the clock of `idle_in_transaction_session_timeout` at the Flush, and starts it at
    the next Sync only, so that a process that is stopped there would keep its rows locked for ever.
    """
    import psycopg  # noqa: PLC0415 - an optional dependency

    class Cursor(psycopg.Cursor[Any]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self.format = psycopg.pq.Format.BINARY

        def executemany(self, query: Any, params_seq: Any, *, returning: bool = False) -> None:
            rows = list(params_seq)
            if len(rows) == 1:
                self.execute(query, rows[0], prepare=True)
                return
            super().executemany(query, rows, returning=returning)
            self.connection.execute("")

    return Cursor


@contextmanager
def _advisory_lock(connection: Connection) -> Iterator[None]:
    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_KEY})
    yield


class _Listener:
    """A connection that LISTENs. It is opened by the first wait, and again after it broke or was closed."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Any = None

    def wait(self) -> bool:
        if self._connection is None:
            self._open()
            return True  # Whatever came before we listened was not heard.
        return any(True for _ in self._connection.notifies(timeout=HINT_WAIT_S, stop_after=1))

    def found(self) -> None:
        """It is told of everything anyway."""

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _open(self) -> None:
        import psycopg  # noqa: PLC0415 - an optional dependency

        arguments, options = self._engine.dialect.create_connect_args(self._engine.url)
        self._connection = psycopg.connect(*arguments, **options, autocommit=True, connect_timeout=10)
        self._connection.execute(f"LISTEN {CHANNEL}")
