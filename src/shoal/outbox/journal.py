"""The relay's side of the user's database: who relays, which rows are on their way, which are done.

One transaction takes away the rows that were sent and notes the ids of the next ones, under the name of
whoever relays. So there is never a row gone that was not sent, nor one sent that was not noted before. What a
stream that stalls had in the note gets one of its own, in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Select,
    TextClause,
    and_,
    cast,
    create_engine,
    delete,
    func,
    insert,
    inspect,
    not_,
    select,
    text,
    update,
)
from sqlalchemy.dialects import mysql
from sqlalchemy.engine import URL, Connection, Engine
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from shoal.core.errors import InvalidInput, StoreFailure
from shoal.core.limits import STORE_LOCK_WAIT_S, STORE_STILL_S
from shoal.core.relaying import Holder, Stalled, as_text, fitting, ids_of, pairs_as_text, pairs_of
from shoal.outbox.outbox import RELAY, Outbox
from shoal.store.sql.dialects import Dialect, dialect_for
from shoal.store.sql.dialects.sqlite import SQLite


class RelayLost(Exception):
    """Another relays by now. Does not leave this package."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a relay takes over: the batch that is on its way."""

    producer: str
    number: int
    ids: list[int]
    stalled: list[str] = field(default_factory=list)
    """Streams that have notes of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledStream:
    """A stream that is held up, as people want to see it."""

    stream: str
    row: int
    """The id of the row that is refused."""
    why: str
    waiting: int
    """Rows of this stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutboxStatus:
    """An outbox as people want to see it."""

    waiting: int
    oldest_ms: int | None
    """The timestamp of the first record that waits."""
    relay: str | None
    """Who relays, or did when it was last heard of."""
    relayed: int
    """Rows since the outbox was made, those on their way not included."""
    stalled: Sequence[StalledStream] = ()
    """Streams that are held up, while the others go on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NextBatch:
    """What is to be noted: so many rows, or bytes, of all streams but some; and what has stalled just now."""

    rows: int
    size: int
    besides: Collection[str] = ()
    stalled: Sequence[Stalled] = ()


class _Note(NamedTuple):
    name: str
    stalled: Stalled


def create_outbox(url: str, outbox: Outbox) -> None:
    """Make the tables, through a connection of our own."""
    dialect = dialect_for(url, "an outbox's database")
    engine = user_engine(dialect, must_exist=False)
    try:
        with engine.begin() as connection:
            outbox.create(connection)
    except DBAPIError as error:
        raise dialect.fault(error) from error
    finally:
        engine.dispose()


class Journal:
    """One outbox in one database, for one relay. From one thread at a time."""

    def __init__(self, url: str, outbox: Outbox) -> None:
        self._dialect: Final = dialect_for(url, "an outbox's database")
        self._waiting, self._relay = outbox.tables.waiting, outbox.tables.relay
        self._engine: Final = user_engine(self._dialect)
        self._is_mysql: Final = self._engine.dialect.name in {"mysql", "mariadb"}
        self._ours: Final = self._relay.c.name == RELAY
        try:
            self._check()
        except BaseException:
            self.close()
            raise

    def _check(self) -> None:
        with self._transaction() as connection:
            is_there = all(
                inspect(connection).has_table(table.name) for table in (self._waiting, self._relay)
            )
            if not is_there or connection.execute(select(self._relay.c.beat)).first() is None:
                raise InvalidInput(
                    "table",
                    self._waiting.name,
                    f"no outbox in {self._dialect.description}; make it with `shoal outbox create` or "
                    "Outbox.create",
                )

    def look(self) -> Holder:
        """Who relays."""
        columns = self._relay.c
        query = select(columns.holder, columns.beat, columns.lease_ms).where(self._ours)
        with self._transaction() as connection:
            row = connection.execute(query).one()
        return Holder(name=row.holder, beat=row.beat, lease_ms=row.lease_ms)

    def take(self, seen: Holder, name: str, lease_ms: int) -> Claim | None:
        """Become the one who relays, unless the row is not as it was seen any more."""
        columns = self._relay.c
        same = and_(self._ours, columns.holder.is_not_distinct_from(seen.name), columns.beat == seen.beat)
        with self._transaction(writes=True) as connection:
            change = update(self._relay).where(same)
            taken = connection.execute(change.values(holder=name, beat=columns.beat + 1, lease_ms=lease_ms))
            if taken.rowcount != 1:
                return None
            row = connection.execute(select(self._relay).where(self._ours)).one()
            stalled = [note.stalled.stream for note in self._notes(connection)]
        return Claim(producer=row.producer, number=row.number, ids=ids_of(row.ids), stalled=stalled)

    def beat(self, name: str) -> None:
        """Say that we are there."""
        with self._held(name):
            pass

    def release(self, name: str) -> None:
        """Say that we are gone: another need not wait."""
        ours = and_(self._ours, self._relay.c.holder == name)
        with self._transaction(writes=True) as connection:
            connection.execute(update(self._relay).where(ours).values(holder=None))

    def has_more(self, than: int, besides: Collection[str] = ()) -> bool:
        """Whether more rows wait than so many, those of these streams not counted."""
        query = self._others(select(self._waiting.c.id), besides).limit(than + 1)
        with self._transaction() as connection:
            return len(connection.execute(query).all()) > than

    def advance(self, name: str, done: Collection[int], number: int, batch: NextBatch) -> list[int]:
        """Take away what was sent, note what has stalled, and what comes next from this number on; its
        ids."""
        columns = self._waiting.c
        length = (
            func.coalesce(func.length(columns.value), 0)
            + func.coalesce(func.length(columns.key), 0)
            + func.coalesce(func.length(columns.headers), 0)
        )
        query = self._others(select(columns.id, length.label("size")), batch.besides)
        found: Sequence[Any] = ()
        if batch.besides:
            # Rows of streams that stall may be many, and lie before all others: they are passed over before
            # the transaction that writes, for which the user's own may have to wait.
            with self._transaction() as connection:
                found = connection.execute(query.limit(batch.rows + len(done))).all()
        with self._held(name) as connection:
            for some in _pieces(list(done)):
                connection.execute(delete(self._waiting).where(self._among(some)))
            for one in batch.stalled:
                connection.execute(insert(self._relay).values(self._columns_of(connection, one)))
            if not batch.besides:
                found = connection.execute(query.limit(batch.rows)).all()
            ids = fitting([row for row in found if row[0] not in done][: batch.rows], batch.size)
            note = update(self._relay).where(self._ours).values(number=number, ids=as_text(ids))
            connection.execute(note)
        return ids

    def _others(self, query: Select[Any], besides: Collection[str]) -> Select[Any]:
        if besides:
            query = query.where(not_(self._is_of(besides)))
        return query.order_by(self._waiting.c.id)

    def _is_of(self, streams: Collection[str]) -> ColumnElement[bool]:
        """Byte by byte: to MariaDB `Orders` and `orders` are the same, unless told otherwise."""
        stream = self._waiting.c.stream
        if self._is_mysql:
            return cast(stream, mysql.BINARY).in_([name.encode() for name in sorted(streams)])
        return stream.in_(sorted(streams))

    # --- Streams that stall. ---

    def stalled(self, stream: str) -> Stalled | None:
        """What a stream has noted by itself."""
        with self._transaction() as connection:
            found = self._notes(connection)
        return next((note.stalled for note in found if note.stalled.stream == stream), None)

    def stall_again(self, name: str, stalled: Stalled, done: Collection[int]) -> None:
        """Some of it was sent, or it is refused for another reason."""
        with self._held(name) as connection:
            for some in _pieces(list(done)):
                connection.execute(delete(self._waiting).where(self._among(some)))
            for note in self._notes(connection):
                if note.stalled.stream == stalled.stream:
                    change = update(self._relay).where(self._relay.c.name == note.name)
                    connection.execute(change.values(ids=_as_json(stalled)))

    def unstall(self, name: str, stream: str, done: Collection[int]) -> None:
        """All of its note was sent, or is not there any more: take it away, and the note."""
        with self._held(name) as connection:
            for some in _pieces(list(done)):
                connection.execute(delete(self._waiting).where(self._among(some)))
            for note in self._notes(connection):
                if note.stalled.stream == stream:
                    connection.execute(delete(self._relay).where(self._relay.c.name == note.name))

    def _notes(self, connection: Connection) -> list[_Note]:
        columns = self._relay.c
        query = select(columns.name, columns.ids).where(columns.name != RELAY).order_by(columns.number)
        return [_Note(row.name, _of_json(row.ids)) for row in connection.execute(query)]

    def _columns_of(self, connection: Connection, stalled: Stalled) -> dict[str, Any]:
        """A note beside the relay's own row. Its name is of a number that no other note has."""
        number = stalled.rows[0][1]
        producer = connection.execute(select(self._relay.c.producer).where(self._ours)).scalar_one()
        return {
            "name": f"{number:x}",
            "producer": producer,
            "holder": None,
            "beat": 0,
            "lease_ms": 0,
            "number": number,
            "ids": _as_json(stalled),
        }

    def rows(self, ids: Sequence[int]) -> list[tuple[int, Any]]:
        """The rows of a batch that are still there, each with its place in it; a row is a tuple."""
        found: dict[int, Any] = {}
        with self._transaction() as connection:
            for some in _pieces(ids):
                query = select(self._waiting).where(self._among(some))
                found |= {row[0]: row for row in connection.execute(query)}
        return [(place, found[one]) for place, one in enumerate(ids) if one in found]

    @staticmethod
    def _among(ids: Sequence[int]) -> TextClause:
        """Each by itself, never a range: what lies between them may be locked by one who writes.

        As text: thousands of parameters take longer than the rows.
        """
        return text(f"id IN ({','.join(map(str, ids))})")

    def status(self) -> OutboxStatus:
        """How many wait, who relays, and what is held up."""
        columns = self._waiting.c
        with self._transaction() as connection:
            count = connection.execute(select(func.count()).select_from(self._waiting)).scalar_one()
            first = select(columns.timestamp_ms).order_by(columns.id).limit(1)
            oldest: int | None = connection.execute(first).scalar()
            row = connection.execute(select(self._relay).where(self._ours)).one()
            notes = [note.stalled for note in self._notes(connection)]
            counts: dict[str, int] = {}
            for one in notes:
                of_stream = select(func.count()).select_from(self._waiting).where(self._is_of([one.stream]))
                counts[one.stream] = connection.execute(of_stream).scalar_one()
        stalled = [
            StalledStream(stream=one.stream, row=one.row, why=one.why, waiting=counts.get(one.stream, 0))
            for one in notes
        ]
        relayed = row.number - sum(len(one.rows) for one in notes)
        return OutboxStatus(
            waiting=count, oldest_ms=oldest, relay=row.holder, relayed=relayed, stalled=stalled
        )

    def close(self) -> None:
        """Give the connections back."""
        self._engine.dispose()

    @contextmanager
    def _held(self, name: str) -> Iterator[Connection]:
        """A transaction that is ours to make: it raises the beat, and locks the row for as long."""
        columns = self._relay.c
        ours = and_(self._ours, columns.holder == name)
        with self._transaction(writes=True) as connection:
            found = connection.execute(update(self._relay).where(ours).values(beat=columns.beat + 1))
            if found.rowcount != 1:
                raise RelayLost
            yield connection

    @contextmanager
    def _transaction(self, *, writes: bool = False) -> Iterator[Connection]:
        try:
            with self._engine.connect() as connection:
                if isinstance(self._dialect, SQLite):
                    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
                yield connection
                connection.commit()
        except DBAPIError as error:
            raise self._dialect.fault(error) from error
        except SQLAlchemyError as error:
            raise StoreFailure(str(error)) from error


