"""A group as people want to see it: who holds what, how far behind, who is waited for. Decides nothing."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Final

from shoal.core.group import (
    RULES,
    Claim,
    Coordination,
    Group,
    GroupSettings,
    MemberStatus,
    Note,
    ShardState,
)
from shoal.core.lineage import ancestors
from shoal.core.listening import PositionInfo
from shoal.core.model import ShardId, StreamInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberInfo:
    """A consumer of a group."""

    name: str
    incarnation: str
    status: MemberStatus
    shards: int
    timeout_ms: int
    """What it counts its deadline by."""
    silent_ms: int
    """How long its counter has stood still, as far as anyone has watched."""
    beat: int = 0
    """The counter: who sees it rise has heard of the consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """What holds a shard up, as its owner says."""

    epoch: int
    attempts: int
    """That failed so far."""
    error: str
    since_ms: int = 0
    """By a wall clock."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupShard:
    """A shard as one group sees it."""

    id: ShardId
    state: ShardState
    owner: str | None
    """The consumer that holds it, by name."""
    next: str | None
    """The consumer that gets it next."""
    epoch: int
    checkpoint: int
    lag: int
    """Records that are still to come."""
    lag_s: float
    """How long ago the first of them was appended; 0.0 if there is none."""
    since_ms: int
    """When it came into its state, by the wall clock of whoever saw to it."""
    waiting_for: str = ""
    """What has to happen before it can go on; empty if nothing."""
    blocked: Block | None = None
    """Why its owner stands still, if it does."""
    in_flight: int = 0
    """Of a shared group: records that consumers have received and not settled."""
    gaps: int = 0
    """Of a shared group: runs of records that are not settled, with settled or new ones between them."""
    acknowledged: int = 0
    dead: int = 0
    """Of a shared group: records that went to the dead stream."""
    lost: int = 0
    """Of a shared group: records that retention took before anyone had settled them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerInfo:
    """A consumer of a shared group that has records in hand."""

    name: str
    in_flight: int
    ends_ms: int
    """How long until the first of them come back, unless it settles or extends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInfo:
    """A group as of one moment."""

    stream: str
    name: str
    state: str
    """`empty` without members, `moving` while a shard changes hands, otherwise `stable`; of a shared group,
    `active` while records are in flight; of a broadcast group, `active` while it has positions.

    `elsewhere`, in a list of groups: a leased group whose rows are in a lease database that this hub was not
    told of. It shows no members and no shards.
    """
    version: int
    settings: GroupSettings
    members: tuple[MemberInfo, ...]
    shards: tuple[GroupShard, ...]
    lag: int
    """Records still to come; of a shared group, not settled yet; of a broadcast group, of who is last."""
    created_ms: int
    consumers: tuple[ConsumerInfo, ...] = ()
    """Of a shared group: who has records in hand."""
    positions: tuple[PositionInfo, ...] = ()
    """Of a broadcast group: its consumers' positions, by name."""
    dropped: tuple[str, ...] = ()
    """Of a broadcast group: positions that were dropped, oldest first, as far as the history goes back."""

    @property
    def in_order(self) -> bool:
        return self.settings.in_order

    def unread(self, shards: Collection[ShardId]) -> tuple[GroupShard, ...]:
        """Those of the shards, closed ones, that the group has not read to their end yet."""
        return tuple(
            shard for shard in self.shards if shard.id in shards and shard.state is not ShardState.OVER
        )

    @property
    def timeout(self) -> float:
        """In seconds."""
        return self.settings.timeout_ms / 1000

    @property
    def lag_s(self) -> float:
        """How long ago the oldest record that is still to come was appended; 0.0 if there is none."""
        return max((shard.lag_s for shard in self.shards), default=0.0)

    @property
    def held(self) -> int:
        """How many shards a consumer holds."""
        return sum(shard.owner is not None for shard in self.shards)

    @property
    def live(self) -> int:
        """How many shards are not over."""
        return sum(shard.state is not ShardState.OVER for shard in self.shards)


ELSEWHERE: Final = "elsewhere"


def elsewhere(group: Group, stream: str) -> GroupInfo:
    """A group of which only its settings can be seen from here."""
    return GroupInfo(
        stream=stream,
        name=group.name,
        state=ELSEWHERE,
        version=group.version,
        settings=group.settings,
        members=(),
        shards=(),
        lag=0,
        created_ms=group.created_ms,
    )


