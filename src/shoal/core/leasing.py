"""One consumer of a leased group, without its threads: it is shown the table, and says what to try.

The shell reads the table, hands over what it found with the time, carries out the changes one by one, and
tells how each went: done, refused with the row that was found instead, or unknown. There are two kinds of
rounds, `look` (the taker) and `beat` (the renewer). They may run in different threads if each call is made
under one lock; the table is never touched in here, so that the lock is never held for long.

Invariants: a shard is acted on only between its `opened` and its `lost` or release, under one epoch and
before its deadline; who is barred takes nothing and renews nothing any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from shoal.core import renewing
from shoal.core.errors import NameTaken, NotOwner, ShoalError, UnknownConsumer
from shoal.core.group import RULES, GroupSettings, fitting_interval_ms
from shoal.core.holding import Lease
from shoal.core.lease import (
    Change,
    ChangeKind,
    InstanceRow,
    LeaseRow,
    Row,
    SequenceRow,
    check_last,
    usable_ms,
)
from shoal.core.limits import GONE_MEMBERS_KEPT
from shoal.core.membership import check_timing
from shoal.core.model import Shard, ShardId
from shoal.core.renewing import Held, Letting
from shoal.core.taking import Marks, Taker, View, kept_marks, look


class Outcome(StrEnum):
    """How a change went."""

    DONE = "done"
    REFUSED = "refused"
    """The row is another by now; nothing was changed."""
    UNKNOWN = "unknown"
    """No answer came: it may be in, or not, or may yet come in."""


@dataclass(slots=True, kw_only=True)
class Told:
    """What the consumer learns, and what is to be tried next."""

    opened: list[Lease] = field(default_factory=list)
    closing: list[Lease] = field(default_factory=list)
    """To be drained, saved and released. It may be told several times."""
    lost: list[Lease] = field(default_factory=list)
    """Not ours any more: nothing may be saved."""
    changes: list[Change] = field(default_factory=list)
    error: ShoalError | None = None
    """Why a save does not count: for whoever asked for it, after the rest was told."""


class LeasedConsumer:
    """One incarnation of one consumer. Writer: the shell, under its lock."""

    def __init__(
        self,
        *,
        group: str,
        name: str,
        incarnation: str,
        settings: GroupSettings,
        interval_ms: int,
        stream: str = "",
        is_again: bool = False,
    ) -> None:
        """`group` is its key in the table; `stream` is named in refusals."""
        timeout_ms = settings.timeout_ms
        # One that comes back said it when the timeout was another.
        stated_ms = fitting_interval_ms(interval_ms, timeout_ms) if is_again else interval_ms
        check_timing(settings, timeout_ms, stated_ms)
        self._stream = stream
        self.settings = settings
        self.error: NameTaken | UnknownConsumer | None = None
        """Why it is no member any more. It only lets go, and does not join again."""
        self.me = InstanceRow(
            group=group,
            name=name,
            incarnation=incarnation,
            timeout_ms=timeout_ms,
            interval_ms=stated_ms,
            is_taking=settings.rules == RULES,
        )
        self._interval_ms = interval_ms
        self._former: tuple[str, ...] = ()
        self._tried: Change | None = None
        self._lost_joins = 0
        """Tries to join of which no answer came."""
        self._is_back = False
        self._number = 0
        self._counted = 0
        """The highest counter that it ever stated, whether or not that came in: none is stated twice. If the
        table forgets one, and it came again, whoever had seen it before would take it for standing still."""
        self._held: dict[ShardId, Held] = {}
        self._lettings: dict[ShardId, Letting] = {}
        self._owing: set[ShardId] = set()
        self._marks: Marks = {}
        self._marked = 0
        """At which number the table had last been found to have forgotten, when the marks were made."""
        self._seen = 0
        self._distrusted = 0
        """Epochs up to this one may have been given twice, by a table that forgot: they are let go of."""

    @property
    def leases(self) -> dict[ShardId, Lease]:
        """What it holds, with deadlines that may have passed."""
        return {shard: held.lease for shard, held in self._held.items()}

    @property
    def ended(self) -> list[Lease]:
        """Held, and consumed to their end: there is nothing left to do but to let go."""
        return [held.lease for held in self._held.values() if held.row.is_over]

    @property
    def is_owing(self) -> bool:
        """Whether a release got no answer: it is said again by the next look, or by whoever leaves."""
        return bool(self._owing)

    def may_act(self, shard: ShardId, epoch: int, now_ms: int) -> bool:
        """Whether a batch of this shard may be handed to user code now."""
        return renewing.may_act(self._held.get(shard), epoch, now_ms)

    # --- Membership. --------------------------------------------------------------------------------

    def check_free(self, instances: Sequence[InstanceRow]) -> None:
        """One that comes back after it was expired is not newer than who has its name by now, or soon."""
        self._is_back = True
        if any(row.name == self.me.name for row in instances):
            raise NameTaken(self.me.name)

    def join(self, instances: Sequence[InstanceRow]) -> Change:
        """Put this incarnation in its name's place. Refused: read the instances and ask again."""
        there = next((row for row in instances if row.name == self.me.name), None)
        tried = self._tried
        # One whose answer was lost may have been in, and been expired since: its values do not come again.
        lost = self._lost_joins
        if there is None:
            new = replace(self.me, counter=lost, revision=lost * _WATCHES_MAX)
            return Change(kind=ChangeKind.JOIN, old=None, new=new)
        if there.incarnation == self.me.incarnation:
            return Change(kind=ChangeKind.JOIN, old=there, new=there)
        if self._is_back or (tried is not None and there != tried.old):
            # Our first try may have been in already, and then it was a newer process that came after us.
            self.error = NameTaken(self.me.name)
            raise self.error
        former = (*there.former, there.incarnation)[-GONE_MEMBERS_KEPT:]
        new = replace(self.me, counter=lost, revision=there.revision + 1, former=former)
        return Change(kind=ChangeKind.JOIN, old=there, new=new)

    def change_settings(self, settings: GroupSettings) -> None:
        """The group's settings as they are now; another timeout is stated with the next beat."""
        self.settings = settings

    def beat(self, now_ms: int, *, is_taking: bool = True) -> list[Change]:
        """A round of renewals. Stating a shorter timeout shortens what is held at once."""
        if self.error is not None:
            return []
        timeout_ms = self.settings.timeout_ms
        interval_ms = fitting_interval_ms(self._interval_ms, timeout_ms)
        self._number += 1
        if timeout_ms < self.me.timeout_ms or any(
            timeout_ms < held.row.timeout_ms for held in self._held.values()
        ):
            latest_ms = now_ms + usable_ms(timeout_ms)
            self._held = {key: renewing.shortened(held, latest_ms) for key, held in self._held.items()}
        beaten = self._beaten(
            self.me,
            timeout_ms=timeout_ms,
            interval_ms=interval_ms,
            is_taking=is_taking and self.settings.rules == RULES,
        )
        return [
            beaten,
            *(
                renewing.renewal(
                    held, timeout_ms=timeout_ms, interval_ms=interval_ms, now_ms=now_ms, number=self._number
                )
                for held in self._held.values()
            ),
        ]

    def _beaten(self, row: InstanceRow, *, timeout_ms: int, interval_ms: int, is_taking: bool) -> Change:
        self._counted = max(self._counted, row.counter) + 1
        new = replace(
            row,
            revision=row.revision + 1,
            counter=self._counted,
            timeout_ms=timeout_ms,
            interval_ms=interval_ms,
            stood_ms=0,
            is_taking=is_taking,
            former=self._former,
        )
        return Change(kind=ChangeKind.BEAT, old=row, new=new)

    def retire(self, now_ms: int) -> list[Change]:
        """Before leaving: beat on and drain, and take nothing more. Others stop counting on it."""
        return self.beat(now_ms, is_taking=False)

    def leave(self, view: View, *, now_ms: int, watch_ms: int) -> list[Change]:
        """Nothing is done any more under any epoch: what is still held is let go of as it was saved.

        So are rows that say they are ours while we hold nothing: a release, or a take, whose answer was lost.
        If this one's answer does not come, look, and leave again.
        """
        changes = list(self._look(view, now_ms=now_ms, watch_ms=watch_ms, is_parting=True))
        changes += self._owed(view)
        for shard, held in list(self._held.items()):
            if (change := self.release(view.shards[shard], held.lease.epoch, None)) is not None:
                changes.append(change)
        self.error = self.error or UnknownConsumer(self.me.incarnation)
        return [*changes, Change(kind=ChangeKind.LEAVE, old=self.me, new=None)]

    # --- The taker. ---------------------------------------------------------------------------------

    def look(self, view: View, *, now_ms: int, watch_ms: int) -> Told:
        """See `taking.look` for the two times."""
        told = Told()
        there = next((row for row in view.instances if row.name == self.me.name), None)
        if there is not None and there.incarnation != self.me.incarnation:
            self._bar(NameTaken(self.me.name), told)
        rows = {row.shard: row for row in view.rows}
        self._distrusted = max(self._distrusted, view.sequence.distrusted)
        for shard in list(self._held):
            self._learn(shard, rows.get(shard), told)
        told.changes = [
            *self._returning(view, now_ms),
            *self._look(view, now_ms=now_ms, watch_ms=watch_ms),
        ]
        return told

    def _look(self, view: View, *, now_ms: int, watch_ms: int, is_parting: bool = False) -> Sequence[Change]:
        if self.error is not None or not self._is_known(view):
            return ()
        self._forget_former(view)
        me = replace(self.me, former=self._former, is_taking=self.me.is_taking and not is_parting)
        is_whole = self._remembers_all(view.sequence)
        marks = self._marks if is_whole else {}
        taker = Taker(me=me, settings=self.settings, seen=self._seen, marks=marks, is_parting=is_parting)
        looked = look(taker, view, now_ms=now_ms, watch_ms=watch_ms)
        # Rows are read before the sequence: those of the look that finds it out may be from before it forgot.
        self._marks = looked.marks if is_whole else {}
        self._marked = view.sequence.distrusted
        self._see(view.sequence, *view.rows)
        return looked.changes

    def _remembers_all(self, sequence: SequenceRow) -> bool:
        """Whether the table has forgotten nothing since the marks were made. What it forgot may come again,
        the same in value, and would be taken for standing still since it was first seen."""
        return sequence.number >= self._seen and sequence.distrusted == self._marked

    def _is_known(self, view: View) -> bool:
        """Who has no row was expired, or its group was deleted: rows that are gone with it must not be made
        again. Its next beat says so."""
        return any(row.incarnation == self.me.incarnation for row in view.instances)

    def _returning(self, view: View, now_ms: int) -> Iterator[Change]:
        """Rows that say they are ours while we hold nothing: adopted, or let go of."""
        is_trusted = view.sequence.number >= self._seen and not view.sequence.distrust_ms
        for row in view.rows:
            is_mine = row.consumer_owner == self.me.incarnation
            if not is_mine or row.shard in self._held or row.shard >= len(view.shards):
                continue
            letting = self._lettings.get(row.shard)
            change = None
            if self.error is None and is_trusted:
                change = renewing.adoption(
                    row,
                    max(self._distrusted, letting.epoch if letting is not None else 0),
                    timeout_ms=self.me.timeout_ms,
                    interval_ms=self.me.interval_ms,
                    now_ms=now_ms,
                )
            if change is None:
                change = renewing.release(row, view.shards[row.shard], self.me.incarnation, letting)
            if change is not None:
                yield change

    def _owed(self, view: View) -> Iterator[Change]:
        """Releases of rows that say they are ours while we hold nothing."""
        for row in view.rows:
            if row.shard not in self._held and row.shard < len(view.shards):
                letting = self._lettings.get(row.shard)
                change = renewing.release(row, view.shards[row.shard], self.me.incarnation, letting)
                if change is not None:
                    yield change

    def _forget_former(self, view: View) -> None:
        """Barred incarnations that hold nothing any more need not be remembered."""
        owners = {row.consumer_owner for row in view.rows}
        self._former = tuple(incarnation for incarnation in self._former if incarnation in owners)

    # --- Checkpoints and releases. ------------------------------------------------------------------

    def checkpoint(self, shard: Shard, epoch: int, offset: int) -> Change:
        """Save the next offset wanted, or say why it does not count."""
        held = self._held.get(shard.id)
        if held is None or held.lease.epoch != epoch:
            raise NotOwner(shard=shard.id, consumer=self.me.name, owner=None)
        return renewing.save(held.row, shard, self.me.incarnation, epoch, offset, stream=self._stream)

    def release(self, shard: Shard, epoch: int, checkpoint: int | None) -> Change | None:
        """Let go, with the last checkpoint. From here on nothing is done under this epoch any more."""
        held = self._held.get(shard.id)
        if held is None or held.lease.epoch != epoch:
            return None
        if checkpoint is not None and not held.row.is_fenced:
            check_last(held.row, shard, checkpoint, stream=self._stream)
        letting = Letting(epoch=epoch, checkpoint=checkpoint)
        change = renewing.release(held.row, shard, self.me.incarnation, letting)
        self._lettings[shard.id] = letting
        del self._held[shard.id]
        return change

    # --- Answers. -----------------------------------------------------------------------------------

    def settle(
        self, change: Change, outcome: Outcome, found: Row | None = None, shard: Shard | None = None
    ) -> Told:
        """How a change went. Refused beats, renewals, saves and releases come with the row that was found."""
        told = Told()
        if change.kind in {ChangeKind.CREATE, ChangeKind.TAKE, ChangeKind.FORCE}:
            # Not what renewals find: that may be newer than a look which is under way.
            self._see(change.new)
        if change.kind is ChangeKind.RELEASE:
            assert isinstance(change.old, LeaseRow)
            (self._owing.add if outcome is Outcome.UNKNOWN else self._owing.discard)(change.old.shard)
        match outcome:
            case Outcome.UNKNOWN:
                if change.kind is ChangeKind.JOIN:
                    self._tried = change
                    self._lost_joins += 1
            case Outcome.DONE:
                self._done(change, told)
            case Outcome.REFUSED if found is not None and found == change.new and not _counts_time(change):
                self._done(change, told)  # It was in: an answer was lost, and the write repeated below us.
            case Outcome.REFUSED:
                self._refused(change, found, shard, told)
        return told

    def _done(self, change: Change, told: Told) -> None:
        row = change.new
        match change.kind:
            case ChangeKind.JOIN | ChangeKind.BEAT:
                assert isinstance(row, InstanceRow)
                self.me = row
                if change.kind is ChangeKind.JOIN:
                    self._former = row.former
            case ChangeKind.TAKE | ChangeKind.FORCE:
                self._open(change, told)
            case ChangeKind.RENEW | ChangeKind.SAVE:
                assert isinstance(row, LeaseRow)
                held = self._held.get(row.shard)
                if held is not None:
                    is_last = change.number == self._number
                    self._keep(renewing.landed(held, change, is_last=is_last), told)
                elif change.kind is ChangeKind.RENEW and not change.number:
                    self._open(change, told)
            case ChangeKind.WATCH:
                self._marks = kept_marks(self._marks, change)
            case _:
                pass

    def _open(self, change: Change, told: Told) -> None:
        held = renewing.opened(change)
        letting = self._lettings.get(held.lease.shard)
        if self.error is not None or (letting is not None and held.lease.epoch <= letting.epoch):
            return  # The next look finds a row that says it is ours, and lets go of it.
        if (before := self._held.get(held.lease.shard)) is not None:
            told.lost.append(before.lease)  # Its deadline had passed, and it came back to us anew.
        told.opened.append(held.lease)
        self._keep(held, told)

    def _refused(self, change: Change, found: Row | None, shard: Shard | None, told: Told) -> None:
        match change.kind:
            case ChangeKind.BEAT:
                assert found is None or isinstance(found, InstanceRow)
                self._refused_beat(change, found, told)
            case ChangeKind.LEAVE:
                if isinstance(found, InstanceRow) and found.incarnation == self.me.incarnation:
                    told.changes.append(replace(change, old=found))
            case ChangeKind.RENEW | ChangeKind.SAVE | ChangeKind.RELEASE:
                assert found is None or isinstance(found, LeaseRow)
                assert isinstance(change.old, LeaseRow)
                if renewing.is_forgotten(change.old, found):
                    self._give_up(change.old, told)
                    if change.kind is ChangeKind.SAVE:
                        told.error = NotOwner(shard=change.old.shard, consumer=self.me.name, owner=None)
                    return
                self._learn(change.old.shard, found, told)
                try:
                    told.changes.extend(self._again(change, found, shard))
                except ShoalError as error:
                    told.error = error
            case _:
                pass

    def _refused_beat(self, change: Change, found: InstanceRow | None, told: Told) -> None:
        if found is None:
            self._bar(UnknownConsumer(self.me.incarnation), told)
        elif found.incarnation != self.me.incarnation:
            self._bar(NameTaken(self.me.name), told)
        elif self.error is None:
            assert isinstance(change.new, InstanceRow)
            wanted = change.new
            told.changes.append(
                self._beaten(
                    found,
                    timeout_ms=wanted.timeout_ms,
                    interval_ms=wanted.interval_ms,
                    is_taking=wanted.is_taking,
                )
            )

    def _again(self, change: Change, found: LeaseRow | None, shard: Shard | None) -> Iterator[Change]:
        """The same on the row that was found, if that is still ours."""
        assert isinstance(change.old, LeaseRow)
        held = self._held.get(change.old.shard)
        if change.kind is ChangeKind.RENEW:
            is_last = change.number == self._number
            if held is not None and is_last and held.lease.epoch == change.old.owner_epoch:
                yield renewing.renewed_again(held, change)
            return
        assert shard is not None, "a save or a release is checked against its shard"
        again = None
        if change.kind is ChangeKind.SAVE:
            again = renewing.saved_again(found, shard, self.me.incarnation, change, stream=self._stream)
        elif found is not None and found.owner_epoch == change.old.owner_epoch:
            again = renewing.release(found, shard, self.me.incarnation, self._lettings.get(shard.id))
        if again is not None:
            yield again

    def _learn(self, shard: ShardId, row: LeaseRow | None, told: Told) -> None:
        held = self._held.get(shard)
        if held is None:
            return
        after = renewing.learned(held, row)
        if after is None:
            told.lost.append(held.lease)
            del self._held[shard]
        else:
            self._keep(after, told)

    def _give_up(self, row: LeaseRow, told: Told) -> None:
        """The table forgot what we had written: whatever it has left of this lease is let go of."""
        held = self._held.get(row.shard)
        if held is not None and held.lease.epoch == row.owner_epoch:
            del self._held[row.shard]
            told.lost.append(held.lease)
            self._lettings[row.shard] = Letting(epoch=held.lease.epoch, checkpoint=None)

    def _keep(self, held: Held, told: Told) -> None:
        if self.error is not None or held.lease.epoch <= self._distrusted:
            held = replace(held, lease=replace(held.lease, is_wanted=False))
        self._held[held.lease.shard] = held
        if not held.lease.is_wanted:
            told.closing.append(held.lease)

    def _bar(self, error: NameTaken | UnknownConsumer, told: Told) -> None:
        """It may let go of what it holds, until its deadlines pass; nothing is renewed any more."""
        self.error = self.error or error
        for held in list(self._held.values()):
            self._keep(held, told)

    def _see(self, *rows: Row | None) -> None:
        for row in rows:
            if isinstance(row, SequenceRow):
                self._seen = max(self._seen, row.number)
            elif isinstance(row, LeaseRow):
                self._seen = max(self._seen, row.born, row.epoch)


_WATCHES_MAX: Final = 2**32
"""How often others may have written to the row of one who did not know that it was in: each time they add a
millisecond or more, up to a timeout."""


def _counts_time(change: Change) -> bool:
    """A renewal that finds the row as it would have left it may be finding the one before it.

    That one's answer was lost; it was asked, and is watched, from earlier on, so that a deadline counted from
    this one would outlast the watch. It is renewed once more, on what was found.
    """
    return change.kind is ChangeKind.RENEW
