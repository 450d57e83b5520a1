"""Positions of broadcast groups in SQL: one row for each consumer, with its offset in every shard."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from shoal.core.errors import StoreFailure, TooManyPositions
from shoal.core.group import Delivery, Group, Note
from shoal.core.listening import Listener
from shoal.core.model import ShardId
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.group_rows import group_of
from shoal.store.sql.group_saving import save_notes

_groups = tables.groups.c
_positions = tables.positions.c


class SQLPositions:
    """See PositionStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def broadcast_groups(self) -> list[Group]:
        """See PositionStore."""
        query = select(tables.groups).where(_groups.delivery == Delivery.BROADCAST.value)
        with self._database.read() as connection:
            return [group_of(row) for row in connection.execute(query)]

    def load_listeners(self, group_id: int) -> list[Listener]:
        """See PositionStore."""
        query = select(tables.positions).where(_positions.group_id == group_id).order_by(_positions.consumer)
        with self._database.read() as connection:
            return [_listener_of(row) for row in connection.execute(query)]

    def join_listener(self, group_id: int, listener: Listener, *, limit: int, now_ms: int) -> Listener | None:
        """See PositionStore."""
        try:
            return self._join_once(group_id, listener, limit, now_ms)
        except StoreFailure as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
        # Another process made the same position between our look and our insert: now we see it.
        return self._join_once(group_id, listener, limit, now_ms)

    def _join_once(self, group_id: int, listener: Listener, limit: int, now_ms: int) -> Listener | None:
        with self._database.write() as connection:
            group = connection.execute(
                select(_groups.name).where(_groups.id == group_id).with_for_update()
            ).scalar()
            if group is None:
                return None
            found = _locked(connection, group_id, listener.consumer)
            if found is not None:
                connection.execute(
                    update(tables.positions)
                    .where(*_one(group_id, found.consumer))
                    .values(incarnation=listener.incarnation, uses=found.uses + 1, idle_ms=0)
                )
                return found
            many = select(func.count()).where(_positions.group_id == group_id)
            if connection.execute(many).scalar_one() >= limit:
                raise TooManyPositions(group=group, limit=limit)
            connection.execute(
                insert(tables.positions).values(
                    group_id=group_id,
                    consumer=listener.consumer,
                    incarnation=listener.incarnation,
                    uses=1,
                    idle_ms=0,
                    offsets=_text(listener.offsets),
                    created_ms=now_ms,
                    saved_ms=now_ms,
                )
            )
        return listener

    def save_listener(
        self, group_id: int, consumer: str, incarnation: str, offsets: Mapping[ShardId, int], now_ms: int
    ) -> Listener | None:
        """See PositionStore."""
        with self._database.write() as connection:
            found = _locked(connection, group_id, consumer)
            if found is not None and found.incarnation == incarnation:
                connection.execute(
                    update(tables.positions)
                    .where(*_one(group_id, consumer))
                    .values(offsets=_text(offsets), uses=found.uses + 1, idle_ms=0, saved_ms=now_ms)
                )
        return found

    def add_idle(self, group_id: int, idle: Sequence[tuple[Listener, int]]) -> None:
        """See PositionStore."""
        if not idle:
            return
        with self._database.write() as connection:
            connection.execute(
                _ADD_IDLE,
                [
                    {"at": group_id, "who": one.consumer, "used": one.uses, "to_idle": idle_ms}
                    for one, idle_ms in sorted(idle, key=lambda pair: pair[0].consumer)
                ],
            )

    def drop_listeners(
        self, group_id: int, gone: Sequence[Listener], notes: Sequence[Note], now_ms: int
    ) -> int:
        """See PositionStore."""
        dropped = []
        with self._database.write() as connection:
            # The group's row is locked, so that two writers number their lines one after the other.
            lock = select(_groups.id).where(_groups.id == group_id).with_for_update()
            if connection.execute(lock).scalar() is None:
                return 0
            for one, note in zip(gone, notes, strict=True):
                where = and_(*_one(group_id, one.consumer), _positions.uses == one.uses)
                if connection.execute(delete(tables.positions).where(where)).rowcount:
                    dropped.append(note)
            save_notes(connection, group_id, dropped, now_ms)
        return len(dropped)


def _locked(connection: Connection, group_id: int, consumer: str) -> Listener | None:
    query = select(tables.positions).where(*_one(group_id, consumer)).with_for_update()
    row = connection.execute(query).one_or_none()
    return None if row is None else _listener_of(row)


def _one(group_id: int, consumer: str) -> tuple[Any, Any]:
    return _positions.group_id == group_id, _positions.consumer == consumer


def _listener_of(row: Any) -> Listener:
    return Listener(
        consumer=row.consumer,
        incarnation=row.incarnation,
        uses=row.uses,
        idle_ms=row.idle_ms,
        offsets={ShardId(int(shard)): offset for shard, offset in json.loads(row.offsets).items()},
        saved_ms=row.saved_ms,
    )


def _text(offsets: Mapping[ShardId, int]) -> str:
    return json.dumps({str(shard): offset for shard, offset in offsets.items()}, separators=(",", ":"))


_ADD_IDLE = (
    update(tables.positions)
    .where(
        _positions.group_id == bindparam("at"),
        _positions.consumer == bindparam("who"),
        _positions.uses == bindparam("used"),
        _positions.idle_ms < bindparam("to_idle"),
    )
    .values(idle_ms=bindparam("to_idle"))
)
