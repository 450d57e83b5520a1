"""Shards are split and merged: announced, done, told. Producers that hear of it in time hold what they have
for the stream until they know the new map; who does not is refused, and learns it by that.

What is announced binds nobody: a producer that waits in vain goes on after a moment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from shoal.core.errors import ShoalError
from shoal.core.model import Shard, StreamInfo, StreamName
from shoal.core.routing import route_number
from shoal.ports import Store, StreamRoutes

ANNOUNCE_S: Final = 0.05
"""Between the announcement and the change: other processes look for news every 25 ms (SQLite), and what is on
its way to the log gets there meanwhile. Nobody is in such a hurry to split a shard."""


class Routes:
    """Of one hub."""

    def __init__(self, store: Store, announce_s: float) -> None:
        self._store, self._announce_s = store, announce_s
        self._seen: Mapping[int, int] = {}
        """What was announced when `keep` was last called."""

    def changed(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        """Apply a rule to the shards of a stream. One that refuses, or changes nothing, is not announced."""
        before = self._store.load_stream(name)
        if rule(before) == before.shards:
            return before
        announced = before.version + 1
        self._store.announce_routes(before.id, announced)
        self._tell(before.id, route_number(before.version, announced))
        try:
            time.sleep(self._announce_s)
            after = self._store.change_shards(name, rule)
        except BaseException:
            with suppress(ShoalError):  # What went wrong is what the caller hears.
                self._store.announce_routes(before.id, None)
            raise
        self._tell(after.id, route_number(after.version))
        return after

    def keep(self) -> None:
        """Take away what was announced long ago: it was done, or whoever was to do it is gone. Producers that
        come would wait for it."""
        now = self._store.announced_routes()
        for stream_id, version in now.items():
            if self._seen.get(stream_id) == version:
                self._store.announce_routes(stream_id, None)
        self._seen = now

    def _tell(self, stream_id: int, number: int) -> None:
        self._store.signal.ring([(StreamRoutes(stream_id), number)])
