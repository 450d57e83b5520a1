"""A group of either kind as people see it: gathered here, put into words by `core.describing`."""

from __future__ import annotations

from shoal.core.describing import GroupInfo, described
from shoal.core.group import Coordination, Delivery, Group
from shoal.core.model import ShardId, StreamInfo
from shoal.hub.group_steps import now_ms
from shoal.hub.leased import LeasedGroups
from shoal.hub.ownerless import OwnerlessGroups
from shoal.ports import Store


class GroupView:
    """Of one hub."""

    def __init__(self, store: Store, leased: LeasedGroups, ownerless: OwnerlessGroups) -> None:
        self._store, self._leased, self._ownerless = store, leased, ownerless

    def described(self, group: Group, stream: StreamInfo) -> GroupInfo:
        """The group with its members, its shards and how far behind they are."""
        if group.settings.delivery is not Delivery.EXCLUSIVE:
            return self._ownerless.described(group)
        since = {shard: times[0] for shard, times in self._store.claim_times(group.id).items()}
        if group.settings.coordination is Coordination.LEASED:
            group = self._leased.viewed(group, stream)
            since |= self._leased.since(group)
        lagging: dict[ShardId, int] = {}
        for claim in group.claims:
            shard = stream.shards[claim.shard]
            position = max(claim.start, shard.first_offset)
            if position < shard.next_offset:
                lagging[shard.id] = position
        found = self._store.batches_at(stream.id, lagging) if lagging else {}
        oldest = {shard: meta.appended_ms for shard, meta in found.items()}
        return described(
            group,
            stream,
            since_ms=since,
            oldest_ms=oldest,
            blocks=self._store.blocks(group.id),
            now_ms=now_ms(),
        )
