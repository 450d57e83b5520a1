"""The map of a stream: which open shard owns a place on the ring. A value; it never refreshes itself.

Invariant: built from shards that cover the ring, it answers for every place.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

from shoal.core.model import ShardId, StreamInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMap:
    """Open shards in the order of the ring."""

    version: int
    begins: tuple[int, ...]
    ids: tuple[ShardId, ...]

    @classmethod
    def of(cls, stream: StreamInfo) -> ShardMap:
        """The map as of this description."""
        open_shards = stream.open_shards
        return cls(
            version=stream.version,
            begins=tuple(shard.begin for shard in open_shards),
            ids=tuple(shard.id for shard in open_shards),
        )

    def shard_at(self, place: int) -> ShardId:
        """The shard that owns a place."""
        return self.ids[bisect_right(self.begins, place) - 1]

    def upper_begins(self) -> list[int]:
        """For each shard the least upper half of a hash whose place `upper << 64` lies in or after it.

        A key hashed to 64 bits lies at `hash << 64`, and `hash << 64 >= begin` exactly when
        `hash >= ceil(begin / 2**64)`. This lets a column of 64-bit hashes be routed without
        128-bit numbers. A bound of 2**64 is above every hash.
        """
        return [-(-begin >> 64) for begin in self.begins]
