"""The sockets in the wall: what clients may ask of a hub, and what a hub asks of a store.

Whoever implements one of these passes its contract suite in `shoal.testing.contract`. Here are both as
a whole. What they are made of has rooms of its own, of which the log, groups and waiting are had from here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

import pyarrow as pa

from shoal.access_port import AccessStore
from shoal.core.checkpoint import Save
from shoal.core.delaying import Delay
from shoal.core.errors import ShoalError
from shoal.core.model import (
    Appended,
    ProducerOpening,
    Scaling,
    SendStrategy,
    ShardId,
    StreamInfo,
    StreamName,
    StreamSettings,
    StreamStats,
    Trimmed,
)
from shoal.core.reading import ReadLimits
from shoal.delay_port import DelayStore
from shoal.group_port import (
    GroupService,
    GroupStore,
    Joined,
    LeasedGroup,
    LeasedSave,
    LeasedTouch,
    MemberView,
    Newcomer,
    NotPlain,
    Touch,
    TouchAnswer,
)
from shoal.lease_port import LiveTable
from shoal.log_port import (
    AppendAnswer,
    AppendRequest,
    CatalogStore,
    Fence,
    Fetched,
    LogStore,
    Repeated,
    ShardEnd,
    ShardGone,
    ShardShut,
    StoredBatch,
    StreamRoutes,
)
from shoal.share_port import PositionService, PositionStore, ShareAnswer, ShareService, ShareStore, ShareTouch
from shoal.signal_port import ChangeSignal, Following, HeardFollowing, Place
from shoal.wire.batch import Batch

__all__ = [
    "AppendAnswer",
    "AppendRequest",
    "CatalogStore",
    "ChangeSignal",
    "Commit",
    "Fence",
    "Fetched",
    "Following",
    "GroupSaves",
    "GroupService",
    "GroupStore",
    "HeardFollowing",
    "HubService",
    "Joined",
    "Keep",
    "LeasedGroup",
    "LeasedSave",
    "LeasedTouch",
    "LogStore",
    "MemberView",
    "Newcomer",
    "NotPlain",
    "Place",
    "Pledge",
    "ProducerLife",
    "Repeated",
    "ShardEnd",
    "ShardGone",
    "ShardShut",
    "Store",
    "StoredBatch",
    "StreamRoutes",
    "Submission",
    "Touch",
    "TouchAnswer",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A batch for a shard, in the stream's stored layout; `stamp` inside the offer makes it idempotent."""

    shard: ShardId
    batch: pa.RecordBatch
    producer: str | None = None
    epoch: int = 0
    sequence: int = 0
    number: int | None = None
    """The highest of the sender's own numbers in it; see ProducerStamp."""
    delays: Sequence[Delay] | None = None
    """For each record when it is to come, if it is later. The shard is `DELAYED` then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSaves:
    """An owner's checkpoints in one group, for a transaction."""

    stream: StreamName
    group_id: int
    saves: Sequence[Save]
    holder: str | None = None
    """Of a leased group: the incarnation that owns the shards. None: whoever shows their epochs."""


Commit: TypeAlias = Callable[[Sequence[GroupSaves]], None]
"""Saves checkpoints together with something else, or raises."""
Keep: TypeAlias = Callable[[], AbstractContextManager[None]]


