"""The values that everything speaks of: shards, streams, records' places. No behaviour that acts.

Ranges are half-open. Offsets are dense from 0. Times are milliseconds since 1970, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple, NewType

ShardId = NewType("ShardId", int)

DEFAULT_PROJECT: Final = "default"


class StreamName(NamedTuple):
    """A stream's full name: `stream`, or `project/stream`."""

    project: str
    stream: str

    def __str__(self) -> str:
        return self.stream if self.project == DEFAULT_PROJECT else f"{self.project}/{self.stream}"


class ShardStatus(StrEnum):
    """A shard takes appends while open; closed, it only waits to be read."""

    OPEN = "open"
    CLOSED = "closed"


class KeyHash(StrEnum):
    """How a key becomes a place on the ring."""

    XXH64 = "xxh64"
    MD5 = "md5"


class Compression(StrEnum):
    """How stored batches are compressed."""

    LZ4 = "lz4"
    ZSTD = "zstd"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """An ordered part of a stream, owning `[begin, end)` of the ring."""

    id: ShardId
    begin: int
    end: int
    status: ShardStatus = ShardStatus.OPEN
    parents: tuple[ShardId, ...] = ()
    first_offset: int = 0
    next_offset: int = 0
    bytes: int = 0
    """Stored bytes of the batches that retention has kept."""
    created_ms: int = 0
    closed_ms: int | None = None

    @property
    def is_open(self) -> bool:
        return self.status is ShardStatus.OPEN

    @property
    def is_empty(self) -> bool:
        """Never held a record. What retention removed was there: it does not make a shard empty."""
        return self.next_offset == 0


class SendStrategy(StrEnum):
    """What a producer makes of a failed attempt."""

    STRICT = "strict"
    """The record keeps its shard and its place in line."""
    BEST_TRIED = "best_tried"
    """It may go to another shard, and be set aside after so many attempts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """When a stream splits and merges by itself. Off unless a stream is given one."""

    records_per_s: float | None = None
    """A shard that takes more records a second is split."""
    bytes_per_s: float | None = None
    """Or more stored bytes a second."""
    shards_min: int = 1
    """Merges leave at least so many open shards."""
    shards_max: int = 64
    """Splits leave at most so many."""
    cool_down_s: float = 300.0
    """A shard is left alone for so long after its birth."""
    merge_below: float = 0.25
    """Neighbours that together take less than this share of the limit are merged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSettings:
    """What a stream is told when it is created; retention may be changed later."""

    hash: KeyHash = KeyHash.XXH64
    compression: Compression = Compression.LZ4
    retention_ms: int | None = None
    """Age, counted from the append. None keeps for ever: nothing goes unless someone said so."""
    retention_bytes: int | None = None
    """Stored bytes of all shards together."""
    schema: bytes | None = None
    """The typed columns as a serialised Arrow schema; None is `value: binary`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamInfo:
    """A stream as of one moment."""

    full_name: StreamName
    id: int
    """Never reused: a stream deleted and made again under its name is another one."""
    version: int
    """Rises with every split and merge: the version of the map."""
    settings: StreamSettings
    shards: tuple[Shard, ...]
    created_ms: int = 0

    @property
    def name(self) -> str:
        return self.full_name.stream

    @property
    def project(self) -> str:
        return self.full_name.project

    @property
    def open_shards(self) -> tuple[Shard, ...]:
        """In the order of the ring."""
        return tuple(sorted((s for s in self.shards if s.is_open), key=lambda s: s.begin))


class Position(NamedTuple):
    """Where a record was stored."""

    shard: int
    offset: int


class Appended(NamedTuple):
    """Where a batch was stored."""

    shard: int
    first_offset: int
    next_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """What makes an append idempotent: who sends, in which life, and the number of the batch in its shard."""

    producer: str
    epoch: int
    sequence: int
    number: int | None = None
    """The highest of the sender's own numbers in it, if its records have some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOpening:
    """A named producer begins a life. Whoever has the name from before is fenced, from now on."""

    epoch: int
    numbers: Mapping[ShardId, int]
    """For each shard, open or closed, the highest number that it has of this producer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStats:
    """Figures of one shard."""

    id: ShardId
    status: ShardStatus
    records: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamStats:
    """Figures of one stream: what is kept now, and what was ever appended."""

    stream: StreamName
    records: int
    bytes: int
    appended: int
    batches: int
    delayed: int
    """Records that come later, and are in no shard yet."""
    open_shards: int
    oldest_append_ms: int | None
    newest_append_ms: int | None
    shards: tuple[ShardStats, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trimmed:
    """What retention removed from one shard."""

    stream: StreamName
    shard: ShardId
    first_offset: int
    records: int
    bytes: int
