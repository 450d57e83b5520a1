"""Records that come later: when, and where they wait. Until then they are in no shard, and have no offset.

Invariant: a delayed record is delivered once, not before its time, and after those of its key that were due
before it. One that was to wait for so long waits no longer, however the wall clock is set back.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Final, NamedTuple

from shoal.core.model import ShardId

DELAYED: Final = ShardId(-1)
"""Where a producer numbers what is to come later, as if it were a shard."""
NOWHERE: Final = -1
"""The offset of a record that has none yet, or of which nobody remembers it."""


class Delay(NamedTuple):
    """When a record is due, and its place on the ring if it was given one."""

    due_ms: int
    place: int | None
    wait_ms: int | None = None
    """Instead of a time: how long it waits, from when the hub takes it, by the hub's clock."""

    def begun(self, now_ms: int) -> Delay:
        """The same as the hub takes it: with the time at which it is due."""
        return self if self.wait_ms is None else self._replace(due_ms=now_ms + self.wait_ms)


class Clocks(NamedTuple):
    """One look at two of them: one that people set, and one that only goes on."""

    wall_ms: int
    steady_ms: int


def is_set_back(before: Clocks, after: Clocks) -> bool:
    """Whether the wall clock was set back between two looks, by more than clocks are off anyway."""
    return after.wall_ms - before.wall_ms < after.steady_ms - before.steady_ms - _SET_BACK_MS


def together(delays: Sequence[Delay]) -> dict[Delay, list[int]]:
    """Which records wait together: those of one time and one place, in the order in which they came."""
    found: dict[Delay, list[int]] = {}
    for index, delay in enumerate(delays):
        found.setdefault(delay, []).append(index)
    return found


class Lookout:
    """What one hub delivers when: its own, which came through it, when it is due; others' a little later.

    So those who have the store open do not all meet in the commit of one record, and what a hub leaves that
    is gone is late by no more than that.
    """

    def __init__(self) -> None:
        self._own: list[int] = []
        """When what came through this hub is due, as a heap."""

    def add(self, due_ms: int) -> None:
        """This came through the hub."""
        if len(self._own) < _OWN_MAX:
            heapq.heappush(self._own, due_ms)

    def upto_ms(self, now_ms: int) -> int:
        """What is due by then is to be delivered now."""
        is_own = False
        while self._own and self._own[0] <= now_ms:
            heapq.heappop(self._own)
            is_own = True
        return now_ms if is_own else now_ms - OTHERS_MS

    def rest_ms(self, next_due_ms: int, now_ms: int, longest_ms: int) -> int:
        """How long to sleep. Others may add what is due sooner, and clocks may jump."""
        wanted_ms = min(next_due_ms + OTHERS_MS, *self._own[:1], now_ms + longest_ms)
        return max(0, wanted_ms - now_ms)


OTHERS_MS: Final = 300
"""How long a hub leaves others their own: a commit takes a fraction of it, and a retry or a reminder that is
later by this harms nobody."""
_OWN_MAX: Final = 100_000
"""What came through a hub beyond that is delivered as if it were another's."""
_SET_BACK_MS: Final = 1_000
"""Time servers set clocks by less than that without a jump."""
