"""When a stream splits and merges by itself: from what each shard took lately, and where on the ring it fell.

A shard that takes more than the limit is cut where its load halves. Two neighbours that together take little
become one. A shard born within the cool-down is left alone: its birth is in the log, so whoever decides, and
however many do, one change is made and not two. What a cut cannot mend, a single hot key, is not cut.

Invariants: open shards cover the ring before and after, and their number stays within the limits; under a
load that stays as it is, changes come to an end.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from shoal.core.checking import is_number, is_whole
from shoal.core.errors import InvalidInput
from shoal.core.limits import DURATION_S_MAX, SHARDS_MAX
from shoal.core.model import Scaling, Shard, ShardId, StreamInfo
from shoal.core.resharding import Shards, merge, split
from shoal.core.ring import PARTITION_SIZE

LOOK_MIN_MS: Final = 1000
"""Looks that are closer than this say little: a pause or a burst would be taken for the load."""
SAMPLE_MIN: Final = 30
"""Fewer keys than this say nothing about where the load lies; then the middle is as good as any place."""
HELPS_UP_TO: Final = 0.8
"""A cut that leaves more than this of the load on one side helps nobody: one key, or a few, are the load."""
_WHOLE_PARTITIONS: Final = 0.1
"""How much worse a cut at a logical partition's edge may be than the best one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A stream as one look found it: where each shard ended."""

    at_ms: int
    ends: Mapping[ShardId, int]

    @classmethod
    def of(cls, stream: StreamInfo, at_ms: int) -> Seen:
        """What there is to remember of a stream until the next look."""
        return cls(at_ms=at_ms, ends={shard.id: shard.next_offset for shard in stream.open_shards})

    def is_fresh(self, now_ms: int) -> bool:
        """Too new for another look to say anything beside it."""
        return now_ms - self.at_ms < LOOK_MIN_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a shard took, a second."""

    records: float
    bytes: float

    def of_limit(self, scaling: Scaling) -> float:
        """How much of what a shard may take this is; over 1 is too much."""
        limits = ((self.records, scaling.records_per_s), (self.bytes, scaling.bytes_per_s))
        return max(took / limit for took, limit in limits if limit is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Split this shard, at this place or in the middle."""

    shard: ShardId
    at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Merge these neighbours."""

    left: ShardId
    right: ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Too much for one shard, and no cut helps: a few keys are the load."""

    shard: ShardId
    load: Load


def check_scaling(scaling: Scaling) -> Scaling:
    """What a stream may be told; raises InvalidInput."""
    rates = (("records_per_s", scaling.records_per_s), ("bytes_per_s", scaling.bytes_per_s))
    for name, rate in rates:
        if rate is not None and (not is_number(rate) or not 0 < rate < _RATE_MAX):
            raise InvalidInput(name, rate, "what a shard may take a second: more than 0, or None")
    if all(rate is None for _, rate in rates):
        raise InvalidInput("records_per_s", None, "give records_per_s, bytes_per_s, or both")
    for name, count in (("shards_min", scaling.shards_min), ("shards_max", scaling.shards_max)):
        if not is_whole(count) or not 1 <= count <= SHARDS_MAX:
            raise InvalidInput(name, count, f"a whole number from 1 to {SHARDS_MAX}")
    if scaling.shards_min > scaling.shards_max:
        raise InvalidInput("shards_min", scaling.shards_min, f"at most shards_max={scaling.shards_max}")
    cool_down_s = scaling.cool_down_s
    if not is_number(cool_down_s) or not 0 <= cool_down_s <= DURATION_S_MAX:
        raise InvalidInput("cool_down_s", cool_down_s, f"seconds from 0 to {DURATION_S_MAX:g}")
    share = scaling.merge_below
    if not is_number(share) or not 0 <= share <= _MERGE_BELOW_MAX:
        remedy = f"from 0 (never merge) to {_MERGE_BELOW_MAX}: above, what was merged would soon be split"
        raise InvalidInput("merge_below", share, remedy)
    return scaling


def loads(before: Seen, stream: StreamInfo, now_ms: int) -> dict[ShardId, Load]:
    """What each open shard took since the look before; shards born since then are not judged yet."""
    seconds = (now_ms - before.at_ms) / 1000
    if seconds <= 0:
        return {}
    found = {}
    for shard in stream.open_shards:
        if shard.id in before.ends:
            records = max(0, shard.next_offset - before.ends[shard.id]) / seconds
            size = shard.bytes / max(1, shard.next_offset - shard.first_offset)
            found[shard.id] = Load(records=records, bytes=records * size)
    return found


