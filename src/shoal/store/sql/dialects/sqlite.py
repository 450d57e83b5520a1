"""SQLite: the whole system in one file, for several processes at once, through the standard library.

WAL with full sync: a commit returns after the log file is synced. Writers take the write lock at BEGIN and
try again every few milliseconds; SQLite's own waiting backs off to a tenth of a second, which starves
some of eight writers. Changes by other processes show in `PRAGMA data_version`.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Any, Final

from sqlalchemy import create_engine, event
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.pool import QueuePool

from shoal.core.errors import (
    InvalidUrl,
    NotAShoalStore,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFailure,
    StoreFull,
    StoreNotDurable,
    StoreReadOnly,
    StoreUnavailable,
)
from shoal.core.limits import STORE_LOCK_WAIT_S
from shoal.store.sql.dialects.dialect import HINT_WAIT_S, Dialect, Hints, first_line, unlocked
from shoal.store.sql.prepared import Querying

APPLICATION_ID: Final = 0x53484F4C
"""`SHOL`, in the header of the file: how we know our own."""

PRAGMAS: Final = (
    "PRAGMA busy_timeout = 5000",
    # For a new file: batches are large, but every small commit writes whole pages too.
    "PRAGMA page_size = 16384",
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = FULL",
    # A payload's pages pass through once. In a cache that fits the processor's own they stay at hand.
    "PRAGMA cache_size = -1000",
    "PRAGMA temp_store = MEMORY",
    "PRAGMA wal_autocheckpoint = 1000",
    # Debian's SQLite fills what is deleted with zeros: to forget a record would cost what it did to write it.
    "PRAGMA secure_delete = OFF",
)
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "9p", "lustre", "glusterfs", "ceph", "ncpfs"}
)


class SQLite(Dialect):
    """A database in a file on a local disk."""

    def __init__(self, url: URL) -> None:
        super().__init__(url)
        name = url.database or ""
        if not name or name == ":memory:" or name.startswith("file:"):
            raise InvalidUrl("url", str(url), "name a file: sqlite:///relative.db or sqlite:////absolute.db")
        if url.host:
            raise InvalidUrl("url", str(url), "a file has no host; write three slashes: sqlite:///file.db")
        self.path = Path(name).expanduser().resolve()
        self._is_made = False

    glances_freely = True

    def engine(self) -> Engine:
        """A pool of connections that begin no transaction by themselves."""
        return self._engine(_configure_mapped if self.reads_mapped else _configure)

    def writers(self, engine: Engine) -> Engine:
        """Others, which wait only for a moment at a time for the write lock: see `begin_write`."""
        del engine
        return self._engine(_configure_writer)

    def _engine(self, configure: Callable[[Any, Any], None]) -> Engine:
        engine = create_engine(
            self.url.set(drivername="sqlite+pysqlite", database=str(self.path), query={}),
            poolclass=QueuePool,
            pool_size=8,
            max_overflow=56,
            pool_timeout=STORE_LOCK_WAIT_S,
            pool_reset_on_return=None,
            connect_args={"check_same_thread": False, "isolation_level": None, "timeout": 5.0},
        )
        event.listen(engine, "do_connect", self._connect)
        event.listen(engine, "connect", configure)
        return engine

    def _connect(self, _dialect: Any, _record: Any, _arguments: Any, settings: Any) -> sqlite3.Connection:
        """The first makes the file, if need be. A file that is gone later on is not made again, empty."""
        mode = "rw" if self._is_made else "rwc"
        opened: sqlite3.Connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={mode}", uri=True, **settings
        )
        self._is_made = True
        return opened

    def inspect(self) -> None:
        """Look at the file before anything is written: is it ours, local, writable?"""
        if self.path.is_dir():
            raise NotAShoalStore(str(self.path), "it is a folder, not a file")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreReadOnly(f"{self.path.parent}: {error.strerror}") from error
        kind = _filesystem(self.path.parent)
        if kind in _NETWORK or kind.startswith("fuse.ssh"):
            raise NotAShoalStore(
                str(self.path),
                f"SQLite's locks do not hold on a network file system ({kind}); use PostgreSQL",
            )
        if not os.access(self.path.parent, os.W_OK) or (
            self.path.exists() and not os.access(self.path, os.W_OK)
        ):
            raise StoreReadOnly(str(self.path))
        if self.path.exists() and self.path.stat().st_size:
            self._inspect_content()

    def _inspect_content(self) -> None:
        try:
            found, tables = self._peek("ro")
        except sqlite3.DatabaseError as error:
            if _code(error) == sqlite3.SQLITE_NOTADB:
                raise NotAShoalStore(str(self.path), "the file is not a SQLite database") from error
            if _code(error) & 0xFF != sqlite3.SQLITE_READONLY:
                raise self.fault(error) from error
            # A crash left a journal that must be rolled back first, which a reader may not do.
            try:
                found, tables = self._peek("rw")
            except sqlite3.DatabaseError as still:
                raise self.fault(still) from still
        if found != APPLICATION_ID and (found or tables):
            raise NotAShoalStore(str(self.path), "the file belongs to another application")

    def _peek(self, mode: str) -> tuple[int, int]:
        """The application's mark, and how many tables there are, as of one moment: others may be creating."""
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode={mode}", uri=True, timeout=5.0)) as peek:
            peek.execute("BEGIN")
            tables: int = peek.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            found: int = peek.execute("PRAGMA application_id").fetchone()[0]
        return found, tables

    def check_durable(self, connection: Connection) -> None:
        """Both settings are ours to make; this sees that they took."""
        for setting, wanted in (("journal_mode", "wal"), ("synchronous", "2")):
            found = str(connection.exec_driver_sql(f"PRAGMA {setting}").scalar_one())
            if found != wanted:
                raise StoreNotDurable(where=self.description, setting=setting, found=found, wanted=wanted)

    def migration_lock(self, connection: Connection) -> AbstractContextManager[None]:
        """BEGIN IMMEDIATE is the lock. The mark goes into the header with the first table."""
        connection.exec_driver_sql(f"PRAGMA application_id = {APPLICATION_ID}")
        return unlocked()

    def begin_read(self, connection: Connection) -> None:
        driver: Any = connection.connection.driver_connection
        driver.execute("BEGIN")

    def begin_write(self, connection: Connection) -> None:
        """Take the write lock, trying every few milliseconds: SQLite by itself would sleep ever longer."""
        deadline = time.monotonic() + STORE_LOCK_WAIT_S
        driver: Any = connection.connection.driver_connection
        while True:
            try:
                driver.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if _code(error) & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                if time.monotonic() > deadline:
                    raise StoreBusy(first_line(error), STORE_LOCK_WAIT_S) from error
            else:
                return

    def payload(self, connection: Querying, handle: Any) -> bytes:
        """Straight from the pages. As a column of a row it would be copied once more."""
        driver: Any = connection.connection.driver_connection
        info = connection.connection.info
        info[_BLOBS] = info.get(_BLOBS, 0) + 1
        with driver.blobopen("shoal_batch", "payload", handle, readonly=True) as blob:
            found: bytes = blob.read()
        return found

    def is_worn(self, connection: Querying) -> bool:
        """Python's connection keeps a weak reference to every blob that it ever opened, until it is closed:
        80 bytes for each large batch that was read."""
        return bool(connection.connection.info.get(_BLOBS, 0) >= BLOBS_MAX)

    def hints(self, engine: Engine) -> Hints:
        return _DataVersion(engine)

    def fault(self, error: BaseException) -> StoreError:
        """SQLite's primary result codes; the upper bits only refine them."""
        detail = f"{self.path}: {first_line(error)}"
        match _code(error) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
                return StoreBusy(detail, 5.0)
            case sqlite3.SQLITE_FULL:
                return StoreFull(detail)
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StoreReadOnly(detail)
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return StoreCorrupt(detail)
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_CANTOPEN:
                return StoreUnavailable(detail)
            case _:
                return StoreFailure(detail)


