"""Keeps groups in SQL: whole groups for a step, single rows for heartbeats and checkpoints.

A step is thought out on what one read transaction saw, with no lock held, and saved by compare-and-set on the
group's version. Heartbeats, checkpoints and watches write columns that a step never writes, so that
neither waits for the other; a step that was thought out from such a column names it in its condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import BindParameter, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from shoal.core.describing import Block
from shoal.core.errors import GroupExists, StoreFailure, TooManyGroups
from shoal.core.group import (
    Group,
    Member,
    MemberStatus,
    Note,
    ShardState,
)
from shoal.core.holding import View, granted
from shoal.core.model import ShardId, StreamInfo, StreamName
from shoal.ports import MemberView
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, info_of, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.group_rows import claim_of, group_of, member_of, new_claim_row, settings_columns
from shoal.store.sql.group_saving import OutrunError, delete_groups, last_epoch, save_notes, save_step
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_groups = tables.groups.c
_members = tables.members.c
_claims = tables.claims.c
_notes = tables.notes.c
_shards = tables.shards.c
_blocks = tables.blocks.c

_KNOWN_GROUPS: Final = 256
"""Groups whose last rows are remembered."""
_Value = TypeVar("_Value")


class SQLGroups:
    """See GroupStore. Heartbeats and checkpoints are in `touches`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: dict[int, _Known] = {}

    def create_group(self, stream: StreamInfo, group: Group, *, limit: int, now_ms: int) -> Group:
        """See GroupStore."""
        try:
            return self._create_group(stream, group, limit, now_ms)
        except StoreFailure as error:
            if not isinstance(error.__cause__, IntegrityError):
                raise
        # Another process made the same group between our look and our insert: now we see it.
        return self._create_group(stream, group, limit, now_ms)

    def _create_group(self, stream: StreamInfo, group: Group, limit: int, now_ms: int) -> Group:
        with self._database.write() as connection:
            # The stream's row is locked, so that two creators count one after the other.
            lock = select(tables.streams.c.id).where(tables.streams.c.id == stream.id).with_for_update()
            connection.execute(lock).scalar()
            names = (
                connection.execute(select(_groups.name).where(_groups.stream_id == stream.id)).scalars().all()
            )
            if group.name in names:
                raise GroupExists(stream=str(stream.full_name), group=group.name)
            if len(names) >= limit:
                raise TooManyGroups(stream=str(stream.full_name), limit=limit)
            # A group that was deleted and is made again goes on above all epochs it ever gave.
            epoch = max(group.epoch, last_epoch(connection))
            made = connection.execute(
                insert(tables.groups).values(
                    stream_id=stream.id,
                    name=group.name,
                    version=group.version,
                    epoch=epoch,
                    distrust_ms=0,
                    created_ms=now_ms,
                    **settings_columns(group.settings),
                )
            )
            assert made.inserted_primary_key is not None
            group_id: int = made.inserted_primary_key[0]
            if group.claims:
                connection.execute(
                    insert(tables.claims),
                    [new_claim_row(group_id, claim, now_ms) for claim in group.claims],
                )
        return Group(
            id=group_id,
            stream_id=stream.id,
            name=group.name,
            version=group.version,
            epoch=epoch,
            settings=group.settings,
            claims=group.claims,
            created_ms=now_ms,
        )

    def list_groups(self, stream_id: int) -> list[Group]:
        """See GroupStore."""
        query = select(tables.groups).where(_groups.stream_id == stream_id).order_by(_groups.name)
        with self._database.read() as connection:
            return [group_of(row) for row in connection.execute(query)]

    def find_group(self, stream: StreamName, name: str) -> Group | None:
        """See GroupStore."""
        where = {"project": stream.project, "stream": stream.stream, "name": name}
        with self._database.read() as connection:
            rows = _NAMED.rows(connection, where)
        return group_of(rows[0]) if rows else None

    def load_group(self, group_id: int) -> tuple[Group, StreamInfo] | None:
        """See GroupStore."""
        where = {"at": group_id}
        with self._database.read() as connection:
            found = _GROUP.rows(connection, where)
            streams = _STREAM.rows(connection, {"at": found[0].stream_id}) if found else []
            if not found or not streams:
                return None
            shard_rows = _SHARDS.rows(connection, {"at": found[0].stream_id})
            member_rows = _MEMBERS.rows(connection, where)
            claim_rows = _CLAIMS.rows(connection, where)
        known = self._known.get(group_id, _Known())
        shards = tuple(known.remembered(known.shards, row, shard_of) for row in shard_rows)
        claims = tuple(known.remembered(known.claims, row, claim_of) for row in claim_rows)
        members = {row.incarnation: member_of(row) for row in member_rows}
        self._remember(group_id, known)
        return group_of(found[0], members, claims), info_of(streams[0], shards)

    def _remember(self, group_id: int, known: _Known) -> None:
        if len(self._known) >= _KNOWN_GROUPS:
            self._known.clear()
        self._known[group_id] = known

    def save_group(self, before: Group, after: Group, notes: Sequence[Note], now_ms: int) -> bool:
        """See GroupStore."""
        try:
            with self._database.write() as connection:
                save_step(connection, before, after, notes, now_ms)
                self._database.dialect.announce(connection, [f"g{after.id}"])
        except OutrunError:
            return False
        return True

    def delete_group(self, group_id: int, rule: Callable[[Sequence[Member]], None] | None = None) -> None:
        """See GroupStore."""
        with self._database.write() as connection:
            # Locked before anything is read: a step that lets someone in swaps this row.
            connection.execute(select(_groups.id).where(_groups.id == group_id).with_for_update()).scalar()
            if rule is not None:
                rule([member_of(row) for row in _LIVING.rows(connection, {"at": group_id})])
            delete_groups(connection, [group_id])
            self._database.dialect.announce(connection, [f"g{group_id}"])

    def load_members(self, group_id: int) -> list[Member]:
        """See GroupStore."""
        with self._database.read() as connection:
            return [member_of(row) for row in _LIVING.rows(connection, {"at": group_id})]

    def load_view(self, group_id: int, incarnation: str) -> View | None:
        """See GroupStore."""
        with self._database.read() as connection:
            found = _VIEWED.rows(connection, {"at": group_id, "who": incarnation})
            if not found:
                return None
            claims = _HELD.rows(connection, {"at": group_id, "who": incarnation})
        return View(version=found[0].assigned, granted=granted(claim_of(row) for row in claims))

    def add_watches(self, group_id: int, watches: Sequence[tuple[Member, Member]]) -> None:
        """See GroupStore."""
        with self._database.write() as connection:
            _ADD_WATCH.run(
                connection,
                [
                    {
                        "at": group_id,
                        "who": before.incarnation,
                        "beat_was": before.beat,
                        "stood_was": before.stood_ms,
                        "stood_is": after.stood_ms,
                    }
                    for before, after in sorted(watches, key=lambda pair: pair[0].incarnation)
                ],
            )

    def is_unsettled(self, group_id: int, seen: int) -> bool:
        """See GroupStore."""
        with self._database.read() as connection:
            return bool(_MOVED_ON.rows(connection, {"at": group_id, "seen": seen})) or any(
                query.rows(connection, {"at": group_id}) for query in _OPEN_QUESTIONS
            )

    def has_timers(self, group_id: int) -> bool:
        """See GroupStore."""
        with self._database.read() as connection:
            return bool(_TIMED.rows(connection, {"at": group_id}))

    def history(self, group_id: int, limit: int) -> list[tuple[int, Note]]:
        """See GroupStore."""
        query = (
            select(tables.notes)
            .where(_notes.group_id == group_id)
            .order_by(_notes.number.desc())
            .limit(limit)
        )
        with self._database.read() as connection:
            rows = connection.execute(query).all()
        return [
            (
                row.at_ms,
                Note(
                    kind=row.kind, consumer=row.consumer, shard=row.shard, epoch=row.epoch, detail=row.detail
                ),
            )
            for row in reversed(rows)
        ]

    def add_notes(self, group_id: int, notes: Sequence[Note], clock: Callable[[], int]) -> None:
        """See GroupStore."""
        with self._database.write() as connection:
            # The group's row is locked, so that two writers number their lines one after the other.
            lock = select(_groups.id).where(_groups.id == group_id).with_for_update()
            if connection.execute(lock).scalar() is not None:
                save_notes(connection, group_id, notes, clock())

    def set_block(self, group_id: int, shard: ShardId, block: Block | None, now_ms: int) -> None:
        """See GroupStore."""
        where = (_blocks.group_id == group_id, _blocks.shard == shard)
        with self._database.write() as connection:
            before = connection.execute(select(tables.blocks).where(*where).with_for_update()).one_or_none()
            connection.execute(delete(tables.blocks).where(*where))
            if block is not None:
                is_same = before is not None and before.epoch == block.epoch
                connection.execute(
                    insert(tables.blocks).values(
                        group_id=group_id,
                        shard=shard,
                        epoch=block.epoch,
                        attempts=block.attempts,
                        error=block.error,
                        since_ms=before.since_ms if before is not None and is_same else now_ms,
                    )
                )

    def blocks(self, group_id: int) -> Mapping[ShardId, Block]:
        """See GroupStore."""
        query = select(tables.blocks).where(_blocks.group_id == group_id)
        with self._database.read() as connection:
            return {
                ShardId(row.shard): Block(
                    epoch=row.epoch, attempts=row.attempts, error=row.error, since_ms=row.since_ms
                )
                for row in connection.execute(query)
            }

    def claim_times(self, group_id: int) -> Mapping[ShardId, tuple[int, int | None]]:
        """See GroupStore."""
        query = select(_claims.shard, _claims.since_ms, _claims.saved_ms).where(_claims.group_id == group_id)
        with self._database.read() as connection:
            return {ShardId(row.shard): (row.since_ms, row.saved_ms) for row in connection.execute(query)}

    def assigned(self, views: Sequence[MemberView]) -> dict[MemberView, tuple[int, bool]]:
        """For each member that is there: the version of its assignment; that can always rise."""
        found: dict[MemberView, tuple[int, bool]] = {}
        with self._database.read() as connection:
            for group_id in {view.group_id for view in views}:
                wanted = [view.incarnation for view in views if view.group_id == group_id]
                for row in _ASSIGNED.rows(connection, {"at": group_id, "wanted": wanted}):
                    found[MemberView(group_id, row.incarnation)] = (row.assigned, True)
        return found


