"""The plainest hand-over: an owner lets go of a shard that is already meant for a living consumer.

A rebalance is many of these at once, from as many processes. Each is decided on the rows that it touches,
without the rest of the group, and comes out as `ownership.step` would make it; what is not that plain is left
to the step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from shoal.core.claims import ALREADY_ALLOC, TRANSFER, By, is_at_end, moved, vacated
from shoal.core.events import Letting, Release
from shoal.core.group import RULES, Claim, Group, Member, MemberStatus, Note
from shoal.core.model import Shard, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class HandedOver:
    """What a plain release changed: the group's own row, claims, members, and what is to be noted."""

    group: Group
    """Without members and claims."""
    claims: Sequence[Claim]
    members: Sequence[Member]
    notes: Sequence[Note]


def handed_over(
    group: Group,
    release: Release,
    claims: Mapping[ShardId, Claim],
    shards: Mapping[ShardId, Shard],
    members: Mapping[str, Member],
) -> HandedOver | None:
    """The outcome of a release of which every shard goes to the consumer it is meant for; otherwise None."""
    giver = members.get(release.incarnation)
    if giver is None or giver.status is MemberStatus.GONE or not release.lettings:
        return None
    if group.distrust_ms or group.settings.rules != RULES:
        return None
    after = replace(group, version=group.version + 1)
    given, notes, told = [], [], {giver.incarnation: giver}
    for letting in release.lettings:
        claim, shard = claims.get(letting.shard), shards.get(letting.shard)
        receiver = None if claim is None else members.get(claim.next or "")
        if (
            claim is None
            or shard is None
            or receiver is None
            or not _is_plain(giver, claim, letting, receiver)
            or not _goes_forward(claim, shard, letting)
        ):
            return None
        if letting.checkpoint is not None:
            claim = replace(claim, checkpoint=letting.checkpoint, is_told=True)
        if is_at_end(shard, claim.checkpoint):
            return None
        after = replace(after, epoch=after.epoch + 1)
        notes.append(Note(kind="released", consumer=giver.name, shard=claim.shard, epoch=claim.epoch))
        claim = replace(
            vacated(moved(claim, By.HANDED_OVER, ALREADY_ALLOC)),
            owner=receiver.incarnation,
            owner_epoch=after.epoch,
            epoch=after.epoch,
        )
        notes.append(Note(kind="granted", consumer=receiver.name, shard=claim.shard, epoch=claim.epoch))
        given.append(claim)
        told[receiver.incarnation] = receiver
    return HandedOver(
        group=after,
        claims=given,
        members=[replace(member, assigned=after.version) for member in told.values()],
        notes=notes,
    )


def _is_plain(giver: Member, claim: Claim, letting: Letting, receiver: Member) -> bool:
    return (
        claim.state is TRANSFER
        and claim.owner == giver.incarnation
        and claim.owner_epoch == letting.epoch
        and not claim.is_fenced
        and claim.restart is None
        and receiver.status is MemberStatus.ACTIVE
        and giver.status is not MemberStatus.BARRED
    )


def _goes_forward(claim: Claim, shard: Shard, letting: Letting) -> bool:
    """One that does not, the step refuses."""
    return letting.checkpoint is None or claim.checkpoint <= letting.checkpoint <= shard.next_offset
