"""What a query that reads for itself tells the group that looks on.

Spark's offsets are the truth; the group's checkpoints follow them, of whatever the query holds.

Invariants: nothing is let go of that others ask for; with others in the group nothing is, since it would go
to them. Nothing is planned of a shard that the group has given to another who is alive.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from shoal.core.describing import GroupInfo, MemberInfo
from shoal.core.model import StreamInfo
from shoal.spark.plan.members import Boundary
from shoal.spark.plan.spans import Span, kept


def mirrored(info: StreamInfo, positions: Mapping[int, int], saved: Mapping[int, int]) -> Boundary:
    """What is to be said of the shards that are held, of which so much is saved. What has ended is let go of
    at its end."""
    saves, releases = {}, {}
    for number, before in saved.items():
        if number >= len(info.shards):
            continue
        shard = info.shards[number]
        position = kept(str(info.full_name), shard, positions.get(number, 0), strict=False)
        if not shard.is_open and position >= shard.next_offset:
            releases[number] = position
        elif position > before:
            saves[number] = position
    return Boundary(saves=saves, releases=releases)


def unheld(spans: Iterable[Span], held: Mapping[str, Collection[int]]) -> set[str]:
    """The streams of which something is to be read that is not held: whose it is, is to be looked at."""
    return {span.stream for span in spans if span.shard not in held.get(span.stream, ())}


def others_in(seen: GroupInfo, name: str, silent: Mapping[str, int]) -> list[MemberInfo]:
    """The other members, by name, without those that were watched and are as silent as they were then: with
    the counters that they stood at, by incarnation."""
    return sorted(
        (
            member
            for member in seen.members
            if member.name != name and silent.get(member.incarnation) != member.beat
        ),
        key=lambda member: member.name,
    )


def taken(
    spans: Iterable[Span], stream: str, name: str, seen: GroupInfo, silent: Mapping[str, int]
) -> dict[int, str]:
    """Of the shards that are to be read, those that the group has given to others, with their owners: after
    the handover timeout, or when the query was silent for too long. Both would read them. Who is dead reads
    nothing: what it held is on its way."""
    wanted = {span.shard for span in spans if span.stream == stream}
    others = {member.name for member in others_in(seen, name, silent)}
    return {
        int(shard.id): shard.owner for shard in seen.shards if shard.id in wanted and shard.owner in others
    }


def behind(saved: Mapping[int, int], positions: Mapping[int, int]) -> list[int]:
    """The shards whose checkpoint in the group is behind what the query has done."""
    return [shard for shard, position in sorted(positions.items()) if saved.get(shard, position) < position]


def set_back(asked: Mapping[int, int], name: str, seen: GroupInfo) -> list[int]:
    """Of the shards that are asked back, with their epochs, those of which someone has set the checkpoints,
    under a new epoch. Let go of, they come again, and are told where the query is."""
    if any(member.name != name for member in seen.members):
        return []
    return [int(shard.id) for shard in seen.shards if asked.get(shard.id, shard.epoch) != shard.epoch]