class _Known:
    """Rows as they were read last, with the values made of them: most are the same the next time.

    Writer and reader: any thread. Entries are replaced whole, so a race costs a value made twice.
    """

    def __init__(self) -> None:
        self.shards: dict[int, tuple[Any, Any]] = {}
        self.claims: dict[int, tuple[Any, Any]] = {}

    @staticmethod
    def remembered(known: dict[int, tuple[Any, Any]], row: Any, make: Callable[[Any], _Value]) -> _Value:
        last = known.get(row.shard)
        if last is not None and last[0] == row:
            value: _Value = last[1]
            return value
        value = make(row)
        known[row.shard] = (row, value)
        return value


_AT: BindParameter[int] = bindparam("at")
_LIVING = PreparedSelect(
    select(tables.members).where(_members.group_id == _AT, _members.status != MemberStatus.GONE.value)
)
_MOVED_ON = PreparedSelect(
    select(_groups.id).where(_groups.id == _AT, _groups.version != bindparam("seen")).limit(1)
)
_STREAM_ID = select(_groups.stream_id).where(_groups.id == _AT).scalar_subquery()
_OPEN_QUESTIONS = tuple(
    PreparedSelect(query.limit(1))
    for query in (
        # Claims that have reached the end of their closed shards.
        select(_claims.shard)
        .select_from(tables.claims)
        .where(
            _shards.stream_id == _STREAM_ID,
            _shards.shard == _claims.shard,
            _claims.group_id == _AT,
            _claims.state != ShardState.OVER.value,
            _claims.restart.is_(None),
            _shards.status == "closed",
            _claims.checkpoint >= _shards.next_offset,
        ),
        # Shards that the group has no claim of yet.
        select(_shards.shard).where(
            _shards.stream_id == _STREAM_ID,
            _shards.shard
            >= func.coalesce(
                select(func.max(_claims.shard) + 1).where(_claims.group_id == _AT).scalar_subquery(), 0
            ),
        ),
        # Shards that nobody has, although there is someone.
        select(_claims.shard).where(
            _claims.group_id == _AT,
            _claims.state == ShardState.NOT_ALLOC.value,
            exists().where(_groups.id == _AT, _groups.distrust_ms == 0),
            exists().where(_members.group_id == _AT, _members.status == MemberStatus.ACTIVE.value),
        ),
    )
)
_MOVING = select(_claims.shard).where(_claims.group_id == _AT, _claims.state == ShardState.TRANSFER.value)
_TIMED = PreparedSelect(
    select(_groups.id).where(
        _groups.id == _AT,
        or_(
            _groups.distrust_ms > 0,
            and_(_groups.handover_timeout_ms.is_not(None), exists(_MOVING)),
            exists(_MOVING.where(_claims.lapse_ms > 0)),
        ),
    )
)
_VIEWED = PreparedSelect(
    select(_members.assigned).where(
        _members.group_id == bindparam("at"),
        _members.incarnation == bindparam("who"),
        _members.status != MemberStatus.GONE.value,
    )
)
_HELD = PreparedSelect(
    select(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.owner == bindparam("who"))
    .order_by(_claims.shard)
)
_ADD_WATCH = PreparedWrite(
    update(tables.members)
    .where(
        _members.group_id == bindparam("at"),
        _members.incarnation == bindparam("who"),
        _members.beat == bindparam("beat_was"),
        _members.stood_ms == bindparam("stood_was"),
    )
    .values(stood_ms=bindparam("stood_is"))
)
_ASSIGNED = PreparedSelect(
    select(_members.incarnation, _members.assigned).where(
        _members.group_id == bindparam("at"),
        _members.incarnation.in_(bindparam("wanted", expanding=True)),
        _members.status != MemberStatus.GONE.value,
    )
)
_NAMED = PreparedSelect(
    select(tables.groups).where(
        tables.streams.c.project == bindparam("project"),
        tables.streams.c.name == bindparam("stream"),
        _groups.stream_id == tables.streams.c.id,
        _groups.name == bindparam("name"),
    )
)
_GROUP = PreparedSelect(select(tables.groups).where(_groups.id == bindparam("at")))
_STREAM = PreparedSelect(
    select(tables.streams).where(tables.streams.c.id == bindparam("at"), tables.streams.c.is_deleted == 0)
)
_SHARDS = PreparedSelect(
    select(*SHARD_COLUMNS).where(_shards.stream_id == bindparam("at")).order_by(_shards.shard)
)
_MEMBERS = PreparedSelect(
    select(tables.members).where(_members.group_id == bindparam("at")).order_by(_members.joined_ms)
)
_CLAIMS = PreparedSelect(
    select(tables.claims).where(_claims.group_id == bindparam("at")).order_by(_claims.shard)
)
