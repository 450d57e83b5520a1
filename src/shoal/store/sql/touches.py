"""Heartbeats and checkpoints in SQL: each writes rows of its own, many share one commit.

Their cost does not depend on how many shards the group has: a heartbeat that reports what it reported before,
of a view that is the newest, reads and writes one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.engine import Connection

from shoal.core.checkpoint import check_save
from shoal.core.claims import is_at_end
from shoal.core.errors import NotOwner, ShoalError, UnknownConsumer
from shoal.core.group import Claim, Group, Member
from shoal.core.holding import assignment
from shoal.core.membership import Beat, beaten, check_held, digest
from shoal.core.model import Shard
from shoal.core.ownership import Forgotten
from shoal.ports import Touch, TouchAnswer
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.groups import claim_of, group_of, member_of

_groups = tables.groups.c
_members = tables.members.c
_claims = tables.claims.c
_shards = tables.shards.c

_Who = tuple[int, str]


class SQLTouches:
    """See GroupStore.touch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def touch(self, touches: Sequence[Touch], now_ms: int) -> list[TouchAnswer]:
        """See GroupStore."""
        with self._database.write() as connection:
            # Locks first: what MariaDB reads after this is as of now, and no step that changes what one of
            # these members holds can commit until we do.
            members = _load_members(connection, touches)
            groups = _load_groups(connection, sorted({touch.group_id for touch in touches}))
            beats: list[dict[str, Any]] = []
            answers: list[TouchAnswer] = []
            for touch in touches:
                try:
                    if isinstance(touch.act, Beat):
                        answers.append(_beat(connection, touch, groups, members, beats))
                    else:
                        answers.append(_save(connection, touch, groups, now_ms))
                except ShoalError as error:
                    answers.append(error)
            if beats:
                connection.execute(_BEAT, beats)
        return answers


def _beat(
    connection: Connection,
    touch: Touch,
    groups: dict[int, Group],
    members: dict[_Who, Member],
    beats: list[dict[str, Any]],
) -> TouchAnswer:
    beat = touch.act
    assert isinstance(beat, Beat)
    group, who = groups.get(touch.group_id), (touch.group_id, beat.incarnation)
    if group is None:
        raise UnknownConsumer(beat.incarnation)
    if beat.seen > group.version:
        return Forgotten(seen=beat.seen)
    member = beaten(group.settings, members.get(who), beat)
    reported = digest(beat.held)
    claims = None
    if beat.seen != member.assigned or reported != member.held:
        held = {claim.shard: claim for claim in _load_held(connection, *who)}
        strangers = [shard for shard in beat.held if shard not in held]
        others = {claim.shard: claim for claim in _load_claims(connection, touch.group_id, strangers)}
        check_held(member, beat.held, {**held, **others})
        claims = list(held.values())
    member = replace(member, held=reported)
    members[who] = member
    beats.append(
        {
            "at": touch.group_id,
            "who": member.incarnation,
            "to_beat": member.beat,
            "to_timeout_ms": member.timeout_ms,
            "to_interval_ms": member.interval_ms,
            "to_held": member.held,
        }
    )
    return assignment(group.settings, member, claims, beat)


def _save(connection: Connection, touch: Touch, groups: dict[int, Group], now_ms: int) -> int:
    """All of an owner's checkpoints, or none. The rows are locked, so the look and the change are one."""
    saves = touch.act
    assert not isinstance(saves, Beat)
    group = groups.get(touch.group_id)
    wanted = sorted({save.shard for save in saves})
    claims = {claim.shard: claim for claim in _load_claims(connection, touch.group_id, wanted, lock=True)}
    shards = {} if group is None else _load_shards(connection, group.stream_id, wanted)
    ends = 0
    rows = []
    for save in saves:
        if save.shard not in claims or save.shard not in shards:
            raise NotOwner(shard=save.shard, consumer=f"epoch {save.epoch}", owner=None)
        claim, shard = claims[save.shard], shards[save.shard]
        check_save(touch.stream, claim, shard, save)
        claims[save.shard] = replace(claim, checkpoint=save.offset)
        ends += is_at_end(shard, save.offset)
        rows.append({"at": touch.group_id, "of_shard": save.shard, "offset": save.offset, "now": now_ms})
    connection.execute(_SAVE, rows)
    return ends


def _load_groups(connection: Connection, group_ids: Sequence[int]) -> dict[int, Group]:
    rows = connection.execute(_GROUPS, {"wanted": list(group_ids)})
    return {row.id: group_of(row) for row in rows}


def _load_members(connection: Connection, touches: Sequence[Touch]) -> dict[_Who, Member]:
    """Locked, in one order, so that two commits never wait for each other."""
    wanted: dict[int, list[str]] = {}
    for touch in touches:
        if isinstance(touch.act, Beat):
            wanted.setdefault(touch.group_id, []).append(touch.act.incarnation)
    return {
        (group_id, row.incarnation): member_of(row)
        for group_id in sorted(wanted)
        for row in connection.execute(_MEMBERS, {"at": group_id, "wanted": sorted(wanted[group_id])})
    }


def _load_held(connection: Connection, group_id: int, incarnation: str) -> list[Claim]:
    rows = connection.execute(_HELD, {"at": group_id, "who": incarnation})
    return [claim_of(row) for row in rows]


def _load_claims(
    connection: Connection, group_id: int, shards: Sequence[int], *, lock: bool = False
) -> list[Claim]:
    if not shards:
        return []
    statement = _CLAIMS.with_for_update() if lock else _CLAIMS
    rows = connection.execute(statement, {"at": group_id, "wanted": list(shards)})
    return [claim_of(row) for row in rows]


def _load_shards(connection: Connection, stream_id: int, shards: Sequence[int]) -> dict[int, Shard]:
    rows = connection.execute(_SHARDS, {"at": stream_id, "wanted": list(shards)})
    return {row.shard: shard_of(row) for row in rows}


_GROUPS = select(tables.groups).where(_groups.id.in_(bindparam("wanted", expanding=True)))
_MEMBERS = (
    select(tables.members)
    .where(
        _members.group_id == bindparam("at"), _members.incarnation.in_(bindparam("wanted", expanding=True))
    )
    .order_by(_members.incarnation)
    .with_for_update()
)
_HELD = (
    select(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.owner == bindparam("who"))
    .order_by(_claims.shard)
)
_CLAIMS = (
    select(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.shard.in_(bindparam("wanted", expanding=True)))
    .order_by(_claims.shard)
)
_SHARDS = select(*SHARD_COLUMNS).where(
    _shards.stream_id == bindparam("at"), _shards.shard.in_(bindparam("wanted", expanding=True))
)
_BEAT = (
    update(tables.members)
    .where(_members.group_id == bindparam("at"), _members.incarnation == bindparam("who"))
    .values(
        beat=bindparam("to_beat"),
        stood_ms=0,
        timeout_ms=bindparam("to_timeout_ms"),
        interval_ms=bindparam("to_interval_ms"),
        held=bindparam("to_held"),
    )
)
_SAVE = (
    update(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.shard == bindparam("of_shard"))
    .values(checkpoint=bindparam("offset"), saved_ms=bindparam("now"))
)