def described(
    group: Group,
    stream: StreamInfo,
    *,
    since_ms: Mapping[ShardId, int],
    oldest_ms: Mapping[ShardId, int],
    blocks: Mapping[ShardId, Block],
    now_ms: int,
) -> GroupInfo:
    """`oldest_ms` holds, for shards that lag, when the first record to come was appended.

    What an owner said that is not the owner any more is not shown.
    """
    names = {key: member.name for key, member in group.members.items()}
    held: dict[str | None, int] = {}
    for claim in group.claims:
        held[claim.owner] = held.get(claim.owner, 0) + 1
    shards = tuple(
        GroupShard(
            id=claim.shard,
            state=claim.state,
            owner=names.get(claim.owner or "", claim.owner),
            next=names.get(claim.next or "", claim.next),
            epoch=claim.epoch,
            checkpoint=claim.checkpoint,
            lag=_lag(claim, stream),
            lag_s=max(0.0, (now_ms - oldest_ms[claim.shard]) / 1000) if claim.shard in oldest_ms else 0.0,
            since_ms=since_ms.get(claim.shard, group.created_ms),
            waiting_for=_waiting_for(group, claim, stream, names),
            blocked=_current(blocks.get(claim.shard), claim),
        )
        for claim in group.claims
    )
    members = tuple(
        MemberInfo(
            name=member.name,
            incarnation=key,
            status=member.status,
            shards=held.get(key, 0),
            timeout_ms=member.timeout_ms,
            silent_ms=member.stood_ms,
            beat=member.beat,
        )
        for key, member in sorted(group.members.items(), key=lambda item: item[1].name)
        if member.status is not MemberStatus.GONE
    )
    return GroupInfo(
        stream=str(stream.full_name),
        name=group.name,
        state=_state(group),
        version=group.version,
        settings=group.settings,
        members=members,
        shards=shards,
        lag=sum(shard.lag for shard in shards),
        created_ms=group.created_ms,
    )


def joined_ms(history: Iterable[tuple[int, Note]]) -> dict[str, int]:
    """When each consumer last joined, by name, as far as the history goes back."""
    return {note.consumer: at_ms for at_ms, note in history if note.kind == "joined" and note.consumer}


def changed(old: GroupSettings, new: GroupSettings) -> list[str]:
    """The names of the settings in which two differ."""
    return [
        field.name for field in fields(GroupSettings) if getattr(old, field.name) != getattr(new, field.name)
    ]


def _current(block: Block | None, claim: Claim) -> Block | None:
    return block if block is not None and claim.owner is not None and block.epoch == claim.epoch else None


def _lag(claim: Claim, stream: StreamInfo) -> int:
    """Records that retention took are not to come any more."""
    shard = stream.shards[claim.shard]
    position = claim.start
    return shard.next_offset - max(position, shard.first_offset) if position <= shard.next_offset else 0


def _state(group: Group) -> str:
    if not any(member.status is not MemberStatus.GONE for member in group.members.values()):
        return "empty"
    unsettled = {ShardState.TRANSFER, ShardState.NOT_ALLOC}
    return "moving" if any(claim.state in unsettled for claim in group.claims) else "stable"


def _giver(group: Group) -> str:
    """Who has to do something about a shard that nobody holds."""
    settings = group.settings
    if not any(member.status is MemberStatus.ACTIVE for member in group.members.values()):
        return "a consumer to join"
    if settings.rules != RULES:
        return f"a process that knows version {settings.rules} of the rules"
    if settings.coordination is Coordination.LEASED:
        return "a consumer to take it"
    return f"a process that knows strategy {settings.strategy!r}, or for that one to give a right answer"


def _waiting_for(group: Group, claim: Claim, stream: StreamInfo, names: Mapping[str, str]) -> str:
    match claim.state:
        case ShardState.WAIT:
            states = {other.shard: other.state for other in group.claims}
            open_ones = [
                shard
                for shard in ancestors(stream.shards, claim.shard)
                if states[shard] is not ShardState.OVER
            ]
            return f"its ancestors {open_ones} to end"
        case ShardState.NOT_ALLOC:
            if group.distrust_ms:
                return "the time that the store may have forgotten to pass"
            return _giver(group)
        case ShardState.TRANSFER:
            owner = names.get(claim.owner or "", claim.owner)
            return f"{owner} to let go of it" + (", its deadline is running out" if claim.lapse_ms else "")
        case _:
            return ""
