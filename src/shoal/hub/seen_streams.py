"""Streams as they were last seen: enough for one who names a shard that was there then.

What is kept may be old. Who acts on it learns so from the store, and looks again. It is bounded: of a stream
that others have deleted, its hub may never hear.
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from typing import Final

from shoal.core.checking import is_whole
from shoal.core.errors import UnknownProject, UnknownStream
from shoal.core.model import StreamInfo, StreamName
from shoal.forks import renew_in_child
from shoal.ports import CatalogStore

SHARDS_KEPT: Final = 100_000
"""Shards of all streams that are kept: some 30 MB. They are what takes room, and what takes long to load:
fewer streams of many shards are kept than of few."""


class SeenStreams:
    """Of one hub. Readers: any thread; one entry is one assignment. Writers: any thread, under `_lock`."""

    def __init__(self, store: CatalogStore, shards_kept: int = SHARDS_KEPT) -> None:
        self._store = store
        self._shards_kept = shards_kept
        self._streams: dict[StreamName, StreamInfo] = {}
        """In the order in which they were first loaded."""
        self._shards = 0
        """Of all of them."""
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()

    def describe(self, name: StreamName) -> StreamInfo:
        """The stream as of now."""
        try:
            stream = self._store.load_stream(name)
        except (UnknownStream, UnknownProject):
            self.forget(name)
            raise
        with self._lock:
            before = self._streams.get(name)
            self._streams[name] = stream
            self._shards += len(stream.shards) - (0 if before is None else len(before.shards))
            while self._shards > self._shards_kept and len(self._streams) > 1:
                self._drop(next(iter(self._streams)))
        return stream

    def forget(self, name: StreamName) -> None:
        """It was deleted."""
        with self._lock:
            self._drop(name)

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

    def _drop(self, name: StreamName) -> None:
        """Under the lock."""
        gone = self._streams.pop(name, None)
        if gone is not None:
            self._shards -= len(gone.shards)
