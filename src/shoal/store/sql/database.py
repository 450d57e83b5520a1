"""One database: its connections, transactions, faults, and what happens to them at a fork.

`read()` and `write()` are the only ways to a connection. Every driver's error leaves here under our name.
A fork closes all connections first and lets both sides open new ones: SQLite keeps its locks per process
and PostgreSQL's sockets would be shared, so that an inherited connection is worse than none.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from shoal.core.errors import HubClosed, StoreBusy, StoreFailure
from shoal.core.limits import STORE_LOCK_WAIT_S
from shoal.store.sql.dialects import Dialect
from shoal.store.sql.prepared import Querying

_FORK_WAIT_S: Final = STORE_LOCK_WAIT_S * 2


class Closeable(Protocol):
    """Something that holds a connection of its own and can open another later."""

    def close(self) -> None: ...


class Database:
    """Transactions on one database, from many threads, before and after a fork."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.engine = dialect.engine()
        self._writers = dialect.writers(self.engine)
        self._glances: deque[_Glance] = deque()
        """Connections that only look, kept as they are: to get one from the pool takes as long as to look."""
        self._gate = _Gate()
        self._companions: weakref.WeakSet[Closeable] = weakref.WeakSet()
        with _FORKING:
            _DATABASES.add(self)

    def inspect(self) -> None:
        """Refuse what is not ours before anything is changed."""
        with self._gate.passed():
            self.dialect.inspect()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A transaction that sees one moment and writes nothing."""
        with self._gate.passed(), self._named_faults(), self.engine.connect() as connection:
            try:
                self.dialect.begin_read(connection)
                _begun(connection)
                yield connection
            except BaseException as error:
                _end(connection, error)
                raise
            _end(connection)

    @contextmanager
    def glance(self) -> Iterator[Querying]:
        """For one statement that writes nothing: it sees one moment by itself."""
        with self._gate.passed(), self._named_faults():
            if not self.dialect.glances_freely:
                with self.engine.connect() as connection:
                    _begun(connection)
                    try:
                        yield connection
                    finally:
                        _end(connection)
                return
            glance = self._glances.pop() if self._glances else _Glance(self.engine)
            try:
                yield glance
            except BaseException:
                glance.close()
                raise
            if self.dialect.is_worn(glance):
                glance.close()
            elif len(self._glances) < _GLANCES_MAX:
                self._glances.append(glance)
            else:
                glance.connection.close()  # It goes back to the pool, which others wait for.

    @contextmanager
    def look(self) -> Iterator[Querying]:
        """For a few prepared statements that write nothing, and see one moment together."""
        if not self.dialect.glances_freely:
            with self.read() as connection:
                yield connection
            return
        with self.glance() as kept:
            driver: Any = kept.connection.driver_connection
            driver.execute("BEGIN")
            yield kept
            driver.rollback()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """A transaction that is durable when this returns, and left no trace if it raises."""
        with self._gate.passed(), self._named_faults(), self._writers.connect() as connection:
            try:
                self.dialect.begin_write(connection)
                _begun(connection)
                yield connection
                connection.commit()
            except BaseException as error:
                _end(connection, error)
                raise

    @contextmanager
    def listening(self, companion: Closeable) -> Iterator[None]:
        """For something with its own connection: no fork while inside, and it is closed before one.

        It is closed after a fault, too: a connection that broke would stay broken when the database is back.
        """
        with self._gate.passed(), self._named_faults():
            self._companions.add(companion)
            try:
                yield
            except BaseException:
                companion.close()
                raise

    def close(self) -> None:
        """Refuse further transactions, wait for those under way, close the connections."""
        self._gate.shut(for_good=True)
        self._close_connections()
        _DATABASES.discard(self)

    @contextmanager
    def _named_faults(self) -> Iterator[None]:
        try:
            yield
        except PoolTimeout as error:
            raise StoreBusy("all connections are in use", STORE_LOCK_WAIT_S) from error
        except (DBAPIError, self.engine.dialect.loaded_dbapi.Error) as error:
            raise self.dialect.fault(error) from error
        except SQLAlchemyError as error:
            raise StoreFailure(str(error)) from error

    def _close_connections(self) -> None:
        for companion in list(self._companions):
            companion.close()
        while self._glances:
            self._glances.pop().close()
        self.engine.dispose()
        self._writers.dispose()

    def before_fork(self) -> None:
        self._gate.shut(for_good=False)
        self._close_connections()

    def after_fork(self, *, in_child: bool) -> None:
        if in_child:
            self._gate.renew()
            self._companions = weakref.WeakSet()
        self._gate.open()


class _Glance:
    """A connection that is in no transaction, with what a prepared statement needs of it."""

    __slots__ = ("connection", "dialect")

    def __init__(self, engine: Engine) -> None:
        self.connection = engine.raw_connection()
        self.dialect = engine.dialect

    def close(self) -> None:
        self.connection.invalidate()


class _Gate:
    """Lets transactions through, and can be shut until those inside have left.

    Writer and reader of all fields: any thread, under `_changed`.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_shut = False
        self._for_good = False

    @contextmanager
    def passed(self) -> Iterator[None]:
        with self._changed:
            while self._is_shut and not self._for_good:
                self._changed.wait(_FORK_WAIT_S)
            if self._for_good:
                raise HubClosed
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def shut(self, *, for_good: bool) -> None:
        deadline = time.monotonic() + _FORK_WAIT_S
        with self._changed:
            self._is_shut = True
            self._for_good = self._for_good or for_good
            self._changed.notify_all()
            while self._inside and time.monotonic() < deadline:
                self._changed.wait(0.1)

    def open(self) -> None:
        with self._changed:
            self._is_shut = False
            self._changed.notify_all()

    def renew(self) -> None:
        """In a forked child: the lock may have been held by a thread that does not exist here."""
        self._changed = threading.Condition()
        self._inside = 0


def _begun(connection: Connection) -> None:
    """See that SQLAlchemy knows of the transaction, also if only the driver's cursor is used in it."""
    if not connection.in_transaction():
        connection.begin()


def _end(connection: Connection, error: BaseException | None = None) -> None:
    """Roll back; a connection that cannot is broken and does not go back to the pool.

    Nor does that of someone who was interrupted: it may have begun, and only the driver knows. The next one
    to get it could not begin, and its lock would be kept for ever.
    """
    if error is not None and not isinstance(error, Exception):
        connection.invalidate()
        return
    try:
        connection.rollback()
    except (DBAPIError, SQLAlchemyError):
        connection.invalidate()


_GLANCES_MAX: Final = 8
"""Connections kept for looks, of the many that a pool may have: all others must remain for transactions."""
_DATABASES: weakref.WeakSet[Database] = weakref.WeakSet()


# Forks of several threads take turns. Otherwise the end of one would open the gates for transactions that
# the other, already past its own shutting, would then tear apart.
_FORKING: Final = threading.RLock()


def _before_fork() -> None:
    _FORKING.acquire()
    for database in list(_DATABASES):
        database.before_fork()


def _after_fork(*, in_child: bool) -> None:
    for database in list(_DATABASES):
        database.after_fork(in_child=in_child)
    _FORKING.release()


os.register_at_fork(
    before=_before_fork,
    after_in_parent=lambda: _after_fork(in_child=False),
    after_in_child=lambda: _after_fork(in_child=True),
)
