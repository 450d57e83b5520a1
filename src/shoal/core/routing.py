"""The map of a stream: which open shard owns a place on the ring. A value; it never refreshes itself.

Its version is followed by a number that also rises when a newer map is announced (`route_number`).

Invariant: built from shards that cover the ring, it answers for every place.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from shoal.core.model import Shard, ShardId, StreamInfo


def route_number(version: int, announced: int | None = None) -> int:
    """How far a stream's map has come: twice its version, and one more if the next is announced."""
    return 2 * version + (announced is not None and announced > version)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardMap:
    """Open shards in the order of the ring."""

    version: int
    begins: tuple[int, ...]
    ids: tuple[ShardId, ...]

    @classmethod
    def of(cls, stream: StreamInfo) -> ShardMap:
        """The map as of this description."""
        return cls._of_shards(stream, stream.open_shards)

    @classmethod
    def as_of(cls, stream: StreamInfo, born: int) -> ShardMap:
        """The map as it was when the stream had `born` shards, open and closed together.

        Ids are dense and a parent is closed in the step that bears its children: a shard was open then if it
        was born and had no child yet.
        """
        parents = {parent for shard in stream.shards if shard.id < born for parent in shard.parents}
        return cls._of_shards(
            stream, [shard for shard in stream.shards if shard.id < born and shard.id not in parents]
        )

    def past(self, stream: StreamInfo, closed: ShardId) -> ShardMap:
        """This map with a closed shard followed to its children, one generation and no further.

        Who repeats what was sent before must meet the same shards in the same order, however far the stream
        has moved on since; so it does not leap to the map of today. A child of a merge takes the place of its
        other parent as well; if that one is still hidden behind ancestors of its own, those are closed too
        (otherwise the child would not be there) and are followed as far as it takes.
        """
        by_id = {shard.id: shard for shard in stream.shards}
        children: dict[ShardId, list[Shard]] = {}
        for shard in stream.shards:
            for parent in shard.parents:
                children.setdefault(parent, []).append(shard)
        kept = {shard: by_id[shard] for shard in self.ids}
        follow = closed
        while True:
            del kept[follow]
            kept |= {child.id: child for child in children[follow]}
            ordered = sorted(kept.values(), key=lambda shard: (shard.begin, shard.id))
            overlap = next((pair for pair in pairwise(ordered) if pair[0].end > pair[1].begin), None)
            if overlap is None:
                return self._of_shards(stream, ordered)
            follow = min(shard.id for shard in overlap)  # The elder of the two is the ancestor.

    @classmethod
    def _of_shards(cls, stream: StreamInfo, shards: Sequence[Shard]) -> ShardMap:
        ordered = sorted(shards, key=lambda shard: shard.begin)
        return cls(
            version=stream.version,
            begins=tuple(shard.begin for shard in ordered),
            ids=tuple(shard.id for shard in ordered),
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
