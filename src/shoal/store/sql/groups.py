"""Keeps groups in SQL: whole groups for a step, single rows for heartbeats and checkpoints.

A step is thought out on what one read transaction saw, with no lock held, and saved by compare-and-set on the
group's version. Heartbeats, checkpoints and watches write columns that a step never writes, so that
neither waits for the other; a step that was thought out from such a column names it in its condition.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import BigInteger, and_, bindparam, delete, exists, func, insert, or_, select, update
from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from shoal.core.errors import GroupExists, StoreFailure, TooManyGroups
from shoal.core.group import (
    Claim,
    Coordination,
    Delivery,
    Group,
    GroupSettings,
    Member,
    MemberStatus,
    Note,
    ShardState,
)
from shoal.core.handover import HandedOver
from shoal.core.holding import View, granted
from shoal.core.limits import HISTORY_KEPT
from shoal.core.model import ShardId, StreamInfo
from shoal.ports import MemberView
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, info_of, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_groups = tables.groups.c
_members = tables.members.c
_claims = tables.claims.c
_notes = tables.notes.c
_shards = tables.shards.c

EPOCHS: Final = "epoch"
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
            epoch = max(group.epoch, _last_epoch(connection))
            made = connection.execute(
                insert(tables.groups).values(
                    stream_id=stream.id,
                    name=group.name,
                    version=group.version,
                    epoch=epoch,
                    distrust_ms=0,
                    created_ms=now_ms,
                    **_settings_columns(group.settings),
                )
            )
            assert made.inserted_primary_key is not None
            group_id: int = made.inserted_primary_key[0]
            if group.claims:
                connection.execute(
                    insert(tables.claims),
                    [{**_claim_row(group_id, claim), "since_ms": now_ms} for claim in group.claims],
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

    def find_group(self, stream_id: int, name: str) -> Group | None:
        """See GroupStore."""
        query = select(tables.groups).where(_groups.stream_id == stream_id, _groups.name == name)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else group_of(row)

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
                _swap_group(connection, before, after)
                _save_members(connection, before, after, now_ms)
                _save_claims(connection, before, after, now_ms)
                _save_notes(connection, after.id, notes, now_ms)
                if after.epoch != before.epoch:
                    _raise_epoch(connection, after.epoch)
                self._database.dialect.announce(connection, [f"g{after.id}"])
        except _OutrunError:
            return False
        return True

    def delete_group(self, group_id: int) -> None:
        """See GroupStore."""
        with self._database.write() as connection:
            for table in (tables.claims, tables.members, tables.notes):
                connection.execute(delete(table).where(table.c.group_id == group_id))
            connection.execute(delete(tables.groups).where(_groups.id == group_id))
            self._database.dialect.announce(connection, [f"g{group_id}"])

    def load_claim(self, group_id: int, shard: ShardId) -> Claim | None:
        """See GroupStore."""
        query = select(tables.claims).where(_claims.group_id == group_id, _claims.shard == shard)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        return None if row is None else claim_of(row)

    def load_members(self, group_id: int) -> list[Member]:
        """See GroupStore."""
        query = select(tables.members).where(
            _members.group_id == group_id, _members.status != MemberStatus.GONE.value
        )
        with self._database.read() as connection:
            return [member_of(row) for row in connection.execute(query)]

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
            connection.execute(
                _ADD_WATCH,
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

    def is_unsettled(self, group_id: int) -> bool:
        """See GroupStore."""
        stream_id = select(_groups.stream_id).where(_groups.id == group_id).scalar_subquery()
        reached = (
            select(_claims.shard)
            .select_from(tables.claims)
            .where(
                _shards.stream_id == stream_id,
                _shards.shard == _claims.shard,
                _claims.group_id == group_id,
                _claims.state != ShardState.OVER.value,
                _claims.restart.is_(None),
                _shards.status == "closed",
                _claims.checkpoint >= _shards.next_offset,
            )
        )
        unborn = select(_shards.shard).where(
            _shards.stream_id == stream_id,
            _shards.shard
            >= func.coalesce(
                select(func.max(_claims.shard) + 1).where(_claims.group_id == group_id).scalar_subquery(), 0
            ),
        )
        with self._database.read() as connection:
            return any(connection.execute(query.limit(1)).first() is not None for query in (reached, unborn))

    def has_timers(self, group_id: int) -> bool:
        """See GroupStore."""
        moving = select(_claims.shard).where(
            _claims.group_id == group_id, _claims.state == ShardState.TRANSFER.value
        )
        query = select(_groups.id).where(
            _groups.id == group_id,
            or_(_groups.distrust_ms > 0, and_(_groups.handover_timeout_ms.is_not(None), exists(moving))),
        )
        with self._database.read() as connection:
            return connection.execute(query).first() is not None

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
                rows = connection.execute(_ASSIGNED, {"at": group_id, "wanted": wanted})
                for row in rows:
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


class _OutrunError(Exception):
    """Someone else was faster; the transaction is rolled back."""


def _swap_group(connection: Connection, before: Group, after: Group) -> None:
    row = {
        "at": before.id,
        "was": before.version,
        "to_version": after.version,
        "to_epoch": after.epoch,
        "to_distrust_ms": after.distrust_ms,
        **{f"to_{name}": value for name, value in _settings_columns(after.settings).items()},
    }
    if _SWAP_GROUP.run(connection, [row]) != 1:
        raise _OutrunError


def _save_members(connection: Connection, before: Group, after: Group, now_ms: int) -> None:
    """Not what heartbeats and watches write. The end of a member is tied to the counter it was seen at."""
    born, changed, ended = [], [], []
    for key, member in after.members.items():
        old = before.members.get(key)
        if old is None:
            born.append({**_member_row(after.id, member), "joined_ms": now_ms})
        elif old != member:
            row = {
                "at": after.id,
                "who": key,
                "to_status": member.status.value,
                "to_assigned": member.assigned,
            }
            if member.status is MemberStatus.GONE and old.status is not MemberStatus.GONE:
                ended.append({**row, "beat_was": old.beat})
            else:
                changed.append(row)
    if _CHANGE_MEMBER.run(connection, changed) != len(changed):
        raise _OutrunError
    if _END_MEMBER.run(connection, ended) != len(ended):
        raise _OutrunError
    _INSERT_MEMBER.run(connection, born)
    pruned = [{"at": after.id, "who": key} for key in before.members if key not in after.members]
    _DELETE_MEMBER.run(connection, pruned)


def _save_claims(connection: Connection, before: Group, after: Group, now_ms: int) -> None:
    known = len(before.claims)
    born = [{**_claim_row(after.id, claim), "since_ms": now_ms} for claim in after.claims[known:]]
    _INSERT_CLAIM.run(connection, born)
    pairs = zip(before.claims, after.claims[:known], strict=True)
    _write_claims(connection, after.id, [(old, new) for old, new in pairs if old is not new], now_ms)


def _write_claims(
    connection: Connection, group_id: int, changes: Sequence[tuple[Claim, Claim]], now_ms: int
) -> None:
    """A checkpoint is written only where the step changed it: owners save theirs meanwhile."""
    moved, placed = [], []
    for old, new in changes:
        if old == new:
            continue
        row = _claim_row(group_id, new)
        checkpoint = row.pop("checkpoint")
        since = now_ms if (old.state, old.epoch) != (new.state, new.epoch) else None
        moved.append({**{f"to_{name}": value for name, value in row.items()}, "to_since_ms": since})
        if new.checkpoint != old.checkpoint:
            placed.append({"at": group_id, "of_shard": new.shard, "offset": checkpoint, "now": now_ms})
    _MOVE_CLAIM.run(connection, moved)
    _PLACE_CLAIM.run(connection, placed)


def save_hand_over(
    connection: Connection,
    group: Group,
    outcome: HandedOver,
    before: Mapping[ShardId, Claim],
    now_ms: int,
) -> None:
    """What a plain hand-over changed. The group's row is locked by the caller."""
    _swap_group(connection, group, outcome.group)
    rows = [
        {"at": group.id, "who": m.incarnation, "to_status": m.status.value, "to_assigned": m.assigned}
        for m in sorted(outcome.members, key=lambda member: member.incarnation)
    ]
    _CHANGE_MEMBER.run(connection, rows)
    _write_claims(connection, group.id, [(before[claim.shard], claim) for claim in outcome.claims], now_ms)
    _save_notes(connection, group.id, outcome.notes, now_ms)
    _raise_epoch(connection, outcome.group.epoch)


