"""A leased group's rows as a `Group`, so that both kinds are described in the same words. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from shoal.core.group import Claim, Group, Member, MemberStatus, ShardState
from shoal.core.lease import InstanceRow, LeaseRow
from shoal.core.model import Shard, ShardId
from shoal.core.succession import standing


def as_group(
    group: Group,
    rows: Sequence[LeaseRow],
    instances: Sequence[InstanceRow],
    shards: Sequence[Shard],
    starts: Mapping[ShardId, int],
) -> Group:
    """The group with members and claims as its rows say."""
    found = standing(rows, shards)
    claims = []
    for shard in shards:
        row = found.rows.get(shard.id)
        if row is not None:
            waits = found.is_waiting(row, in_order=group.settings.in_order)
            claims.append(_claim(row, is_waiting=waits))
        else:
            # Cleaned up after its end, or not made yet.
            is_done = shard.id in found.ended
            state = ShardState.OVER if is_done else ShardState.NOT_ALLOC
            at = shard.next_offset if is_done else starts.get(shard.id, shard.first_offset)
            claims.append(Claim(shard=shard.id, state=state, checkpoint=at))
    members = {
        row.incarnation: Member(
            incarnation=row.incarnation,
            name=row.name,
            status=MemberStatus.ACTIVE if row.is_taking else MemberStatus.LEAVING,
            beat=row.counter,
            timeout_ms=row.timeout_ms,
            interval_ms=row.interval_ms,
            stood_ms=row.stood_ms,
        )
        for row in instances
        if not row.is_dead
    }
    version = sum(row.revision for row in rows)
    return replace(group, version=version, members=members, claims=tuple(claims))


def _claim(row: LeaseRow, *, is_waiting: bool) -> Claim:
    if row.is_over:
        state = ShardState.OVER
    elif row.consumer_owner is not None:
        is_moving = row.is_stolen or row.is_fenced
        state = ShardState.TRANSFER if is_moving else ShardState.ALREADY_ALLOC
    else:
        state = ShardState.WAIT if is_waiting else ShardState.NOT_ALLOC
    return Claim(
        shard=row.shard,
        state=state,
        checkpoint=row.checkpoint,
        epoch=row.epoch,
        owner=None if row.is_over else row.consumer_owner,
        owner_epoch=row.owner_epoch,
        next=row.lease_owner if row.is_stolen else None,
        is_bound=row.is_bound,
        lapse_ms=row.lapse_ms,
        handover_ms=row.waited_ms,
    )
