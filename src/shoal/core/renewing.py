"""The consumer's side of leased groups: what one incarnation holds, until when, and what it must let go of.

Times are the consumer's own, of a clock that goes on in suspend. A deadline counts from when the renewal was
*asked*, as in `holding`, whose leases these are. A renewal that was refused is looked up: the row may still be
ours (someone watched it, or asked it back, or our own write had landed and its answer was lost), and then the
renewal is tried again on what was found; otherwise the shard is lost.

Invariant: a lease acts only under the epoch it was given, before its deadline, and never after its release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from shoal.core.holding import Holding, Lease, asked, let_go
from shoal.core.lease import Change, ChangeKind, LeaseRow, fenced, released, renewed, saved, usable_ms
from shoal.core.model import Shard, ShardId


@dataclass(frozen=True, slots=True, kw_only=True)
class Letting:
    """A release that was sent: it is sent again as long as the row is there."""

    epoch: int
    checkpoint: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hand:
    """The leases of one incarnation, and their rows as it knows them."""

    holding: Holding
    rows: Mapping[ShardId, LeaseRow] = field(default_factory=dict)
    lettings: Mapping[ShardId, Letting] = field(default_factory=dict)

    @property
    def incarnation(self) -> str:
        return self.holding.incarnation


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the consumer learns."""

    hand: Hand
    opened: Sequence[Lease] = ()
    closing: Sequence[Lease] = ()
    """To be drained, saved and released. It may be told several times."""
    lost: Sequence[Lease] = ()
    """Not ours any more: nothing may be saved."""
    again: Change | None = None
    """To be tried at once: the row has changed since, and is still ours."""


def renewals(hand: Hand, now_ms: int) -> tuple[Hand, list[Change]]:
    """One round: every lease is renewed, those being drained too, so that nobody thinks us dead.

    A round that states a shorter timeout shortens what is held at once, and the answers to earlier rounds
    extend nothing any more.
    """
    holding, beat = asked(hand.holding, now_ms)
    changes = [
        Change(
            kind=ChangeKind.RENEW,
            old=hand.rows[shard],
            new=renewed(hand.rows[shard], beat.timeout_ms, beat.interval_ms),
            asked_ms=now_ms,
            number=beat.number,
        )
        for shard in holding.leases
    ]
    return replace(hand, holding=holding), changes


def adoption(hand: Hand, row: LeaseRow, now_ms: int) -> Change | None:
    """What to do about a row that says it is ours while we know nothing of it.

    A take whose answer was lost is simply renewed: from then on it has a deadline. What we have released, or
    what was reset under us meanwhile, is let go of.
    """
    if row.consumer_owner != hand.incarnation or row.shard in hand.rows:
        return None
    if row.owner_epoch > hand.holding.released.get(row.shard, 0) and not row.is_fenced and not row.lapse_ms:
        after = renewed(row, hand.holding.timeout_ms, hand.holding.interval_ms)
        return Change(kind=ChangeKind.RENEW, old=row, new=after, asked_ms=now_ms)
    return None


def learned(hand: Hand, shard: ShardId, row: LeaseRow | None) -> Told:
    """A row as it was read."""
    lease, known = hand.holding.leases.get(shard), hand.rows.get(shard)
    if lease is None or known is None:
        return Told(hand=hand)
    if row is not None and (row.born, row.revision) < (known.born, known.revision):
        return Told(hand=hand)  # It was read before our own last write.
    if row is None or row.consumer_owner != hand.incarnation or row.owner_epoch != lease.epoch:
        return Told(hand=_without(hand, shard), lost=(lease,))
    lease = replace(
        lease,
        is_wanted=row.lease_owner == hand.incarnation and not row.is_fenced,
        is_extended=row.is_extended,
    )
    return Told(hand=_with(hand, row, lease), closing=() if lease.is_wanted else (lease,))


