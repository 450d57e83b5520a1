"""Figures of a stream, added up from its shards."""

from __future__ import annotations

from shoal.core.model import ShardStats, StreamInfo, StreamStats


def stream_stats(
    stream: StreamInfo,
    *,
    batches: int,
    delayed: int,
    oldest_append_ms: int | None,
    newest_append_ms: int | None,
) -> StreamStats:
    """What is kept now, and what was ever appended."""
    shards = tuple(
        ShardStats(
            id=shard.id,
            status=shard.status,
            records=shard.next_offset - shard.first_offset,
            bytes=shard.bytes,
        )
        for shard in stream.shards
    )
    return StreamStats(
        stream=stream.full_name,
        records=sum(shard.records for shard in shards),
        bytes=sum(shard.bytes for shard in shards),
        appended=sum(shard.next_offset for shard in stream.shards),
        batches=batches,
        delayed=delayed,
        open_shards=len(stream.open_shards),
        oldest_append_ms=oldest_append_ms,
        newest_append_ms=newest_append_ms,
        shards=shards,
    )
