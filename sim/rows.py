"""A group's rows in the simulated store, of either kind, and the few words in which checkers read them.

A checker asks for claims and members and cannot tell what kind of group it looks at: rows of leases are
shown as claims by a translation that decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from shoal.core.group import Claim, Group, GroupSettings, Member, ShardState
from shoal.core.lease import InstanceRow, LeaseRow, SequenceRow
from shoal.core.model import ShardId


class Rows(Protocol):
    """A group as it is stored."""

    id: int
    stream_id: int
    settings: GroupSettings

    @property
    def mark(self) -> int:
        """Rises with what nobody may forget unnoticed; see `Store.forget`."""

    @property
    def highest(self) -> int:
        """The highest epoch that was given."""

    def claim(self, shard: int) -> Claim | None:
        """What is stored of a shard; None: it has no row."""

    def standing(self) -> Mapping[str, Member]:
        """Members by incarnation: those that are watched."""

    def is_remembered(self, gone: str) -> bool:
        """Whether it is known of an incarnation that it is gone, so that no late message brings it back."""

    def copied(self) -> Rows:
        """As of now: it stays as it is."""

    def restore(self, old: Rows) -> None:
        """Be as this copy was."""


@dataclass(slots=True, kw_only=True)
class GroupRows:
    """A coordinated group's rows: its own, its members', its claims'."""

    id: int
    stream_id: int
    version: int
    epoch: int
    settings: GroupSettings
    distrust_ms: int = 0
    members: dict[str, Member] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    @property
    def mark(self) -> int:
        return self.version

    @property
    def highest(self) -> int:
        return self.epoch

    def claim(self, shard: int) -> Claim | None:
        return self.claims[shard] if shard < len(self.claims) else None

    def standing(self) -> Mapping[str, Member]:
        return {key: member for key, member in self.members.items() if member.is_watched}

    def loaded(self) -> Group:
        """As a value, as of now."""
        return Group(
            id=self.id,
            stream_id=self.stream_id,
            name="g",
            version=self.version,
            epoch=self.epoch,
            settings=self.settings,
            members=dict(self.members),
            claims=tuple(self.claims),
            distrust_ms=self.distrust_ms,
        )

    def is_remembered(self, gone: str) -> bool:
        return gone in self.members

    def copied(self) -> GroupRows:
        return GroupRows(
            id=self.id,
            stream_id=self.stream_id,
            version=self.version,
            epoch=self.epoch,
            settings=self.settings,
            distrust_ms=self.distrust_ms,
            members=dict(self.members),
            claims=list(self.claims),
        )

    def restore(self, old: Rows) -> None:
        assert isinstance(old, GroupRows)
        self.version, self.epoch, self.settings = old.version, old.epoch, old.settings
        self.distrust_ms, self.members, self.claims = old.distrust_ms, dict(old.members), list(old.claims)


@dataclass(slots=True, kw_only=True)
class LeasedRows:
    """A leased group's rows: shards' by id, consumers' by name, its sequence; and its settings."""

    id: int
    stream_id: int
    settings: GroupSettings
    starts: Mapping[ShardId, int]
    """Where it begins in the shards that were there when it was made."""
    sequence: SequenceRow
    unbound: frozenset[ShardId] = frozenset()
    """Shards that wait for no ancestor: the group was not in order when they were there."""
    leases: dict[ShardId, LeaseRow] = field(default_factory=dict)
    instances: dict[str, InstanceRow] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """What its rows are found by. Never reused."""
        return self.sequence.group

    @property
    def mark(self) -> int:
        return self.sequence.number

    @property
    def highest(self) -> int:
        return self.sequence.number

    def claim(self, shard: int) -> Claim | None:
        row = self.leases.get(ShardId(shard))
        return None if row is None else claim_of(row)

    def standing(self) -> Mapping[str, Member]:
        return {row.incarnation: member_of(row) for row in self.instances.values()}

    def is_remembered(self, gone: str) -> bool:
        """Nobody need know: a join is compared with what is there, and does not outlive a fail-over."""
        del gone
        return True

    def copied(self) -> LeasedRows:
        return LeasedRows(
            id=self.id,
            stream_id=self.stream_id,
            settings=self.settings,
            starts=self.starts,
            sequence=self.sequence,
            unbound=self.unbound,
            leases=dict(self.leases),
            instances=dict(self.instances),
        )

    def restore(self, old: Rows) -> None:
        assert isinstance(old, LeasedRows)
        self.settings, self.sequence, self.unbound = old.settings, old.sequence, old.unbound
        self.leases, self.instances = dict(old.leases), dict(old.instances)


def claim_of(row: LeaseRow) -> Claim:
    """A lease in the words of a claim."""
    is_moving = row.lease_owner != row.consumer_owner or row.owner_epoch != row.epoch
    state = ShardState.TRANSFER if is_moving else ShardState.ALREADY_ALLOC
    if row.consumer_owner is None:
        state = ShardState.NOT_ALLOC
    if row.is_over:
        state = ShardState.OVER
    return Claim(
        shard=row.shard,
        state=state,
        checkpoint=row.checkpoint,
        epoch=row.epoch,
        owner=row.consumer_owner,
        owner_epoch=row.owner_epoch,
        next=row.lease_owner if row.lease_owner != row.consumer_owner else None,
        is_bound=row.is_bound,
        lapse_ms=row.lapse_ms,
    )


def member_of(row: InstanceRow) -> Member:
    """A consumer's row in the words of a member."""
    return Member(
        incarnation=row.incarnation,
        name=row.name,
        beat=row.counter,
        timeout_ms=row.timeout_ms,
        interval_ms=row.interval_ms,
        stood_ms=row.stood_ms,
    )
