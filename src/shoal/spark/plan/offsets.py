"""What Spark keeps of a query's progress: JSON that it compares as text, so that keys have one order always.

A query that reads for itself keeps a position for every shard, and with it what the lanes of others had done
beyond where it began, until it has come so far. A member of a group keeps only what its last
batch was made of: where a shard goes on, the group's checkpoint says. `query` is a name made when the query
first began, which lives as long as its checkpoint does: it is how a restarted query is known to its group.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from shoal.core.checking import is_whole
from shoal.core.checkpoint import beyond, checkpoint_of, marks_text
from shoal.core.errors import InvalidInput
from shoal.core.model import StreamInfo
from shoal.spark.plan.spans import Span

VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamPositions:
    """How far a query has read one stream."""

    id: int
    """Of the stream: one that was made anew under its name is another."""
    shards: Mapping[int, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Keys in one order."""
        said: dict[str, Any] = {
            "id": self.id,
            "shards": {str(shard): int(self.shards[shard]) for shard in sorted(self.shards)},
        }
        marks = {str(shard): marks_text(self.shards[shard]) for shard in sorted(self.shards)}
        ahead = {shard: text for shard, text in marks.items() if text is not None}
        return said | {"beyond": ahead} if ahead else said


@dataclass(frozen=True, slots=True, kw_only=True)
class Positions:
    """How far a query has read."""

    query: str
    streams: Mapping[str, StreamPositions] = field(default_factory=dict)
    first: Mapping[str, StreamPositions] | None = None
    """Where the batch begins in streams that are new in it; in a query's first batch, in all. Spark keeps
    only where that one ends, and asks again where a query begins when it runs it again: `latest` would be
    elsewhere by then."""

    def to_json(self) -> dict[str, Any]:
        """Keys in one order."""
        said = {"shoal": VERSION, "query": self.query, "streams": _written(self.streams)}
        return said if self.first is None else said | {"first": _written(self.first)}


def _written(streams: Mapping[str, StreamPositions]) -> dict[str, Any]:
    return {name: streams[name].to_json() for name in sorted(streams)}


def _read(given: Mapping[str, Any]) -> dict[str, StreamPositions]:
    return {
        name: StreamPositions(
            id=int(entry["id"]),
            shards={
                int(shard): checkpoint_of(int(offset), entry.get("beyond", {}).get(shard))
                for shard, offset in entry["shards"].items()
            },
        )
        for name, entry in given.items()
    }


def positions_in(positions: StreamPositions | None, stream_id: int) -> Mapping[int, int]:
    """The positions in this stream. None if they are of another that had its name."""
    return positions.shards if positions is not None and positions.id == stream_id else {}


def new_to(start: Positions, streams: Mapping[str, StreamInfo | StreamPositions]) -> list[str]:
    """Those of the streams that were not read before: the query came to them since, or they are others."""
    known = start.streams
    return [name for name, stream in streams.items() if name not in known or known[name].id != stream.id]


def new_in(
    end: Positions, start: Positions, at: Mapping[str, Mapping[int, int]]
) -> dict[str, StreamPositions]:
    """The streams of a batch that were not read before, and where they stood at its start."""
    return {
        name: StreamPositions(id=end.streams[name].id, shards=at[name]) for name in new_to(start, end.streams)
    }


def between(start: Positions, end: Positions) -> list[Span]:
    """The batch of a query that reads for itself, from where it began to where it ended."""
    before = {**start.streams, **(end.first or {})}
    found = []
    for name, stream in end.streams.items():
        at = positions_in(before.get(name), stream.id)
        for shard, offset in stream.shards.items():
            begun = at.get(shard, 0)
            if offset > begun:
                found.append(
                    Span(
                        stream=name,
                        stream_id=stream.id,
                        shard=shard,
                        start=int(begun),
                        end=int(offset),
                        beyond=beyond(begun),
                    )
                )
    return found


class Part(NamedTuple):
    """A part of a member's batch: offsets of a shard, and the epoch under which it was planned."""

    stream: str
    stream_id: int
    shard: int
    start: int
    end: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a member's batch is made of."""

    query: str
    parts: tuple[Part, ...] = ()
    streams: Mapping[str, int] = field(default_factory=dict)
    """The ids of all that were read then, also of those that had nothing new."""

    @property
    def ids(self) -> dict[str, int]:
        """The streams that the query knows. (Of an older checkpoint those of the batch alone.)"""
        return {part.stream: part.stream_id for part in self.parts} | dict(self.streams)

    def to_json(self) -> dict[str, Any]:
        """Keys in one order."""
        return {
            "shoal": VERSION,
            "query": self.query,
            "batch": [list(part) for part in sorted(self.parts)],
            "seen": {name: self.streams[name] for name in sorted(self.streams)},
        }


def manifest_of(query: str, spans: Iterable[Span], streams: Mapping[str, int]) -> Manifest:
    """The batch that these spans make, of a query that reads these streams."""
    return Manifest(
        query=query,
        streams=streams,
        parts=tuple(
            sorted(
                Part(
                    span.stream,
                    span.stream_id,
                    span.shard,
                    span.start,
                    span.end,
                    span.owner.epoch if span.owner else 0,
                )
                for span in spans
            )
        ),
    )


def positions_of(given: Mapping[str, Any]) -> Positions:
    """What `Positions.to_json` wrote."""
    _check(given, "streams", "member=true; go on as a member")
    return Positions(
        query=str(given["query"]),
        streams=_read(given["streams"]),
        first=_read(given["first"]) if "first" in given else None,
    )


def manifest(given: Mapping[str, Any]) -> Manifest:
    """What `Manifest.to_json` wrote."""
    _check(given, "batch", "no member; go on without member=true")
    return Manifest(
        query=str(given["query"]),
        parts=tuple(Part(str(part[0]), *(int(number) for number in part[1:])) for part in given["batch"]),
        streams={name: int(number) for name, number in given.get("seen", {}).items()},
    )


def _check(given: Mapping[str, Any], key: str, otherwise: str) -> None:
    if not is_whole(given.get("shoal")):
        raise InvalidInput(
            "checkpointLocation", dict(given), "its offsets are not Shoal's; give the query another one"
        )
    if given["shoal"] > VERSION:
        raise InvalidInput("checkpointLocation", dict(given), "written by a newer Shoal; upgrade this one")
    if key not in given:
        raise InvalidInput(
            "checkpointLocation",
            dict(given),
            f"the query that wrote it was {otherwise}, or give it another one",
        )
