"""Families of shards: who descends from whom, and what a group may read when.

Shards are given as the tuple of a stream's shards, where the id is the place. Parents have smaller
ids than their children, always: ids are dense, given in order of birth and never reused.

Invariant: open shards cover the ring exactly. `check_cover` says where they do not.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from shoal.core.checking import as_whole
from shoal.core.errors import UnknownShard
from shoal.core.model import Shard, ShardId, StreamInfo
from shoal.core.ring import RING_SIZE


def find_shard(stream: StreamInfo, shard: object) -> Shard:
    """The shard of this id, or an error that says which ids there are."""
    number = as_whole(shard)
    if number is None or not 0 <= number < len(stream.shards):
        raise UnknownShard(stream=str(stream.full_name), shard=shard, shards=len(stream.shards))
    return stream.shards[number]


def ancestors(shards: Sequence[Shard], shard: int) -> list[ShardId]:
    """Every shard that this one descends from, oldest first."""
    found: set[ShardId] = set()
    waiting = list(shards[shard].parents)
    while waiting:
        parent = waiting.pop()
        if parent not in found:
            found.add(parent)
            waiting.extend(shards[parent].parents)
    return sorted(found)


def descendants(shards: Sequence[Shard], shard: int) -> list[ShardId]:
    """Every shard that descends from this one, oldest first. One pass: parents come before children."""
    family: set[int] = {shard}
    for candidate in shards[shard + 1 :]:
        if any(parent in family for parent in candidate.parents):
            family.add(candidate.id)
    return [ShardId(member) for member in sorted(family - {shard})]


def children(shards: Sequence[Shard], shard: int) -> list[ShardId]:
    """The shards born when this one was closed."""
    return [candidate.id for candidate in shards if shard in candidate.parents]


def families(shards: Sequence[Shard]) -> list[ShardId]:
    """For each shard the oldest of its family: all that splits and merges have made kin."""
    oldest = [shard.id for shard in shards]

    def root(number: int) -> ShardId:
        while oldest[number] != number:
            number = oldest[number]
        return ShardId(number)

    for shard in shards:
        for parent in shard.parents:
            one, other = root(shard.id), root(parent)
            oldest[max(one, other)] = min(one, other)
    return [root(shard.id) for shard in shards]


def ended(shards: Sequence[Shard], checkpoints: Mapping[int, int]) -> set[ShardId]:
    """Shards that are ended for a group with these checkpoints.

    A shard is ended when it is closed, its checkpoint is at its end, and every ancestor has ended.
    A closed shard that never held a record needs no checkpoint.
    """
    done: set[ShardId] = set()
    for shard in shards:  # Parents come before their children, so one pass settles all ancestors.
        is_read = not shard.is_open and (shard.is_empty or checkpoints.get(shard.id, 0) >= shard.next_offset)
        if is_read and all(parent in done for parent in shard.parents):
            done.add(shard.id)
    return done


def readable(
    shards: Sequence[Shard], checkpoints: Mapping[int, int], *, in_order: bool = True
) -> list[ShardId]:
    """Shards that a group may read now: something is left to come and, in order, all ancestors ended."""
    done = ended(shards, checkpoints)
    return [
        shard.id
        for shard in shards
        if (shard.is_open or checkpoints.get(shard.id, 0) < shard.next_offset)
        and (not in_order or all(parent in done for parent in shard.parents))
    ]


def check_cover(shards: Collection[Shard]) -> str | None:
    """None if the open shards cover the ring exactly, otherwise a sentence on the first fault."""
    place = 0
    for shard in sorted((s for s in shards if s.is_open), key=lambda s: s.begin):
        if shard.begin != place:
            kind = "gap" if shard.begin > place else "overlap"
            return f"{kind} at {place:#034x}: shard {shard.id} begins at {shard.begin:#034x}"
        if shard.end <= shard.begin:
            return f"shard {shard.id} owns nothing: [{shard.begin:#x}, {shard.end:#x})"
        place = shard.end
    return None if place == RING_SIZE else f"gap from {place:#034x} to the end of the ring"
