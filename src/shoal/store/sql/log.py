"""Keeps batches in SQL: append, fetch, trim. Every decision is `core`'s; this loads, asks and saves.

An append locks the rows of its shards (SQLite: the database), so that two appends to one shard, or an
append and a split, happen one after the other, in every process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection

from shoal.core.appending import Closed, ProducerState, Refuse, Repeat, ShardTail, Store, decide
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
    ShardEnd,
    ShardGone,
    ShardShut,
)
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.fetching import META_COLUMNS, Fetcher, Fetching, meta_of
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

Where = tuple[int, ShardId]

_shards = tables.shards.c
_batches = tables.batches.c
_producers = tables.producers.c
_claims = tables.claims.c


class SQLLog:
    """See LogStore."""

    def __init__(self, database: Database) -> None:
        self._database = database
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
        return stream_stats(stream, batches=count, oldest_append_ms=oldest, newest_append_ms=newest)

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

    def forget_producers(self, unseen_since_ms: int) -> int:
        """See LogStore."""
        old = _producers.seen_ms < unseen_since_ms
        with self._database.read() as connection:
            if connection.execute(select(_producers.producer).where(old).limit(1)).scalar() is None:
                return 0
        with self._database.write() as connection:
            return connection.execute(delete(tables.producers).where(old)).rowcount


def appended(
    connection: Connection, database: Database, requests: Sequence[AppendRequest], now_ms: int
) -> list[AppendAnswer]:
    """Append within a transaction, and tell who waits once it is committed."""
    tails = _load_tails(connection, {(r.stream_id, r.shard) for r in requests})
    known = _load_producers(connection, requests)
    writes = _Writes()
    answers = [_append_one(request, tails, known, writes, now_ms) for request in requests]
    writes.save(connection, now_ms)
    database.dialect.announce(connection, sorted({stream for stream, _ in writes.tails}))
    return answers


class _Writes:
    """What one commit will save."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self.tails: dict[Where, ShardTail] = {}
        self.producers: dict[tuple[int, ShardId, str], tuple[ProducerState, bool]] = {}

    def save(self, connection: Connection, now_ms: int) -> None:
        _INSERT_BATCH.run(connection, self.batches)
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
            ],
        )
        for is_new, statement in ((True, _INSERT_PRODUCER), (False, _UPDATE_PRODUCER)):
            mark = "" if is_new else "to_"
            statement.run(
                connection,
                [
                    {
                        f"{mark}stream_id": stream,
                        f"{mark}shard": shard,
                        f"{mark}producer": producer,
                        f"{mark}epoch": state.epoch,
                        f"{mark}last_sequence": state.last_sequence,
                        f"{mark}recent": json.dumps(state.recent, separators=(",", ":")),
                        f"{mark}seen_ms": now_ms,
                    }
                    for (stream, shard, producer), (state, new) in self.producers.items()
                    if new is is_new
                ],
            )


def _append_one(
    request: AppendRequest,
    tails: dict[Where, ShardTail],
    known: dict[tuple[int, ShardId, str], ProducerState],
    writes: _Writes,
    now_ms: int,
) -> AppendAnswer:
    """Ask the rule, and note what it wants saved; later requests of the commit see it."""
    place = (request.stream_id, request.shard)
    tail = tails.get(place)
    if tail is None:
        return ShardGone()
    stamp = request.offer.stamp
    who = (*place, stamp.producer) if stamp is not None else None
    decision = decide(tail, known.get(who) if who else None, request.offer, now_ms)
    match decision:
        case Repeat(at=at):
            return at
        case Closed(last_sequence=last_sequence):
            return ShardShut(last_sequence=last_sequence)
        case Refuse(error=error):
            return error
        case Store(at=at, tail=grown, producer=state):
            tails[place] = writes.tails[place] = grown
            if who is not None and state is not None:
                is_new = writes.producers[who][1] if who in writes.producers else who not in known
                known[who] = state
                writes.producers[who] = (state, is_new)
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


def _load_producers(
    connection: Connection, requests: Sequence[AppendRequest]
) -> dict[tuple[int, ShardId, str], ProducerState]:
    stamped = [(r.stream_id, r.shard, r.offer.stamp.producer) for r in requests if r.offer.stamp is not None]
    known: dict[tuple[int, ShardId, str], ProducerState] = {}
    for stream_id, wanted in _by_stream((stream, shard) for stream, shard, _ in stamped):
        names = sorted({name for stream, _, name in stamped if stream == stream_id})
        rows = _PRODUCERS.rows(connection, {"stream": stream_id, "wanted": wanted, "names": names})
        for row in rows:
            known[stream_id, ShardId(row.shard), row.producer] = ProducerState(
                producer=row.producer,
                epoch=row.epoch,
                last_sequence=row.last_sequence,
                recent=tuple(tuple(entry) for entry in json.loads(row.recent)),
            )
    return known


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
_PRODUCERS = PreparedSelect(
    select(tables.producers).where(
        _producers.stream_id == bindparam("stream"),
        _producers.shard.in_(bindparam("wanted", expanding=True)),
        _producers.producer.in_(bindparam("names", expanding=True)),
    )
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
_INSERT_PRODUCER = PreparedWrite(insert(tables.producers))
_UPDATE_PRODUCER = PreparedWrite(
    update(tables.producers)
    .where(
        _producers.stream_id == bindparam("to_stream_id"),
        _producers.shard == bindparam("to_shard"),
        _producers.producer == bindparam("to_producer"),
    )
    .values(
        epoch=bindparam("to_epoch"),
        last_sequence=bindparam("to_last_sequence"),
        recent=bindparam("to_recent"),
        seen_ms=bindparam("to_seen_ms"),
    )
)