def _save_notes(connection: Connection, group_id: int, notes: Sequence[Note], now_ms: int) -> None:
    if not notes:
        return
    last = _LAST_NOTE.rows(connection, {"at": group_id})[0].last or 0
    _INSERT_NOTE.run(
        connection,
        [
            {
                "group_id": group_id,
                "number": last + place,
                "at_ms": now_ms,
                "kind": note.kind,
                "consumer": note.consumer,
                "shard": note.shard,
                "epoch": note.epoch,
                "detail": note.detail,
            }
            for place, note in enumerate(notes[-HISTORY_KEPT:], 1)
        ],
    )
    oldest = last + min(len(notes), HISTORY_KEPT) - HISTORY_KEPT
    if oldest > 0:
        _DELETE_NOTES.run(connection, [{"at": group_id, "oldest": oldest}])


def _last_epoch(connection: Connection) -> int:
    query = select(tables.sequences.c.value).where(tables.sequences.c.name == EPOCHS)
    return connection.execute(query).scalar() or 0


def _raise_epoch(connection: Connection, epoch: int) -> None:
    """The store's sequence goes with the highest epoch that any group gave."""
    if _RAISE_EPOCH.run(connection, [{"to": epoch}]) == 0 and _last_epoch(connection) == 0:
        connection.execute(insert(tables.sequences).values(name=EPOCHS, value=epoch))


