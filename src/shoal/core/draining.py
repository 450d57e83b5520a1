"""When a group has consumed all that was there at a given moment."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from shoal.core.describing import GroupInfo
from shoal.core.group import ShardState
from shoal.core.model import ShardId


def is_drained(info: GroupInfo, targets: Mapping[ShardId, int], drained_here: Collection[ShardId]) -> bool:
    """Whether every shard has come to its target: by its checkpoint, or in the hands of who asks."""
    states = {shard.id: shard for shard in info.shards}
    return all(
        shard in drained_here
        or (
            shard in states and (states[shard].state is ShardState.OVER or states[shard].checkpoint >= target)
        )
        for shard, target in targets.items()
    )
