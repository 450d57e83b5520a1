"""The versions of maps for those who wait for them, and announcements of the next: see StreamRoutes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final

from sqlalchemy import and_, bindparam, select

from shoal.core.routing import route_number
from shoal.log_port import StreamRoutes
from shoal.store.sql import tables
from shoal.store.sql.catalog import write_option
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect

_streams = tables.streams.c
_options = tables.stream_options.c


class SQLRoutes:
    """The part of a store that producers follow maps by. What is announced is an option of its stream."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def announce_routes(self, stream_id: int, version: int | None) -> None:
        """See CatalogStore. The stream's row first: two who announce come one after the other."""
        locked = select(_streams.id).where(_streams.id == stream_id).with_for_update()
        with self._database.write() as connection:
            if connection.execute(locked).scalar() is None:
                return  # It was deleted, and all that is to be known of it.
            write_option(connection, stream_id, _ANNOUNCED, version)
            self._database.dialect.announce(connection, [stream_id])

    def announced_routes(self) -> Mapping[int, int]:
        """See CatalogStore."""
        query = select(_options.stream_id, _options.value).where(_options.name == _ANNOUNCED)
        with self._database.read() as connection:
            return {row.stream_id: json.loads(row.value) for row in connection.execute(query)}

    def routes(self, places: Sequence[StreamRoutes]) -> Mapping[StreamRoutes, tuple[int, bool]]:
        """How far maps have come; those of streams that are gone are left out."""
        with self._database.read() as connection:
            rows = _ROUTES.rows(connection, {"wanted": sorted({place.stream_id for place in places})})
        return {
            StreamRoutes(row.id): (
                route_number(row.version, None if row.value is None else json.loads(row.value)),
                True,
            )
            for row in rows
        }


_ANNOUNCED: Final = "announced"
_ROUTES: Final = PreparedSelect(
    select(_streams.id, _streams.version, _options.value)
    .select_from(
        tables.streams.outerjoin(
            tables.stream_options,
            and_(_options.stream_id == _streams.id, _options.name == _ANNOUNCED),
        )
    )
    .where(_streams.id.in_(bindparam("wanted", expanding=True)), _streams.is_deleted == 0)
)