# --- Rows and values. -------------------------------------------------------------------------------


def group_of(row: Any, members: Mapping[str, Member] | None = None, claims: Sequence[Claim] = ()) -> Group:
    """A row of the group table as a value."""
    return Group(
        id=row.id,
        stream_id=row.stream_id,
        name=row.name,
        version=row.version,
        epoch=row.epoch,
        settings=GroupSettings(
            in_order=bool(row.in_order),
            timeout_ms=row.timeout_ms,
            handover_timeout_ms=row.handover_timeout_ms,
            coordination=Coordination(row.coordination),
            delivery=Delivery(row.delivery),
            strategy=row.strategy,
            rules=row.rules,
        ),
        members=members or {},
        claims=claims,
        distrust_ms=row.distrust_ms,
        created_ms=row.created_ms,
    )


def _settings_columns(settings: GroupSettings) -> dict[str, Any]:
    return {
        "in_order": int(settings.in_order),
        "timeout_ms": settings.timeout_ms,
        "handover_timeout_ms": settings.handover_timeout_ms,
        "coordination": settings.coordination.value,
        "delivery": settings.delivery.value,
        "strategy": settings.strategy,
        "rules": settings.rules,
    }


def member_of(row: Any) -> Member:
    """A row of the member table as a value."""
    return Member(
        incarnation=row.incarnation,
        name=row.name,
        status=MemberStatus(row.status),
        beat=row.beat,
        timeout_ms=row.timeout_ms,
        interval_ms=row.interval_ms,
        stood_ms=row.stood_ms,
        assigned=row.assigned,
        held=row.held,
    )


def _member_row(group_id: int, member: Member) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "incarnation": member.incarnation,
        "name": member.name,
        "status": member.status.value,
        "beat": member.beat,
        "timeout_ms": member.timeout_ms,
        "interval_ms": member.interval_ms,
        "stood_ms": member.stood_ms,
        "assigned": member.assigned,
        "held": member.held,
    }


