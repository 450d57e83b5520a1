"""The rows of a leased group, and what one change may make of one of them. Dry: no clock, no table.

There is nobody to decide: consumers share a table, and each changes a row only by compare-and-set against the
row it has read. A row's `revision` rises with every change, and `born` comes from a sequence that never
restarts, so that no two states of a shard's row are ever equal, not even after it was deleted and made again.
What is to be done, and when, is decided in `taking` and `renewing`; here is only what a change does to a row.

Invariants: `consumer_owner` alone consumes and saves; it changes only to nobody by a release, or under a new
epoch once the row is available; a steal leaves `lease_id` alone, so that the owner goes on renewing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from shoal.core.checkpoint import Save, check_forward, check_place, later
from shoal.core.claims import is_at_end
from shoal.core.errors import Fenced, NotOwner, StoreUnavailable
from shoal.core.limits import CLOCK_MARGIN, EPOCH_JUMP
from shoal.core.model import Shard, ShardId

PATIENCE: Final = 2
"""Timeouts after which a row that one consumer was to take, and did not, is anyone's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRow:
    """One shard of a group."""

    group: str
    """The group's key in the table; never reused."""
    shard: ShardId
    born: int
    """From the sequence, when the row was made. (born, revision) names one state of a row, for ever."""
    revision: int
    lease_id: int
    """The counter that is watched: rises with every renewal, take and release, and with nothing else."""
    lease_owner: str | None = None
    """The incarnation that is to have it. Not the one that has it: it was stolen, and is being drained."""
    consumer_owner: str | None = None
    """The incarnation that has it: consumes it, and may save."""
    checkpoint: int = 0
    """The next offset to consume."""
    epoch: int = 0
    """The one epoch that may read and save. 0: it was never given to anyone."""
    owner_epoch: int = 0
    """The epoch that the consumer_owner was given. Behind `epoch` after a reset under it."""
    parents: tuple[ShardId, ...] = ()
    parents_born: tuple[int, ...] = ()
    """`born` of the parents' rows when this one was made, 0 if they were gone: a parent's row with another
    is a mistake."""
    timeout_ms: int
    """What the consumer_owner counts its deadline by, as its last renewal stated."""
    interval_ms: int
    """How often it renews. A watch adds at most so much at a time."""
    stood_ms: int = 0
    """How long `lease_id` has stood still, as watched by everyone together."""
    waited_ms: int = 0
    """How long the thief has been waiting for the owner to let go, as watched by everyone together."""
    lapse_ms: int = 0
    """Above 0: the hand-over took too long, the owner's deadline is no longer extended, and once it has been
    watched for so long it has passed."""
    is_over: bool = False
    """Closed, and consumed to its end."""
    is_bound: bool = True
    """Waits for its ancestors. Not so for what was there when a group became in-order."""
    update_time_ms: int = field(default=0, compare=False)
    """A wall clock, stamped by the table for people to read; no rule looks at it."""

    @property
    def is_fenced(self) -> bool:
        """The owner can neither read nor save under the epoch it was given."""
        return self.consumer_owner is not None and self.owner_epoch != self.epoch

    @property
    def is_stolen(self) -> bool:
        """Someone consumes it, and another is to have it."""
        return self.consumer_owner is not None and self.lease_owner not in {None, self.consumer_owner}

    @property
    def is_extended(self) -> bool:
        """Whether a renewal moves the owner's deadline."""
        return not self.lapse_ms and not self.is_fenced

    @property
    def is_lapsed(self) -> bool:
        """The deadline that was no longer extended has passed, though the owner lives."""
        return self.lapse_ms > 0 and self.waited_ms >= self.lapse_ms

    @property
    def is_available(self) -> bool:
        """Nobody can hold a valid deadline on it: it may be taken under a new epoch."""
        return self.consumer_owner is None or self.stood_ms >= self.timeout_ms or self.is_lapsed

    @property
    def is_neglected(self) -> bool:
        """It could have been taken for a whole timeout, and whoever was to take it did not."""
        timeouts = 1 if self.consumer_owner is None else PATIENCE
        return self.is_available and self.stood_ms >= timeouts * self.timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRow:
    """One consumer of a group, by name: its newest incarnation. Joining anew puts another in its place."""

    group: str
    name: str
    incarnation: str
    revision: int = 0
    counter: int = 0
    """Rises with every beat: the counter that is watched."""
    timeout_ms: int
    interval_ms: int
    stood_ms: int = 0
    is_taking: bool = True
    """False: it beats and drains, and takes nothing. It is leaving, or does not know the group's rules."""
    former: tuple[str, ...] = ()
    """Incarnations that it bars and that may still hold shards, newest last."""
    create_time_ms: int = field(default=0, compare=False)

    @property
    def is_dead(self) -> bool:
        """Nobody has heard of it for as long as it said that it would act."""
        return self.stood_ms >= self.timeout_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRow:
    """Where a group's epochs and births come from. Never restarts."""

    group: str
    revision: int = 0
    number: int = 0
    """The last one that was given."""
    distrusted: int = 0
    """The number at which the table was last found to have forgotten commits."""
    distrust_ms: int = 0
    """Nothing is granted until so much time has been watched."""


