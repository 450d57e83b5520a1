"""Where a group begins: earliest, latest, a time, or offsets. Resolved once, when it is made or reset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from shoal.core.lineage import find_shard
from shoal.core.model import Shard, ShardId, StreamInfo
from shoal.core.reading import check_offset


class StartKind(StrEnum):
    """How a position is named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    TIME = "time"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """A position in every shard of a stream, or in those that are named."""

    kind: StartKind = StartKind.EARLIEST
    time_ms: int = 0
    offsets: Mapping[int, int] = field(default_factory=dict)

    @property
    def is_named(self) -> bool:
        """Whether it says more than where one begins who was told nothing."""
        return self.kind is not StartKind.EARLIEST


def resolved(stream: StreamInfo, start: Start, offset_at: Callable[[Shard, int], int]) -> dict[ShardId, int]:
    """The offset for each shard that `start` speaks of; all are checked before any is used."""
    match start.kind:
        case StartKind.EARLIEST:
            return {shard.id: shard.first_offset for shard in stream.shards}
        case StartKind.LATEST:
            return {shard.id: shard.next_offset for shard in stream.shards}
        case StartKind.TIME:
            return {shard.id: offset_at(shard, start.time_ms) for shard in stream.shards}
        case StartKind.OFFSETS:
            return {
                found.id: check_offset(stream.full_name, found, offset)
                for found, offset in ((find_shard(stream, s), o) for s, o in start.offsets.items())
            }
