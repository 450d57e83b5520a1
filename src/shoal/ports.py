"""The sockets in the wall: what clients may ask of a hub, and what a hub asks of a store.

Whoever implements one of these passes its contract suite in `shoal.testing.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from shoal.core.appending import Offer
from shoal.core.errors import ShoalError
from shoal.core.model import (
    Appended,
    Shard,
    ShardId,
    StreamInfo,
    StreamName,
    StreamSettings,
    StreamStats,
    Trimmed,
)
from shoal.core.reading import BatchMeta, ReadLimits
from shoal.core.retention import Cut, ShardFront
from shoal.wire.batch import Batch


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest:
    """One encoded batch for one shard of one stream."""

    stream_id: int
    shard: ShardId
    offer: Offer
    layout: int
    raw_bytes: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGone:
    """The stream that this append was for is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShut:
    """The shard is closed, and this is the last sequence it took from the producer."""

    last_sequence: int


AppendAnswer = Appended | ShardShut | ShardGone | ShoalError


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredBatch:
    """A batch as it is kept."""

    base_offset: int
    records: int
    layout: int
    payload: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """What a store found for a read: the shard as of that moment, and the batches that the rule chose."""

    shard: Shard
    batches: Sequence[StoredBatch]
    end: int
    """Where the last batch is to be trimmed."""


class CatalogStore(Protocol):
    """Keeps projects, streams and their shards."""

    def create_stream(
        self, name: StreamName, settings: StreamSettings, shards: Sequence[Shard], now_ms: int
    ) -> StreamInfo:
        """Store a new stream, or raise StreamExists."""

    def load_stream(self, name: StreamName) -> StreamInfo:
        """The stream as of now, or UnknownStream, or UnknownProject."""

    def load_stream_by_id(self, stream_id: int) -> StreamInfo | None:
        """The stream of this id, if it has not been deleted."""

    def list_streams(self, project: str | None) -> list[StreamInfo]:
        """Streams by name, of one project or of all."""

    def list_projects(self) -> list[str]:
        """Projects by name."""

    def delete_project(self, project: str) -> None:
        """Remove an empty project."""

    def change_shards(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        """Load, apply the rule, save: one transaction, in which no append can land between."""

    def change_settings(
        self, name: StreamName, rule: Callable[[StreamSettings], StreamSettings]
    ) -> StreamInfo:
        """Load, apply the rule, save."""

    def delete_stream(self, name: StreamName) -> None:
        """Take the name away at once; what it held is removed by `sweep`."""

    def sweep(self) -> bool:
        """Remove a bounded part of what deleted streams left behind; True if there may be more."""


class LogStore(Protocol):
    """Keeps batches."""

    def append(self, requests: Sequence[AppendRequest], now_ms: int) -> list[AppendAnswer]:
        """Store all that may be stored in one durable commit; an answer for each request, in order."""

    def fetch(
        self, name: StreamName, stream_id: int, shard: ShardId, offset: int, limits: ReadLimits
    ) -> Fetched:
        """Batches from `offset` on."""

    def ends(self, shards: Sequence[tuple[int, ShardId]]) -> Mapping[tuple[int, ShardId], tuple[int, bool]]:
        """For each (stream id, shard) that is there: its next offset, and whether it is open."""

    def batch_at(self, stream_id: int, shard: ShardId, offset: int) -> tuple[BatchMeta, int] | None:
        """The batch that holds this offset, and the highest timestamp (µs) up to its end."""

    def stats(self, stream: StreamInfo) -> StreamStats:
        """Figures of one stream."""

    def trim(
        self, stream: StreamInfo, rule: Callable[[Mapping[ShardId, ShardFront], int], Mapping[ShardId, Cut]]
    ) -> Mapping[ShardId, Cut]:
        """Show the rule the oldest batches of each shard and the stream's bytes; remove what it says."""

    def forget_producers(self, unseen_since_ms: int) -> int:
        """Drop the numbering of producers that have been silent for long."""


class ChangeSignal(Protocol):
    """Wakes those who wait for appends and shard changes, in this process and in others."""

    def wait(self, stream_id: int, shard: ShardId, beyond: int, timeout_s: float) -> None:
        """Return when the shard may be past `beyond` or is closed, or after the timeout; or for nothing."""

    def ring(self, shards: Sequence[tuple[int, ShardId, int]]) -> None:
        """Tell waiters in this process of new ends: (stream id, shard, next offset)."""


class Store(CatalogStore, LogStore, Protocol):
    """A whole store."""

    @property
    def signal(self) -> ChangeSignal:
        """Where changes are heard."""

    @property
    def description(self) -> str:
        """What it is, for people: without secrets."""

    def close(self) -> None:
        """Give everything back. Calls under way finish or fail with HubClosed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A batch for a shard, in the stream's stored layout; `stamp` inside the offer makes it idempotent."""

    shard: ShardId
    batch: pa.RecordBatch
    producer: str | None = None
    epoch: int = 0
    sequence: int = 0


class HubService(Protocol):
    """A hub as clients see it: in process, or remote. Names are parsed, data is in stored layout."""

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo: ...
    def describe_stream(self, name: StreamName) -> StreamInfo: ...
    def list_streams(self, project: str | None) -> list[StreamInfo]: ...
    def list_projects(self) -> list[str]: ...
    def delete_project(self, project: str) -> None: ...
    def delete_stream(self, name: StreamName) -> None: ...
    def set_retention(
        self, name: StreamName, retention_ms: int | None, retention_bytes: int | None
    ) -> StreamInfo: ...
    def split_shard(self, name: StreamName, shard: int, at: int | None) -> StreamInfo: ...
    def merge_shards(self, name: StreamName, left: int, right: int | None) -> StreamInfo: ...
    def reshard(self, name: StreamName, count: int) -> StreamInfo: ...
    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        """Store several batches, sharing one commit; an answer for each."""

    def read(self, name: StreamName, shard: int, offset: int, limits: ReadLimits) -> Batch: ...
    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int: ...
    def stats(self, name: StreamName) -> StreamStats: ...
    def enforce_retention(self, name: StreamName | None) -> list[Trimmed]: ...
    def close(self) -> None: ...