def overloaded(load: Mapping[ShardId, Load], scaling: Scaling) -> list[ShardId]:
    """Shards that take too much, the worst first: those whose keys are worth a look."""
    found = [shard for shard in load if load[shard].of_limit(scaling) > 1]
    return sorted(found, key=lambda shard: (-load[shard].of_limit(scaling), shard))


def changes(
    stream: StreamInfo,
    load: Mapping[ShardId, Load],
    places: Mapping[ShardId, Sequence[int]],
    scaling: Scaling,
    now_ms: int,
) -> list[Cut | Join | Stuck]:
    """What is to be done now. `places` is where records of overloaded shards fell on the ring, a sample."""
    by_id = {shard.id: shard for shard in stream.open_shards}
    room = scaling.shards_max - len(by_id)
    found: list[Cut | Join | Stuck] = []
    hot = overloaded(load, scaling)
    for shard in hot:
        if not _is_settled(by_id[shard], scaling, now_ms):
            continue
        helps, at = cut_of(by_id[shard], places.get(shard, ()))
        if not helps:
            found.append(Stuck(shard=shard, load=load[shard]))
        elif room > 0:
            found.append(Cut(shard=shard, at=at))
            room -= 1
    if hot:
        return found  # Something is growing: what is small now may be next.
    return [*_joins(stream, load, scaling, now_ms)]


def scaled(stream: StreamInfo, steps: Sequence[Cut | Join | Stuck], scaling: Scaling, now_ms: int) -> Shards:
    """The shards after these changes, of which some may be too late: another who looked was faster.

    What was closed since is passed over, and so is what would leave the limits by now.
    """
    shards = stream.shards
    for step in steps:
        count = sum(shard.is_open for shard in shards)
        match step:
            case Cut(shard=shard, at=at) if shards[shard].is_open and count < scaling.shards_max:
                shards = split(shards, shards[shard], at, now_ms)
            case Join(left=left, right=right) if (
                shards[left].is_open and shards[right].is_open and count > scaling.shards_min
            ):
                shards = merge(shards, shards[left], shards[right], now_ms)
            case _:
                pass
    return shards


def cut_of(shard: Shard, places: Sequence[int]) -> tuple[bool, int | None]:
    """Whether a cut would help, and where; None is the middle, for want of a sample that says more."""
    inside = sorted(place for place in places if shard.begin <= place < shard.end)
    if len(inside) < SAMPLE_MIN:
        return shard.end - shard.begin > 1, None

    def worse_half(at: int) -> float:
        left = bisect_left(inside, at)
        return max(left, len(inside) - left) / len(inside)

    cuts = {place for place in inside if place > shard.begin} | {
        place + 1 for place in inside if place + 1 < shard.end
    }
    if not cuts:
        return False, None
    best = min(cuts, key=lambda at: (worse_half(at), at))
    if worse_half(best) > HELPS_UP_TO:
        return False, None
    edges = [edge for edge in _edges_near(best) if shard.begin < edge < shard.end]
    edge = min(edges, key=worse_half, default=best)
    return True, edge if worse_half(edge) <= worse_half(best) + _WHOLE_PARTITIONS else best


def _joins(stream: StreamInfo, load: Mapping[ShardId, Load], scaling: Scaling, now_ms: int) -> Sequence[Join]:
    """Disjoint pairs of neighbours that together take little, the least busy first."""
    ring = stream.open_shards
    spare = len(ring) - scaling.shards_min
    idle = []
    for left, right in pairwise(ring):
        if left.id not in load or right.id not in load:
            continue
        both = Load(
            records=load[left.id].records + load[right.id].records,
            bytes=load[left.id].bytes + load[right.id].bytes,
        ).of_limit(scaling)
        settled = _is_settled(left, scaling, now_ms) and _is_settled(right, scaling, now_ms)
        if settled and both < scaling.merge_below:
            idle.append((both, left.id, right.id))
    taken: set[ShardId] = set()
    found: list[Join] = []
    for _, first, second in sorted(idle):
        if len(found) >= spare:
            break
        if not {first, second} & taken:
            taken |= {first, second}
            found.append(Join(left=first, right=second))
    return found


def _is_settled(shard: Shard, scaling: Scaling, now_ms: int) -> bool:
    return now_ms - shard.created_ms >= scaling.cool_down_s * 1000


def _edges_near(place: int) -> tuple[int, int]:
    """The edges of the logical partition that a place lies in."""
    low = place // PARTITION_SIZE * PARTITION_SIZE
    return low, low + PARTITION_SIZE


_RATE_MAX: Final = 1e15
_MERGE_BELOW_MAX: Final = 0.5
