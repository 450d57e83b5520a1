"""Delayed records in SQL: rows by the time they are due, apart from the batches of shards."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from sqlalchemy import ColumnElement, bindparam, func, insert, select, update
from sqlalchemy.engine import Connection

from shoal.core.appending import ShardTail
from shoal.core.delaying import DELAYED
from shoal.core.model import ShardId, ShardStatus
from shoal.delay_port import DelayedRow, DueRow
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_delayed = tables.delayed.c
_streams = tables.streams.c


class SQLDelays:
    """See DelayStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def next_due(self) -> int | None:
        """See DelayStore."""
        with self._database.glance() as connection:
            rows = _NEXT.rows(connection, {})
        return rows[0].due_ms if rows else None

    def due(self, now_ms: int, *, rows: int, size: int, besides: Collection[int] = ()) -> Sequence[DueRow]:
        """See DelayStore."""
        first = select(_delayed.stream_id).where(_delayed.due_ms <= now_ms)
        if besides:
            first = first.where(_delayed.stream_id.not_in(sorted(besides)))
        with self._database.read() as connection:
            stream_id = connection.execute(first.order_by(_delayed.due_ms, _delayed.id).limit(1)).scalar()
            if stream_id is None:
                return []
            found: list[DueRow] = []
            query = (
                select(tables.delayed)
                .where(_delayed.stream_id == stream_id, _delayed.due_ms <= now_ms)
                .order_by(_delayed.due_ms, _delayed.id)
                .limit(rows)
            )
            for row in connection.execute(query):
                size -= row.raw_bytes
                if found and size < 0:
                    break
                place = None if row.place is None else int(row.place, 16)
                found.append(
                    DueRow(
                        id=row.id,
                        stream_id=row.stream_id,
                        place=place,
                        layout=row.layout,
                        payload=bytes(row.payload),
                    )
                )
        return found

    def bring_forward(self, now_ms: int) -> int:
        """See DelayStore."""
        late = select(_delayed.id).where(*_too_late(now_ms)).limit(_AT_ONCE)
        with self._database.read() as connection:
            ids = list(connection.execute(late).scalars())
        if not ids:
            return 0  # The usual case takes no write lock.
        with self._database.write() as connection:
            some = update(tables.delayed).where(_delayed.id.in_(ids), *_too_late(now_ms))
            connection.execute(some.values(due_ms=now_ms + _delayed.wait_ms))
        return len(ids)

    def count_delayed(self, stream_id: int) -> int:
        """See DelayStore."""
        with self._database.read() as connection:
            return records_delayed(connection, stream_id)

    def all_delayed(self) -> Mapping[int, int]:
        """See DelayStore."""
        query = select(_delayed.stream_id, func.sum(_delayed.records)).group_by(_delayed.stream_id)
        with self._database.read() as connection:
            return {stream_id: int(count) for stream_id, count in connection.execute(query)}


def records_delayed(connection: Connection, stream_id: int) -> int:
    """How many records wait for a stream."""
    query = select(func.coalesce(func.sum(_delayed.records), 0)).where(_delayed.stream_id == stream_id)
    return int(connection.execute(query).scalar_one())


def delayed_rows(stream_id: int, rows: Sequence[DelayedRow]) -> list[dict[str, Any]]:
    """As they are inserted."""
    return [
        {
            "stream_id": stream_id,
            "due_ms": row.due_ms,
            "wait_ms": row.wait_ms,
            "place": None if row.place is None else f"{row.place:033x}",
            "records": row.records,
            "raw_bytes": row.raw_bytes,
            "layout": row.layout,
            "payload": row.payload,
        }
        for row in rows
    ]


def insert_delayed(connection: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Within a transaction."""
    _INSERT.run(connection, rows)


def lock_streams(connection: Connection, stream_ids: Sequence[int]) -> dict[tuple[int, ShardId], ShardTail]:
    """Streams that get delayed records, as the rule of an append sees what it is numbered in.

    Their rows are locked: of two attempts of one producer, the second sees what the first has stored.
    """
    found = {}
    for row in _LOCKED.rows(connection, {"wanted": sorted(set(stream_ids))}) if stream_ids else ():
        found[row.id, DELAYED] = ShardTail(
            shard=DELAYED, status=ShardStatus.OPEN, next_offset=0, bytes=0, appended_ms=0, top_timestamp_us=0
        )
    return found


def _too_late(now_ms: int) -> tuple[ColumnElement[bool], ...]:
    return _delayed.wait_ms.is_not(None), _delayed.due_ms > now_ms + _delayed.wait_ms


_AT_ONCE: Final = 1_000
"""Rows that one commit brings forward."""
_NEXT: Final = PreparedSelect(select(_delayed.due_ms).order_by(_delayed.due_ms).limit(1))
_LOCKED: Final = PreparedSelect(
    select(_streams.id)
    .where(_streams.id.in_(bindparam("wanted", expanding=True)), _streams.is_deleted == 0)
    .order_by(_streams.id)
    .with_for_update()
)
_INSERT: Final = PreparedWrite(insert(tables.delayed))
