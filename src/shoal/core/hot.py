"""Which keys are most of the load, from a sample of records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shoal.core.model import ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class HotKey:
    """A key that many of a shard's newest records have."""

    key: bytes
    shard: ShardId
    share: float
    """Of the shard's newest records that were looked at."""


def hottest(counts: Mapping[ShardId, Mapping[bytes | None, int]], most: int) -> list[HotKey]:
    """The `most` keys with the largest share of their shard, those first; records without a key count as
    load, and are no key."""
    found = [
        HotKey(key=key, shard=shard, share=count / sum(of_keys.values()))
        for shard, of_keys in counts.items()
        for key, count in of_keys.items()
        if key is not None
    ]
    return sorted(found, key=lambda hot: (-hot.share, hot.shard, hot.key))[:most]