def landed(hand: Hand, change: Change) -> Told:
    """A take, a renewal or a save of ours is in."""
    row = change.new
    assert isinstance(row, LeaseRow)
    deadline_ms = change.asked_ms + usable_ms(row.timeout_ms)
    lease = hand.holding.leases.get(row.shard)
    if lease is None or lease.epoch != row.owner_epoch:
        if change.kind is ChangeKind.SAVE or row.owner_epoch <= hand.holding.released.get(row.shard, 0):
            return Told(hand=hand)
        opened = Lease(
            shard=row.shard, epoch=row.owner_epoch, checkpoint=row.checkpoint, deadline_ms=deadline_ms
        )
        told = learned(_with(hand, row, opened), row.shard, row)
        return replace(told, opened=(told.hand.holding.leases[row.shard],))
    told = learned(hand, row.shard, row)
    lease = told.hand.holding.leases.get(row.shard)
    is_last = change.kind is ChangeKind.RENEW and change.number in {0, hand.holding.number}
    if lease is not None and lease.is_extended and is_last:
        told = replace(told, hand=_with(told.hand, row, replace(lease, deadline_ms=deadline_ms)))
    return told


def refused(hand: Hand, change: Change, shard: Shard, found: LeaseRow | None) -> Told:
    """A change of ours to a row did not go through, and this is the row now."""
    if found is not None and found == change.new:
        return landed(hand, change)  # It had: an earlier answer was lost, and the write was repeated.
    told = learned(hand, shard.id, found)
    hand = told.hand
    if change.kind is ChangeKind.RENEW and shard.id in hand.rows:
        row = hand.rows[shard.id]
        assert isinstance(change.new, LeaseRow)
        after = renewed(row, change.new.timeout_ms, change.new.interval_ms)
        return replace(told, again=replace(change, old=row, new=after))
    if change.kind is ChangeKind.RELEASE:
        return replace(told, again=_release(hand, shard, found))
    if change.kind is ChangeKind.SAVE:
        wanted = change.new
        assert isinstance(wanted, LeaseRow)
        mine = fenced(found, shard.id, hand.incarnation, wanted.owner_epoch)
        if mine.checkpoint != wanted.checkpoint:
            return replace(told, again=_save(hand, shard, mine, wanted.owner_epoch, wanted.checkpoint))
    return told


def save(hand: Hand, shard: Shard, epoch: int, offset: int) -> Change:
    """The owner's checkpoint. It renews nothing."""
    return _save(hand, shard, hand.rows.get(shard.id), epoch, offset)


def _save(hand: Hand, shard: Shard, row: LeaseRow | None, epoch: int, offset: int) -> Change:
    return Change(kind=ChangeKind.SAVE, old=row, new=saved(row, shard, hand.incarnation, epoch, offset))


def release(hand: Hand, shard: Shard, epoch: int, offset: int | None) -> tuple[Hand, Change | None]:
    """Let go, with the last checkpoint: whatever the answer, nothing is done under this epoch any more."""
    row = hand.rows.get(shard.id)
    after = released(row, shard, hand.incarnation, epoch, offset)
    if row is None or after is None:
        return hand, None
    rows = {key: known for key, known in hand.rows.items() if key != shard.id}
    lettings = {**hand.lettings, shard.id: Letting(epoch=epoch, checkpoint=offset)}
    hand = Hand(holding=let_go(hand.holding, shard.id, epoch), rows=rows, lettings=lettings)
    return hand, Change(kind=ChangeKind.RELEASE, old=row, new=after)


def release_again(hand: Hand, shard: Shard, row: LeaseRow) -> Change | None:
    """A row that still says it is ours, though we have let go of it, or were fenced before we heard of it."""
    if row.consumer_owner != hand.incarnation or row.shard in hand.rows:
        return None
    return _release(hand, shard, row)


def _release(hand: Hand, shard: Shard, row: LeaseRow | None) -> Change | None:
    if row is None or row.consumer_owner != hand.incarnation:
        return None
    letting = hand.lettings.get(shard.id)
    is_same = letting is not None and letting.epoch == row.owner_epoch
    offset = letting.checkpoint if letting is not None and is_same else None
    after = released(row, shard, hand.incarnation, row.owner_epoch, offset)
    return None if after is None else Change(kind=ChangeKind.RELEASE, old=row, new=after)


def _with(hand: Hand, row: LeaseRow, lease: Lease) -> Hand:
    leases = {**hand.holding.leases, row.shard: lease}
    return replace(hand, holding=replace(hand.holding, leases=leases), rows={**hand.rows, row.shard: row})


def _without(hand: Hand, shard: ShardId) -> Hand:
    leases = {key: lease for key, lease in hand.holding.leases.items() if key != shard}
    rows = {key: row for key, row in hand.rows.items() if key != shard}
    return replace(hand, holding=replace(hand.holding, leases=leases), rows=rows)
