"""Consumers that know no epochs and no leave: what their reports and checkpoints mean to a group.

Aliyun's clients say with every heartbeat which shards they still hold, and are told which they should hold.
A shard that was asked back and is no longer reported is let go. A checkpoint comes with a name, not an epoch:
it is the holder's if the holder is such a client and has that name. A native member may have it, too.

Not here: how members join, beat and expire. They are members like any other; but they know no deadline, and
are watched for as long as they keep what they hold (`watched_for_ms`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import ceil

from shoal.core.checkpoint import Save
from shoal.core.errors import InvalidInput, NotOwner, UnknownConsumer
from shoal.core.events import Join, Letting, Rewind, Sync
from shoal.core.group import (
    Claim,
    Coordination,
    Delivery,
    Group,
    Member,
    MemberStatus,
    ShardState,
    check_delivery,
)
from shoal.core.limits import CLOCK_MARGIN, REPORTED_TRIES_MS
from shoal.core.model import Shard, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Passed:
    """A checkpoint that changes nothing. The client is told that all is well: it would end its thread, and
    keep its shards for ever."""

    is_stale: bool = False
    """It came from one who does not hold the shard, while another does, or leads back."""


def beats_every_ms(timeout_ms: int) -> int:
    """How often such a client beats: it makes its group's timeout twice that, or more."""
    return max(1, timeout_ms // 2)


def watched_for_ms(timeout_ms: int) -> int:
    """How long such a client is silent before it is dead. It goes on with its shards until it was last
    answered longer ago than the timeout and one interval, by its own clock; ours may run faster. And it looks
    at its clock only at the end of a heartbeat, which may have begun just before."""
    return ceil((timeout_ms + beats_every_ms(timeout_ms) + REPORTED_TRIES_MS) * (1 + CLOCK_MARGIN))


def member_named(group: Group, name: str, prefix: str) -> Member | None:
    """The living member of this name whose incarnation was made for such a client."""
    for key, member in group.members.items():
        if member.name == name and member.status is MemberStatus.ACTIVE and key.startswith(prefix):
            return member
    return None


def check_reported(group: Group, stream: str) -> None:
    """Refuse a group that these clients can be no members of: its shards have no owners, or its consumers
    decide among themselves. Its checkpoints are not where such a client's would go."""
    check_delivery(group, stream, Delivery.EXCLUSIVE)
    if group.settings.coordination is not Coordination.COORDINATED:
        raise InvalidInput(
            "group",
            group.name,
            f"it is {group.settings.coordination.value}: its consumers decide among themselves, and its "
            "checkpoints are in their table; look at it and reset it by 'shoal group', or use another group",
        )


def joining(group: Group, join: Join, prefix: str) -> Join | Sync:
    """What becomes of such a client's first heartbeat in the group as it is by then.

    Several may come at once, through several servers: one of them joins. A second newcomer would bar the
    first, whose shards nobody would let go of.
    """
    return join if member_named(group, join.name, prefix) is None else Sync()


def let_go_by(group: Group, incarnation: str, reported: Collection[int]) -> list[Letting]:
    """What a report shows to be let go: asked back, and not held any more.

    What was given and is not reported yet is not let go: its client has not heard of it, and counts as its
    holder until its timeout.
    """
    return [
        Letting(shard=claim.shard, epoch=claim.owner_epoch)
        for claim in group.claims
        if claim.owner == incarnation and claim.state is ShardState.TRANSFER and claim.shard not in reported
    ]


def still_held(group: Group, incarnation: str, reported: Collection[int]) -> dict[ShardId, int]:
    """The report as other members make theirs: shards that are the member's, and the epochs they have."""
    return {
        claim.shard: claim.owner_epoch
        for claim in group.claims
        if claim.owner == incarnation and claim.shard in reported
    }


def run_dry(group: Group, incarnation: str, shards: Sequence[Shard]) -> list[Save]:
    """Closed shards of which retention has taken all that was left: such a client would read nothing there,
    never save, and keep the shards that come after waiting for ever."""
    return [
        Save(shard=claim.shard, epoch=claim.epoch, offset=shards[claim.shard].next_offset)
        for claim in group.claims
        if claim.owner == incarnation
        and not claim.is_fenced
        and not shards[claim.shard].is_open
        and claim.checkpoint < shards[claim.shard].next_offset <= shards[claim.shard].first_offset
    ]


def told_start(claim: Claim, shard: Shard) -> int | None:
    """Where such a client is told to begin; None: where its own settings say.

    Those are about shards that were there when the group was made. One that was born later begins where it
    does, or its first records would be skipped; and what someone has named stands, wherever it is.
    """
    return claim.start if claim.is_told or claim.start > shard.first_offset else None


def begun_at_end(group: Group, shard: Shard, consumer: str, prefix: str) -> Save | None:
    """The holder of a closed shard, which was to begin where its own settings say, begins at its end: that
    ends it."""
    claim = group.claims[shard.id]
    if claim.is_told or shard.is_open or claim.is_fenced or not _is_holder(group, claim, consumer, prefix):
        return None
    return Save(shard=shard.id, epoch=claim.epoch, offset=shard.next_offset)


def checkpointed(
    group: Group, shard: Shard, offset: int, *, consumer: str, is_forced: bool, prefix: str
) -> Save | Rewind | Passed:
    """What a checkpoint does.

    The holder's goes forward as any owner's; back, it is a forced one, and the shard begins anew from there.
    Without a name and forced, it is a person's, and always done. Of others, a forced one is done if nobody
    holds the shard and it does not lead back; one that is not forced is refused. Where a shard stands already
    is news to a group that was not told where to begin: its clients would go by their own settings.
    """
    claim = group.claims[shard.id]
    offset = max(offset, shard.first_offset)  # What retention took is nobody's to consume.
    if _is_holder(group, claim, consumer, prefix):
        return _of_holder(claim, offset)
    if not is_forced:
        holder = group.members.get(claim.owner or "")
        if not any(m.name == consumer and m.is_watched for m in group.members.values()):
            raise UnknownConsumer(consumer)
        raise NotOwner(shard=shard.id, consumer=consumer, owner=None if holder is None else holder.name)
    if offset == claim.start and (claim.is_told or claim.state is ShardState.OVER):
        return Passed()
    if not consumer or (claim.owner is None and offset >= claim.start):
        return Rewind(positions={shard.id: offset}, why=f"a forced checkpoint of {consumer or 'a person'}")
    return Passed(is_stale=True)


def _is_holder(group: Group, claim: Claim, consumer: str, prefix: str) -> bool:
    """Whether such a client of this name holds the shard. A native member of that name is another consumer,
    which has records of its own under way."""
    holder = group.members.get(claim.owner or "")
    return holder is not None and holder.name == consumer and holder.incarnation.startswith(prefix)


def _of_holder(claim: Claim, offset: int) -> Save | Rewind | Passed:
    if claim.is_fenced:
        return Passed(is_stale=True)  # It was taken from under its holder, who has not heard yet.
    if offset >= claim.checkpoint:
        return Save(shard=claim.shard, epoch=claim.epoch, offset=offset)
    return Rewind(positions={claim.shard: offset}, why="its holder has gone back")
