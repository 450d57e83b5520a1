"""Reads: what a store has for one, waited for if there is nothing yet, decoded and trimmed."""

from __future__ import annotations

import time
from collections.abc import Callable

from shoal.core.errors import UnknownStream
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamInfo, StreamName
from shoal.core.reading import ReadLimits, is_end_of_shard, whole_offset
from shoal.hub.seen_streams import SeenStreams
from shoal.ports import Fence, Fetched, ShardEnd, Store
from shoal.wire.batch import Batch
from shoal.wire.layout import Layout


class Reader:
    """Of one hub. `check_leased` refuses an epoch of a leased group that is not current."""

    def __init__(
        self,
        store: Store,
        streams: SeenStreams,
        layout: Callable[[StreamInfo], Layout],
        check_leased: Callable[[StreamName, ShardId, Fence], None],
    ) -> None:
        self._store, self._streams, self._layout = store, streams, layout
        self._check_leased = check_leased

    def read(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> Batch:
        """See HubService."""
        deadline = time.monotonic() + limits.wait_s
        offset = whole_offset(offset)
        while True:
            stream, fetched = self.fetch(name, shard, offset, limits, fence)
            left_s = deadline - time.monotonic()
            if fetched.batches or not fetched.shard.is_open or left_s <= 0:
                break
            self._store.signal.wait(ShardEnd(stream.id, fetched.shard.id), offset, left_s)
        layout = self._layout(stream)
        chunks = []
        for stored in fetched.batches:
            chunk = layout.decode(stored.layout, stored.payload)
            low = max(0, offset - stored.base_offset)
            high = min(stored.records, fetched.end - stored.base_offset)
            chunks.append(chunk if high - low == chunk.num_rows else chunk.slice(low, high - low))
        return Batch(
            stream=str(name),
            shard=shard,
            first_offset=offset,
            chunks=chunks,
            layout=layout,
            end_of_shard=is_end_of_shard(fetched.shard, fetched.end),
            tail=fetched.shard.next_offset,
        )

    def fetch(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> tuple[StreamInfo, Fetched]:
        """What there is for a read now, as it is stored, and the stream that it is of."""
        stream = self._streams.with_shard(name, shard)
        while True:
            try:
                place = ShardEnd(stream.id, find_shard(stream, shard).id)
                fetched = self._store.fetch(name, place, offset, limits, fence)
                if fence is not None and fence.is_leased:
                    self._check_leased(name, place.shard, fence)
                return stream, fetched
            except UnknownStream:
                # It was deleted, or deleted and made again, since we looked: look again, once.
                fresh = self._streams.describe(name)
                if fresh.id == stream.id:
                    raise
                stream = fresh
