"""The consumer's side of ownership: what one incarnation holds, until when, and what it must let go of.

Times are the consumer's own, of a clock that goes on in suspend. A deadline counts from when the heartbeat
was *asked*, and is shorter than the timeout by a margin for clocks that run at different rates, so that it
has passed here before anyone can have watched it pass there. Without a valid deadline nobody acts; a later
answer that still knows the lease makes it valid again.

Invariant: a lease acts only under the epoch it was given, before its deadline, and never after its release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.group import Claim, GroupSettings, Member, ShardState, fitting_interval_ms
from shoal.core.limits import CLOCK_MARGIN
from shoal.core.membership import Beat
from shoal.core.model import ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """A shard that the hub knows to be with this consumer."""

    shard: ShardId
    epoch: int
    checkpoint: int
    is_wanted: bool = True
    """False: drain it, and release it."""
    is_extended: bool = True
    """False: its deadline stays where it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The answer to a heartbeat: as of the transaction that raised the counter."""

    number: int
    """Of the heartbeat that it answers."""
    version: int
    timeout_ms: int
    """The group's, to count by from the next heartbeat on."""
    granted: Sequence[Granted] | None
    """None: as the consumer has seen it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What a member holds, as someone saw who only looked: it renews nothing."""

    version: int
    granted: Sequence[Granted]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A shard that this consumer holds."""

    shard: ShardId
    epoch: int
    checkpoint: int
    """Where to begin."""
    deadline_ms: int
    is_wanted: bool = True
    is_extended: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What one incarnation holds."""

    incarnation: str
    timeout_ms: int
    interval_ms: int
    wished_ms: int = 0
    """How often it beats where the timeout allows it; 0: as it does."""
    number: int = 0
    """Of the last heartbeat that was sent."""
    asked_ms: int = 0
    """When that was."""
    valid_ms: int = 0
    """Until when the last answer lets it act at all."""
    seen: int = 0
    group_timeout_ms: int | None = None
    """What the group asks to count by, if that is not what is counted by."""
    leases: Mapping[ShardId, Lease] = field(default_factory=dict)
    released: Mapping[ShardId, int] = field(default_factory=dict)
    """Shard to the highest epoch that was released, whether or not the hub has heard of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What an answer changed."""

    holding: Holding
    opened: Sequence[Lease] = ()
    closing: Sequence[Lease] = ()
    """To be drained, saved and released. It may be told several times."""
    lost: Sequence[Lease] = ()
    """Not ours any more: nothing may be saved."""
    release_again: Sequence[tuple[ShardId, int]] = ()
    """Released, and the hub does not know it."""


def assignment(
    settings: GroupSettings, member: Member, claims: Iterable[Claim] | None, beat: Beat
) -> Assignment:
    """The hub's answer: `claims` are those that the member holds, or None if its view is the newest."""
    return Assignment(
        number=beat.number,
        version=member.assigned,
        timeout_ms=settings.timeout_ms,
        granted=None if claims is None else granted(claims),
    )


def granted(claims: Iterable[Claim]) -> tuple[Granted, ...]:
    """The claims that a member holds, as it is told of them."""
    return tuple(
        Granted(
            shard=claim.shard,
            epoch=claim.owner_epoch,
            checkpoint=claim.checkpoint,
            is_wanted=claim.state is ShardState.ALREADY_ALLOC,
            is_extended=claim.is_extended,
        )
        for claim in claims
    )


def asked(holding: Holding, now_ms: int) -> tuple[Holding, Beat]:
    """The next heartbeat. One that states a shorter timeout shortens what is held at once."""
    timeout_ms = holding.group_timeout_ms or holding.timeout_ms
    interval_ms = fitting_interval_ms(holding.wished_ms or holding.interval_ms, timeout_ms)
    leases = holding.leases
    valid_ms = holding.valid_ms
    if timeout_ms < holding.timeout_ms:
        latest = now_ms + _usable(timeout_ms)
        valid_ms = min(valid_ms, latest)
        leases = {
            shard: replace(lease, deadline_ms=min(lease.deadline_ms, latest))
            for shard, lease in leases.items()
        }
    after = replace(
        holding,
        number=holding.number + 1,
        asked_ms=now_ms,
        timeout_ms=timeout_ms,
        interval_ms=interval_ms,
        group_timeout_ms=None,
        valid_ms=valid_ms,
        leases=leases,
    )
    beat = Beat(
        incarnation=holding.incarnation,
        number=after.number,
        timeout_ms=timeout_ms,
        interval_ms=interval_ms,
        held={shard: lease.epoch for shard, lease in leases.items()},
        seen=holding.seen,
    )
    return after, beat