Row = LeaseRow | InstanceRow | SequenceRow


class ChangeKind(StrEnum):
    """Why a row is changed: for the history, and for whoever must hear how it went."""

    JOIN = "joined"
    BEAT = "beat"
    LEAVE = "left"
    BURY = "expired"
    DISTRUST = "distrusted"
    CREATE = "born"
    WATCH = "watched"
    TAKE = "granted"
    FORCE = "forced"
    """A take from a living owner whose deadline passed after the hand-over timeout."""
    STEAL = "moving"
    RETURN = "kept"
    """A steal undone: the thief is gone, or the owner is to have it after all."""
    FREEZE = "frozen"
    END = "ended"
    CLEAN = "cleaned"
    RENEW = "renewed"
    SAVE = "saved"
    REWIND = "rewound"
    """A forced checkpoint, by whoever asks for it."""
    LINK = "linked"
    """Before a parent's row is made again."""
    RELEASE = "released"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One compare-and-set. No `old`: create if absent. No `new`: delete if it still is `old`."""

    kind: ChangeKind
    old: Row | None
    new: Row | None
    wants_number: bool = False
    """`new` is complete only with a number of the sequence, drawn after `old` was read: see `numbered`."""
    asked_ms: int = 0
    """The consumer's own time when it was asked: what a deadline counts from."""
    number: int = 0
    """Of the round of renewals that it belongs to."""
    watched_ms: int = 0
    """Up to when, in the observer's own time, a watch was counted."""

    @property
    def row(self) -> Row:
        """The row that it is about: as it will be, or as it was before it is deleted."""
        row = self.new or self.old
        assert row is not None
        return row

    @property
    def wants_found(self) -> bool:
        """If it is refused, what becomes of the consumer is judged by the row that was found."""
        return self.kind in _OWN

    @property
    def is_news(self) -> bool:
        """Others wait for it: who has a shard or is to have it, what has ended, who is there.

        Renewals, beats, checkpoints and watches are none, nor are numbers that were drawn.
        """
        match self.old, self.new:
            case (SequenceRow(), _) | (_, SequenceRow()):
                return False
            case (LeaseRow() as old, LeaseRow() as new):
                return _hands(old) != _hands(new)
            case (InstanceRow() as old, InstanceRow() as new):
                return (old.incarnation, old.is_taking) != (new.incarnation, new.is_taking)
            case _:
                return True


_OWN: Final = frozenset(
    {
        ChangeKind.JOIN,
        ChangeKind.BEAT,
        ChangeKind.LEAVE,
        ChangeKind.TAKE,
        ChangeKind.FORCE,
        ChangeKind.RENEW,
        ChangeKind.SAVE,
        ChangeKind.RELEASE,
    }
)
"""What a consumer does for itself, or with what it holds."""


def _hands(row: LeaseRow) -> tuple[str | None, str | None, int, bool]:
    return (row.lease_owner, row.consumer_owner, row.epoch, row.is_over)


def numbered(change: Change, number: int) -> Change:
    """The change with the number that it wants: a birth's, or a new epoch.

    A number is drawn after the row was read, so that it is above the row's epoch; unless the table went away
    in between and came back without its last commits. Then nothing is tried: the next look finds it out.
    """
    row = change.new
    assert change.wants_number
    assert isinstance(row, LeaseRow)
    if change.old is None:
        row = replace(row, born=number, revision=number, lease_id=number)
    else:
        _check_above(row, number)
        row = replace(row, epoch=number, owner_epoch=number)
    return replace(change, new=row, wants_number=False)


