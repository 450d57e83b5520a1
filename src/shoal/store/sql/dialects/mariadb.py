"""MariaDB and MySQL, through PyMySQL. They cannot tell anyone of a commit, so waiters look repeatedly."""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

from sqlalchemy import create_engine, event, text
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
from shoal.store.sql.dialects.dialect import Dialect, Hints, first_line

_QUICK_S: Final = 0.02
_SLOW_S: Final = 0.15


class MariaDB(Dialect):
    """A database on a MariaDB or MySQL server, in InnoDB tables."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        if importlib.util.find_spec("pymysql") is None:
            raise MissingDriver(scheme=url.drivername, package="pymysql", extra="mysql")

    def engine(self) -> Engine:
        """Payloads are marked as binary, or the server would check them as text."""
        engine = create_engine(
            self.url.set(drivername="mysql+pymysql"),
            pool_size=8,
            max_overflow=56,
            pool_timeout=STORE_LOCK_WAIT_S,
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "binary_prefix": True, "charset": "utf8mb4"},
        )
        event.listen(engine, "connect", _configure)
        return engine

    def check_durable(self, connection: Connection) -> None:
        """The log is flushed at every commit, and the binary log with it where there is one."""
        rows = connection.execute(
            text("SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@log_bin, @@sync_binlog")
        ).one()
        flush, double, binlog, sync = (str(value) for value in rows)
        wanted: list[tuple[str, str, tuple[str, ...]]] = [
            ("innodb_flush_log_at_trx_commit", flush, ("1", "3")),
            ("innodb_doublewrite", double, ("1", "ON")),
        ]
        if binlog in {"1", "ON"}:
            wanted.append(("sync_binlog", sync, ("1",)))
        for setting, found, good in wanted:
            if found not in good:
                raise StoreNotDurable(where=self.description, setting=setting, found=found, wanted=good[0])

    def migration_lock(self, connection: Connection) -> AbstractContextManager[None]:
        return _named_lock(connection)

    def hints(self, engine: Engine) -> Hints:
        del engine
        return _Look()

    def fault(self, error: BaseException) -> StoreError:
        """By the server's and the client's error numbers."""
        original = getattr(error, "orig", error)
        arguments: tuple[Any, ...] = getattr(original, "args", ())
        number = arguments[0] if arguments and isinstance(arguments[0], int) else 0
        detail = f"{self.description}: {first_line(error)}"
        for numbers, kind in _FAULTS.items():
            if number in numbers:
                return StoreBusy(detail, STORE_LOCK_WAIT_S) if kind is StoreBusy else kind(detail)
        return StoreFailure(detail)


_FAULTS: Final[dict[tuple[int, ...], Any]] = {
    # 0 is PyMySQL's own: the connection was closed under it. 1053, 1077, 1079: the server is going down.
    (
        0,
        1040,
        1053,
        1077,
        1079,
        1152,
        1158,
        1159,
        1160,
        1161,
        1203,
        1317,
        1927,
        2002,
        2003,
        2006,
        2013,
        2014,
        2055,
    ): (StoreUnavailable),
    (1205, 1213, 1020, 3572): StoreBusy,
    (1021, 1114, 3, 20, 28): StoreFull,
    (1290, 1792, 1836): StoreReadOnly,
    (1044, 1045, 1049, 1130, 1698): StoreRefused,
    (126, 127, 134, 144, 145, 1034, 1194, 1712): StoreCorrupt,
}


class _Look:
    """No hint can be had: saying yes makes the waiter look at its shards' ends.

    It says so every 20 ms at first and slows down to every 150 ms: a look is a query.
    """

    def __init__(self) -> None:
        self._pause_s = _QUICK_S

    def wait(self) -> bool:
        time.sleep(self._pause_s)
        self._pause_s = min(self._pause_s * 1.1, _SLOW_S)
        return True

    def found(self) -> None:
        self._pause_s = _QUICK_S

    def close(self) -> None:
        """There is nothing to close."""


@contextmanager
def _named_lock(connection: Connection) -> Iterator[None]:
    """DDL commits by itself here, so a transaction does not protect a migration."""
    got = connection.execute(text("SELECT GET_LOCK(CONCAT(DATABASE(), '.shoal'), 30)")).scalar_one()
    if got != 1:
        raise StoreBusy("another process is migrating the schema", 30)
    try:
        yield
    finally:
        connection.execute(text("SELECT RELEASE_LOCK(CONCAT(DATABASE(), '.shoal'))"))


def _configure(connection: Any, _: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        # The last is MariaDB's alone, and a comment for MySQL: whoever stands still within a transaction, a
        # process that was stopped, loses its connection and with it the rows that it had locked.
        cursor.execute(
            f"SET SESSION innodb_lock_wait_timeout = {int(STORE_LOCK_WAIT_S)}, sql_mode = 'STRICT_ALL_TABLES'"
            f" /*M!100300 , idle_transaction_timeout = {int(STORE_STILL_S)} */"
        )
