"""Heartbeats and checkpoints in SQL: each writes rows of its own, many share one commit.

Their cost does not depend on how many shards the group has: a heartbeat that reports what it reported before,
of a view that is the newest, reads and writes one row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias

from sqlalchemy import bindparam, select, update
from sqlalchemy.engine import Connection

from shoal.core.checkpoint import check_save, marks_text
from shoal.core.claims import is_at_end
from shoal.core.errors import NotOwner, ShoalError, StoreFailure, UnknownConsumer
from shoal.core.events import Forgotten, Release
from shoal.core.group import Claim, Group, Member
from shoal.core.handover import HandedOver, handed_over
from shoal.core.holding import assignment
from shoal.core.membership import Beat, beaten, check_held, digest, remembered
from shoal.core.model import Shard, ShardId
from shoal.ports import LeasedTouch, NotPlain, Touch, TouchAnswer
from shoal.store.sql import tables
from shoal.store.sql.catalog import SHARD_COLUMNS, shard_of
from shoal.store.sql.database import Database
from shoal.store.sql.group_rows import claim_of, group_of, member_of
from shoal.store.sql.group_saving import save_hand_over
from shoal.store.sql.prepared import PreparedSelect, PreparedWrite

_log: Final = logging.getLogger("shoal.store")

_groups = tables.groups.c
_members = tables.members.c
_claims = tables.claims.c
_shards = tables.shards.c

_Who = tuple[int, str]
_Where = tuple[int, ShardId]


class SQLTouches:
    """See GroupStore.touch."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def touch(self, touches: Sequence[Touch], now_ms: int) -> list[TouchAnswer]:
        """See GroupStore.

        A fault that has no better name is one touch's own: nothing of this commit is in, so each is tried by
        itself, and only the one that brings the fault is answered with it.
        """
        try:
            return self._commit(touches, now_ms)
        except StoreFailure:
            if len(touches) == 1:
                raise
            _log.warning(
                "a commit of %s touches failed; each is tried by itself", len(touches), exc_info=True
            )
        except ShoalError:
            raise
        except Exception as error:
            if len(touches) == 1:
                raise StoreFailure(f"{type(error).__name__}: {error}") from error
            # A request's edge: what one of them brings must not end the heartbeats of the others.
            _log.warning(
                "a commit of %s touches failed; each is tried by itself", len(touches), exc_info=True
            )
        return [self._alone(touch, now_ms) for touch in touches]

    def _alone(self, touch: Touch, now_ms: int) -> TouchAnswer:
        try:
            (answer,) = self.touch([touch], now_ms)
        except ShoalError as error:
            return error
        return answer

    def _commit(self, touches: Sequence[Touch], now_ms: int) -> list[TouchAnswer]:
        with self._database.write() as connection:
            # Locks first, and in this order: what MariaDB reads after this is as of now, and no step that
            # changes what one of these members holds can commit until we do.
            groups = _lock_groups(connection, touches)
            leaving = _lock_claims(connection, touches)
            members = _lock_members(connection, touches, leaving)
            groups |= _load_groups(connection, {touch.group_id for touch in touches} - groups.keys())
            rows = _Rows(groups=groups, leaving=leaving, members=members)
            answers: list[TouchAnswer] = []
            for touch in touches:
                try:
                    if isinstance(touch.act, Beat):
                        answers.append(_beat(connection, touch, rows))
                    elif isinstance(touch.act, Release):
                        answers.append(_release(connection, touch, rows, now_ms))
                    else:
                        answers.append(_save(connection, touch, rows.groups, now_ms))
                except ShoalError as error:
                    answers.append(error)
            _BEAT.run(connection, rows.beats)
            moved = {f"g{answer.group.id}" for answer in answers if isinstance(answer, HandedOver)}
            self._database.dialect.announce(connection, sorted(moved))
        return answers


LeasedSaver: TypeAlias = Callable[[Connection, LeasedTouch, Mapping[ShardId, Shard]], None]


