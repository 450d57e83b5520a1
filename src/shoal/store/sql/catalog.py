"""Keeps projects, streams and shards in SQL. Load, apply the rule, save: one transaction."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

from sqlalchemy import bindparam, delete, func, insert, select, update
from sqlalchemy.engine import Connection, Row
from sqlalchemy.exc import IntegrityError

from shoal.core.errors import ProjectNotEmpty, StoreFailure, StreamExists, UnknownProject, UnknownStream
from shoal.core.limits import RETENTION_BATCHES_PER_STEP
from shoal.core.model import (
    DEFAULT_PROJECT,
    Compression,
    KeyHash,
    Scaling,
    SendStrategy,
    Shard,
    ShardId,
    ShardStatus,
    StreamInfo,
    StreamName,
    StreamSettings,
)
from shoal.store.sql import tables
from shoal.store.sql.database import Database
from shoal.store.sql.group_saving import delete_groups
from shoal.store.sql.prepared import PreparedSelect

_options = tables.stream_options.c
_SCALING: Final = "scaling"
_STRATEGY: Final = "strategy"


class SQLCatalog:
    """See CatalogStore."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def create_stream(
        self, name: StreamName, settings: StreamSettings, shards: Sequence[Shard], now_ms: int
    ) -> StreamInfo:
        """See CatalogStore."""
        try:
            return self._create_stream(name, settings, shards, now_ms)
        except StoreFailure as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
        # Another process made the same stream or project between our look and our insert: now we see it.
        return self._create_stream(name, settings, shards, now_ms)

    def _create_stream(
        self, name: StreamName, settings: StreamSettings, shards: Sequence[Shard], now_ms: int
    ) -> StreamInfo:
        with self._database.write() as connection:
            if _find(connection, name) is not None:
                raise StreamExists(str(name))
            # Locked once it is seen: locking what is not there makes MariaDB's creators block each other.
            if not (_has_project(connection, name.project) and _lock_project(connection, name.project)):
                connection.execute(insert(tables.projects).values(name=name.project, created_ms=now_ms))
            made = connection.execute(
                insert(tables.streams).values(
                    project=name.project,
                    name=name.stream,
                    is_deleted=0,
                    version=1,
                    created_ms=now_ms,
                    **_settings_columns(settings),
                )
            )
            assert made.inserted_primary_key is not None
            stream_id: int = made.inserted_primary_key[0]
            _save_shards(connection, stream_id, (), shards)
            self._database.dialect.announce(connection, [stream_id])
        return StreamInfo(
            full_name=name,
            id=stream_id,
            version=1,
            settings=settings,
            shards=tuple(shards),
            created_ms=now_ms,
        )

    def load_stream(self, name: StreamName) -> StreamInfo:
        """See CatalogStore."""
        with self._database.look() as connection:
            found = _NAMED.rows(connection, {"of": name.project, "called": name.stream})
            if found:
                shards = _SHARDS.rows(connection, {"of": found[0].id})
                return info_of(found[0], tuple(map(shard_of, shards)))
        with self._database.read() as connection:
            return _load(connection, name)  # It says what is not there.

    def refresh_stream(self, known: StreamInfo, shards: Collection[ShardId] = ()) -> StreamInfo:
        """See CatalogStore."""
        with self._database.read() as connection:
            found = _VERSION.rows(connection, {"at": known.id})
            if not found:
                raise UnknownStream(str(known.full_name))
            if found[0].version != known.version:
                return _load(connection, known.full_name)
            fresh = [_SHARD.rows(connection, {"of": known.id, "at": shard})[0] for shard in shards]
        if not fresh:
            return known
        after = list(known.shards)
        for row in fresh:
            after[row.shard] = shard_of(row)
        return replace(known, shards=tuple(after))

    def load_stream_by_id(self, stream_id: int) -> StreamInfo | None:
        """See CatalogStore."""
        with self._database.read() as connection:
            return load_by_id(connection, stream_id)

    def list_streams(self, project: str | None) -> list[StreamInfo]:
        """See CatalogStore."""
        query = select(tables.streams).where(tables.streams.c.is_deleted == 0)
        if project is not None:
            query = query.where(tables.streams.c.project == project)
        with self._database.read() as connection:
            if project is not None and project != DEFAULT_PROJECT and not _has_project(connection, project):
                raise UnknownProject(project)
            rows = connection.execute(query.order_by(tables.streams.c.project, tables.streams.c.name)).all()
            return _infos(connection, rows)

    def list_projects(self) -> list[str]:
        """See CatalogStore."""
        with self._database.read() as connection:
            return list(connection.execute(select(tables.projects.c.name).order_by("name")).scalars())

    def create_project(self, project: str, now_ms: int) -> bool:
        """See CatalogStore."""
        try:
            with self._database.write() as connection:
                if _has_project(connection, project):
                    return False
                connection.execute(insert(tables.projects).values(name=project, created_ms=now_ms))
        except StoreFailure as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
            return False  # Another process was faster.
        return True

    def delete_project(self, project: str) -> None:
        """See CatalogStore."""
        live = (tables.streams.c.project == project, tables.streams.c.is_deleted == 0)
        with self._database.write() as connection:
            # First of all: what MariaDB reads after this is as of now, streams made while we waited included.
            if not _lock_project(connection, project):
                raise UnknownProject(project)
            held = connection.execute(
                select(func.count()).select_from(tables.streams).where(*live)
            ).scalar_one()
            if held:
                raise ProjectNotEmpty(project, held)
            connection.execute(delete(tables.projects).where(tables.projects.c.name == project))

    def change_shards(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        """See CatalogStore. Appends lock their shard's row, so none is under way while we hold them all."""
        with self._database.write() as connection:
            before = _load(connection, name, lock=True)
            after = rule(before)
            if after == before.shards:
                return before
            _save_shards(connection, before.id, before.shards, after)
            connection.execute(
                update(tables.streams)
                .where(tables.streams.c.id == before.id)
                .values(version=before.version + 1)
            )
            self._database.dialect.announce(connection, [before.id])
            return replace(before, version=before.version + 1, shards=after)

    def change_settings(
        self, name: StreamName, rule: Callable[[StreamSettings], StreamSettings]
    ) -> StreamInfo:
        """See CatalogStore."""
        with self._database.write() as connection:
            before = _load(connection, name, lock=True)
            settings = _settings_columns(rule(before.settings))
            connection.execute(
                update(tables.streams).where(tables.streams.c.id == before.id).values(**settings)
            )
            return _load(connection, name)

    def set_scaling(self, name: StreamName, scaling: Scaling | None) -> None:
        """See CatalogStore."""
        self._set_option(name, _SCALING, None if scaling is None else asdict(scaling))

    def set_strategy(self, name: StreamName, strategy: SendStrategy | None) -> None:
        """See CatalogStore."""
        self._set_option(name, _STRATEGY, strategy)

    def strategy(self, name: StreamName) -> SendStrategy | None:
        """See CatalogStore."""
        with self._database.read() as connection:
            mine = (_options.stream_id == _load(connection, name).id, _options.name == _STRATEGY)
            found = connection.execute(select(_options.value).where(*mine)).scalar()
        return None if found is None else SendStrategy(json.loads(found))

    def _set_option(self, name: StreamName, option: str, value: object) -> None:
        """None takes it away."""
        with self._database.write() as connection:
            write_option(connection, _load(connection, name, lock=True).id, option, value)

    def scalings(self) -> Mapping[int, Scaling]:
        """See CatalogStore."""
        query = select(_options.stream_id, _options.value).where(_options.name == _SCALING)
        with self._database.read() as connection:
            return {row.stream_id: Scaling(**json.loads(row.value)) for row in connection.execute(query)}

    def delete_stream(self, name: StreamName) -> None:
        """See CatalogStore."""
        with self._database.write() as connection:
            stream = _load(connection, name, lock=True)
            connection.execute(
                update(tables.streams)
                .where(tables.streams.c.id == stream.id)
                .values(is_deleted=1, name=f"~{stream.id}~{stream.name}")
            )
            # Without its shards no append can land in it any more.
            connection.execute(delete(tables.shards).where(tables.shards.c.stream_id == stream.id))
            for table in (tables.producers, tables.producer_names, tables.delayed, tables.stream_options):
                connection.execute(delete(table).where(table.c.stream_id == stream.id))
            _delete_groups(connection, stream.id)
            self._database.dialect.announce(connection, [stream.id])

    def sweep(self) -> bool:
        """See CatalogStore."""
        batches = tables.batches.c
        with self._database.read() as connection:
            query = select(tables.streams.c.id).where(tables.streams.c.is_deleted == 1).limit(1)
            stream_id = connection.execute(query).scalar()
        if stream_id is None:
            return False
        with self._database.write() as connection:
            rows = connection.execute(
                select(batches.shard, batches.base_offset)
                .where(batches.stream_id == stream_id)
                .order_by(batches.shard, batches.base_offset)
                .limit(RETENTION_BATCHES_PER_STEP)
            ).all()
            if not rows:
                connection.execute(delete(tables.streams).where(tables.streams.c.id == stream_id))
            last: dict[int, int] = {row.shard: row.base_offset for row in rows}
            for shard, offset in last.items():
                connection.execute(
                    delete(tables.batches).where(
                        batches.stream_id == stream_id, batches.shard == shard, batches.base_offset <= offset
                    )
                )
        return True


def write_option(connection: Connection, stream_id: int, name: str, value: object) -> None:
    """Of a stream whose row is locked. None takes it away.

    It is looked for first: deleting what is not there would lock the gap (MariaDB), and two who do so for two
    streams, and insert then, would wait for each other.
    """
    mine = (_options.stream_id == stream_id, _options.name == name)
    is_there = connection.execute(select(_options.name).where(*mine)).scalar() is not None
    text = json.dumps(value)
    if value is None and is_there:
        connection.execute(delete(tables.stream_options).where(*mine))
    elif value is not None and is_there:
        connection.execute(update(tables.stream_options).where(*mine).values(value=text))
    elif value is not None:
        row = {"stream_id": stream_id, "name": name, "value": text}
        connection.execute(insert(tables.stream_options).values(**row))


def _delete_groups(connection: Connection, stream_id: int) -> None:
    of_stream = select(tables.groups.c.id).where(tables.groups.c.stream_id == stream_id)
    delete_groups(connection, list(connection.execute(of_stream).scalars()))


def load_by_id(connection: Connection, stream_id: int) -> StreamInfo | None:
    """The stream of this id, within a transaction."""
    query = select(tables.streams).where(tables.streams.c.id == stream_id, tables.streams.c.is_deleted == 0)
    row = connection.execute(query).one_or_none()
    return None if row is None else _infos(connection, [row])[0]


def _has_project(connection: Connection, project: str) -> bool:
    query = select(tables.projects.c.name).where(tables.projects.c.name == project)
    return connection.execute(query).scalar() is not None


def _lock_project(connection: Connection, project: str) -> bool:
    """Let nobody delete the project, or make a stream in it, until we commit. False if it is gone."""
    query = select(tables.projects.c.name).where(tables.projects.c.name == project)
    return connection.execute(query.with_for_update()).scalar() is not None


def _find(connection: Connection, name: StreamName, *, lock: bool = False) -> Row[Any] | None:
    query = select(tables.streams).where(
        tables.streams.c.project == name.project, tables.streams.c.name == name.stream
    )
    return connection.execute(query.with_for_update() if lock else query).one_or_none()


def _load(connection: Connection, name: StreamName, *, lock: bool = False) -> StreamInfo:
    row = _find(connection, name, lock=lock)
    if row is None:
        if name.project != DEFAULT_PROJECT and not _has_project(connection, name.project):
            raise UnknownProject(name.project)
        raise UnknownStream(str(name))
    return _infos(connection, [row], lock=lock)[0]


def _infos(connection: Connection, rows: Sequence[Row[Any]], *, lock: bool = False) -> list[StreamInfo]:
    """Streams with their shards: one query for all of them."""
    query = (
        select(tables.shards)
        .where(tables.shards.c.stream_id.in_([row.id for row in rows]))
        .order_by(tables.shards.c.stream_id, tables.shards.c.shard)
    )
    shards: dict[int, list[Shard]] = {row.id: [] for row in rows}
    for found in connection.execute(query.with_for_update() if lock else query):
        shards[found.stream_id].append(shard_of(found))
    return [info_of(row, tuple(shards[row.id])) for row in rows]


def info_of(row: Any, shards: tuple[Shard, ...]) -> StreamInfo:
    """A row of the stream table, with its shards, as a value."""
    return StreamInfo(
        full_name=StreamName(row.project, row.name),
        id=row.id,
        version=row.version,
        settings=StreamSettings(
            hash=KeyHash(row.hash),
            compression=Compression(row.compression),
            retention_ms=row.retention_ms,
            retention_bytes=row.retention_bytes,
            schema=None if row.schema is None else bytes(row.schema),
        ),
        shards=shards,
        created_ms=row.created_ms,
    )


SHARD_COLUMNS: Final = (
    tables.shards.c.shard,
    tables.shards.c.range_begin,
    tables.shards.c.range_end,
    tables.shards.c.status,
    tables.shards.c.parents,
    tables.shards.c.first_offset,
    tables.shards.c.next_offset,
    tables.shards.c.bytes,
    tables.shards.c.created_ms,
    tables.shards.c.closed_ms,
)
"""What `shard_of` looks at."""


_VERSION: Final = PreparedSelect(
    select(tables.streams.c.version).where(
        tables.streams.c.id == bindparam("at"), tables.streams.c.is_deleted == 0
    )
)
_NAMED: Final = PreparedSelect(
    select(tables.streams).where(
        tables.streams.c.project == bindparam("of"), tables.streams.c.name == bindparam("called")
    )
)
_SHARDS: Final = PreparedSelect(
    select(*SHARD_COLUMNS).where(tables.shards.c.stream_id == bindparam("of")).order_by(tables.shards.c.shard)
)
_SHARD: Final = PreparedSelect(
    select(*SHARD_COLUMNS).where(
        tables.shards.c.stream_id == bindparam("of"), tables.shards.c.shard == bindparam("at")
    )
)


def shard_of(row: Any) -> Shard:
    """A row of the shard table as a value."""
    return Shard(
        id=ShardId(row.shard),
        begin=int(row.range_begin, 16),
        end=int(row.range_end, 16),
        status=ShardStatus(row.status),
        parents=tuple(ShardId(int(parent)) for parent in row.parents.split(",") if parent),
        first_offset=row.first_offset,
        next_offset=row.next_offset,
        bytes=row.bytes,
        created_ms=row.created_ms,
        closed_ms=row.closed_ms,
    )


def _save_shards(
    connection: Connection, stream_id: int, before: Sequence[Shard], after: Iterable[Shard]
) -> None:
    """Insert the new shards; of the old ones only the status can have changed."""
    born, closed = [], []
    for shard in after:
        if shard.id >= len(before):
            born.append(
                {
                    "stream_id": stream_id,
                    "shard": shard.id,
                    "range_begin": f"{shard.begin:033x}",
                    "range_end": f"{shard.end:033x}",
                    "status": shard.status.value,
                    "parents": ",".join(str(parent) for parent in shard.parents),
                    "first_offset": shard.first_offset,
                    "next_offset": shard.next_offset,
                    "bytes": 0,
                    "appended_ms": shard.created_ms,
                    "top_timestamp_us": 0,
                    "created_ms": shard.created_ms,
                    "closed_ms": shard.closed_ms,
                }
            )
        elif shard != before[shard.id]:
            closed.append({"at": shard.id, "status": shard.status.value, "closed_ms": shard.closed_ms})
    if closed:
        mine = (tables.shards.c.stream_id == stream_id, tables.shards.c.shard == bindparam("at"))
        connection.execute(update(tables.shards).where(*mine), closed)
    if born:
        connection.execute(insert(tables.shards), born)


def _settings_columns(settings: StreamSettings) -> dict[str, Any]:
    return {
        "hash": settings.hash.value,
        "compression": settings.compression.value,
        "retention_ms": settings.retention_ms,
        "retention_bytes": settings.retention_bytes,
        "schema": settings.schema,
    }
