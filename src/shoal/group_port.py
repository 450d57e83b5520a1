"""The sockets of groups: what a store keeps of them, and what a hub offers people and owners of shards.

What groups without owners need besides is in `share_port`, the table of leased ones in `lease_port`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from shoal.core.checkpoint import Save
from shoal.core.describing import Block, GroupInfo
from shoal.core.errors import ShoalError
from shoal.core.events import Forgotten, Letting, Release
from shoal.core.group import Group, GroupSettings, Member, Note
from shoal.core.handover import HandedOver
from shoal.core.holding import Assignment, View
from shoal.core.membership import Beat
from shoal.core.model import ShardId, StreamInfo, StreamName
from shoal.core.positions import Start
from shoal.lease_port import LiveTable


class MemberView(NamedTuple):
    """Where a consumer waits: the version of its assignment."""

    group_id: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """A heartbeat, an owner's checkpoints, or a release: what can be decided on a few rows."""

    stream: StreamName
    group_id: int
    act: Beat | Sequence[Save] | Release
    seen: int = 0
    """The highest version of the group that the hub has seen. Of a heartbeat its own counts as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedSave:
    """A checkpoint in a leased group, and the incarnation that saves it, if that is known."""

    save: Save
    holder: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedTouch:
    """Owners' checkpoints in a leased group whose rows are beside the log."""

    stream: StreamName
    group_id: int
    table: str
    key: str
    """The group's in that table."""
    saves: Sequence[LeasedSave]


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

    def add_notes(self, group_id: int, notes: Sequence[Note], clock: Callable[[], int]) -> None:
        """Add to a group's history. The clock is asked once the lines have their place in it: of two writers
        that come at once, the later one's lines have no earlier time."""

    def set_block(self, group_id: int, shard: ShardId, block: Block | None, now_ms: int) -> None:
        """Keep what an owner says holds its shard up, since when it first said so; None removes it."""

    def blocks(self, group_id: int) -> Mapping[ShardId, Block]:
        """What was said of each shard."""

    def claim_times(self, group_id: int) -> Mapping[ShardId, tuple[int, int | None]]:
        """For people: since when each claim is in its state, when its checkpoint was last set, or none."""


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
    is_beside: bool = False
    """They are in the log's own database: a transaction of the log can change them."""


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
