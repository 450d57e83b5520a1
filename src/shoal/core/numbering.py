"""Which numbered records of a producer are stored already, after its restart, whatever became of the shards.

A producer sends the records of one place on the ring in the order of their numbers, and stops at the first
that fails. So a shard that holds number n of a producer holds all of its lower ones that fell into it; and
of a place, everything up to the highest number in any shard that ever owned it is stored.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from shoal.core.model import Shard, ShardId
from shoal.core.ring import LOGICAL_PARTITIONS, PARTITION_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """For every place on the ring the highest number that is stored of it; -1 for none."""

    begins: tuple[int, ...] = (0,)
    numbers: tuple[int, ...] = (-1,)

    @classmethod
    def of(cls, shards: Iterable[Shard], numbers: Mapping[ShardId, int]) -> Stored:
        """`shards`: all that the stream ever had."""
        known = [(numbers[shard.id], shard.begin, shard.end) for shard in shards if shard.id in numbers]
        begins = sorted({0, *(begin for _, begin, _ in known), *(end for _, _, end in known)})
        highest = [-1] * len(begins)
        for number, begin, end in sorted(known):  # A higher number is written over the lower ones.
            low, high = bisect_left(begins, begin), bisect_left(begins, end)
            highest[low:high] = [number] * (high - low)
        return cls(begins=tuple(begins), numbers=tuple(highest))

    def has(self, place: int, number: int) -> bool:
        """Whether this record is stored."""
        return number <= self.numbers[bisect_right(self.begins, place) - 1]

    @property
    def highest(self) -> int:
        """The highest number that is stored anywhere."""
        return max(self.numbers)


def place_of_number(number: int) -> int:
    """Where a numbered record without a key goes: the same place in every life, and the next ones with it."""
    run = number // _RUN
    return (run * _STRIDE % LOGICAL_PARTITIONS) * PARTITION_SIZE


_RUN = 512
_STRIDE = 389
"""Odd, so that all logical partitions have their turn; neighbours lie far apart, on different shards."""
