"""What may be forgotten: by age since the append, and by stored size of the whole stream.

Retention removes whole batches from the front of a shard. Age may empty a shard; size leaves the newest
batch of every shard, so that a limit smaller than one batch does not make the stream unreadable.

Invariant: what is removed from a shard is a beginning of it, so that kept offsets stay dense.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import merge

from shoal.core.checking import is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import RETENTION_MAX
from shoal.core.model import ShardId, StreamSettings
from shoal.core.reading import BatchMeta


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardFront:
    """The oldest batches of a shard, oldest first, and where the shard ends."""

    next_offset: int
    oldest: Sequence[BatchMeta]


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Remove a shard's batches below `first_offset`."""

    first_offset: int
    records: int
    bytes: int


def plan_cuts(
    fronts: Mapping[ShardId, ShardFront], stream_bytes: int, settings: StreamSettings, now_ms: int
) -> dict[ShardId, Cut]:
    """What to remove now, as far as the given fronts show it. Ask again until the answer is empty."""
    gone: dict[ShardId, list[BatchMeta]] = {}
    kept_bytes = stream_bytes
    for shard, meta in _oldest_first(fronts):
        too_old = settings.retention_ms is not None and meta.appended_ms <= now_ms - settings.retention_ms
        too_much = settings.retention_bytes is not None and kept_bytes > settings.retention_bytes
        is_newest = meta.next_offset == fronts[shard].next_offset
        if too_old or (too_much and not is_newest):
            gone.setdefault(shard, []).append(meta)
            kept_bytes -= meta.stored_bytes
    return {
        shard: Cut(
            first_offset=metas[-1].next_offset,
            records=sum(meta.records for meta in metas),
            bytes=sum(meta.stored_bytes for meta in metas),
        )
        for shard, metas in gone.items()
    }


def _oldest_first(fronts: Mapping[ShardId, ShardFront]) -> list[tuple[ShardId, BatchMeta]]:
    """Batches of all shards by time of append; within a shard in order, as appended_ms never goes down."""
    lanes = [[(meta.appended_ms, shard, meta) for meta in front.oldest] for shard, front in fronts.items()]
    return [(shard, meta) for _, shard, meta in merge(*lanes, key=lambda item: item[:2])]


def checked_retention(field: str, value: object) -> int | None:
    """A retention setting: None for ever, otherwise at least 1."""
    if value is None:
        return None
    if not is_whole(value) or not 1 <= value <= RETENTION_MAX:
        raise InvalidInput(field, value, f"a whole number from 1 to {RETENTION_MAX}, or None for ever")
    return value
