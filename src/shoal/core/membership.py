"""Members of a group: joining, beating, being watched. Rules about one member's row; shards are elsewhere.

No clock is compared with another. A member is dead when its counter has stood still for the timeout it
stated itself. The row keeps how long that is; whoever looks adds its own elapsed time, so that observers that
come and go watch together, and a time in which nobody could look counts for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import xxhash

from shoal.core.errors import (
    GroupInUse,
    HeartbeatOutdated,
    InvalidInput,
    NameTaken,
    NotOwner,
    UnknownConsumer,
    UnknownGroup,
)
from shoal.core.group import Claim, Coordination, Group, GroupSettings, Member, MemberStatus
from shoal.core.limits import GONE_MEMBERS_KEPT, GROUP_TIMEOUT_S_MAX
from shoal.core.model import ShardId

Held = Mapping[ShardId, int]
"""Shard to epoch: what a consumer says it holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beat:
    """A heartbeat. `number` rises with every one that is sent, answered or not."""

    incarnation: str
    number: int
    timeout_ms: int
    interval_ms: int
    held: Held
    seen: int
    """The version of the assignment that the consumer acts by."""


def digest(held: Held) -> int:
    """A number that stands for a report; signed, since databases know no other."""
    text = ",".join(f"{shard}:{epoch}" for shard, epoch in sorted(held.items()))
    return xxhash.xxh3_64_intdigest(text.encode()) - 2**63


def remembered(held: Held, claims: Iterable[Claim]) -> int:
    """What is kept of a report that was looked at: its digest, if the group knows the same to be with it.

    Otherwise nothing is, and the next report is answered in full as well. A release that was heard of, and
    that a store forgot before its sender saw anything newer, is sent again only if the sender is told.
    """
    known = {claim.shard: claim.owner_epoch for claim in claims}
    return digest(held) if dict(held) == known else 0


def beaten(settings: GroupSettings, member: Member | None, beat: Beat) -> Member:
    """The member's row after a heartbeat, or why it does not count."""
    if member is None or member.status is MemberStatus.GONE:
        raise UnknownConsumer(beat.incarnation)
    if member.status is MemberStatus.BARRED:
        raise NameTaken(member.name)
    if beat.number <= member.beat:
        raise HeartbeatOutdated(number=beat.number, last=member.beat)
    # Who has not heard of the newest settings yet may count by older ones: the answer tells.
    longest_ms = member.timeout_ms if beat.seen == member.assigned else COUNTED_MS_MAX
    check_timing(settings, beat.timeout_ms, beat.interval_ms, longest_ms=longest_ms)
    return replace(
        member, beat=beat.number, timeout_ms=beat.timeout_ms, interval_ms=beat.interval_ms, stood_ms=0
    )


def check_held(member: Member, held: Held, claims: Mapping[ShardId, Claim]) -> None:
    """Refuse a report of shards that are not there, or of an epoch that was given to another or to nobody.

    An epoch that lies behind is no fault: that shard was taken away, and the answer says so.
    """
    for shard, epoch in held.items():
        claim = claims.get(shard)
        if claim is None or epoch > claim.epoch:
            raise NotOwner(shard=shard, consumer=member.name, owner=None)
        if epoch == claim.epoch and claim.owner not in {None, member.incarnation}:
            raise NotOwner(shard=shard, consumer=member.name, owner=claim.owner)


def check_timing(settings: GroupSettings, timeout_ms: int, interval_ms: int, *, longest_ms: int = 0) -> None:
    """A consumer may count by a shorter timeout than the group's, or still by an older one, never by more."""
    if not 0 < timeout_ms <= max(settings.timeout_ms, longest_ms):
        raise InvalidInput(
            "timeout",
            timeout_ms / 1000,
            f"a consumer counts by at most the group's {settings.timeout_ms / 1000:g} s",
        )
    if not 0 < interval_ms < timeout_ms:
        raise InvalidInput(
            "heartbeat_interval",
            interval_ms / 1000,
            f"a heartbeat must come before the timeout of {timeout_ms / 1000:g} s",
        )