def _check_above(row: LeaseRow, number: int) -> None:
    """A number that is drawn after the row was read is above its epoch, unless the table forgot in between.

    Then nothing is to be done with it; the next look of a consumer finds that out, and deals with it.
    """
    if number <= row.epoch:
        raise StoreUnavailable(f"the lease table gave {number} for shard {row.shard}, after {row.epoch}")


def usable_ms(timeout_ms: int) -> int:
    """How long a consumer may act by a timeout: shorter, since its clock may run slow."""
    return int(timeout_ms * (1 - CLOCK_MARGIN))


# --- A shard's row. ---------------------------------------------------------------------------------


def created(
    group: str,
    shard: Shard,
    checkpoint: int,
    *,
    owner: InstanceRow,
    parents_born: tuple[int, ...],
    bound: bool,
) -> LeaseRow:
    """A row for a shard that has none; its number is still to be drawn. Closed with nothing in it: over."""
    return LeaseRow(
        group=group,
        shard=shard.id,
        born=0,
        revision=0,
        lease_id=0,
        checkpoint=checkpoint,
        parents=shard.parents,
        parents_born=parents_born,
        timeout_ms=owner.timeout_ms,
        interval_ms=owner.interval_ms,
        is_over=is_at_end(shard, checkpoint),
        is_bound=bound,
    )


def taken(row: LeaseRow, taker: InstanceRow) -> LeaseRow:
    """An available row with its new owner; the epoch is still to be drawn."""
    assert row.is_available
    return replace(
        row,
        revision=row.revision + 1,
        lease_id=row.lease_id + 1,
        lease_owner=taker.incarnation,
        consumer_owner=taker.incarnation,
        timeout_ms=taker.timeout_ms,
        interval_ms=taker.interval_ms,
        stood_ms=0,
        waited_ms=0,
        lapse_ms=0,
    )


def stolen(row: LeaseRow, thief: str) -> LeaseRow:
    """Asked back from its owner for another; or, if the thief is the owner, left with it after all.

    The wait of an earlier thief goes on: it is the owner's drain that is bounded, whoever it is for.
    """
    assert row.consumer_owner is not None
    is_kept = thief == row.consumer_owner
    assert not (is_kept and row.lapse_ms), "a deadline that is no longer extended cannot be given back"
    return replace(
        row,
        revision=row.revision + 1,
        lease_owner=thief,
        waited_ms=row.waited_ms if row.is_stolen and not is_kept else 0,
    )


def frozen(row: LeaseRow) -> LeaseRow:
    """The hand-over took too long: from here on the owner's deadline stays where it is."""
    assert row.is_stolen
    return replace(row, revision=row.revision + 1, waited_ms=0, lapse_ms=row.timeout_ms)


def watched(row: LeaseRow, stood_ms: int, waited_ms: int) -> LeaseRow:
    """After an observer saw the same values at both ends of so much of its own time."""
    return replace(
        row,
        revision=row.revision + 1,
        stood_ms=row.stood_ms + max(0, min(stood_ms, row.interval_ms)),
        waited_ms=row.waited_ms + max(0, min(waited_ms, row.interval_ms)),
    )


def renewed(row: LeaseRow, timeout_ms: int, interval_ms: int) -> LeaseRow:
    """The owner still lives, and counts by this timeout."""
    return replace(
        row,
        revision=row.revision + 1,
        lease_id=row.lease_id + 1,
        stood_ms=0,
        timeout_ms=timeout_ms,
        interval_ms=interval_ms,
    )


def ended(row: LeaseRow) -> LeaseRow:
    """Consumed to its end. Who consumed it has it until it lets go, for it may still be closing."""
    return replace(row, revision=row.revision + 1, is_over=True)


def vacated(row: LeaseRow) -> LeaseRow:
    """A row that is over, and whose owner can act no more: nobody is going to take it from there."""
    assert row.is_over
    assert row.is_available
    return without_owner(row, None)