def _as_json(stalled: Stalled) -> str:
    return json.dumps(
        {
            "stream": stalled.stream,
            "rows": pairs_as_text(stalled.rows),
            "row": stalled.row,
            "why": stalled.why[:_WHY_MAX],
        }
    )


def _of_json(text: str) -> Stalled:
    found = json.loads(text)
    return Stalled(stream=found["stream"], rows=pairs_of(found["rows"]), row=found["row"], why=found["why"])


def user_engine(dialect: Dialect, *, must_exist: bool = True) -> Engine:
    """Our own connections, which leave the user's settings alone.

    Without gaps that are locked (READ COMMITTED), so that no transaction of the user's waits for ours or is
    undone for it.
    """
    if isinstance(dialect, SQLite):
        if must_exist and not dialect.path.exists():
            raise InvalidInput("database", str(dialect.path), "no such file; the outbox is in your own")
        return create_engine(
            URL.create("sqlite+pysqlite", database=str(dialect.path)),
            connect_args={"timeout": STORE_LOCK_WAIT_S, "isolation_level": None, "check_same_thread": False},
        )
    if dialect.url.get_backend_name() in {"mysql", "mariadb"}:
        return create_engine(
            dialect.url.set(drivername="mysql+pymysql"),
            isolation_level="READ COMMITTED",
            pool_pre_ping=True,
            connect_args={"connect_timeout": 10, "charset": "utf8mb4"},
        )
    bounds = f"-c lock_timeout={int(STORE_LOCK_WAIT_S * 1000)}"
    still = f"-c idle_in_transaction_session_timeout={int(STORE_STILL_S * 1000)}"
    return create_engine(
        dialect.url.set(drivername="postgresql+psycopg"),
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10, "application_name": "shoal", "options": f"{bounds} {still}"},
    )


def _pieces(ids: Sequence[int]) -> Iterator[list[int]]:
    """A list in a statement is no longer than any database takes."""
    for start in range(0, len(ids), _LIST_MAX):
        yield list(ids[start : start + _LIST_MAX])


_WHY_MAX: Final = 1_000
_LIST_MAX: Final = 5_000
