"""The socket of the log in a store: streams and their shards, batches and their producers.

A store decides nothing: rules come from `core`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.core.appending import Offer
from shoal.core.errors import ShoalError
from shoal.core.model import (
    Appended,
    ProducerOpening,
    Scaling,
    SendStrategy,
    Shard,
    ShardId,
    StreamInfo,
    StreamName,
    StreamSettings,
    StreamStats,
)
from shoal.core.reading import BatchMeta, ReadLimits
from shoal.core.retention import Cut, ShardFront
from shoal.delay_port import DelayedRow


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendRequest:
    """One encoded batch for one shard of one stream."""

    stream_id: int
    shard: ShardId
    offer: Offer
    layout: int
    raw_bytes: int
    payload: bytes
    delayed: Sequence[DelayedRow] | None = None
    """Instead of the payload: what is to come later. Its shard is `DELAYED`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardGone:
    """The stream that this append was for is not there any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShut:
    """The shard is closed, and this is the last sequence it took from the producer."""

    last_sequence: int


class Repeated(Appended):
    """Where a batch was stored that is there already: nothing was stored now. Clients are told as the first
    time."""

    __slots__ = ()


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


class ShardEnd(NamedTuple):
    """Where a reader waits: the end of a shard, which rises with every append."""

    stream_id: int
    shard: ShardId


class StreamRoutes(NamedTuple):
    """Where a producer waits: the map of a stream, which changes when shards are split or merged, and is
    announced before. Its number is `core.routing.route_number`."""

    stream_id: int


class Fence(NamedTuple):
    """What an owner shows to read: the group, and the epoch under which it holds the shard."""

    group_id: int
    epoch: int
    is_leased: bool = False
    """The group's rows are in a table of leases, which may be elsewhere: the hub looks there."""


class CatalogStore(Protocol):
    """Keeps projects, streams and their shards."""

    def create_stream(
        self, name: StreamName, settings: StreamSettings, shards: Sequence[Shard], now_ms: int
    ) -> StreamInfo:
        """Store a new stream, or raise StreamExists."""

    def load_stream(self, name: StreamName) -> StreamInfo:
        """The stream as of now, or UnknownStream, or UnknownProject."""

    def refresh_stream(self, known: StreamInfo, shards: Collection[ShardId] = ()) -> StreamInfo:
        """A stream that was loaded before, with its map as of now, and these shards. The others are as they
        were, unless the stream was split or merged; whatever is closed stays as it is. Or UnknownStream."""

    def load_stream_by_id(self, stream_id: int) -> StreamInfo | None:
        """The stream of this id, if it has not been deleted."""

    def list_streams(self, project: str | None) -> list[StreamInfo]:
        """Streams by name, of one project or of all."""

    def list_projects(self) -> list[str]:
        """Projects by name."""

    def create_project(self, project: str, now_ms: int) -> bool:
        """Store a project without streams; False if it is there already."""

    def delete_project(self, project: str) -> None:
        """Remove an empty project."""

    def change_shards(self, name: StreamName, rule: Callable[[StreamInfo], tuple[Shard, ...]]) -> StreamInfo:
        """Load, apply the rule, save: one transaction, in which no append can land between."""

    def announce_routes(self, stream_id: int, version: int | None) -> None:
        """Let those who wait at StreamRoutes know that the map of this version is about to come; None: that
        it is not."""

    def announced_routes(self) -> Mapping[int, int]:
        """What is announced, by the stream's id."""

    def change_settings(
        self, name: StreamName, rule: Callable[[StreamSettings], StreamSettings]
    ) -> StreamInfo:
        """Load, apply the rule, save."""

    def set_scaling(self, name: StreamName, scaling: Scaling | None) -> None:
        """Keep when the stream splits and merges by itself; None is never."""

    def scalings(self) -> Mapping[int, Scaling]:
        """Of every stream that has one, by the stream's id."""

    def set_strategy(self, name: StreamName, strategy: SendStrategy | None) -> None:
        """Keep what producers make of failed attempts; None is by the key."""

    def strategy(self, name: StreamName) -> SendStrategy | None: ...

    def delete_stream(self, name: StreamName) -> None:
        """Take the name away at once; what it held is removed by `sweep`."""

    def sweep(self) -> bool:
        """Remove a bounded part of what deleted streams left behind; True if there may be more."""


class LogStore(Protocol):
    """Keeps batches."""

    def append(self, requests: Sequence[AppendRequest], now_ms: int) -> list[AppendAnswer]:
        """Store all that may be stored in one durable commit; an answer for each request, in order. A batch
        that is there already is answered with Repeated."""

    def fetch(
        self,
        name: StreamName,
        place: ShardEnd,
        offset: int,
        limits: ReadLimits,
        fence: Fence | None = None,
    ) -> Fetched:
        """Batches from `offset` on. With a fence: only if the group's claim is still at that epoch."""

    def ends(self, shards: Sequence[ShardEnd]) -> Mapping[ShardEnd, tuple[int, bool]]:
        """For each (stream id, shard) that is there: its next offset, and whether it is open."""

    def batch_at(self, stream_id: int, shard: ShardId, offset: int) -> tuple[BatchMeta, int] | None:
        """The batch that holds this offset, and the highest timestamp (µs) up to its end."""

    def batches_at(self, stream_id: int, offsets: Mapping[ShardId, int]) -> Mapping[ShardId, BatchMeta]:
        """For each shard the batch that holds its offset, if there is one; as of one moment."""

    def stats(self, stream: StreamInfo) -> StreamStats:
        """Figures of one stream."""

    def trim(
        self, stream: StreamInfo, rule: Callable[[Mapping[ShardId, ShardFront], int], Mapping[ShardId, Cut]]
    ) -> Mapping[ShardId, Cut]:
        """Show the rule the oldest batches of each shard and the stream's bytes; remove what it says."""

    def open_producer(
        self, stream_id: int, producer: str, held: int | None, now_ms: int
    ) -> ProducerOpening | None:
        """A new epoch for a name, above all that were ever given, and what the stream has of it. From then
        on no append under an older epoch is stored. None: the stream is not there any more.

        `held`: the epoch that the caller has. If the name has another one by now, ProducerFenced; unless that
        was given for this very one: then it is the answer again, which was lost.
        """

    def forget_producers(self, unseen_since_ms: int) -> int:
        """Drop the numbering of producers that have been silent for long."""
