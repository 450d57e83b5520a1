"""A seat in a leased group: a taker and a renewer over the table, as `shoal.core.leasing` rules.

The two are rounds of one process, each with its own calls under way. What is to be tried is the rules' to
say; this reads the table, tries, and tells how it went, as the real shell does. One whose group is gone drops
everything and looks for the group of that name anew; one that is barred stays away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Final

from shoal.core.errors import NameTaken, NotOwner, ShoalError, StoreUnavailable, UnknownConsumer, UnknownGroup
from shoal.core.group import GroupSettings
from shoal.core.holding import Lease
from shoal.core.lease import Change, LeaseRow, check_epoch, numbered
from shoal.core.leasing import LeasedConsumer, Outcome, Told
from shoal.core.model import Shard, ShardId
from shoal.core.taking import View
from sim.lease_table import LeaseTable
from sim.loop import MS, Future, Process, Steps
from sim.rows import LeasedRows
from sim.seat import Fetched, Lessee, Seat, VoidSeat
from sim.small_leased import copied
from sim.stage import Stage
from sim.stream import NAME

REST: Final = 4
"""How much longer than it looks the taker rests; the same as in the real shell."""


class LeasedSeat:
    """See Seat."""

    def __init__(self, stage: Stage, process: Process, name: str) -> None:
        self._stage, self._store, self._process, self._name = stage, stage.store, process, name
        self._lessee: Lessee | None = None
        self._lives = 0
        self._life = 0
        """Which membership this is: rounds of an earlier one end."""
        self._table: LeaseTable | None = None
        self._member: LeasedConsumer | None = None
        self._wake = Future(stage.loop)
        self._highest = 0
        self._is_over = self._is_barred = self._is_retired = False

    @property
    def incarnation(self) -> str:
        return "" if self._member is None else self._member.me.incarnation

    @property
    def group(self) -> int:
        return 0 if self._table is None else self._table.rows.id

    @property
    def leases(self) -> Mapping[ShardId, Lease]:
        return {} if self._member is None else self._member.leases

    def start(self, lessee: Lessee) -> None:
        self._lessee = lessee
        self._process.spawn(self._live())

    def wake(self) -> None:
        self._wake.resolve()

    def may_act(self, shard: ShardId, epoch: int) -> bool:
        if self._member is None:
            return False
        if "deadline is not checked" in self._stage.switches:
            return shard in self._member.leases
        return self._member.may_act(shard, epoch, self._deadline_clock())

    def read(self, shard: ShardId, epoch: int, offset: int) -> Steps[Fetched]:
        """Records first, then the fence: what a fence lets through was read while it held."""
        table = self._reached()
        fetched = yield from table.read(lambda rows: self._fetched(rows, shard, offset))

        def check(rows: LeasedRows) -> None:
            if "reads are not fenced" not in self._stage.switches:
                check_epoch(rows.leases.get(shard), shard, epoch)
            if self._store.group is rows:
                self._stage.facts.holding.answered_read(shard, epoch)

        yield from table.read(check)
        return fetched

    def save(self, shard: ShardId, epoch: int, offset: int) -> Steps[None]:
        shards = yield from self._shards()
        member = self._member
        if member is None:
            raise NotOwner(shard=shard, consumer=self._name, owner=None)
        change = member.checkpoint(shards[shard], epoch, offset)
        yield from self._carry_out(member, [change], shards, must=True)

    def release(self, shard: ShardId, epoch: int, checkpoint: int | None) -> Steps[None]:
        mine, life = self.incarnation, self._life
        while (shards := (yield from self._looked_up(life))) is None:
            yield self._stage.rng.randrange(20, 80) * MS
        member = self._member
        if member is None or self._life != life or shard >= len(shards):
            return  # Lost meanwhile, with its group or with its stream.
        if "release before the checkpoint" in self._stage.switches:
            checkpoint = None
        try:
            change = member.release(shards[shard], epoch, checkpoint)
        except ShoalError:  # Its checkpoint does not count; to let go is never refused.
            change = member.release(shards[shard], epoch, None)
        if "a repeated release forgets what was sent" in self._stage.switches:
            member._lettings.clear()
        self._stage.facts.release_sent(mine, shard, epoch)
        if change is not None:
            yield from self._tried(self._carry_out(member, [change], shards))

    def retire(self) -> Steps[None]:
        self._is_retired = True
        if self._member is not None:
            yield from self._tried(self._announce(self._member))

    def _announce(self, member: LeasedConsumer) -> Steps[None]:
        changes = member.retire(self._asking())
        shards = yield from self._shards()
        yield from self._carry_out(member, changes, shards)

    def leave(self) -> Steps[None]:
        self._is_over = True
        if self._member is not None:
            yield from self._tried(self._part(self._member))

    def _part(self, member: LeasedConsumer) -> Steps[None]:
        view = yield from self._view()
        changes = member.leave(view, now_ms=self._asking(), watch_ms=self._watch_clock())
        yield from self._carry_out(member, changes, view.shards)

    def forked(self, process: Process) -> Seat:
        """Void: only a planted bug goes on as the parent did."""
        if "a forked child goes on" not in self._stage.switches or self._member is None:
            return VoidSeat()
        child = copy(self)
        child._process, child._member = process, copied(self._member)
        return child

    # --- Life. ---------------------------------------------------------------------------------------

    def _live(self) -> Steps[None]:
        while not self._is_over and not self._is_barred:
            try:
                yield from self._enter()
            except NameTaken:
                self._bar()
            except ShoalError:
                yield self._stage.rng.randrange(20, 120) * MS
            else:
                self._process.spawn(self._rounds(self._take, self._life))
                yield from self._rounds(self._renew, self._life)

    def _enter(self) -> Steps[None]:
        """Find the group of that name and join it."""
        rows = yield from self._store.read(self._process, self._found)
        table = LeaseTable(self._stage, self._process, rows)
        newborn = self._newborn(rows.key, rows.settings)
        yield from self._join(table, newborn)
        self._table, self._member = table, newborn
        self._life += 1

    def _newborn(self, key: str, settings: GroupSettings) -> LeasedConsumer:
        """A new incarnation, which nobody has had before."""
        self._lives += 1
        return LeasedConsumer(
            group=key,
            name=self._name,
            incarnation=f"{self._process.name}#{self._lives}",
            settings=settings,
            interval_ms=max(1, settings.timeout_ms // self._stage.swarm.intervals),
        )

    def _join(self, table: LeaseTable, newborn: LeasedConsumer) -> Steps[None]:
        """The same incarnation until it is known to be in: a first try may have been."""
        while True:
            try:
                instances = yield from table.read(lambda rows: list(rows.instances.values()))
            except StoreUnavailable:
                yield self._stage.rng.randrange(20, 120) * MS
                continue
            change = newborn.join(instances)
            (outcome,) = yield from table.attempt(newborn.me.incarnation, [change])
            newborn.settle(change, outcome)
            if outcome is Outcome.DONE:
                return
            yield self._stage.rng.randrange(20, 120) * MS

    def _come_back(self, member: LeasedConsumer) -> Steps[None]:
        """Expired while away: nothing is held any more. Join again, unless another has the name by now."""
        table = self._reached()
        newborn = self._newborn(table.rows.key, member.settings)
        instances = yield from table.read(lambda rows: list(rows.instances.values()))
        newborn.check_free(instances)
        yield from self._join(table, newborn)
        if member is self._member:  # Not dropped meanwhile, with its group.
            self._hear(Told(lost=list(member.leases.values())))
            self._member = newborn

    def _rounds(self, work: Callable[[LeasedConsumer], Steps[None]], life: int) -> Steps[None]:
        while self._life == life and not self._is_over and self._member is not None:
            try:
                yield from work(self._member)
            except UnknownGroup:
                self._drop(life)
            except NameTaken:
                self._bar()
            except ShoalError:
                yield self._stage.rng.randrange(20, 120) * MS
            if self._life != life:
                return
            if isinstance(self._member.error, NameTaken):
                self._bar()
            if self._is_barred and not self._member.leases:
                return

    def _renew(self, member: LeasedConsumer) -> Steps[None]:
        """One round of renewals, and the wait for the next."""
        began = self._stage.loop.now
        if isinstance(member.error, UnknownConsumer):
            yield from self._come_back(member)
            return
        found = yield from self._store.read(self._process, self._found)
        if found.id != self.group and "a group is known by its name" not in self._stage.switches:
            raise UnknownGroup(stream=str(NAME), group=str(self.group))
        member.change_settings(found.settings)
        changes = member.beat(self._asking(), is_taking=not self._is_retired)
        shards = yield from self._shards()
        yield from self._carry_out(member, changes, shards)
        rest = member.me.interval_ms * MS * self._stage.rng.randrange(90, 110) // 100
        if self._stage.is_so("deaf"):
            self._stage.history.fault("misses a beat", self._process.name)
            rest = self._stage.rng.randrange(rest, 4 * rest)
        yield max(1, rest - (self._stage.loop.now - began))

    def _take(self, member: LeasedConsumer) -> Steps[None]:
        """One look, and the wait for the next: until the table changes, or a part of an interval.

        Whatever is news since this look ends the wait, our own changes included: a lineage is followed by a
        generation with each look.
        """
        began = self._stage.loop.now
        self._wake = wake = Future(self._stage.loop)
        since = self._store.failovers
        view = yield from self._view()
        if "forgetting is ignored" in self._stage.switches:
            view = self._unforgotten(view)
        told = member.look(view, now_ms=self._asking(), watch_ms=self._watch_clock())
        self._stage.facts.decided(self.incarnation, told.changes, member.settings.rules)
        self._hear(told)
        yield from self._carry_out(member, told.changes, view.shards, since=since)
        yield min(1000 * MS, 1 + REST * (self._stage.loop.now - began))
        self._stage.loop.after(member.me.interval_ms * MS // 4, wake.resolve)
        yield wake

    def _unforgotten(self, view: View) -> View:
        """A planted bug: what the table no longer knows is taken for the latest."""
        if view.sequence.number < self._highest:
            self._stage.facts.holding.evident()
        self._highest = max(self._highest, view.sequence.number)
        return replace(view, sequence=replace(view.sequence, number=self._highest))

    def _drop(self, life: int) -> None:
        """The group is gone: whatever we hold is not ours."""
        if self._life == life and self._member is not None:
            self._life += 1
            self._hear(Told(lost=list(self._member.leases.values())))
            self._member = None

    def _bar(self) -> None:
        assert self._lessee is not None
        if "barred ones join again" in self._stage.switches:
            self._drop(self._life)
            return
        if not self._is_barred:
            self._is_barred = True
            self._stage.history.say(self.incarnation or self._process.name, "is barred")
            self._lessee.barred()

    # --- The table. ----------------------------------------------------------------------------------

    def _carry_out(
        self,
        member: LeasedConsumer,
        changes: Sequence[Change],
        shards: Sequence[Shard],
        *,
        must: bool = False,
        since: int | None = None,
    ) -> Steps[None]:
        """Try the changes, and what follows from them. `must`: an answer that does not come is an error.

        They are the member's that they were thought out for: one that was expired has none to make.
        """
        if member is not self._member:
            return
        table, waiting = self._reached(), list(changes)
        while waiting:
            wanting = sum(change.wants_number for change in waiting)
            numbers = iter((yield from table.draw(wanting)) if wanting else ())
            tried = [numbered(one, next(numbers)) if one.wants_number else one for one in waiting]
            outcomes = yield from table.attempt(member.me.incarnation, tried, since)
            pairs = zip(tried, outcomes, strict=True)
            if any(change.is_news and outcome is Outcome.DONE for change, outcome in pairs):
                self.wake()
            waiting, error = [], None
            for change, outcome in zip(tried, outcomes, strict=True):
                told = yield from self._settle(table, member, change, outcome, shards)
                waiting += told.changes
                error = error or told.error
            if error is not None:
                raise error
            if must and Outcome.UNKNOWN in outcomes:
                raise StoreUnavailable("no answer: it may or may not be stored")
        if member is self._member:
            yield from self._let_go_of_ended(member, shards)

    def _settle(
        self,
        table: LeaseTable,
        member: LeasedConsumer,
        change: Change,
        outcome: Outcome,
        shards: Sequence[Shard],
    ) -> Steps[Told]:
        found = None
        if outcome is Outcome.REFUSED:
            found = yield from table.found_instead(change)
        row = change.old or change.new
        about = shards[row.shard] if isinstance(row, LeaseRow) and row.shard < len(shards) else None
        if "deadline from the answer" in self._stage.switches:
            change = replace(change, asked_ms=self._deadline_clock())
        told = member.settle(change, outcome, found, about)
        if member is self._member:
            self._hear(told)
        return told

    def _let_go_of_ended(self, member: LeasedConsumer, shards: Sequence[Shard]) -> Steps[None]:
        """What was consumed to its end is nobody's any more."""
        ended = [lease for lease in member.ended if lease.shard < len(shards)]
        changes = [member.release(shards[one.shard], one.epoch, None) for one in ended]
        if ended:
            self._hear(Told(lost=ended))
            yield from self._carry_out(member, [change for change in changes if change is not None], shards)

    def _hear(self, told: Told) -> None:
        assert self._lessee is not None
        for lease in told.lost:
            self._lessee.lost(lease.shard, lease.epoch)
        for lease in told.opened:
            self._lessee.opened(lease)
        for lease in told.closing:
            self._lessee.closing(lease.shard, lease.epoch)

    def _view(self) -> Steps[View]:
        """One look: rows first, then the rest, so that every thief is known, and every row's shard."""
        table = self._reached()
        rows = yield from table.read(lambda rows: list(rows.leases.values()))
        instances, sequence, shards = yield from table.read(
            lambda rows: (list(rows.instances.values()), rows.sequence, self._stored_shards(rows))
        )
        return View(
            rows=rows,
            instances=instances,
            sequence=sequence,
            shards=shards,
            starts=table.rows.starts,
            unbound=table.rows.unbound,
            stream_id=table.rows.stream_id,
        )

    def _shards(self) -> Steps[Sequence[Shard]]:
        return (yield from self._reached().read(self._stored_shards))

    def _looked_up(self, life: int) -> Steps[Sequence[Shard] | None]:
        """The stream's shards, if the store answers. Nothing is left to let go of if it is gone: that ends
        the membership of which this is asked, and none that has begun since."""
        try:
            return (yield from self._shards())
        except StoreUnavailable:
            return None
        except UnknownGroup:
            self._drop(life)
            return ()

    def _stored_shards(self, rows: LeasedRows) -> Sequence[Shard]:
        """As of now, of the stream that the group was made for; it may be gone, and another have its name."""
        stream = self._store.stream
        if stream is None or stream.id != rows.stream_id:
            raise UnknownGroup(stream=str(NAME), group=str(rows.id))
        return stream.shards

    def _fetched(self, rows: LeasedRows, shard: ShardId, offset: int) -> Fetched:
        shards = self._stored_shards(rows)
        if shard >= len(shards):  # A stream that was made again, with fewer shards.
            raise NotOwner(shard=shard, consumer=self._name, owner=None)
        row = shards[shard]
        assert self._store.stream is not None
        batches = self._store.stream.read(shard, offset, self._stage.swarm.ahead)
        return Fetched(batches=batches, end=None if row.is_open else row.next_offset, tail=row.next_offset)

    def _found(self) -> LeasedRows:
        """The group that has the name now."""
        rows = self._store.group
        if not isinstance(rows, LeasedRows):
            raise UnknownGroup(stream=str(NAME), group="g")
        return rows

    def _reached(self) -> LeaseTable:
        assert self._table is not None, "it has joined"
        return self._table

    def _tried(self, call: Steps[None]) -> Steps[None]:
        """A call that may fail without harm: the next look finds what is left to do."""
        try:
            yield from call
        except ShoalError as error:
            self._stage.history.say(self.incarnation, f"gave up: {error}")

    def _asking(self) -> int:
        """The time from which a deadline counts that is asked for now."""
        now_ms = self._deadline_clock()
        self._reached().asked_at[now_ms] = self._stage.loop.now
        return now_ms

    def _deadline_clock(self) -> int:
        return self._stage.deadline_clock_ms(self._process)

    def _watch_clock(self) -> int:
        return self._process.watch_us() // MS
