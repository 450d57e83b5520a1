"""Whether anything has moved at all: one number for a stream or a group, instead of one for each of its
shards or members.

Who follows hundreds of places hears a hint for every commit of its own process, and most of those move
nothing. The offsets of a stream's shards only rise, so their sum and how many are open tell every change; a
member's assignment changes only with the version of its group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, case, func, select

from shoal.core.model import ShardStatus
from shoal.ports import MemberView, Place, ShardEnd, StreamRoutes
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect
from shoal.store.sql.routes import SQLRoutes

Marks = Mapping[tuple[str, int], tuple[Any, ...]]

_shards = tables.shards.c
_groups = tables.groups.c


def marks(database: Database, places: Sequence[Place]) -> Marks | None:
    """Of all that the places belong to; None: some of them have no such number."""
    streams = {place.stream_id for place in places if isinstance(place, ShardEnd)}
    groups = {place.group_id for place in places if isinstance(place, MemberView)}
    maps = [place for place in places if isinstance(place, StreamRoutes)]
    if any(not isinstance(place, ShardEnd | MemberView | StreamRoutes) for place in places):
        return None
    found: dict[tuple[str, int], tuple[Any, ...]] = {("stream", one): () for one in streams}
    found |= {("group", one): () for one in groups}
    if maps:
        found |= {("routes", place.stream_id): end for place, end in SQLRoutes(database).routes(maps).items()}
    with database.read() as connection:
        if streams:
            for row in _STREAMS.rows(connection, {"wanted": sorted(streams)}):
                found["stream", row.stream_id] = (row.shards, row.open, row.end)
        if groups:
            for row in _VERSIONS.rows(connection, {"wanted": sorted(groups)}):
                found["group", row.id] = (row.version,)
    return found


_STREAMS = PreparedSelect(
    select(
        _shards.stream_id,
        func.count().label("shards"),
        func.sum(case((_shards.status == ShardStatus.OPEN.value, 1), else_=0)).label("open"),
        func.sum(_shards.next_offset).label("end"),
    )
    .where(_shards.stream_id.in_(bindparam("wanted", expanding=True)))
    .group_by(_shards.stream_id)
)
_VERSIONS = PreparedSelect(
    select(_groups.id, _groups.version).where(_groups.id.in_(bindparam("wanted", expanding=True)))
)
