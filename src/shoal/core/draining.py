"""When a group has consumed all that was there at a given moment, and who is still at it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from shoal.core.describing import GroupInfo
from shoal.core.group import ShardState
from shoal.core.model import ShardId


class Drained(StrEnum):
    """How far a group has come, for one of its consumers that has come to the end of what it holds."""

    ALL = "all"
    """Every shard has come to its target: by its checkpoint, or in the hands of who asks."""
    NOT_BY_OTHERS = "not_by_others"
    """Some have not, as far as one sees, and others hold at least one of them."""
    NOT_YET = "not_yet"
    """Some have not, and nobody else holds one: they will come here."""


def drained(
    info: GroupInfo, targets: Mapping[ShardId, int], here: Collection[ShardId], consumer: str
) -> Drained:
    """What `consumer` sees, who is done with the shards that are `here`."""
    states = {shard.id: shard for shard in info.shards}
    left = [
        states.get(shard)
        for shard, target in targets.items()
        if shard not in here
        and not (
            shard in states and (states[shard].state is ShardState.OVER or states[shard].checkpoint >= target)
        )
    ]
    if not left:
        return Drained.ALL
    is_anothers = any(shard is not None and shard.owner not in (None, consumer) for shard in left)
    return Drained.NOT_BY_OTHERS if is_anothers else Drained.NOT_YET