def claim_of(row: Any) -> Claim:
    """A row of the claim table as a value."""
    return Claim(
        shard=ShardId(row.shard),
        state=ShardState(row.state),
        checkpoint=row.checkpoint,
        epoch=row.epoch,
        owner=row.owner,
        owner_epoch=row.owner_epoch,
        next=row.next_owner,
        is_bound=bool(row.is_bound),
        restart=row.restart,
        handover_ms=row.handover_ms,
        lapse_ms=row.lapse_ms,
    )


def _claim_row(group_id: int, claim: Claim) -> dict[str, Any]:
    return {
        "group_id": group_id,
        "shard": claim.shard,
        "state": claim.state.value,
        "checkpoint": claim.checkpoint,
        "epoch": claim.epoch,
        "owner": claim.owner,
        "owner_epoch": claim.owner_epoch,
        "next_owner": claim.next,
        "is_bound": int(claim.is_bound),
        "restart": claim.restart,
        "handover_ms": claim.handover_ms,
        "lapse_ms": claim.lapse_ms,
    }


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
_ADD_WATCH = (
    update(tables.members)
    .where(
        _members.group_id == bindparam("at"),
        _members.incarnation == bindparam("who"),
        _members.beat == bindparam("beat_was"),
        _members.stood_ms == bindparam("stood_was"),
    )
    .values(stood_ms=bindparam("stood_is"))
)
_ASSIGNED = select(_members.incarnation, _members.assigned).where(
    _members.group_id == bindparam("at"),
    _members.incarnation.in_(bindparam("wanted", expanding=True)),
    _members.status != MemberStatus.GONE.value,
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
_SWAP_GROUP = PreparedWrite(
    update(tables.groups)
    .where(_groups.id == bindparam("at"), _groups.version == bindparam("was"))
    .values(
        {
            name: bindparam(f"to_{name}")
            for name in ("version", "epoch", "distrust_ms", *_settings_columns(GroupSettings()))
        }
    )
)
_CHANGE = update(tables.members).values(status=bindparam("to_status"), assigned=bindparam("to_assigned"))
_ONE_MEMBER = (_members.group_id == bindparam("at"), _members.incarnation == bindparam("who"))
_CHANGE_MEMBER = PreparedWrite(_CHANGE.where(*_ONE_MEMBER))
_END_MEMBER = PreparedWrite(_CHANGE.where(*_ONE_MEMBER, _members.beat == bindparam("beat_was")))
_INSERT_MEMBER = PreparedWrite(insert(tables.members))
_DELETE_MEMBER = PreparedWrite(delete(tables.members).where(*_ONE_MEMBER))
_INSERT_CLAIM = PreparedWrite(insert(tables.claims))
_MOVE_CLAIM = PreparedWrite(
    update(tables.claims)
    .where(_claims.group_id == bindparam("to_group_id"), _claims.shard == bindparam("to_shard"))
    .values(
        state=bindparam("to_state"),
        epoch=bindparam("to_epoch"),
        owner=bindparam("to_owner"),
        owner_epoch=bindparam("to_owner_epoch"),
        next_owner=bindparam("to_next_owner"),
        is_bound=bindparam("to_is_bound"),
        restart=bindparam("to_restart"),
        handover_ms=bindparam("to_handover_ms"),
        lapse_ms=bindparam("to_lapse_ms"),
        since_ms=func.coalesce(bindparam("to_since_ms", type_=BigInteger), _claims.since_ms),
    )
)
_PLACE_CLAIM = PreparedWrite(
    update(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.shard == bindparam("of_shard"))
    .values(checkpoint=bindparam("offset"), saved_ms=bindparam("now"))
)
_LAST_NOTE = PreparedSelect(
    select(func.max(_notes.number).label("last")).where(_notes.group_id == bindparam("at"))
)
_INSERT_NOTE = PreparedWrite(insert(tables.notes))
_DELETE_NOTES = PreparedWrite(
    delete(tables.notes).where(_notes.group_id == bindparam("at"), _notes.number <= bindparam("oldest"))
)
_RAISE_EPOCH = PreparedWrite(
    update(tables.sequences)
    .where(tables.sequences.c.name == EPOCHS, tables.sequences.c.value < bindparam("to"))
    .values(value=bindparam("to"))
)
