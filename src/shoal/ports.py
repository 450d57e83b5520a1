"""The sockets in the wall: what clients may ask of a hub, and what a hub asks of a store.

Whoever implements one of these passes its contract suite in `shoal.testing.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import pyarrow as pa

from shoal.access_port import AccessStore
from shoal.core.appending import Offer
from shoal.core.checkpoint import Save
from shoal.core.delaying import Delay
from shoal.core.describing import Block, GroupInfo
from shoal.core.errors import ShoalError
from shoal.core.events import Forgotten, Letting, Release
from shoal.core.group import Group, GroupSettings, Member, Note
from shoal.core.handover import HandedOver
from shoal.core.holding import Assignment, View
from shoal.core.membership import Beat
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
    Trimmed,
)
from shoal.core.positions import Start
from shoal.core.reading import BatchMeta, ReadLimits
from shoal.core.retention import Cut, ShardFront
from shoal.delay_port import DelayedRow, DelayStore
from shoal.lease_port import LeaseNews, LiveTable
from shoal.share_port import (
    PositionService,
    PositionStore,
    ShareAnswer,
    ShareNews,
    ShareService,
    ShareStore,
    ShareTouch,
)
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
    delayed: Sequence[DelayedRow] | None = None
    """Instead of the payload: what is to come later. Its shard is `DELAYED`."""


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


class ShardEnd(NamedTuple):
    """Where a reader waits: the end of a shard, which rises with every append."""

    stream_id: int
    shard: ShardId


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
        """Store all that may be stored in one durable commit; an answer for each request, in order."""

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

        `held`: the epoch that the caller has. If the name has another one by now, ProducerFenced.
        """

    def forget_producers(self, unseen_since_ms: int) -> int:
        """Drop the numbering of producers that have been silent for long."""


class MemberView(NamedTuple):
    """Where a consumer waits: the version of its assignment."""

    group_id: int
    incarnation: str


Place = ShardEnd | MemberView | ShareNews | LeaseNews
"""Where something can be waited for. Each has a number that rises, and may be over: closed, or gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A heartbeat, an owner's checkpoints, or a release: what can be decided on a few rows."""

    stream: StreamName
    group_id: int
    act: Beat | Sequence[Save] | Release
    seen: int = 0
    """The highest version of the group that the hub has seen. Of a heartbeat its own counts as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPlain:
    """A release that is more than a plain hand-over: it wants a step of the whole group."""


TouchAnswer = Assignment | Forgotten | int | HandedOver | NotPlain | ShoalError
"""Of a heartbeat: its answer, or that it has seen more than the store remembers. Of checkpoints: how many of
them brought a closed shard to its end. Of a release: what it changed, or that it wants a step."""


class GroupStore(Protocol):
    """Keeps groups, their members and claims. Decides nothing: rules come from `core`."""

    def create_group(self, stream: StreamInfo, group: Group, *, limit: int, now_ms: int) -> Group:
        """Store a new group (its id is given here), or raise GroupExists or TooManyGroups."""

    def list_groups(self, stream_id: int) -> list[Group]:
        """The groups of a stream by name, without members and claims."""

    def find_group(self, stream: StreamName, name: str) -> Group | None:
        """A group without its members and claims."""

    def load_group(self, group_id: int) -> tuple[Group, StreamInfo] | None:
        """A whole group and its stream, as of one moment."""

    def save_group(self, before: Group, after: Group, notes: Sequence[Note], now_ms: int) -> bool:
        """Save a step's outcome, unless anything that it was thought out from has changed: then False.

        What `touch` and `add_watches` write is left alone.
        """

    def delete_group(self, group_id: int, rule: Callable[[Sequence[Member]], None] | None = None) -> None:
        """Remove a group and all that belongs to it, unless the rule, shown its members, raises.

        Nobody joins between the look and the end.
        """

    def touch(self, touches: Sequence[Touch], now_ms: int) -> list[TouchAnswer]:
        """Heartbeats and checkpoints, all in one durable commit; an answer for each."""

    def load_members(self, group_id: int) -> list[Member]:
        """The members as of now."""

    def load_view(self, group_id: int, incarnation: str) -> View | None:
        """What a member holds as of now; None if it is no member."""

    def add_watches(self, group_id: int, watches: Sequence[tuple[Member, Member]]) -> None:
        """Save what an observer saw: each (before, after) only if the row is still as it was before."""

    def is_unsettled(self, group_id: int, seen: int) -> bool:
        """Whether there may be something to decide: the group is at another version than the one `seen`, the
        stream has moved on (births, or ends that were reached), or a shard is given to nobody."""

    def has_timers(self, group_id: int) -> bool:
        """Whether anything in the group waits for time to pass: a bounded hand-over, or distrust."""

    def history(self, group_id: int, limit: int) -> list[tuple[int, Note]]:
        """The last notes, oldest first, each with its time by the wall clock, in milliseconds."""

    def add_notes(self, group_id: int, notes: Sequence[Note], now_ms: int) -> None:
        """Add to a group's history."""

    def set_block(self, group_id: int, shard: ShardId, block: Block | None, now_ms: int) -> None:
        """Keep what an owner says holds its shard up, since when it first said so; None removes it."""

    def blocks(self, group_id: int) -> Mapping[ShardId, Block]:
        """What was said of each shard."""

    def claim_times(self, group_id: int) -> Mapping[ShardId, tuple[int, int | None]]:
        """For people: since when each claim is in its state, and when its checkpoint was last saved."""