def watched(member: Member, elapsed_ms: int) -> Member:
    """The row after an observer saw the same counter at both ends of `elapsed_ms` of its own time.

    At most one heartbeat interval is added at a time: an observer that was away knows nothing of the rest.
    """
    return replace(member, stood_ms=member.stood_ms + max(0, min(elapsed_ms, member.interval_ms)))


def is_due(member: Member, elapsed_ms: int, pause_ms: int) -> bool:
    """Whether an observer notes what it saw now, or may look once more first, after a pause.

    Of one that is on time nothing is noted: its next heartbeat would undo it. One whose silence counts, or of
    which more would be seen than may be added at a time, is noted with every look.
    """
    return member.stood_ms > 0 or elapsed_ms + pause_ms > member.interval_ms


def is_dead(member: Member) -> bool:
    """Nobody has heard of it for as long as it said that it would act."""
    return member.is_watched and member.stood_ms >= member.timeout_ms


def may_judge(member: Member, observed_ms: int) -> bool:
    """Whether one through whom others speak may act on a member's silence, who has looked for so long itself.

    A server that was away was away for its consumers too. However much of a silence was noted before, they
    have a whole timeout to come back to it.
    """
    return observed_ms >= member.timeout_ms


def check_same(group: Group, was: int | None, stream: str) -> None:
    """Who was a member of a group that is gone is none of the one that was made anew under its name."""
    if was is not None and group.id != was:
        raise UnknownGroup(stream=stream, group=group.name)


def check_unused(group: str, members: Iterable[Member]) -> None:
    """Refuse to take a group from consumers that use it."""
    users = sorted({member.name for member in members if member.is_watched})
    if users:
        raise GroupInUse(group=group, consumers=users)


def check_coordinated(settings: GroupSettings) -> None:
    """The hub gives out nothing in a group whose consumers decide: there would be two who give."""
    if settings.coordination is not Coordination.COORDINATED:
        raise InvalidInput(
            "coordination",
            settings.coordination.value,
            "the hub makes nobody a member of such a group; its consumers join through its table",
        )


def joined(members: Mapping[str, Member], newcomer: Member, *, is_again: bool = False) -> dict[str, Member]:
    """The members with a new incarnation, which bars older ones of its name. A repeat changes nothing.

    One that comes back after it was expired (`is_again`) is not newer than who has its name by now.
    """
    name, incarnation = newcomer.name, newcomer.incarnation
    known = members.get(incarnation)
    if known is not None:
        if known.status is MemberStatus.GONE:
            raise UnknownConsumer(incarnation)
        if known.status is MemberStatus.BARRED or known.name != name:
            raise NameTaken(name)
        return dict(members)
    living = {MemberStatus.ACTIVE, MemberStatus.LEAVING}
    if is_again and any(member.name == name and member.status in living for member in members.values()):
        raise NameTaken(name)
    after = {
        key: replace(member, status=MemberStatus.BARRED)
        if member.name == name and member.status in living
        else member
        for key, member in members.items()
    }
    after[incarnation] = newcomer
    return after


def departed(members: Mapping[str, Member], owners: Iterable[str | None]) -> dict[str, Member]:
    """The members, of whom barred ones that hold nothing any more are gone."""
    holding = set(owners)
    return {
        key: replace(member, status=MemberStatus.GONE)
        if member.status is MemberStatus.BARRED and key not in holding
        else member
        for key, member in members.items()
    }


def pruned(members: Mapping[str, Member]) -> dict[str, Member]:
    """Without those who have been gone for longest: by the version at which they went, which is stamped."""
    gone = sorted(
        (member for member in members.values() if member.status is MemberStatus.GONE),
        key=lambda member: member.assigned,
    )
    forgotten = {member.incarnation for member in gone[: max(0, len(gone) - GONE_MEMBERS_KEPT)]}
    return {key: member for key, member in members.items() if key not in forgotten}


COUNTED_MS_MAX: Final = 2 * int(GROUP_TIMEOUT_S_MAX * 1000)
"""Longer than anyone counts by: those who know no deadline are watched for more than the group's timeout."""
