"""Waits for news of the streams that a query reads, so that an idle query costs next to nothing.

Spark asks a query without a trigger for its latest offset every ten milliseconds. While nothing is new, the
answer is held back for a moment, unless the hub says that a shard has moved.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from typing import Final

from shoal.connect import Hub
from shoal.core.errors import ShoalError
from shoal.core.model import StreamInfo
from shoal.ports import Following, Place, ShardEnd

HOLD_S: Final = 0.2
"""How long an answer is held back. Spark asks the sources of a query one after the other: so long may one
that is idle hold up another."""
LOOK_S: Final = 1.0
"""How often the streams are looked at when there is no news: new streams of a pattern give none."""


class News:
    """Of one query. Writer of `_rung`: threads of the hub's and of memberships."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._rung = threading.Event()
        self._following: Following | None = None
        self._known: set[ShardEnd] = set()
        self._looked_s = 0.0

    def ring(self, *_: object) -> None:
        """There is news."""
        self._rung.set()

    def wait(self) -> bool:
        """Wait a moment for news; whether the streams should be looked at."""
        return self._rung.wait(HOLD_S) or time.monotonic() - self._looked_s >= LOOK_S

    def looking(self) -> None:
        """The streams are about to be looked at: what comes from here on is news."""
        self._rung.clear()
        self._looked_s = time.monotonic()

    def seen(self, streams: Iterable[StreamInfo]) -> None:
        """Nothing was to be read of these: be told of what comes after."""
        if self._following is None:
            self._following = self._hub.service.follow(self._moved)
        ends = {
            ShardEnd(info.id, shard.id): shard.next_offset
            for info in streams
            for shard in info.shards
            if shard.is_open
        }
        try:
            for gone in self._known - ends.keys():
                self._following.drop(gone)
            for place, beyond in ends.items():
                if place not in self._known or not self._following.move(place, beyond):
                    self._following.add(place, beyond)
            self._known = set(ends)
        except ShoalError:
            self._known = set()  # The store is away. The next look says so, or begins anew.

    def close(self) -> None:
        """No more."""
        if self._following is not None:
            self._following.close()

    def _moved(self, _: Place) -> None:
        self._rung.set()
