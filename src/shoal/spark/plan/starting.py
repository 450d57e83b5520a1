"""Where a read begins or ends in every shard, as users say it: a word, the group, a time, offsets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from shoal.core.checking import is_whole
from shoal.core.errors import InvalidInput
from shoal.core.lineage import find_shard
from shoal.core.model import ShardId, StreamInfo
from shoal.core.names import stream_name
from shoal.spark.plan.spans import kept

LATEST: Final = -1
EARLIEST: Final = -2
"""In JSON, as Spark's Kafka connector writes them."""


class Kind(StrEnum):
    """How a place is named."""

    EARLIEST = "earliest"
    LATEST = "latest"
    GROUP = "group"
    """The group's checkpoints."""
    TIME = "time"
    OFFSETS = "offsets"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A place in every shard of every stream."""

    kind: Kind
    time_ms: int = 0
    offsets: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By stream; the empty name is that of the one stream that is read."""


def place_of(name: str, given: object) -> Place:
    """A place from an option's value: a word, or JSON `{"stream": {"0": 17}}`, of one stream `{"0": 17}`."""
    if isinstance(given, str) and given in {Kind.EARLIEST, Kind.LATEST, Kind.GROUP}:
        return Place(kind=Kind(given))
    if isinstance(given, Mapping) and given:
        nested = {key: value for key, value in given.items() if isinstance(value, Mapping)}
        by_stream = nested if len(nested) == len(given) else {"": given}
        offsets = {
            str(stream_name(stream)) if stream else "": _shards(name, shards)
            for stream, shards in by_stream.items()
        }
        if len(offsets) < len(by_stream):
            raise InvalidInput(name, list(by_stream), "a stream is named twice; name each once")
        return Place(kind=Kind.OFFSETS, offsets=offsets)
    raise InvalidInput(
        name, given, 'earliest, latest, group, or JSON such as {"orders": {"0": 17, "1": -2}}; -2 is earliest'
    )


def check_streams(name: str, place: Place, streams: Mapping[str, StreamInfo]) -> None:
    """Refuse offsets of a stream that is not read."""
    for stream in place.offsets:
        if stream and stream not in streams:
            raise InvalidInput(
                name, stream, f"this stream is not read; it is one of {', '.join(sorted(streams))}"
            )
        if not stream and len(streams) != 1:
            raise InvalidInput(name, dict(place.offsets[""]), "there are several streams: name each")


def resolved(
    info: StreamInfo,
    place: Place,
    *,
    otherwise: Kind,
    known: Mapping[int, int] | None = None,
    strict: bool = True,
) -> dict[int, int]:
    """The offset in each shard. `known`: the group's checkpoints, or where the time lies, by shard.

    Shards that offsets do not name are read from, or to, `otherwise`. Offsets that are not there (any more)
    are an error, or (not `strict`) moved to the nearest that is.
    """
    found: dict[int, int] = {}
    edges = {EARLIEST: "first_offset", LATEST: "next_offset"}
    name = str(info.full_name)
    given: Mapping[int, int] = {}
    if place.kind is Kind.OFFSETS:
        given = place.offsets.get(name, place.offsets.get("", {}))
        for number in given:
            find_shard(info, number)
    elif place.kind is Kind.GROUP:
        given = known or {}
    elif place.kind is Kind.TIME:
        # It was looked up after the stream was: what has come in between is behind this look's end.
        ends = {shard.id: shard.next_offset for shard in info.shards}
        given = {shard: min(offset, ends[ShardId(shard)]) for shard, offset in (known or {}).items()}
    word = place.kind if place.kind in {Kind.EARLIEST, Kind.LATEST} else otherwise
    default = EARLIEST if word is Kind.EARLIEST else LATEST
    for shard in info.shards:
        # A shard that was born after the group looked, or after the time was looked up, is all to come.
        offset = given.get(shard.id, default)
        if offset in edges:
            found[shard.id] = getattr(shard, edges[offset])
        else:
            found[shard.id] = kept(name, shard, offset, strict=strict)
    return found


def check_ahead(
    info: StreamInfo, place: Place, starts: Mapping[int, int], end: Place, ends: Mapping[int, int]
) -> None:
    """Refuse a start that lies behind its end: a read of nothing would look like a stream without records.

    Not of a group that has come further: it moves by itself.
    """
    if Kind.GROUP in {place.kind, end.kind}:
        return
    for shard, start in starts.items():
        if start > ends[shard]:
            raise InvalidInput(
                "startingTimestamp" if place.kind is Kind.TIME else "startingOffsets",
                start,
                f"in {info.full_name}, shard {shard}, this is behind "
                f"{'endingTimestamp' if end.kind is Kind.TIME else 'endingOffsets'}={ends[shard]}; "
                "let the read begin where it ends, or before",
            )


def group_place(place: Place | None, *, is_first: bool) -> Place:
    """Where a group begins that a query makes. `is_first`: on a stream that the query begins with. One that
    came to it later is all to come: what was written before anyone saw it would otherwise be passed over."""
    if place is None or place.kind is Kind.GROUP or not is_first:
        return Place(kind=Kind.EARLIEST)
    return place


def group_start(info: StreamInfo, place: Place) -> dict[int, int]:
    """Where a group that is made begins, by shard; those that are not named begin at their first record."""
    given = place.offsets.get(str(info.full_name), place.offsets.get("", {}))
    return {
        shard: find_shard(info, shard).next_offset if offset == LATEST else offset
        for shard, offset in given.items()
        if offset != EARLIEST
    }


def _shards(name: str, given: Mapping[object, object]) -> dict[int, int]:
    found: dict[int, int] = {}
    for shard, offset in given.items():
        number = int(shard) if isinstance(shard, str) and shard.isdecimal() else shard
        if not is_whole(number) or not is_whole(offset) or offset < EARLIEST:
            raise InvalidInput(
                name,
                {shard: offset},
                "a shard's number to an offset from 0 on, -1 for latest, -2 for earliest",
            )
        if number in found:
            raise InvalidInput(name, shard, "this shard is named twice; name each once")
        found[ShardId(number)] = offset
    return found
