"""The clocks of shards in shared groups: each goes on by what someone measured between two looks at it.

A row said T when this process looked; a while later, by its own clock, it is at least T and that while. So
the shard's clock never runs faster than time, whoever looks, however many look, and whatever their wall
clocks say; it stands still only while nobody looks. The clock used is the one that stops in suspend.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from shoal.core.model import ShardId
from shoal.forks import renew_in_child

_Where = tuple[int, ShardId]
_KNOWN: Final = 65_536
"""Shards that are remembered. Of a forgotten one the next look begins anew, and nothing comes too early."""


class ShardClocks:
    """What this process knows of them. Writer and reader: any thread, under `_lock`."""

    def __init__(self) -> None:
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._seen: dict[_Where, tuple[int, float]] = {}
        """What a row said, and when by our clock it had been read."""

    def see(self, group_id: int, shard: ShardId, clock_ms: int) -> None:
        """A row that has just been read said this."""
        now = time.monotonic()
        with self._lock:
            known = self._seen.get((group_id, shard))
            # What we knew may be ahead of the row: time has passed since anyone wrote it.
            if known is None or known[0] + (now - known[1]) * 1000 < clock_ms:
                if len(self._seen) >= _KNOWN:
                    self._seen.clear()
                self._seen[group_id, shard] = (clock_ms, now)

    def now_ms(self, group_id: int, shard: ShardId) -> int:
        """Where the shard's clock is at least, by now."""
        with self._lock:
            known = self._seen.get((group_id, shard))
        return 0 if known is None else known[0] + int((time.monotonic() - known[1]) * 1000)