def saved(
    row: LeaseRow | None, shard: Shard, holder: str, epoch: int, offset: int, *, stream: str = ""
) -> LeaseRow:
    """The row with its owner's checkpoint, or why it does not count. `stream` is named in refusals."""
    row = fenced(row, shard.id, holder, epoch)
    check_place(stream, shard, row.checkpoint, offset)
    return replace(
        row,
        revision=row.revision + 1,
        checkpoint=offset,
        is_over=row.is_over or is_at_end(shard, offset),
    )


def saved_under(
    row: LeaseRow | None, shard: Shard, save: Save, holder: str | None = None, *, stream: str = ""
) -> LeaseRow:
    """The same for one who shows the epoch alone, unless it says who it is: then it must be the owner."""
    owner = holder or check_epoch(row, shard.id, save.epoch).consumer_owner or ""
    return saved(row, shard, owner, save.epoch, save.offset, stream=stream)


def fenced(row: LeaseRow | None, shard: ShardId, holder: str, epoch: int) -> LeaseRow:
    """The row, if this holder may read and save under this epoch; otherwise why not."""
    if row is not None and row.epoch > epoch:
        raise Fenced(shard=shard, epoch=epoch, current=row.epoch)
    if row is None or row.consumer_owner != holder or row.owner_epoch != epoch:
        raise NotOwner(shard=shard, consumer=holder, owner=None if row is None else row.consumer_owner)
    return row


def check_epoch(row: LeaseRow | None, shard: ShardId, epoch: int) -> LeaseRow:
    """The row, if someone may read and save under this epoch; otherwise why not."""
    if row is None or row.epoch != epoch:
        raise Fenced(shard=shard, epoch=epoch, current=0 if row is None else row.epoch)
    if row.consumer_owner is None or row.owner_epoch != epoch:
        raise NotOwner(shard=shard, consumer=f"epoch {epoch}", owner=row.consumer_owner)
    return row


def released(
    row: LeaseRow | None, shard: Shard, holder: str, epoch: int, offset: int | None
) -> LeaseRow | None:
    """The row without its owner, with the last checkpoint; None if it is not theirs to let go of.

    Letting go is never refused: a repeat, and a row that was taken away, are what they wanted. After a reset
    the fenced owner still lets go, but its checkpoint does not count. A checkpoint was checked when it was
    sent first (`check_last`); a repeat may meet a later save, or come with an older look at the shard.
    """
    if row is None or row.consumer_owner != holder or row.owner_epoch != epoch:
        return None
    if offset is not None and not row.is_fenced:
        row = replace(row, checkpoint=later(row.checkpoint, offset))
    row = replace(row, is_over=row.is_over or is_at_end(shard, row.checkpoint))
    return without_owner(row, row.lease_owner if row.is_stolen else None)


def without_owner(row: LeaseRow, reserved_for: str | None) -> LeaseRow:
    return replace(
        row,
        revision=row.revision + 1,
        lease_id=row.lease_id + 1,
        lease_owner=reserved_for,
        consumer_owner=None,
        owner_epoch=0,
        stood_ms=0,
        waited_ms=0,
        lapse_ms=0,
    )


def check_last(row: LeaseRow, shard: Shard, offset: int, *, stream: str = "") -> None:
    """The last checkpoint of one who lets go: forward, and not past the end."""
    check_forward(stream, shard, row.checkpoint, offset)


def rewound(row: LeaseRow, shard: Shard, offset: int, number: int) -> LeaseRow:
    """A forced checkpoint. Who holds it is fenced at once, and nobody has it until that one has let go."""
    _check_above(row, number)
    return replace(
        row,
        revision=row.revision + 1,
        epoch=number,
        checkpoint=offset,
        is_over=is_at_end(shard, offset),
    )


# --- The sequence. ----------------------------------------------------------------------------------


def drawn(row: SequenceRow, count: int) -> SequenceRow:
    """With so many numbers given away: those up to `number`."""
    return replace(row, revision=row.revision + 1, number=row.number + count)


def distrusted(row: SequenceRow, seen: int, longest_ms: int) -> SequenceRow:
    """The table forgot commits: wait out every deadline it forgot, and jump over the numbers it gave."""
    number = max(row.number, seen) + EPOCH_JUMP
    return replace(
        row,
        revision=row.revision + 1,
        number=number,
        distrusted=number,
        distrust_ms=max(row.distrust_ms, longest_ms),
    )
