"""What the calls carry that the ports do not: a callable, or a live object, cannot be sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from shoal.core.errors import ShoalError
from shoal.core.lease import Change, InstanceRow, LeaseRow, Row, SequenceRow
from shoal.core.leasing import Outcome
from shoal.core.model import Appended, Shard, ShardId, StreamInfo, StreamName
from shoal.core.share_acts import Given
from shoal.ports import GroupSaves, Place, ProducerLife
from shoal.wire.values import RingHash

Answers = list[Appended | ShoalError]


@dataclass(frozen=True, slots=True, kw_only=True)
class SentDelay:
    """When a record is due, and its place on the ring if it was given one."""

    due_ms: int
    place: RingHash | None = None
    wait_ms: int | None = None
    """Instead of a time: how long it waits, from when the server takes it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SentBatch:
    """One batch of an append, which follows the label as `bytes` bytes."""

    shard: ShardId
    layout: int
    bytes: int
    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    number: int | None = None
    """The highest of the sender's own numbers in it."""
    delays: Sequence[SentDelay] | None = None
    """For each record when it is to come, if that is later; the shard is -1 then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendLabel:
    """What an append is for."""

    name: StreamName
    stream_id: int
    """Of the stream as the sender knows it: one made anew under its name is another."""
    batches: Sequence[SentBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactLabel:
    """What a transaction is made of. Its batches follow, those of the first append first."""

    life: ProducerLife
    appends: Sequence[AppendLabel]
    saves: Sequence[GroupSaves] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptBatch:
    """One batch of a read, which follows the label as `bytes` bytes."""

    base_offset: int
    records: int
    layout: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FurtherRead:
    """A read that follows another, and begins where that ends."""

    end: int
    tail: int
    end_of_shard: bool
    batches: Sequence[KeptBatch]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadLabel:
    """What a read found. Of the first and last batch, only what lies within [first_offset, end) was asked
    for."""

    stream_id: int
    first_offset: int
    end: int
    tail: int
    end_of_shard: bool
    batches: Sequence[KeptBatch]
    schema: bytes | None = None
    """The stream's own columns, if it has some and the reader did not say that it knows the stream."""
    further: Sequence[FurtherRead] = ()
    """What the next reads with these limits would find, one after another. Their batches come behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartLabel:
    """Some records of a shard, which follow as Arrow IPC streams."""

    stream: str
    shard: int
    first_offset: int
    run: tuple[int, int] | None
    """The offsets, if they are one run; otherwise `offsets`."""
    offsets: bytes | None
    end_of_shard: bool
    schema: bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceivedLabel:
    """What a consumer of a shared group was handed."""

    part: PartLabel | None
    hold: int
    given: Sequence[Given]
    waited_s: float
    waiting_for: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    """A stream that was known: as a whole if its map has changed, otherwise the shards that were asked
    for."""

    stream: StreamInfo | None
    shards: Sequence[Shard]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """How far a place has come that was waited for."""

    place: Place
    number: int
    is_over: bool
    """It cannot rise further: closed, or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedPlace:
    """Where the rows of a leased group are."""

    key: str
    starts: Mapping[ShardId, int]
    is_beside: bool = False
    """In the log's own database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Glimpse:
    """All rows of a leased group, and how much news there had been."""

    leases: list[LeaseRow]
    instances: list[InstanceRow]
    sequence: SequenceRow
    news: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempted:
    """How a change of a row went."""

    change: Change
    outcome: Outcome
    found: Row | None = None
