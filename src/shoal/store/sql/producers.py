"""Producers in SQL: what shards remember of them, and the lives of those that have a name.

An append of a named producer shares a lock on its name's row until it is committed, and a new life changes
that row: so it begins before such an append, which is then refused, or after it, and then knows of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from sqlalchemy import bindparam, delete, exists, insert, select, update
from sqlalchemy.engine import Connection

from shoal.core.appending import ProducerState, check_life, is_asked_again, is_named
from shoal.core.model import ProducerOpening, ShardId
from shoal.ports import AppendRequest
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

Who = tuple[int, ShardId, str]
"""A producer, as a shard of a stream knows it."""

_producers = tables.producers.c
_names = tables.producer_names.c


class SQLProducers:
    """The part of LogStore that is about producers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def open_producer(
        self, stream_id: int, producer: str, held: int | None, now_ms: int
    ) -> ProducerOpening | None:
        """See LogStore. The row of the sequence comes first: two who open a name come one after the other."""
        sequence = tables.sequences.c
        of_name = (_names.stream_id == stream_id, _names.producer == producer)
        of_mark = (_names.stream_id == stream_id, _names.producer == f"{producer}{_WENT_ON}")
        with self._database.write() as connection:
            ours = sequence.name == tables.PRODUCER_EPOCHS
            connection.execute(update(tables.sequences).where(ours).values(value=sequence.value + 1))
            there = select(_names.epoch).where(*of_name).with_for_update()
            current: int | None = connection.execute(there).scalar()
            before: int | None = connection.execute(select(_names.epoch).where(*of_mark)).scalar()
            epoch: int
            if current is not None and is_asked_again(held, current, before):
                epoch = current
            else:
                check_life(producer, held, current)
                epoch = connection.execute(select(sequence.value).where(ours)).scalar_one()
                connection.execute(delete(tables.producer_names).where(*of_mark))
                row = {"stream_id": stream_id, "producer": producer, "epoch": epoch, "seen_ms": now_ms}
                if current is None:
                    connection.execute(insert(tables.producer_names).values(row))
                else:
                    change = update(tables.producer_names).where(*of_name)
                    connection.execute(change.values(epoch=epoch, seen_ms=now_ms))
                if held is not None:
                    mark = {**row, "producer": f"{producer}{_WENT_ON}", "epoch": held}
                    connection.execute(insert(tables.producer_names).values(mark))
            stream = select(tables.streams.c.id).where(
                tables.streams.c.id == stream_id, tables.streams.c.is_deleted == 0
            )
            if connection.execute(stream).scalar() is None:
                connection.rollback()
                return None
            numbers = select(_producers.shard, _producers.number).where(
                _producers.stream_id == stream_id,
                _producers.producer == producer,
                _producers.number.is_not(None),
            )
            found = {ShardId(row.shard): row.number for row in connection.execute(numbers)}
        return ProducerOpening(epoch=epoch, numbers=found)

    def forget_producers(self, unseen_since_ms: int) -> int:
        """See LogStore. A name goes after the last of what shards knew of it."""
        old, old_name = _producers.seen_ms < unseen_since_ms, _names.seen_ms < unseen_since_ms
        known = exists().where(
            _producers.stream_id == _names.stream_id, _producers.producer == _names.producer
        )
        with self._database.read() as connection:
            looks = (select(_producers.producer).where(old), select(_names.producer).where(old_name, ~known))
            if all(connection.execute(look.limit(1)).scalar() is None for look in looks):
                return 0
        with self._database.write() as connection:
            forgotten = connection.execute(delete(tables.producers).where(old)).rowcount
            connection.execute(delete(tables.producer_names).where(old_name, ~known))
        return forgotten


def load_lives(connection: Connection, requests: Sequence[AppendRequest]) -> dict[tuple[int, str], int]:
    """The epochs of named producers, locked until the end of the transaction."""
    wanted: dict[int, set[str]] = {}
    for request in requests:
        stamp = request.offer.stamp
        if stamp is not None and is_named(stamp.producer):
            wanted.setdefault(request.stream_id, set()).add(stamp.producer)
    return {
        (stream_id, row.producer): row.epoch
        for stream_id in sorted(wanted)
        for row in _LIVES.rows(connection, {"stream": stream_id, "names": sorted(wanted[stream_id])})
    }


def lock_life(connection: Connection, stream_id: int, producer: str) -> int | None:
    """The epoch of a named producer, locked until the end of the transaction; None: it has none."""
    rows = _LIVES.rows(connection, {"stream": stream_id, "names": [producer]})
    return rows[0].epoch if rows else None


def load_producers(connection: Connection, whose: Iterable[Who]) -> dict[Who, ProducerState]:
    """What shards know of these producers."""
    known: dict[Who, ProducerState] = {}
    by_stream: dict[int, list[Who]] = {}
    for who in whose:
        by_stream.setdefault(who[0], []).append(who)
    for stream_id, some in by_stream.items():
        shards, names = sorted({shard for _, shard, _ in some}), sorted({name for *_, name in some})
        rows = _PRODUCERS.rows(connection, {"stream": stream_id, "wanted": shards, "names": names})
        for row in rows:
            known[stream_id, ShardId(row.shard), row.producer] = ProducerState(
                producer=row.producer,
                epoch=row.epoch,
                last_sequence=row.last_sequence,
                recent=tuple(tuple(entry) for entry in json.loads(row.recent)),
                number=row.number,
            )
    return known


def save_producers(
    connection: Connection, states: Mapping[Who, tuple[ProducerState, bool]], now_ms: int
) -> None:
    """What shards know from now on; True beside those that they did not know before."""
    for is_new, statement in ((True, _INSERT), (False, _UPDATE)):
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
                    f"{mark}number": state.number,
                }
                for (stream, shard, producer), (state, new) in states.items()
                if new is is_new
            ],
        )


_WENT_ON: Final = "<"
"""Behind a name, which cannot have it: the life from which its last one was opened. Whoever had that one, and
asks again since the answer was lost, gets the same answer, and is not fenced by itself."""
_LIVES: Final = PreparedSelect(
    select(tables.producer_names)
    .where(_names.stream_id == bindparam("stream"), _names.producer.in_(bindparam("names", expanding=True)))
    .order_by(_names.producer)
    .with_for_update(read=True)
)
_PRODUCERS: Final = PreparedSelect(
    select(tables.producers).where(
        _producers.stream_id == bindparam("stream"),
        _producers.shard.in_(bindparam("wanted", expanding=True)),
        _producers.producer.in_(bindparam("names", expanding=True)),
    )
)
_INSERT: Final = PreparedWrite(insert(tables.producers))
_UPDATE: Final = PreparedWrite(
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
        number=bindparam("to_number"),
    )
)
