"""Keeps batches in SQL: append, fetch, trim. Every decision is `core`'s; this loads, asks and saves.

An append locks the rows of its shards (SQLite: the database), so that two appends to one shard, or an
append and a split, happen one after the other, in every process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from shoal.core.appending import Closed, ProducerState, Refuse, Repeat, ShardTail, Store, decide
from shoal.core.delaying import DELAYED, NOWHERE
from shoal.core.limits import RETENTION_BATCHES_PER_STEP
from shoal.core.model import Appended, ShardId, ShardStatus, StreamInfo, StreamName, StreamStats
from shoal.core.reading import BatchMeta, ReadLimits
from shoal.core.retention import Cut, ShardFront
from shoal.core.statistics import stream_stats
from shoal.ports import (
    AppendAnswer,
    AppendRequest,
    Fence,
    Fetched,
    Repeated,
    ShardEnd,
    ShardGone,
    ShardShut,
)
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.delaying import delayed_rows, insert_delayed, lock_streams, records_delayed
from shoal.store.sql.fetching import META_COLUMNS, Fetcher, Fetching, meta_of
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite
from shoal.store.sql.producers import SQLProducers, Who, load_lives, load_producers, save_producers

Where = tuple[int, ShardId]
_LATER: Final = Appended(DELAYED, NOWHERE, NOWHERE)
_LATER_AGAIN: Final = Repeated(*_LATER)
"""Of what is to come later nobody knows yet where it will be."""

_shards = tables.shards.c
_batches = tables.batches.c
_claims = tables.claims.c


class SQLLog(SQLProducers):
    """See LogStore."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self._fetcher = Fetcher(database)

    def append(self, requests: Sequence[AppendRequest], now_ms: int) -> list[AppendAnswer]:
        """See LogStore."""
        with self._database.write() as connection:
            return appended(connection, self._database, requests, now_ms)

    def fetch(
        self,
        name: StreamName,
        place: ShardEnd,
        offset: int,
        limits: ReadLimits,
        fence: Fence | None = None,
    ) -> Fetched:
        """See LogStore."""
        asked = Fetching(name=name, place=place, offset=offset, limits=limits, fence=fence)
        return self._fetcher.fetch(asked)

    def ends(self, shards: Sequence[ShardEnd]) -> Mapping[ShardEnd, tuple[int, bool]]:
        """See LogStore."""
        found: dict[ShardEnd, tuple[int, bool]] = {}
        with self._database.read() as connection:
            for stream_id, wanted in _by_stream(shards):
                rows = _ENDS.rows(connection, {"stream": stream_id, "wanted": wanted})
                for row in rows:
                    is_open = row.status == ShardStatus.OPEN
                    found[ShardEnd(stream_id, ShardId(row.shard))] = (row.next_offset, is_open)
        return found

    def batch_at(self, stream_id: int, shard: ShardId, offset: int) -> tuple[BatchMeta, int] | None:
        """See LogStore."""
        with self._database.read() as connection:
            rows = _BATCH_AT.rows(connection, {"at": stream_id, "of_shard": shard, "offset": offset})
        return (meta_of(rows[0]), rows[0].top_timestamp_us) if rows else None

    def batches_at(self, stream_id: int, offsets: Mapping[ShardId, int]) -> Mapping[ShardId, BatchMeta]:
        """See LogStore."""
        found: dict[ShardId, BatchMeta] = {}
        with self._database.read() as connection:
            for shard, offset in offsets.items():
                where = {"at": stream_id, "of_shard": shard, "offset": offset}
                for row in _BATCH_AT.rows(connection, where):
                    found[shard] = meta_of(row)
        return found

    def stats(self, stream: StreamInfo) -> StreamStats:
        """See LogStore."""
        figures = select(func.count(), func.min(_batches.appended_ms), func.max(_batches.appended_ms)).where(
            _batches.stream_id == stream.id
        )
        with self._database.read() as connection:
            count, oldest, newest = connection.execute(figures).one()
            delayed = records_delayed(connection, stream.id)
        return stream_stats(
            stream, batches=count, delayed=delayed, oldest_append_ms=oldest, newest_append_ms=newest
        )

    def trim(
        self, stream: StreamInfo, rule: Callable[[Mapping[ShardId, ShardFront], int], Mapping[ShardId, Cut]]
    ) -> Mapping[ShardId, Cut]:
        """See LogStore."""
        with self._database.read() as connection:
            if not rule(*_fronts(connection, stream.id)):
                return {}  # The usual case takes no write lock.
        with self._database.write() as connection:
            tails = _load_tails(connection, {(stream.id, shard.id) for shard in stream.shards})
            # Shards born since `stream` was loaded are not locked; they are trimmed the next time.
            planned = rule(*_fronts(connection, stream.id))
            cuts = {shard: cut for shard, cut in planned.items() if (stream.id, shard) in tails}
            for shard, cut in cuts.items():
                connection.execute(
                    delete(tables.batches).where(
                        _batches.stream_id == stream.id,
                        _batches.shard == shard,
                        _batches.base_offset < cut.first_offset,
                    )
                )
                connection.execute(
                    update(tables.shards)
                    .where(_shards.stream_id == stream.id, _shards.shard == shard)
                    .values(first_offset=cut.first_offset, bytes=tails[stream.id, shard].bytes - cut.bytes)
                )
        return cuts