class Following(Protocol):
    """Several places that are waited for at once, without a thread. For one user."""

    def add(self, place: Place, beyond: int) -> None:
        """Be told when the place may be past `beyond`, or is over; perhaps at once, perhaps for nothing."""

    def add_all(self, places: Sequence[tuple[Place, int]]) -> None:
        """The same for several, with one look at all of them."""

    def expect(self, places: Sequence[tuple[Place, int]]) -> None:
        """The same without a look: what has happened already is told to who looks, after this (`look`)."""

    def move(self, place: Place, beyond: int) -> bool:
        """It is followed already, and was seen at `beyond` since: be told of what is past that.

        What happened since that look has been told, or is told now: nothing is looked at again. False: it is
        not followed.
        """

    def drop(self, place: Place) -> None:
        """Not any more."""

    def close(self) -> None:
        """None of them."""


class HeardFollowing(Following, Protocol):
    """One that also knows what it was told."""

    def heard(self) -> Mapping[Place, int]:
        """Places that are past where they were waited for, can rise further, and how far they have come. What
        was told without a number is not among them: look."""


class ChangeSignal(Protocol):
    """Wakes those who wait for appends, shard changes and assignments, in this process and in others."""

    def wait(self, place: Place, beyond: int, timeout_s: float) -> None:
        """Return when the place may be past `beyond` or is over, or after the timeout; or for nothing."""

    def follow(self, moved: Callable[[Place], None]) -> HeardFollowing:
        """Wait at several places. `moved` is called from other threads, and must not wait for anything."""

    def look(self, places: Sequence[Place]) -> Mapping[Place, tuple[int, bool]]:
        """How far places have come, and whether they can rise further; those that are gone are left out.

        What happens after it is told to who was expected before it.
        """

    def ring(self, places: Sequence[tuple[Place, int]]) -> None:
        """Tell waiters in this process how far places have come."""


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
        self, life: ProducerLife, requests: Sequence[AppendRequest], touches: Sequence[Touch], now_ms: int
    ) -> tuple[list[AppendAnswer], list[int]]:
        """Appends and owners' checkpoints in one commit, all or none. For each touch, how many checkpoints
        brought a closed shard to its end. If an append is refused, nothing is done, and the answers say why;
        if a checkpoint or the producer is, that error is raised."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerLife:
    """Under which name and epoch a producer speaks, and on which stream that was given to it."""

    stream_id: int
    producer: str
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Newcomer:
    """Who wants to be a member of a group."""

    name: str
    incarnation: str
    interval_ms: int | None = None
    """How often it beats; None is a quarter of the group's timeout."""
    is_again: bool = False
    """It was a member before, and was expired."""
    group_id: int | None = None
    """Of one that comes back: the group it was a member of. Another one of that name is not joined."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A new member of a group, and what it counts by."""

    group_id: int
    stream_id: int
    timeout_ms: int
    interval_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedGroup:
    """Where the rows of a leased group are."""

    table: LiveTable
    key: str
    starts: Mapping[ShardId, int]
    """Where the group began in the shards that were there."""


class GroupService(Protocol):
    """Groups as clients see them. The first half is for people, the second for consumers."""

    def create(self, name: StreamName, group: str, settings: GroupSettings, start: Start) -> GroupInfo: ...
    def delete(self, name: StreamName, group: str, *, force: bool) -> None: ...
    def list(self, name: StreamName) -> Sequence[Group]:
        """The groups of a stream by name, without members and claims."""

    def describe(self, name: StreamName, group: str) -> GroupInfo: ...
    def update(
        self, name: StreamName, group: str, change: Callable[[GroupSettings], GroupSettings]
    ) -> GroupInfo: ...
    def rewind(self, name: StreamName, group: str, start: Start, why: str) -> Sequence[ShardId]:
        """Forced checkpoints; the descendants, in an in-order group, of which something had been read."""

    def history(self, name: StreamName, group: str, limit: int) -> Sequence[tuple[int, Note]]: ...
    def find(self, name: StreamName, group: str) -> Group:
        """The group without members and claims, or UnknownGroup."""

    def record(self, group_id: int, notes: Sequence[Note]) -> None:
        """Add to the history of a leased group, whose consumers know what happened."""

    def leased(self, group: Group) -> LeasedGroup:
        """The table that a leased group's consumers share."""

    def unbound(self, group_id: int) -> Collection[ShardId]:
        """Shards of a leased group that wait for no ancestor: they were there when it became in-order. Others
        join them only when the group's version rises."""

    def join(self, name: StreamName, group: str, newcomer: Newcomer) -> Joined:
        """Become a member. What it is given, the first heartbeat tells."""

    def beat(self, name: StreamName, group_id: int, beat: Beat) -> Assignment:
        """Raise the counter, and learn the assignment as of that moment."""

    def wait(self, group_id: int, incarnation: str, seen: int, timeout_s: float) -> View | None:
        """What the member holds, once that is newer than `seen`; None after the timeout. Renews nothing."""

    def save(self, name: StreamName, group_id: int, saves: Sequence[Save]) -> None:
        """An owner's checkpoints: all, or none and an error."""

    def block(self, group_id: int, shard: ShardId, block: Block | None) -> None:
        """An owner says what holds its shard up, for people to see; None: nothing any more."""

    def retire(self, group_id: int, incarnation: str) -> None:
        """Announce that the member will leave: it gets nothing new, and drains what it has."""

    def release(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> Sequence[ShardId]:
        """Let go of shards, with their last checkpoints; those that were the member's to let go of."""

    def leave(self, group_id: int, incarnation: str, lettings: Sequence[Letting]) -> None:
        """Let go of everything."""


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
