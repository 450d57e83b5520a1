"""Records that come later: when, and where they wait. Until then they are in no shard, and have no offset.

Invariant: a delayed record is delivered once, not before its time, and after those of its key that were due
before it.
"""

from __future__ import annotations

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


def together(delays: Sequence[Delay]) -> dict[Delay, list[int]]:
    """Which records wait together: those of one time and one place, in the order in which they came."""
    found: dict[Delay, list[int]] = {}
    for index, delay in enumerate(delays):
        found.setdefault(delay, []).append(index)
    return found


def wait_ms(next_due_ms: int | None, now_ms: int, longest_ms: int) -> int:
    """How long to sleep until something is due. Others may add what is due sooner, and clocks may jump."""
    if next_due_ms is None:
        return longest_ms
    return min(max(0, next_due_ms - now_ms), longest_ms)
