"""Where a time lies in a shard: the rules of `core.timeline`, shown what a store has."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from shoal.core.errors import OffsetExpired
from shoal.core.limits import BATCH_BYTES_MAX, RETRIES_MAX
from shoal.core.lineage import find_shard
from shoal.core.model import Shard, StreamInfo, StreamName
from shoal.core.reading import ReadLimits
from shoal.core.timeline import find_appended, find_offset
from shoal.hub.seen_streams import SeenStreams
from shoal.ports import LogStore, ShardEnd
from shoal.wire.layout import Layout
from shoal.wire.timestamps import batch_timestamps


class Timeline:
    """Of one hub."""

    def __init__(self, store: LogStore, streams: SeenStreams, layout: Callable[[StreamInfo], Layout]) -> None:
        self._store, self._streams, self._layout = store, streams, layout

    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int:
        """See HubService."""
        for _ in range(RETRIES_MAX):
            stream = self._streams.describe(name)
            try:
                return self.offset_in(stream, find_shard(stream, shard), timestamp_ms)
            except OffsetExpired:
                continue  # Retention took the batch between our finding it and our reading it.
        return self._streams.describe(name).shards[shard].first_offset

    def offset_in(self, stream: StreamInfo, shard: Shard, timestamp_ms: int) -> int:
        """The same for a stream that was just looked at. OffsetExpired: retention was faster."""

        def timestamps(base_offset: int) -> Sequence[int]:
            limits = ReadLimits(max_bytes=BATCH_BYTES_MAX * 2)
            fetched = self._store.fetch(stream.full_name, ShardEnd(stream.id, shard.id), base_offset, limits)
            first = fetched.batches[0]
            return batch_timestamps(self._layout(stream).decode(first.layout, first.payload))

        return find_offset(
            shard,
            timestamp_ms * 1000,
            lambda offset: self._store.batch_at(stream.id, shard.id, offset),
            timestamps,
        )

    def offset_appended(self, stream: StreamInfo, shard: Shard, appended_ms: int) -> int:
        """The first record of a shard, which was just looked at, that was appended at this time or later."""
        return find_appended(
            shard, appended_ms, lambda offset: self._store.batch_at(stream.id, shard.id, offset)
        )
