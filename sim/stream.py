"""The simulated stream: shards and where their batches end. Records have no content; offsets are enough.

Where whole workers consume it, a record has a key: a place on the ring that its shard owns, so that a key
goes from a parent to one of its children.

Splits and merges are the real rules'. Nothing is ever appended to a closed shard, and the ring stays
covered: both are checked here, on every change.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Final

from shoal.core import resharding
from shoal.core.errors import OffsetExpired
from shoal.core.model import DEFAULT_PROJECT, Shard, ShardId, StreamName
from sim.history import Violation

RING = 1 << 128
NAME = StreamName(DEFAULT_PROJECT, "s")
KEYS: Final = tuple(place * RING // 12 + 7919 * place for place in range(12))
"""Few enough that most come again and again. A shard that owns none of them has one of its own."""


class Stream:
    """One stream, for as long as it lives."""

    def __init__(self, stream_id: int, count: int, keys: Random | None = None) -> None:
        """`keys`: by what chance records get theirs; None: they have none."""
        self.id = stream_id
        self.shards: tuple[Shard, ...] = resharding.first_shards(count, 0)
        self.on_change: Callable[[], None] = lambda: None
        self._ends: list[list[int]] = [[] for _ in self.shards]
        self._chance = keys
        self._keys: list[list[int]] = [[] for _ in self.shards]
        self._before: list[list[int | None]] = [[] for _ in self.shards]
        self._last: dict[tuple[int, int], int] = {}
        self._check_cover()

    @property
    def open(self) -> list[Shard]:
        return [shard for shard in self.shards if shard.is_open]

    def append(self, shard: ShardId, records: int) -> None:
        """One batch, acknowledged."""
        before = self.shards[shard]
        if not before.is_open:
            raise Violation("7", f"an append to shard {shard}, which is closed")
        after = replace(before, next_offset=before.next_offset + records)
        self.shards = (*self.shards[:shard], after, *self.shards[shard + 1 :])
        self._ends[shard].append(after.next_offset)
        if self._chance is not None:
            for offset in range(before.next_offset, after.next_offset):
                self._give_key(before, offset, self._chance)
        self.on_change()

    def _give_key(self, shard: Shard, offset: int, chance: Random) -> None:
        mine = [key for key in KEYS if shard.begin <= key < shard.end]
        key = chance.choice(mine) if mine else shard.begin
        self._keys[shard.id].append(key)
        self._before[shard.id].append(self._last.get((shard.id, key)))
        self._last[shard.id, key] = offset

    def lane(self, shard: int, offset: int, lanes: int) -> int:
        """Which of so many lanes a record belongs to: all of a key to the same one."""
        return self._keys[shard][offset] % 9973 % lanes

    def before(self, shard: int, offset: int) -> int | None:
        """The record of the same key before this one, in the same shard."""
        return self._before[shard][offset]

    def read(self, shard: ShardId, offset: int, batches_max: int) -> list[tuple[int, int]]:
        """Batches from an offset on, each as [first, next)."""
        row = self.shards[shard]
        if offset < row.first_offset:
            raise OffsetExpired(stream=str(NAME), shard=shard, offset=offset, first_offset=row.first_offset)
        ends = self._ends[shard]
        place = bisect_right(ends, offset)
        found = []
        for end in ends[place : place + batches_max]:
            found.append((offset, end))
            offset = end
        return found

    def split(self, shard: Shard) -> None:
        self._take(resharding.split(self.shards, shard, None, 0))

    def merge(self, rng: Random) -> bool:
        """Merge two neighbours, if there are any."""
        in_order = sorted(self.open, key=lambda shard: shard.begin)
        if len(in_order) < 2:
            return False
        place = rng.randrange(len(in_order) - 1)
        self._take(resharding.merge(self.shards, in_order[place], in_order[place + 1], 0))
        return True

    def trim(self, shard: ShardId, first_offset: int) -> None:
        """Retention: what is before this offset is gone."""
        before = self.shards[shard]
        after = replace(before, first_offset=max(before.first_offset, min(first_offset, before.next_offset)))
        self.shards = (*self.shards[:shard], after, *self.shards[shard + 1 :])

    def _take(self, shards: tuple[Shard, ...]) -> None:
        for _ in range(len(shards) - len(self.shards)):
            self._ends.append([])
            self._keys.append([])
            self._before.append([])
        self.shards = shards
        self._check_cover()
        self.on_change()

    def _check_cover(self) -> None:
        place = 0
        for shard in sorted(self.open, key=lambda shard: shard.begin):
            if shard.begin != place:
                raise Violation("7", f"the ring is not covered at {place:#x}")
            place = shard.end
        if place != RING:
            raise Violation("7", f"the ring is not covered from {place:#x} on")
