"""What this process knows of the waits of shared groups: how much is left of each, on its own clock.

A wait that was seen with so much left has, a while later, at least that while less. Who tells the shard's row
takes it off there, so that many observers watch together, a restarted one loses only what it had not told,
and none ends a wait early, whatever their wall clocks say. The clock used is the one that stops in suspend.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Final

from shoal.core.model import ShardId
from shoal.core.share import ShareState
from shoal.forks import renew_in_child

_Where = tuple[int, ShardId]
_KNOWN: Final = 65_536
"""Shards that are remembered. Of a forgotten one the next look begins anew, and nothing ends too early."""


class Watches:
    """Writer and reader: any thread, under `_lock`."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self.renew()
        renew_in_child(self)

    def renew(self) -> None:
        """See Renewed."""
        self._lock = threading.Lock()
        self._over: dict[_Where, dict[int, float]] = {}
        """When each wait is over by our clock, at the latest. Numbers are never given twice."""

    def see(self, group_id: int, shard: ShardId, state: ShareState) -> None:
        """A row that has just been read, or written, is so. What was seen sooner has less left."""
        now = self._clock()
        with self._lock:
            known = self._over.get((group_id, shard), {})
            if len(self._over) >= _KNOWN:
                self._over.clear()
            # One that read the row before another did knows nothing of what has come since.
            newer = {pledge: over for pledge, over in known.items() if pledge > state.pledges}
            self._over[group_id, shard] = newer | {
                pledge: min(now + rest / 1000, known.get(pledge, now + rest / 1000))
                for pledge, rest in state.left.items()
            }

    def left(self, group_id: int, shard: ShardId) -> dict[int, int]:
        """What is left of each wait that was seen, in milliseconds, rounded up."""
        now = self._clock()
        with self._lock:
            known = self._over.get((group_id, shard), {})
        return {pledge: math.ceil((over - now) * 1000 - _FUZZ) for pledge, over in known.items()}


_FUZZ: Final = 1e-6
"""Numbers like these are not exact."""