class _DataVersion:
    """`PRAGMA data_version` changes when another connection commits. A look costs microseconds.

    It looks every 2 ms after a change that was news, and slows down to every 25 ms, which is under one
    percent of a core. What this process commits itself is no news: its waiters have been rung already.
    """

    def __init__(self, engine: Engine) -> None:
        self._path = str(engine.url.database)
        self._connection: sqlite3.Connection | None = None
        self._seen = -1
        self._pause_s = _QUICK_S

    def wait(self) -> bool:
        deadline = time.monotonic() + HINT_WAIT_S
        while time.monotonic() < deadline:
            if self._connection is not None:
                time.sleep(self._pause_s)
                self._pause_s = min(self._pause_s * 1.1, _SLOW_S)
            version = self._look()
            if version != self._seen:
                self._seen = version
                return True
        return False

    def found(self) -> None:
        self._pause_s = _QUICK_S

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _look(self) -> int:
        if self._connection is None:
            self._connection = sqlite3.connect(
                self._path, check_same_thread=False, isolation_level=None, timeout=5.0
            )
            self._seen = -1
        version: int = self._connection.execute("PRAGMA data_version").fetchone()[0]
        return version


BLOBS_MAX: Final = 4096
"""Blobs that are read through one connection: what it remembers of them stays under half a megabyte, and a
new one costs a thousandth of what was read."""
_BLOBS: Final = "blobs"
_MAPPED_BYTES: Final = 0x7FFF0000
"""All that SQLite maps; what lies behind it in a larger file is read as ever."""
_QUICK_S: Final = 0.002
_SLOW_S: Final = 0.025


def _configure(connection: Any, _: Any) -> None:
    cursor = connection.cursor()
    for pragma in PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def _configure_mapped(connection: Any, record: Any) -> None:
    _configure(connection, record)
    connection.execute(f"PRAGMA mmap_size = {_MAPPED_BYTES}")


def _configure_writer(connection: Any, record: Any) -> None:
    _configure(connection, record)
    connection.execute("PRAGMA busy_timeout = 4")


def _code(error: Any) -> int:
    code: int = getattr(getattr(error, "orig", error), "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code


def _filesystem(folder: Path) -> str:
    """The type of the file system that a folder is on; empty where the system does not tell."""
    best, kind = "", ""
    try:
        mounts = Path("/proc/self/mounts").read_text().splitlines()
    except OSError:
        return ""
    for line in mounts:
        _, point, found, *_ = line.split(" ")
        point = point.replace("\\040", " ")
        if (folder == Path(point) or Path(point) in folder.parents) and len(point) >= len(best):
            best, kind = point, found
    return kind