def answered(holding: Holding, answer: Assignment) -> Answered:
    """Apply the answer to the last heartbeat; any other is dropped."""
    if answer.number != holding.number:
        return Answered(holding=holding)
    deadline_ms = holding.asked_ms + _usable(holding.timeout_ms)
    holding = replace(
        holding,
        valid_ms=deadline_ms,
        seen=answer.version,
        group_timeout_ms=answer.timeout_ms if answer.timeout_ms != holding.timeout_ms else None,
    )
    if answer.granted is None:
        leases = {
            shard: replace(lease, deadline_ms=deadline_ms) if lease.is_extended else lease
            for shard, lease in holding.leases.items()
        }
        return Answered(holding=replace(holding, leases=leases))
    return _regranted(holding, answer.granted, deadline_ms)


def viewed(holding: Holding, view: View) -> Answered:
    """Apply what was seen between two heartbeats, if it is newer than what is known.

    No deadline moves. A shard that is new may be acted on until the last answer's deadline: nobody can have
    declared this member dead before that.
    """
    if view.version <= holding.seen:
        return Answered(holding=holding)
    known = {shard: lease.deadline_ms for shard, lease in holding.leases.items()}
    outcome = _regranted(replace(holding, seen=view.version), view.granted, holding.valid_ms)
    leases = {
        shard: replace(lease, deadline_ms=known[shard])
        if shard in known and holding.leases[shard].epoch == lease.epoch
        else lease
        for shard, lease in outcome.holding.leases.items()
    }
    return replace(outcome, holding=replace(outcome.holding, leases=leases))


def _regranted(holding: Holding, granted: Sequence[Granted], deadline_ms: int) -> Answered:
    leases: dict[ShardId, Lease] = {}
    opened, closing, again = [], [], []
    for grant in granted:
        if grant.epoch <= holding.released.get(grant.shard, -1):
            again.append((grant.shard, grant.epoch))
            continue
        known = holding.leases.get(grant.shard)
        if known is None or known.epoch != grant.epoch:
            known = Lease(
                shard=grant.shard, epoch=grant.epoch, checkpoint=grant.checkpoint, deadline_ms=deadline_ms
            )
            # Taken back before we heard of it: there is nothing to drain.
            if not (grant.is_wanted and grant.is_extended):
                again.append((grant.shard, grant.epoch))
                continue
            opened.append(known)
        lease = replace(
            known,
            is_wanted=grant.is_wanted,
            is_extended=grant.is_extended,
            deadline_ms=deadline_ms if grant.is_extended else known.deadline_ms,
        )
        leases[grant.shard] = lease
        if not grant.is_wanted:
            closing.append(lease)
    lost = [
        lease
        for shard, lease in holding.leases.items()
        if shard not in leases or leases[shard].epoch != lease.epoch
    ]
    released = dict(holding.released)
    for shard, epoch in again:
        released[shard] = max(epoch, released.get(shard, epoch))
    after = replace(holding, leases=leases, released=released)
    return Answered(holding=after, opened=opened, closing=closing, lost=lost, release_again=again)


def let_go(holding: Holding, shard: ShardId, epoch: int) -> Holding:
    """A release is about to be sent: whatever its answer, nothing is done under this epoch any more."""
    leases = {key: lease for key, lease in holding.leases.items() if (key, lease.epoch) != (shard, epoch)}
    highest = max(epoch, holding.released.get(shard, epoch))
    return replace(holding, leases=leases, released={**holding.released, shard: highest})


def may_act(holding: Holding, shard: ShardId, epoch: int, now_ms: int) -> bool:
    """Whether a batch of this shard may be handed to user code now."""
    lease = holding.leases.get(shard)
    return lease is not None and lease.epoch == epoch and now_ms < lease.deadline_ms


def _usable(timeout_ms: int) -> int:
    return int(timeout_ms * (1 - CLOCK_MARGIN))