def appended(
    connection: Connection, database: Database, requests: Sequence[AppendRequest], now_ms: int
) -> list[AppendAnswer]:
    """Append within a transaction, and tell who waits once it is committed."""
    return append_all(connection, database, requests, now_ms)[0]


def append_all(
    connection: Connection, database: Database, requests: Sequence[AppendRequest], now_ms: int
) -> tuple[list[AppendAnswer], int]:
    """The same; and how many of the batches are new."""
    tails = lock_streams(connection, [r.stream_id for r in requests if r.delayed is not None])
    tails |= _load_tails(connection, {(r.stream_id, r.shard) for r in requests if r.delayed is None})
    books = _Books(
        tails=tails,
        lives=load_lives(connection, requests),
        known=load_producers(connection, [who for request in requests if (who := _who(request))]),
    )
    writes = _Writes()
    answers = [_append_one(request, books, writes, now_ms) for request in requests]
    writes.save(connection, now_ms)
    moved = {stream for stream, shard in writes.tails if shard != DELAYED}
    database.dialect.announce(connection, sorted(moved))
    return answers, len(writes.batches) + len(writes.delayed)


class _Writes:
    """What one commit will save."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.delayed: list[dict[str, Any]] = []
        self.tails: dict[Where, ShardTail] = {}
        self.producers: dict[Who, tuple[ProducerState, bool]] = {}

    def save(self, connection: Connection, now_ms: int) -> None:
        _INSERT_BATCH.run(connection, self.batches)
        insert_delayed(connection, self.delayed)
        _UPDATE_TAIL.run(
            connection,
            [
                {
                    "stream": stream,
                    "at": shard,
                    "to_offset": tail.next_offset,
                    "to_bytes": tail.bytes,
                    "to_ms": tail.appended_ms,
                    "to_us": tail.top_timestamp_us,
                }
                for (stream, shard), tail in self.tails.items()
                if shard != DELAYED
            ],
        )
        save_producers(connection, self.producers, now_ms)


@dataclass(slots=True, kw_only=True)
class _Books:
    """What one commit decides by: each request sees what those before it changed."""

    tails: dict[Where, ShardTail]
    lives: Mapping[tuple[int, str], int]
    known: dict[Who, ProducerState]


def _who(request: AppendRequest) -> Who | None:
    stamp = request.offer.stamp
    return None if stamp is None else (request.stream_id, request.shard, stamp.producer)


def _append_one(request: AppendRequest, books: _Books, writes: _Writes, now_ms: int) -> AppendAnswer:
    """Ask the rule, and note what it wants saved; later requests of the commit see it."""
    place, who = (request.stream_id, request.shard), _who(request)
    tail = books.tails.get(place)
    if tail is None:
        return ShardGone()
    known = books.known.get(who) if who else None
    opened = books.lives.get((who[0], who[2]), -1) if who else -1
    match decide(tail, known, request.offer, now_ms, opened=opened):
        case Repeat(at=at):
            return Repeated(*at) if request.delayed is None else _LATER_AGAIN
        case Closed(last_sequence=last_sequence):
            return ShardShut(last_sequence=last_sequence)
        case Refuse(error=error):
            return error
        case Store(at=at, tail=grown, producer=state):
            books.tails[place] = writes.tails[place] = grown
            if who is not None and state is not None:
                is_new = writes.producers[who][1] if who in writes.producers else who not in books.known
                books.known[who] = state
                writes.producers[who] = (state, is_new)
            if request.delayed is not None:
                writes.delayed += delayed_rows(request.stream_id, request.delayed)
                return _LATER
            writes.batches.append(_batch_row(request, at, grown))
            return at


def _batch_row(request: AppendRequest, at: Appended, tail: ShardTail) -> dict[str, Any]:
    return {
        "stream_id": request.stream_id,
        "shard": request.shard,
        "base_offset": at.first_offset,
        "records": request.offer.records,
        "raw_bytes": request.raw_bytes,
        "stored_bytes": request.offer.stored_bytes,
        "appended_ms": tail.appended_ms,
        "top_timestamp_us": tail.top_timestamp_us,
        "layout": request.layout,
        "payload": request.payload,
    }


def _by_stream(places: Iterable[Where]) -> list[tuple[int, list[ShardId]]]:
    """Places grouped by stream, all in one fixed order, so that two commits never wait for each other."""
    grouped: dict[int, set[ShardId]] = {}
    for stream_id, shard in places:
        grouped.setdefault(stream_id, set()).add(shard)
    return [(stream_id, sorted(grouped[stream_id])) for stream_id in sorted(grouped)]


def _load_tails(connection: Connection, places: Iterable[Where]) -> dict[Where, ShardTail]:
    tails: dict[Where, ShardTail] = {}
    for stream_id, wanted in _by_stream(places):
        for row in _TAILS.rows(connection, {"stream": stream_id, "wanted": wanted}):
            tails[stream_id, ShardId(row.shard)] = ShardTail(
                shard=ShardId(row.shard),
                status=ShardStatus(row.status),
                next_offset=row.next_offset,
                bytes=row.bytes,
                appended_ms=row.appended_ms,
                top_timestamp_us=row.top_timestamp_us,
            )
    return tails


def _fronts(connection: Connection, stream_id: int) -> tuple[dict[ShardId, ShardFront], int]:
    """The oldest batches of every shard that holds any, and the stream's bytes."""
    rows = connection.execute(
        select(_shards.shard, _shards.next_offset, _shards.bytes).where(
            _shards.stream_id == stream_id, _shards.next_offset > _shards.first_offset
        )
    ).all()
    share = max(2, RETENTION_BATCHES_PER_STEP // max(1, len(rows)))
    fronts = {}
    for row in rows:
        metas = connection.execute(
            select(*META_COLUMNS)
            .where(_batches.stream_id == stream_id, _batches.shard == row.shard)
            .order_by(_batches.base_offset)
            .limit(share)
        )
        fronts[ShardId(row.shard)] = ShardFront(
            next_offset=row.next_offset, oldest=[meta_of(meta) for meta in metas]
        )
    return fronts, sum(row.bytes for row in rows)


# Statements of the hot paths are built once, so that SQLAlchemy need not look at them again.
_BATCH_AT = PreparedSelect(
    select(*META_COLUMNS, _batches.top_timestamp_us)
    .where(
        _batches.stream_id == bindparam("at"),
        _batches.shard == bindparam("of_shard"),
        _batches.base_offset <= bindparam("offset"),
    )
    .order_by(_batches.base_offset.desc())
    .limit(1)
)
_ENDS = PreparedSelect(
    select(_shards.shard, _shards.next_offset, _shards.status).where(
        _shards.stream_id == bindparam("stream"), _shards.shard.in_(bindparam("wanted", expanding=True))
    )
)
_TAILS = PreparedSelect(
    select(
        _shards.shard,
        _shards.status,
        _shards.next_offset,
        _shards.bytes,
        _shards.appended_ms,
        _shards.top_timestamp_us,
    )
    .where(_shards.stream_id == bindparam("stream"), _shards.shard.in_(bindparam("wanted", expanding=True)))
    .order_by(_shards.shard)
    .with_for_update()
)
_INSERT_BATCH = PreparedWrite(insert(tables.batches))
_UPDATE_TAIL = PreparedWrite(
    update(tables.shards)
    .where(_shards.stream_id == bindparam("stream"), _shards.shard == bindparam("at"))
    .values(
        next_offset=bindparam("to_offset"),
        bytes=bindparam("to_bytes"),
        appended_ms=bindparam("to_ms"),
        top_timestamp_us=bindparam("to_us"),
    )
)
