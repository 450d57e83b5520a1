"""The consumer's side of one lease of a leased group: its deadline, and what an answer makes of it.

Times are the consumer's own, of a clock that goes on in suspend. A deadline counts from when the renewal was
*asked*, and is shorter than the timeout stated with it, so that it has passed here before anyone can have
watched it pass there. A change that was refused is looked up: the row may still be ours (someone watched it,
or asked it back, or our own write had landed and its answer was lost), and then it is tried again on what was
found; otherwise the shard is lost.

Invariant: a lease acts only under the epoch it was given, and before its deadline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from shoal.core.checkpoint import is_same
from shoal.core.holding import Lease
from shoal.core.lease import Change, ChangeKind, LeaseRow, fenced, released, renewed, saved, usable_ms
from shoal.core.model import Shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """A lease, and its row as the holder knows it."""

    lease: Lease
    row: LeaseRow

    @property
    def holder(self) -> str:
        assert self.row.consumer_owner is not None
        return self.row.consumer_owner


@dataclass(frozen=True, slots=True, kw_only=True)
class Letting:
    """A release that was sent. It is sent again as long as the row says otherwise."""

    epoch: int
    checkpoint: int | None


def opened(change: Change) -> Held:
    """A take that is in, or the renewal of one whose answer was lost."""
    row = change.new
    assert isinstance(row, LeaseRow)
    lease = Lease(
        shard=row.shard,
        epoch=row.owner_epoch,
        checkpoint=row.checkpoint,
        deadline_ms=change.asked_ms + usable_ms(row.timeout_ms),
    )
    return _seen(Held(lease=lease, row=row), row)


def may_act(held: Held | None, epoch: int, now_ms: int) -> bool:
    """Whether a batch may be handed to user code now."""
    return held is not None and held.lease.epoch == epoch and now_ms < held.lease.deadline_ms


def shortened(held: Held, latest_ms: int) -> Held:
    """Before a shorter timeout is stated: nobody may be held to have the longer one any more."""
    lease = replace(held.lease, deadline_ms=min(held.lease.deadline_ms, latest_ms))
    return replace(held, lease=lease)


def renewal(held: Held, *, timeout_ms: int, interval_ms: int, now_ms: int, number: int) -> Change:
    """A lease that is being drained is renewed too, so that nobody thinks its holder dead."""
    after = renewed(held.row, timeout_ms, interval_ms)
    return Change(kind=ChangeKind.RENEW, old=held.row, new=after, asked_ms=now_ms, number=number)


def learned(held: Held, row: LeaseRow | None) -> Held | None:
    """After a look at the row. None: the shard is lost."""
    if row is not None and (row.born, row.revision) < (held.row.born, held.row.revision):
        return held  # It was read before our own last write.
    if row is None or row.consumer_owner != held.holder or row.owner_epoch != held.lease.epoch:
        return None
    return _seen(held, row)


def is_forgotten(known: LeaseRow, found: LeaseRow | None) -> bool:
    """Whether a row that was found after this state of it was known is an older one: the table forgot.

    There is no going on from there. A renewal of what is known would be refused for ever, and one of what was
    found would give a deadline to an epoch that the table may have given, and forgotten, once more.
    """
    return found is not None and (found.born, found.revision) < (known.born, known.revision)


def landed(held: Held, change: Change, *, is_last: bool) -> Held:
    """After a renewal or a save that is in. Only the last round that was asked extends the deadline."""
    row = change.new
    assert isinstance(row, LeaseRow)
    if row.owner_epoch != held.lease.epoch or row.revision < held.row.revision:
        return held
    after = _seen(held, row)
    if change.kind is not ChangeKind.RENEW or not is_last or not after.lease.is_extended:
        return after
    deadline_ms = change.asked_ms + usable_ms(row.timeout_ms)
    return replace(after, lease=replace(after.lease, deadline_ms=deadline_ms))


def _seen(held: Held, row: LeaseRow) -> Held:
    lease = replace(
        held.lease,
        is_wanted=row.lease_owner == row.consumer_owner and not row.is_fenced,
        is_extended=row.is_extended,
    )
    return Held(lease=lease, row=row)


def adoption(
    row: LeaseRow, released_epoch: int, *, timeout_ms: int, interval_ms: int, now_ms: int
) -> Change | None:
    """For a row that says it is ours, of which we know nothing: our take, whose answer was lost.

    It is simply renewed, and has a deadline from then on. Not so if we have let go of it since, or if it was
    reset or frozen before we heard of it: then there is nothing to go on with.
    """
    if row.owner_epoch <= released_epoch or not row.is_extended:
        return None
    after = renewed(row, timeout_ms, interval_ms)
    return Change(kind=ChangeKind.RENEW, old=row, new=after, asked_ms=now_ms)


def renewed_again(held: Held, change: Change) -> Change:
    """A renewal that was refused, on the row that was found: counted from when it was first asked."""
    assert isinstance(change.new, LeaseRow)
    after = renewed(held.row, change.new.timeout_ms, change.new.interval_ms)
    return replace(change, old=held.row, new=after)


def save(
    row: LeaseRow | None, shard: Shard, holder: str, epoch: int, offset: int, *, stream: str = ""
) -> Change:
    """The owner's checkpoint, or why it does not count. It renews nothing."""
    after = saved(row, shard, holder, epoch, offset, stream=stream)
    return Change(kind=ChangeKind.SAVE, old=row, new=after)


def saved_again(
    row: LeaseRow | None, shard: Shard, holder: str, change: Change, *, stream: str = ""
) -> Change | None:
    """A save that was refused, on the row that was found; None if it is in after all."""
    assert isinstance(change.new, LeaseRow)
    epoch, offset = change.new.owner_epoch, change.new.checkpoint
    mine = fenced(row, shard.id, holder, epoch)
    if is_same(mine.checkpoint, offset):
        return None
    return save(mine, shard, holder, epoch, offset, stream=stream)


def release(row: LeaseRow | None, shard: Shard, holder: str, letting: Letting | None) -> Change | None:
    """Let go of a row, with the last checkpoint if this is the epoch it belongs to. None: it is not ours."""
    if row is None or row.consumer_owner != holder:
        return None
    is_same = letting is not None and letting.epoch == row.owner_epoch
    offset = letting.checkpoint if letting is not None and is_same else None
    after = released(row, shard, holder, row.owner_epoch, offset)
    return None if after is None else Change(kind=ChangeKind.RELEASE, old=row, new=after)
