"""Positions of a broadcast group: each consumer has its own, by name, and it outlives the consumer's process.

How long a position was not used is a duration that adds up, as watched by hubs; no clock is compared with
another. One that was not used for longer than the group's setting is dropped, and the history says so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from shoal.core.errors import NameTaken, PositionMoved, UnknownPosition
from shoal.core.group import Note
from shoal.core.model import Shard, ShardId, StreamInfo

DROPPED: Final = "dropped"
"""The kind of the history's line."""
MOVED: Final = "moved"
"""Instead of an incarnation: the position was reset since its consumer used it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    """A consumer's position, as stored."""

    consumer: str
    incarnation: str
    uses: int = 0
    """Rises with every use."""
    idle_ms: int = 0
    """How long it was not used, as watched."""
    offsets: Mapping[ShardId, int] = field(default_factory=dict)
    """The next offset of each shard that was begun."""
    saved_ms: int = 0
    """By a wall clock, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionInfo:
    """A consumer's position, for people."""

    consumer: str
    lag: int
    """Records that are still to come."""
    idle_ms: int
    offsets: Mapping[ShardId, int]
    saved_ms: int


def starting(shards: Sequence[Shard], starts: Mapping[ShardId, int]) -> dict[ShardId, int]:
    """Where a new position begins: where the group did, and at the beginning of what was born later."""
    return {shard.id: starts.get(shard.id, 0) for shard in shards}


def completed(
    shards: Sequence[Shard], starts: Mapping[ShardId, int], offsets: Mapping[ShardId, int]
) -> dict[ShardId, int]:
    """A position in all shards that there are by now."""
    return {**starting(shards, starts), **offsets}


def check_current(saved: Listener | None, group: str, consumer: str, incarnation: str) -> None:
    """Refuse whoever has lost the name, or the position."""
    if saved is None:
        raise UnknownPosition(group=group, consumer=consumer)
    if saved.incarnation == MOVED:
        raise PositionMoved(group=group, consumer=consumer)
    if saved.incarnation != incarnation:
        raise NameTaken(consumer)


def described(
    stream: StreamInfo, starts: Mapping[ShardId, int], listeners: Sequence[Listener]
) -> tuple[PositionInfo, ...]:
    """The positions of a group."""
    infos = []
    for one in listeners:
        offsets = completed(stream.shards, starts, one.offsets)
        lag = sum(
            max(0, shard.next_offset - max(offsets[shard.id], shard.first_offset)) for shard in stream.shards
        )
        infos.append(
            PositionInfo(
                consumer=one.consumer, lag=lag, idle_ms=one.idle_ms, offsets=offsets, saved_ms=one.saved_ms
            )
        )
    return tuple(infos)


def unused(listeners: Sequence[Listener], limit_ms: int) -> list[Listener]:
    """Those that are to be dropped."""
    return [one for one in listeners if one.idle_ms >= limit_ms]


def dropped(one: Listener, why: str) -> Note:
    """The line that tells of it: where it stood is enough to make it again."""
    places = ", ".join(f"{shard}: {offset}" for shard, offset in sorted(one.offsets.items()))
    return Note(kind=DROPPED, consumer=one.consumer, detail=f"{why}; it stood at {{{places}}}"[:_DETAIL_MAX])


_DETAIL_MAX: Final = 4000