class Pledge(NamedTuple):
    """Checkpoints that a transaction is to save. Their shards are kept from others while it does: whoever
    keeps several does so in the order of their places."""

    shards: Mapping[tuple[int, int], Keep | None]
    """By the number of the membership that holds it, and its own: what keeps it; None: `redeem` does."""
    redeem: Callable[[Commit], None]
    """With all of them kept: has the checkpoints saved by a commit that it is given, and knows then that they
    are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLife:
    """Under which name and epoch a producer speaks, and on which stream that was given to it."""

    stream_id: int
    producer: str
    epoch: int


class HubService(Protocol):
    """A hub as clients see it: in process, or remote. Names are parsed, data is in stored layout."""

    @property
    def groups(self) -> GroupService: ...
    @property
    def shares(self) -> ShareService: ...
    @property
    def positions(self) -> PositionService: ...

    def create_stream(self, name: StreamName, settings: StreamSettings, shards: int) -> StreamInfo: ...
    def describe_stream(self, name: StreamName) -> StreamInfo: ...
    def refresh_stream(self, known: StreamInfo, shards: Collection[ShardId] = ()) -> StreamInfo:
        """The map as of now, and the ends of these shards: cheaper than describing all of them again."""

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
    def set_scaling(self, name: StreamName, scaling: Scaling | None) -> None:
        """When the stream splits and merges by itself; None is never."""

    def scaling(self, name: StreamName) -> Scaling | None: ...
    def set_strategy(self, name: StreamName, strategy: SendStrategy | None) -> None:
        """What producers make of failed attempts, unless one says otherwise; None is by the key."""

    def strategy(self, name: StreamName) -> SendStrategy | None: ...
    def append(self, stream: StreamInfo, batches: Sequence[Submission]) -> list[Appended | ShoalError]:
        """Store several batches, sharing one commit; an answer for each."""

    def transact(
        self,
        life: ProducerLife,
        appends: Sequence[tuple[StreamInfo, Submission]],
        saves: Sequence[GroupSaves] = (),
    ) -> list[Appended]:
        """Append to shards of any streams, and save checkpoints, in one step: all of it, or none and an
        error. The batches are numbered; if all of them are stored already, the answer is as the first time,
        and nothing is saved again.
        """

    def open_producer(self, stream: StreamInfo, producer: str, held: int | None = None) -> ProducerOpening:
        """Begin a life of a named producer, and fence the one before; see LogStore."""

    def read(
        self, name: StreamName, shard: int, offset: int, limits: ReadLimits, fence: Fence | None = None
    ) -> Batch: ...
    def follow(self, moved: Callable[[Place], None]) -> Following:
        """Wait for records of several shards; see ChangeSignal."""

    def offset_at(self, name: StreamName, shard: int, timestamp_ms: int) -> int: ...
    def count_delayed(self, name: StreamName) -> int:
        """How many records are to come later."""

    def stats(self, name: StreamName) -> StreamStats: ...
    def enforce_retention(self, name: StreamName | None) -> list[Trimmed]: ...
    def close(self) -> None: ...


class Store(CatalogStore, LogStore, GroupStore, ShareStore, PositionStore, DelayStore, Protocol):
    """A whole store."""

    def deliver(
        self, ids: Sequence[int], requests: Sequence[AppendRequest], now_ms: int
    ) -> Sequence[AppendAnswer] | None:
        """Append what was waiting in these rows, and take them away, in one commit. None: another has
        delivered some of them, and nothing is done. Nor is it if an append is refused, as the answers say."""

    def bury(
        self, touch: ShareTouch, letters: AppendRequest, now_ms: int
    ) -> tuple[ShareAnswer, AppendAnswer | None]:
        """An act on a shared group that says these records are dead, and the letters, in one commit.

        None instead of an answer about the letters: the act was refused, and nothing was appended. If the
        letters cannot be appended, the act is not done either.
        """

    def transact(
        self,
        life: ProducerLife,
        requests: Sequence[AppendRequest],
        touches: Sequence[Touch | LeasedTouch],
        now_ms: int,
    ) -> tuple[list[AppendAnswer], list[int]]:
        """Appends and owners' checkpoints in one commit, all or none. For each touch, how many checkpoints
        brought a closed shard to its end; none of a leased group, whose consumers hear of it by themselves.
        If an append is refused, nothing is done, and the answers say why; if a checkpoint or the producer is,
        that error is raised."""

    @property
    def signal(self) -> ChangeSignal:
        """Where changes are heard."""

    @property
    def description(self) -> str:
        """What it is, for people: without secrets."""

    @property
    def identity(self) -> str:
        """A random name that no other store has."""

    @property
    def access(self) -> AccessStore:
        """Users, keys and policies."""

    def lease_table(self, name: str) -> LiveTable:
        """The table of this name for leased groups; made if it is not there."""

    def close(self) -> None:
        """Give everything back. Calls under way finish or fail with HubClosed."""
