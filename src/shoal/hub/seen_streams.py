"""Streams as they were last seen: enough for one who names a shard that was there then.

What is kept may be old. Who acts on it learns so from the store, and looks again.
"""

from __future__ import annotations

from collections.abc import Collection

from shoal.core.checking import is_whole
from shoal.core.errors import UnknownStream
from shoal.core.model import StreamInfo, StreamName
from shoal.ports import CatalogStore


class SeenStreams:
    """Of one hub. Writers and readers: any thread; one entry is one assignment."""

    def __init__(self, store: CatalogStore) -> None:
        self._store = store
        self._streams: dict[StreamName, StreamInfo] = {}

    def describe(self, name: StreamName) -> StreamInfo:
        """The stream as of now."""
        stream = self._store.load_stream(name)
        self._streams[name] = stream
        return stream

    def forget(self, name: StreamName) -> None:
        """It was deleted."""
        self._streams.pop(name, None)

    def with_shard(self, name: StreamName, shard: int) -> StreamInfo:
        """The stream as last seen, if that view has the shard; otherwise as of now."""
        seen = self._streams.get(name)
        if seen is not None and is_whole(shard) and 0 <= shard < len(seen.shards):
            return seen
        return self.describe(name)

    def seen(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo | None:
        """The stream of this id as last seen, if that view has the shards. Asks nobody."""
        seen = self._streams.get(name)
        if seen is None or seen.id != stream_id or any(shard >= len(seen.shards) for shard in shards):
            return None
        return seen

    def known(self, name: StreamName, stream_id: int, shards: Collection[int]) -> StreamInfo:
        """The stream of this id as last seen, if that view has the shards; otherwise as of now."""
        seen = self.seen(name, stream_id, shards) or self.describe(name)
        if seen.id != stream_id:
            raise UnknownStream(str(name))
        return seen