def save_all(
    connection: Connection,
    touches: Sequence[Touch | LeasedTouch],
    leased: Mapping[int, LeasedSaver],
    now_ms: int,
) -> list[int]:
    """Owners' checkpoints within a transaction of more; for each touch, how many ends were reached.

    `leased`: by group, who knows the rows of the leased ones. Theirs are told to their consumers.
    """
    groups = _load_groups(connection, {touch.group_id for touch in touches})
    ends = []
    for touch in touches:
        if isinstance(touch, Touch):
            ends.append(_save(connection, touch, groups, now_ms))
        else:
            group = groups.get(touch.group_id)
            wanted = sorted({one.save.shard for one in touch.saves})
            shards = {} if group is None else _load_shards(connection, group.stream_id, wanted)
            leased[touch.group_id](connection, touch, shards)
            ends.append(0)
    return ends


@dataclass(slots=True, kw_only=True)
class _Rows:
    """What one commit works on: each touch sees what those before it changed."""

    groups: dict[int, Group]
    leaving: dict[_Where, Claim]
    """Claims that are released."""
    members: dict[_Who, Member]
    beats: list[dict[str, Any]] = field(default_factory=list)


def _beat(connection: Connection, touch: Touch, rows: _Rows) -> TouchAnswer:
    beat = touch.act
    assert isinstance(beat, Beat)
    group, who = rows.groups.get(touch.group_id), (touch.group_id, beat.incarnation)
    if group is None:
        raise UnknownConsumer(beat.incarnation)
    if (seen := max(beat.seen, touch.seen)) > group.version:
        return Forgotten(seen=seen)
    member = beaten(group.settings, rows.members.get(who), beat)
    claims = None
    if beat.seen != member.assigned or digest(beat.held) != member.held:
        held = {claim.shard: claim for claim in _load_held(connection, *who)}
        strangers = [shard for shard in beat.held if shard not in held]
        others = {claim.shard: claim for claim in _load_claims(connection, touch.group_id, strangers)}
        check_held(member, beat.held, {**held, **others})
        claims = list(held.values())
        member = replace(member, held=remembered(beat.held, claims))
    rows.members[who] = member
    rows.beats.append(
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
    assert not isinstance(saves, Beat | Release)
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
        rows.append(
            {
                "at": touch.group_id,
                "of_shard": int(save.shard),
                "offset": int(save.offset),
                "to_marks": marks_text(save.offset),
                "now": now_ms,
            }
        )
    _SAVE.run(connection, rows)
    return ends


def _release(connection: Connection, touch: Touch, rows: _Rows, now_ms: int) -> TouchAnswer:
    """A plain hand-over, if it is one."""
    release, group = touch.act, rows.groups.get(touch.group_id)
    assert isinstance(release, Release)
    if group is None or touch.seen > group.version:  # A step deals with a store that forgot.
        return NotPlain()
    wanted = [letting.shard for letting in release.lettings]
    outcome = handed_over(
        group,
        release,
        {shard: claim for (of_group, shard), claim in rows.leaving.items() if of_group == group.id},
        _load_shards(connection, group.stream_id, wanted),
        {key: member for (of_group, key), member in rows.members.items() if of_group == group.id},
    )
    if outcome is None:
        return NotPlain()
    before = {claim.shard: rows.leaving[group.id, claim.shard] for claim in outcome.claims}
    save_hand_over(connection, group, outcome, before, now_ms)
    rows.groups[group.id] = outcome.group
    rows.leaving.update({(group.id, claim.shard): claim for claim in outcome.claims})
    rows.members.update({(group.id, member.incarnation): member for member in outcome.members})
    return outcome


def _lock_groups(connection: Connection, touches: Sequence[Touch]) -> dict[int, Group]:
    """Those of which something is released: nobody may step them meanwhile."""
    wanted = sorted({touch.group_id for touch in touches if isinstance(touch.act, Release)})
    rows = _LOCKED_GROUPS.rows(connection, {"wanted": wanted}) if wanted else ()
    return {row.id: group_of(row) for row in rows}


def _lock_claims(connection: Connection, touches: Sequence[Touch]) -> dict[_Where, Claim]:
    found = {}
    for touch in touches:
        if isinstance(touch.act, Release):
            wanted = sorted({letting.shard for letting in touch.act.lettings})
            for claim in _load_claims(connection, touch.group_id, wanted, lock=True):
                found[touch.group_id, claim.shard] = claim
    return found


def _load_groups(connection: Connection, group_ids: Collection[int]) -> dict[int, Group]:
    rows = _GROUPS.rows(connection, {"wanted": sorted(group_ids)}) if group_ids else ()
    return {row.id: group_of(row) for row in rows}


def _lock_members(
    connection: Connection, touches: Sequence[Touch], leaving: dict[_Where, Claim]
) -> dict[_Who, Member]:
    """All in one order, so that two commits never wait for each other."""
    wanted: dict[int, set[str]] = {}
    for touch in touches:
        if isinstance(touch.act, Beat | Release):
            wanted.setdefault(touch.group_id, set()).add(touch.act.incarnation)
    for (group_id, _), claim in leaving.items():
        if claim.next is not None:
            wanted.setdefault(group_id, set()).add(claim.next)
    return {
        (group_id, row.incarnation): member_of(row)
        for group_id in sorted(wanted)
        for row in _MEMBERS.rows(connection, {"at": group_id, "wanted": sorted(wanted[group_id])})
    }


def _load_held(connection: Connection, group_id: int, incarnation: str) -> list[Claim]:
    rows = _HELD.rows(connection, {"at": group_id, "who": incarnation})
    return [claim_of(row) for row in rows]


def _load_claims(
    connection: Connection, group_id: int, shards: Sequence[int], *, lock: bool = False
) -> list[Claim]:
    if not shards:
        return []
    statement = _LOCKED_CLAIMS if lock else _CLAIMS
    rows = statement.rows(connection, {"at": group_id, "wanted": list(shards)})
    return [claim_of(row) for row in rows]


def _load_shards(connection: Connection, stream_id: int, shards: Sequence[int]) -> dict[ShardId, Shard]:
    rows = _SHARDS.rows(connection, {"at": stream_id, "wanted": list(shards)})
    return {ShardId(row.shard): shard_of(row) for row in rows}


_SOME_GROUPS = select(tables.groups).where(_groups.id.in_(bindparam("wanted", expanding=True)))
_GROUPS = PreparedSelect(_SOME_GROUPS)
_LOCKED_GROUPS = PreparedSelect(_SOME_GROUPS.order_by(_groups.id).with_for_update())
_MEMBERS = PreparedSelect(
    select(tables.members)
    .where(
        _members.group_id == bindparam("at"), _members.incarnation.in_(bindparam("wanted", expanding=True))
    )
    .order_by(_members.incarnation)
    .with_for_update()
)
_HELD = PreparedSelect(
    select(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.owner == bindparam("who"))
    .order_by(_claims.shard)
)
_SOME_CLAIMS = (
    select(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.shard.in_(bindparam("wanted", expanding=True)))
    .order_by(_claims.shard)
)
_CLAIMS = PreparedSelect(_SOME_CLAIMS)
_LOCKED_CLAIMS = PreparedSelect(_SOME_CLAIMS.with_for_update())
_SHARDS = PreparedSelect(
    select(*SHARD_COLUMNS).where(
        _shards.stream_id == bindparam("at"), _shards.shard.in_(bindparam("wanted", expanding=True))
    )
)
_BEAT = PreparedWrite(
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
_SAVE = PreparedWrite(
    update(tables.claims)
    .where(_claims.group_id == bindparam("at"), _claims.shard == bindparam("of_shard"))
    .values(checkpoint=bindparam("offset"), marks=bindparam("to_marks"), saved_ms=bindparam("now"))
)
