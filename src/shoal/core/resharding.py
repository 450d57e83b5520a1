"""Split, merge and reshard as pure functions over a stream's shards.

Each returns the whole next tuple of shards and changes nothing. A parent is closed and its children
are opened in one value, so that whoever stores the value in one transaction keeps the ring covered.

Invariants: ids are dense and never reused; open shards cover the ring before and after.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final

from shoal.core.checking import is_whole
from shoal.core.errors import ShardChangeRefused
from shoal.core.limits import SHARDS_MAX
from shoal.core.model import Shard, ShardId, ShardStatus
from shoal.core.ring import (
    LOGICAL_PARTITIONS,
    PARTITION_SIZE,
    RING_SIZE,
    checked_shard_count,
    equal_cuts,
)

Shards = tuple[Shard, ...]


def first_shards(count: object, now_ms: int) -> Shards:
    """The shards of a new stream: equal, and covering the ring."""
    cuts = equal_cuts(checked_shard_count(count))
    return tuple(
        Shard(id=ShardId(i), begin=begin, end=end, created_ms=now_ms)
        for i, (begin, end) in enumerate(pairwise(cuts))
    )


def split(shards: Shards, shard: Shard, at: int | None, now_ms: int) -> Shards:
    """Close one shard and open two children that divide its range at `at`, or in the middle."""
    _require_open("split_shard", shard)
    if sum(s.is_open for s in shards) >= SHARDS_MAX:
        raise ShardChangeRefused(
            "shard", shard.id, f"the stream has {SHARDS_MAX} open shards, the most there may be"
        )
    cut = _middle(shard.begin, shard.end) if at is None else at
    if not is_whole(cut) or not shard.begin < cut < shard.end:
        owned = f"shard {shard.id} owns [{shard.begin:#x}, {shard.end:#x})"
        raise ShardChangeRefused("at", at, f"{owned}; split it at a hash inside, not on its edge")
    return _changed(shards, [shard], [(shard.begin, cut), (cut, shard.end)], now_ms)


def merge(shards: Shards, left: Shard, right: Shard | None, now_ms: int) -> Shards:
    """Close two neighbours and open one child. Without `right`, the right neighbour is meant."""
    _require_open("merge_shards", left)
    if right is None:
        right = next((s for s in shards if s.is_open and s.begin == left.end), None)
        if right is None:
            raise ShardChangeRefused(
                "shard", left.id, "it is the last on the ring and has no right neighbour"
            )
    _require_open("merge_shards", right)
    if right.end == left.begin:
        left, right = right, left
    if left.end != right.begin:
        raise ShardChangeRefused(
            "shards", (left.id, right.id), "only neighbours on the ring can be merged; see describe_stream()"
        )
    return _changed(shards, [left, right], [(left.begin, right.end)], now_ms)


def reshard(shards: Shards, count: object, now_ms: int) -> Shards:
    """Get to `count` equal shards with the fewest splits and merges.

    A split adds one cut to the ring and a merge takes one away, so no way is shorter than the number
    of cuts to add plus those to remove; doing just these is the shortest. Splits come first: merging
    first would make a child wait for parents whose keys it does not hold.
    """
    have = [*sorted(s.begin for s in shards if s.is_open), RING_SIZE]
    want = _nearest_equal_cuts(checked_shard_count(count), have)
    change = _Change(shards, now_ms)
    _split_all(change, have, sorted(set(want) - set(have)))
    _merge_all(change, sorted(set(have) - set(want)))
    return tuple(change.shards)


class _Change:
    """Shards in the making. It lives inside one call of this room; what goes out is a tuple."""

    def __init__(self, shards: Shards, now_ms: int) -> None:
        self.shards = list(shards)
        self.now_ms = now_ms
        self.by_begin = {s.begin: s for s in shards if s.is_open}
        self.by_end = {s.end: s for s in shards if s.is_open}

    def replace(self, parents: list[Shard], ranges: list[tuple[int, int]]) -> None:
        """Close the parents and open children over the same part of the ring."""
        for parent in parents:
            self.shards[parent.id] = replace(parent, status=ShardStatus.CLOSED, closed_ms=self.now_ms)
            del self.by_begin[parent.begin], self.by_end[parent.end]
        born_of = tuple(parent.id for parent in parents)
        for begin, end in ranges:
            child = Shard(
                id=ShardId(len(self.shards)), begin=begin, end=end, parents=born_of, created_ms=self.now_ms
            )
            self.shards.append(child)
            self.by_begin[begin] = self.by_end[end] = child


def _changed(shards: Shards, parents: list[Shard], ranges: list[tuple[int, int]], now_ms: int) -> Shards:
    change = _Change(shards, now_ms)
    change.replace(parents, ranges)
    return tuple(change.shards)


def _split_all(change: _Change, have: Sequence[int], cuts: Sequence[int]) -> None:
    """Split at every cut; within one shard the middle cut first, so that the lineage stays shallow."""
    for begin, end in pairwise(have):
        waiting = [(begin, end, cuts[bisect_right(cuts, begin) : bisect_left(cuts, end)])]
        while waiting:
            low, high, inside = waiting.pop()
            if inside:
                half = len(inside) // 2
                change.replace([change.by_begin[low]], [(low, inside[half]), (inside[half], high)])
                waiting.append((low, inside[half], inside[:half]))
                waiting.append((inside[half], high, inside[half + 1 :]))


def _merge_all(change: _Change, cuts: Sequence[int]) -> None:
    """Merge over every cut, in rounds of disjoint pairs, so that the lineage stays shallow."""
    left_over = list(cuts)
    while left_over:
        next_round: list[int] = []
        merged_to = 0
        for cut in left_over:
            left, right = change.by_end[cut], change.by_begin[cut]
            if left.begin < merged_to:  # `left` was made in this round; leave it for the next one.
                next_round.append(cut)
                continue
            change.replace([left, right], [(left.begin, right.end)])
            merged_to = right.end
        left_over = next_round


def _nearest_equal_cuts(count: int, have: Sequence[int]) -> list[int]:
    """Of all ways to cut the ring into `count` equal shards, the one that shares most with `have`.

    Up to 1,024 shards, sizes are `q` or `q + 1` logical partitions, and which shards get the extra one
    is free. `best[j]` is the best score of a beginning with `i` shards of which `j` are long: a
    shared cut scores far more than agreeing with `equal_cuts`, which only settles ties. Beyond 1,024
    there is one way.
    """
    standard = equal_cuts(count)
    if count > LOGICAL_PARTITIONS or LOGICAL_PARTITIONS % count == 0:
        return standard
    size, extra = divmod(LOGICAL_PARTITIONS, count)
    scores = [0] * (LOGICAL_PARTITIONS + 1)
    for cut in standard:
        scores[cut // PARTITION_SIZE] += 1
    for cut in have:
        if cut % PARTITION_SIZE == 0:
            scores[cut // PARTITION_SIZE] += _SHARED_CUT
    best: list[int] = [0] + [_IMPOSSIBLE] * extra
    came_long: list[list[bool]] = []
    for i in range(1, count + 1):
        row, long_here = [_IMPOSSIBLE] * (extra + 1), [False] * (extra + 1)
        for j in range(min(i, extra) + 1):
            short = best[j] if j < i else _IMPOSSIBLE
            long = best[j - 1] if j > 0 else _IMPOSSIBLE
            long_here[j] = long > short
            score = max(short, long)
            if score > _IMPOSSIBLE:
                row[j] = score + scores[i * size + j]
        best = row
        came_long.append(long_here)
    cuts, j = [RING_SIZE], extra
    for i in range(count, 0, -1):
        j -= came_long[i - 1][j]
        cuts.append(((i - 1) * size + j) * PARTITION_SIZE)
    return cuts[::-1]


_SHARED_CUT: Final = LOGICAL_PARTITIONS * 2
_IMPOSSIBLE: Final = -1


def _middle(begin: int, end: int) -> int:
    """The middle, at a logical partition's edge where one lies between: partitions stay whole."""
    middle = (begin + end) // 2
    first, last = -(-(begin + 1) // PARTITION_SIZE), (end - 1) // PARTITION_SIZE
    if first > last:
        return middle
    nearest = min(max((middle + PARTITION_SIZE // 2) // PARTITION_SIZE, first), last)
    return nearest * PARTITION_SIZE


def _require_open(call: str, shard: Shard) -> None:
    if not shard.is_open:
        raise ShardChangeRefused("shard", shard.id, f"{call}: the shard is closed; only open shards change")
